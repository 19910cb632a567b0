"""Exercise: a convolution, as the reference of a primitive.

    y[n, oh, ow, f] = sum over i, j, c of x[n, oh * SH + i - top, ow * SW + j - left, c] * w[i, j, c, f]

with zeros outside the image. It runs on the arrays of NumPy, PyTorch, JAX and others, so take functions of `xp`, the
namespace of the arrays, as the Python Array API has them (https://data-apis.org/array-api/latest): xp.zeros,
xp.concat, xp.reshape, xp.matmul ... JAX's arrays cannot be written to, so build results from parts. A loop over the
taps (i, j) of the kernel is fine, one over pixels is too slow.

Grade this file by: minicnn grade convolution FILE
"""


def conv2d(x, w, *, strides, padding, xp):
    """Convolve images with filters.

    Args:
        x: Images (N, H, W, C).
        w: Filters (KH, KW, C, F).
        strides: (SH, SW).
        padding: ((top, bottom), (left, right)), zeros around the image.
        xp: Namespace of the arrays.

    Returns:
        y (N, OH, OW, F), OH = (H + top + bottom - KH) // SH + 1 and OW likewise, with the dtype of x.

    Example:
        >>> conv2d(np.array([[[[1.0], [2.0], [4.0]]]]), np.array([[[[1.0]], [[10.0]]]]), strides=(1, 1),
        ...        padding=((0, 0), (0, 0)), xp=np)
        array([[[[21.],
                 [42.]]]])
    """
    raise NotImplementedError  # the blank
