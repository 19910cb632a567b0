"""Exercise: the two gradients of a convolution.

    y[n, oh, ow, f] = sum over i, j, c of x[n, oh * SH + i - top, ow * SW + j - left, c] * w[i, j, c, f]

Given dy, the gradient of the loss with regard to y, find those with regard to w and to x. Each w[i, j, c, f] meets x at
all positions, and each element of x meets the taps that reach it: collect what it is multiplied by.

It runs on the arrays of NumPy, PyTorch, JAX and others: take functions of `xp`
(https://data-apis.org/array-api/latest).

Grade this file by: minicnn grade convolution_gradient FILE
"""


def conv2d_weight_gradient(dy, x, *, kernel, strides, padding, xp):
    """Gradient of the loss with regard to the filters.

    Args:
        dy: Gradient with regard to y (N, OH, OW, F).
        x: Images (N, H, W, C).
        kernel: (KH, KW).
        strides: (SH, SW).
        padding: ((top, bottom), (left, right)), zeros around the image.
        xp: Namespace of the arrays.

    Returns:
        dw (KH, KW, C, F), with the dtype of x.

    Example:
        >>> conv2d_weight_gradient(np.ones((1, 1, 2, 1)), np.array([[[[1.0], [2.0], [4.0]]]]), kernel=(1, 2),
        ...                        strides=(1, 1), padding=((0, 0), (0, 0)), xp=np)
        array([[[[3.]],
        <BLANKLINE>
                [[6.]]]])
    """
    raise NotImplementedError  # the blank


def conv2d_input_gradient(dy, w, *, image, strides, padding, xp):
    """Gradient of the loss with regard to the images.

    Args:
        dy: Gradient with regard to y (N, OH, OW, F).
        w: Filters (KH, KW, C, F).
        image: (H, W).
        strides: (SH, SW).
        padding: ((top, bottom), (left, right)), zeros around the image.
        xp: Namespace of the arrays.

    Returns:
        dx (N, H, W, C), with the dtype of dy.

    Example:
        >>> conv2d_input_gradient(np.ones((1, 1, 2, 1)), np.array([[[[1.0]], [[5.0]]]]), image=(1, 3), strides=(1, 1),
        ...                       padding=((0, 0), (0, 0)), xp=np)
        array([[[[1.],
                 [6.],
                 [5.]]]])
    """
    raise NotImplementedError  # another blank
