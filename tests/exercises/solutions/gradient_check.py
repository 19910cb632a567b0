import numpy as np

LOSSES = {
    "squares": lambda x: float(np.sum(x**2)),
    "sines": lambda x: float(np.sum(np.sin(x) * np.cumsum(x))),
    "softmax": lambda x: float(np.log(np.sum(np.exp(x))) - x.flat[0]),
}


def numeric_gradient(loss, x, h=1e-5):
    f, g = LOSSES[loss], np.zeros_like(x)
    for place in np.ndindex(x.shape):
        step = np.zeros_like(x)
        step[place] = h
        g[place] = (f(x + step) - f(x - step)) / (2 * h)
    return g


def relative_error(a, b):
    size = max(np.abs(a).max(), np.abs(b).max())
    return float(np.abs(a - b).max() / size) if size else 0.0


def check(loss, x, claims):
    right = numeric_gradient(loss, x)
    return [relative_error(right, claim) < 1e-6 for claim in claims]
