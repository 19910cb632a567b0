import numpy as np


def loss_and_gradient(x, labels, w):
    """Mean loss of a batch and its gradient with regard to w (complete)."""
    logits = x @ w
    logits = logits - logits.max(axis=1, keepdims=True)
    p = np.exp(logits)
    p = p / p.sum(axis=1, keepdims=True)
    rows = np.arange(len(x))
    loss = float(-np.log(p[rows, labels]).mean())
    p[rows, labels] -= 1
    return loss, x.T @ p / len(x)


def batches(order, size):
    return [order[i : i + size] for i in range(0, len(order), size)]


def accuracy(x, labels, w):
    return float(np.mean(np.argmax(x @ w, axis=1) == labels))


def fit(x, labels, w, rate, size, orders):
    losses = []
    for order in orders:
        total = 0.0
        for batch in batches(order, size):
            loss, g = loss_and_gradient(x[batch], labels[batch], w)
            w = w - rate * g
            total += loss * len(batch)
        losses.append(total / len(order))
    return w, losses
