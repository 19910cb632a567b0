"""Exercise: batch normalisation and its gradient.

    y = (x - mean) / sqrt(variance + epsilon) * scale + offset

with mean and variance of x over `axes`, all axes but the channels. Given dy, find also the gradients with regard to x,
scale and offset. Mean and variance are functions of x, too: a change of one pixel moves all results of its channel.

It runs on the arrays of NumPy, PyTorch, JAX and others: take functions of `xp`
(https://data-apis.org/array-api/latest).

Grade this file by: minicnn grade normalization FILE
"""


def normalize(x, scale, offset, *, axes, epsilon, xp):
    """Normalise each channel over a batch.

    Args:
        x: Shape (N, ..., C).
        scale: Shape (C,).
        offset: Shape (C,).
        axes: All axes of x but the last.
        epsilon: Added to the variance.
        xp: Namespace of the arrays.

    Returns:
        y of the shape of x, and mean and variance (the mean of squares), of length 1 along `axes`.

    Example:
        >>> normalize(np.array([[1.0], [3.0]]), np.array([2.0]), np.array([5.0]), axes=(0,), epsilon=0.0, xp=np)
        (array([[3.],
               [7.]]), array([[2.]]), array([[1.]]))
    """
    raise NotImplementedError  # the blank


def normalize_gradient(dy, x, scale, mean, variance, *, axes, epsilon, xp):
    """Gradients of the loss with regard to x, scale and offset.

    Args:
        dy: Gradient with regard to y, shape of x.
        x: Shape (N, ..., C).
        scale: Shape (C,).
        mean: Mean of x over `axes`, of length 1 along them.
        variance: Variance of x over `axes` (the mean of squares), of length 1 along them.
        axes: All axes of x but the last.
        epsilon: Added to the variance.
        xp: Namespace of the arrays.

    Returns:
        dx of the shape of x, and dscale and doffset of shape (C,).

    Example:
        >>> normalize_gradient(np.array([[1.0], [0.0], [0.0]]), np.array([[-1.5], [0.0], [1.5]]), np.array([1.0]),
        ...                    np.array([[0.0]]), np.array([[1.5]]), axes=(0,), epsilon=0.75, xp=np)
        (array([[ 0.22222222],
               [-0.22222222],
               [ 0.        ]]), array([-1.]), array([1.]))
    """
    raise NotImplementedError  # the blank
