"""Exercise: the gradient of batch normalisation.

    y = (x - mean) / sqrt(variance + epsilon) * scale + offset

with mean and variance of x over `axes`, all axes but the channels. Given dy, find the gradients with regard to x,
scale and offset. Mean and variance are functions of x, too: a change of one pixel moves all results of its channel.

It runs on the arrays of NumPy, PyTorch, JAX and others: take functions of `xp`
(https://data-apis.org/array-api/latest).

The library's own: minicnn/ops/normalization.py. Grade this file by: minicnn grade normalization FILE
"""


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
    """
    raise NotImplementedError  # the blank
