def dense_cost(n, d, f):
    return 2 * n * d * f, 4 * (n * d + d * f + n * f)


def conv2d_cost(n, h, w, c, kh, kw, f, stride, padding):
    oh, ow = (h + 2 * padding - kh) // stride + 1, (w + 2 * padding - kw) // stride + 1
    return 2 * n * oh * ow * kh * kw * c * f, 4 * (n * h * w * c + kh * kw * c * f + n * oh * ow * f)


def training_flops(layers, n):
    return sum((3 if i else 2) * 2 * n * d * f for i, (d, f) in enumerate(layers))
