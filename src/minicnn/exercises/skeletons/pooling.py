"""Exercise: max-pooling and its gradient.

y[n, oh, ow, c] is the largest of x[n, oh * SH + i, ow * SW + j, c] over the window's i and j. Its gradient goes back
to that element alone; where several are equal, to the first of them, row by row. Windows may overlap: what an element
gets from each of them is added up.

It runs on the arrays of NumPy, PyTorch, JAX and others: take functions of `xp`
(https://data-apis.org/array-api/latest), and build results from parts, as JAX's arrays cannot be written to.

Grade this file by: minicnn grade pooling FILE
"""


def max_pool2d(x, *, kernel, strides, xp):
    """Largest element of each window.

    Args:
        x: Images (N, H, W, C).
        kernel: Window (KH, KW).
        strides: (SH, SW).
        xp: Namespace of the arrays.

    Returns:
        y (N, OH, OW, C), OH = (H - KH) // SH + 1 and OW likewise.

    Example:
        >>> max_pool2d(np.array([[[[1.0], [5.0], [2.0]]]]), kernel=(1, 2), strides=(1, 1), xp=np)
        array([[[[5.],
                 [5.]]]])
    """
    raise NotImplementedError  # the blank


def max_pool2d_gradient(dy, x, *, kernel, strides, xp):
    """Gradient of the loss with regard to the images.

    Args:
        dy: Gradient with regard to y (N, OH, OW, C).
        x: Images (N, H, W, C).
        kernel: Window (KH, KW).
        strides: (SH, SW).
        xp: Namespace of the arrays.

    Returns:
        dx (N, H, W, C).

    Example:
        >>> max_pool2d_gradient(np.array([[[[1.0], [10.0]]]]), np.array([[[[1.0], [5.0], [2.0]]]]), kernel=(1, 2),
        ...                     strides=(1, 1), xp=np)  # both windows find the 5
        array([[[[ 0.],
                 [11.],
                 [ 0.]]]])
    """
    raise NotImplementedError  # the blank
