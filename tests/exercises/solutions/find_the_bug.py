import numpy as np


def dense_gradients(dy, x, w):
    dx = dy @ w.T
    dw = x.T @ dy
    db = dy.sum(axis=0)
    return dx, dw, db


def running_statistics(batches, momentum):
    mean, variance = np.zeros(batches[0].shape[1]), np.ones(batches[0].shape[1])
    for x in batches:
        mean = momentum * mean + (1 - momentum) * x.mean(axis=0)
        variance = momentum * variance + (1 - momentum) * x.var(axis=0)
    return mean, variance


def shuffled_epochs(n, size, epochs, seed):
    rng = np.random.default_rng(seed)
    orders = [rng.permutation(n) for _ in range(epochs)]
    return [[[int(p) for p in order[i : i + size]] for i in range(0, n, size)] for order in orders]
