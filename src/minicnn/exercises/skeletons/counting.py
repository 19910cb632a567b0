"""Exercise: FLOPs and bytes by hand.

How long an operation takes depends on two numbers that its shapes tell: how many operations it does, and how many bytes
it reads and writes at least. A product and an addition count as two operations (FLOPs); an element has 4 bytes
(float32); each input is read once and each result written once.

Grade this file by: minicnn grade counting FILE
"""


def dense_cost(n, d, f):
    """FLOPs and bytes of x @ w, with x (N, D) and w (D, F).

    Example:
        >>> dense_cost(2, 3, 5)
        (60, 124)
    """
    raise NotImplementedError  # the blank


def conv2d_cost(n, h, w, c, kh, kw, f, stride, padding):
    """FLOPs and bytes of a convolution without a bias.

    Args:
        n: Images,
        h: of a height,
        w: a width
        c: and channels.
        kh: Height,
        kw: width
        f: and number of the filters.
        stride: The same along both axes.
        padding: Zeros at each of the four edges; they are not read from memory, and their products count.

    Example:
        >>> conv2d_cost(1, 4, 4, 1, 3, 3, 2, 1, 0)
        (144, 168)
    """
    raise NotImplementedError  # another blank


def training_flops(layers, n):
    """FLOPs of a training step of dense layers, forward and backward.

    The gradient with regard to the weights and that with regard to the inputs are a product of the same size each; the
    first layer needs none with regard to its inputs.

    Args:
        layers: Pairs (D, F), from the first layer to the last.
        n: Samples of a batch.

    Example:
        >>> training_flops([(2, 3), (3, 1)], 1)
        42
    """
    raise NotImplementedError  # another blank
