def conv2d_weight_gradient(dy, x, *, kernel, strides, padding, xp):
    n, oh, ow, f = dy.shape
    c = x.shape[3]
    for axis, (before, after) in zip((1, 2), padding, strict=True):
        frame = [list(x.shape), list(x.shape)]
        frame[0][axis], frame[1][axis] = before, after
        zeros = [xp.zeros(tuple(shape), dtype=x.dtype) for shape in frame]
        x = xp.concat([zeros[0], x, zeros[1]], axis=axis)
    sh, sw = strides
    positions = xp.reshape(dy, (n * oh * ow, f))
    rows = []
    for i in range(kernel[0]):
        for j in range(kernel[1]):
            tap = x[:, i : i + (oh - 1) * sh + 1 : sh, j : j + (ow - 1) * sw + 1 : sw, :]
            tap = xp.permute_dims(xp.reshape(tap, (n * oh * ow, c)), (1, 0))
            rows.append(xp.matmul(tap, positions))
    return xp.reshape(xp.stack(rows), (*kernel, c, f))


def spread(part, first, step, length, axis, xp):
    """Part along an axis, with zeros between its elements, before and after them."""
    n, shape = part.shape[axis], list(part.shape)

    def zeros(count, extra=()):
        return xp.zeros((*shape[:axis], *extra, count, *shape[axis + 1 :]), dtype=part.dtype)

    wide = xp.concat([xp.expand_dims(part, axis=axis + 1), zeros(step - 1, (n,))], axis=axis + 1)
    wide = xp.reshape(wide, (*shape[:axis], n * step, *shape[axis + 1 :]))
    whole = xp.concat([zeros(first), wide, zeros(max(0, length - first - n * step))], axis=axis)
    return whole[(slice(None),) * axis + (slice(0, length), ...)]


def conv2d_input_gradient(dy, w, *, image, strides, padding, xp):
    (top, bottom), (left, right) = padding
    h, width = image[0] + top + bottom, image[1] + left + right
    dx = xp.zeros((dy.shape[0], h, width, w.shape[2]), dtype=dy.dtype)
    for i in range(w.shape[0]):
        for j in range(w.shape[1]):
            part = xp.matmul(dy, xp.permute_dims(w[i, j, :, :], (1, 0)))
            dx = dx + spread(spread(part, i, strides[0], h, 1, xp), j, strides[1], width, 2, xp)
    return dx[:, top : top + image[0], left : left + image[1], :]
