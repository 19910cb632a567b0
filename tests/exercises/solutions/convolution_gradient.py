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
