import numpy as np


def grad_cam(activation, gradient):
    weight = gradient.mean(axis=(1, 2), keepdims=True)
    maps = np.maximum((weight * activation).sum(axis=3), 0)
    largest = maps.max(axis=(1, 2), keepdims=True)
    return maps / np.where(largest > 0, largest, 1)


def score_gradient(labels, weights, height, width):
    rows = weights.T[labels][:, None, None, :]
    return np.broadcast_to(rows / (height * width), (len(labels), height, width, len(weights))).copy()


def enlarge(maps, factor):
    return maps.repeat(factor, axis=1).repeat(factor, axis=2)
