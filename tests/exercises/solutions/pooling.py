def taps(x, kernel, strides):
    sh, sw = strides
    oh, ow = (x.shape[1] - kernel[0]) // sh + 1, (x.shape[2] - kernel[1]) // sw + 1
    return [
        (i, j, x[:, i : i + (oh - 1) * sh + 1 : sh, j : j + (ow - 1) * sw + 1 : sw, :])
        for i in range(kernel[0])
        for j in range(kernel[1])
    ]


def max_pool2d(x, *, kernel, strides, xp):
    (_, _, best), *others = taps(x, kernel, strides)
    for _, _, tap in others:
        best = xp.maximum(best, tap)
    return best


def spread(part, first, step, length, axis, xp):
    """Part along an axis, with zeros between its elements, before and after them."""
    n = part.shape[axis]
    shape = list(part.shape)
    part = xp.expand_dims(part, axis=axis + 1)
    gap = xp.zeros((*shape[: axis + 1], step - 1, *shape[axis + 1 :]), dtype=part.dtype)
    part = xp.reshape(xp.concat([part, gap], axis=axis + 1), (*shape[:axis], n * step, *shape[axis + 1 :]))
    before = xp.zeros((*shape[:axis], first, *shape[axis + 1 :]), dtype=part.dtype)
    after = xp.zeros((*shape[:axis], max(0, length - first - n * step), *shape[axis + 1 :]), dtype=part.dtype)
    whole = xp.concat([before, part, after], axis=axis)
    return whole[(slice(None),) * axis + (slice(0, length), ...)]


def max_pool2d_gradient(dy, x, *, kernel, strides, xp):
    y = max_pool2d(x, kernel=kernel, strides=strides, xp=xp)
    free = xp.ones(y.shape, dtype=xp.bool)
    dx = xp.zeros(x.shape, dtype=x.dtype)
    for i, j, tap in taps(x, kernel, strides):
        hit = xp.logical_and(free, tap == y)
        free = xp.logical_and(free, xp.logical_not(hit))
        part = xp.where(hit, dy, xp.zeros_like(dy))
        part = spread(part, i, strides[0], x.shape[1], 1, xp)
        dx = dx + spread(part, j, strides[1], x.shape[2], 2, xp)
    return dx
