"""Exercise: find three bugs.

Each function below runs, trains something, and has one mistake of the kind that a loss curve hides well. Read what each
promises, find where it does something else, and mend that line. There is no blank.

Grade this file by: minicnn grade find_the_bug FILE
"""

import numpy as np


def dense_gradients(dy, x, w):
    """Gradients of y = x @ w + b with regard to x, w and b, given that of the mean loss with regard to y.

    Args:
        dy: Gradient with regard to y (N, F), already divided by N.
        x: Inputs (N, D).
        w: Weights (D, F).

    Example:
        >>> dense_gradients(np.array([[1.0], [3.0]]), np.array([[1.0], [2.0]]), np.array([[5.0]]))
        (array([[ 5.],
               [15.]]), array([[7.]]), array([4.]))
    """
    dx = dy @ w.T
    dw = x.T @ dy
    db = dy.mean(axis=0)
    return dx, dw, db


def running_statistics(batches, momentum):
    """Running mean and variance of batch normalisation, as they are used for prediction.

    They begin at 0 and 1. With each batch they keep the share `momentum` of their value and take the rest from the mean
    and variance (of N, not N - 1) of the batch, over its first axis.

    Args:
        batches: Arrays (N, C).
        momentum: Close to 1.

    Example:
        >>> running_statistics([np.array([[0.0], [4.0]])], 0.75)
        (array([0.5]), array([1.75]))
    """
    mean, variance = np.zeros(batches[0].shape[1]), np.ones(batches[0].shape[1])
    for x in batches:
        mean = momentum * mean + (1 - momentum) * x.mean(axis=0)
        variance = momentum * variance + (1 - momentum) * ((x - mean) ** 2).mean(axis=0)
    return mean, variance


def shuffled_epochs(n, size, epochs, seed):
    """Batches of places of n samples: in each epoch each sample once, in another order, and no sample left out.

    Returns:
        A list of epochs, each a list of batches, each a list of places.
    """
    rng = np.random.default_rng(seed)
    order = rng.permutation(n)
    return [[[int(p) for p in order[i : i + size]] for i in range(0, n, size)] for _ in range(epochs)]
