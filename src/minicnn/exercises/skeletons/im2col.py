"""Exercise: strides, and im2col as a view.

An array in memory is a line of elements; strides say by how many bytes an index moves along it. So a view can be had
without a copy: all windows of an image are the same elements once more, with two axes more and the same strides. Laid
out as rows of a matrix (im2col) they turn a convolution into a matrix product.

Grade this file by: minicnn grade im2col FILE
"""


def contiguous_strides(shape, itemsize):
    """Strides in bytes of an array whose last axis lies closest (C order).

    Args:
        shape: A tuple.
        itemsize: Bytes of an element.

    Returns:
        A tuple of integers.

    Example:
        >>> contiguous_strides((2, 3, 4), 8)
        (96, 32, 8)
    """
    raise NotImplementedError  # the blank


def window_view(shape, strides, kernel, step):
    """Shape and strides of the view of all windows.

    Element [n, oh, ow, i, j, c] of the view is element [n, oh * step[0] + i, ow * step[1] + j, c] of the images.

    Args:
        shape: Shape of the images (N, H, W, C).
        strides: Their strides in bytes.
        kernel: Window (KH, KW).
        step: (SH, SW).

    Returns:
        The shape (N, OH, OW, KH, KW, C), and six strides.

    Example:
        >>> window_view((1, 4, 4, 1), (128, 32, 8, 8), (2, 2), (2, 1))
        ((1, 2, 3, 2, 2, 1), (128, 64, 8, 32, 8, 8))
    """
    raise NotImplementedError  # another blank


def im2col(x, kernel, step):
    """The windows of images as rows of a matrix.

    Args:
        x: Images (N, H, W, C).
        kernel: Window (KH, KW).
        step: (SH, SW).

    Returns:
        A new array (N * OH * OW, KH * KW * C).

    Example:
        >>> im2col(np.array([[[[1.0], [2.0], [3.0]], [[4.0], [5.0], [6.0]]]]), (2, 2), (1, 1))
        array([[1., 2., 4., 5.],
               [2., 3., 5., 6.]])
    """
    raise NotImplementedError  # another blank
