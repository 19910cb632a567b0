import numpy as np


def contiguous_strides(shape, itemsize):
    strides = []
    for n in reversed(shape):
        strides.insert(0, itemsize)
        itemsize *= n
    return tuple(strides)


def window_view(shape, strides, kernel, step):
    oh, ow = ((shape[1 + a] - kernel[a]) // step[a] + 1 for a in (0, 1))
    n, h, w, c = strides
    return (shape[0], oh, ow, *kernel, shape[3]), (n, h * step[0], w * step[1], h, w, c)


def im2col(x, kernel, step):
    shape, strides = window_view(x.shape, x.strides, kernel, step)
    windows = np.lib.stride_tricks.as_strided(x, shape, strides)
    return windows.reshape(shape[0] * shape[1] * shape[2], -1).copy()
