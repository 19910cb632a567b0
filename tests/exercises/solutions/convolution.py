from math import prod


def conv2d(x, w, *, strides, padding, xp):
    n, _, _, c = x.shape
    kh, kw, _, f = w.shape
    for axis, (before, after) in zip((1, 2), padding, strict=True):
        frame = [list(x.shape), list(x.shape)]
        frame[0][axis], frame[1][axis] = before, after
        zeros = [xp.zeros(tuple(shape), dtype=x.dtype) for shape in frame]
        x = xp.concat([zeros[0], x, zeros[1]], axis=axis)
    oh, ow = ((x.shape[a] - k) // s + 1 for a, k, s in zip((1, 2), (kh, kw), strides, strict=True))
    sh, sw = strides
    taps = [
        x[:, i : i + (oh - 1) * sh + 1 : sh, j : j + (ow - 1) * sw + 1 : sw, :] for i in range(kh) for j in range(kw)
    ]
    columns = xp.reshape(xp.concat(taps, axis=3), (n * oh * ow, kh * kw * c))
    return xp.reshape(xp.matmul(columns, xp.reshape(w, (prod(w.shape[:3]), f))), (n, oh, ow, f))
