"""Training: dropout, optimizers, a schedule, a loop, and what goes wrong in it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from minicnn.exercises.exercise import Array, Example, Exercise, Item, Rng, WrongError, call

CHAPTER = "Training"

# Dropout ----------------------------------------------------------------------------------------------


def _mix(counters: Any) -> Array:
    x = np.asarray(counters, "uint64") & np.uint64(0xFFFFFFFF)
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x = x ^ (x >> np.uint64(shift))
        x = (x * np.uint64(factor)) & np.uint64(0xFFFFFFFF)
    return np.asarray(x ^ (x >> np.uint64(16)))


def _mask(shape: tuple[int, ...], rate: float, seed: int, step: int) -> Array:
    bits = _mix(np.arange(math.prod(shape), dtype="uint64") ^ _mix(np.uint64(step) ^ _mix(seed)))
    return np.asarray(bits / 2**32 >= rate).reshape(shape)


def _dropout(x: Array, rate: float, seed: int, step: int) -> Array:
    return np.where(_mask(x.shape, rate, seed, step), x / (1 - rate), 0)


def _counter(rng: Rng) -> tuple[float, int, int]:
    return float(rng.choice([0.2, 0.5, 0.75])), int(rng.integers(1, 2**31)), int(rng.integers(0, 10_000))


# Optimizers -----------------------------------------------------------------------------------------


def _arrays(rng: Rng, count: int) -> list[Array]:
    shape = [(4,), (3, 2), (2, 3, 2)][rng.integers(3)]
    return list(rng.standard_normal((count, *shape)))


def _rate(rng: Rng) -> float:
    return float(rng.choice([0.1, 0.03, 0.25]))


def _momentum(rng: Rng) -> Example:
    return call(*_arrays(rng, 3), _rate(rng), float(rng.choice([0.9, 0.5])))


def _velocity(p: Array, v: Array, g: Array, rate: float, momentum: float) -> tuple[Array, Array]:
    v = momentum * v - rate * g
    return p + v, v


def _nesterov(p: Array, v: Array, g: Array, rate: float, momentum: float) -> tuple[Array, Array]:
    v = momentum * v - rate * g
    return p + momentum * v - rate * g, v


def _adam(
    p: Array, m: Array, v: Array, g: Array, rate: float, t: int, beta_1: float, beta_2: float, epsilon: float,
    decay: float = 0.0, *, corrected: bool = True, inside: bool = False, coupled: bool = False,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """The answer; or common mistakes in it."""
    g = g + decay * p if coupled else g
    m, v = beta_1 * m + (1 - beta_1) * g, beta_2 * v + (1 - beta_2) * g**2
    m_hat, v_hat = (m / (1 - beta_1**t), v / (1 - beta_2**t)) if corrected else (m, v)
    root = np.sqrt(v_hat + epsilon) if inside else np.sqrt(v_hat) + epsilon
    return p - rate * m_hat / root - (0 if coupled else rate * decay * p), m, v


def _adam_step(first: bool, decay: bool) -> Any:
    def draw(rng: Rng) -> Example:
        p, m, v, g = _arrays(rng, 4)
        t = 1 if first else int(rng.integers(2, 30))
        m, v = (np.zeros_like(m), np.zeros_like(v)) if first else (m, v**2)
        options = (float(rng.choice([0.1, 0.02])),) if decay else ()
        return call(p, m, v, g, _rate(rng), t, 0.9, float(rng.choice([0.99, 0.95])), 1e-2, *options)

    return draw


# Schedules ------------------------------------------------------------------------------------------


def _cosine(step: int, peak: float, total: int) -> float:
    return peak * (1 + math.cos(math.pi * min(step / total, 1))) / 2


def _warmup_cosine(step: int, peak: float, warmup: int, total: int) -> float:
    return peak * step / warmup if step < warmup else _cosine(step - warmup, peak, total - warmup)


def _steps(rng: Rng, most: int) -> tuple[int, float]:
    return int(rng.integers(0, most)), float(rng.choice([0.1, 0.5, 2.0]))


def _warm(rng: Rng) -> Example:
    return call(*_steps(rng, 40), int(rng.integers(5, 15)), 30)


# The loop -------------------------------------------------------------------------------------------


def _loss_and_gradient(x: Array, labels: Array, w: Array) -> tuple[float, Array]:
    logits = x @ w
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    hits = np.eye(w.shape[1])[labels]
    return float(-np.log((p * hits).sum(axis=1)).mean()), x.T @ (p - hits) / len(x)


def _fit(
    x: Array, labels: Array, w: Array, rate: float, size: int, orders: Sequence[Sequence[int]], *,
    dropped: bool = False, equal: bool = False,
) -> tuple[Array, list[float]]:  # fmt: skip
    """The answer; or if the last batch is left out, or batches count the same."""
    losses = []
    for order in orders:
        batches = [list(order[i : i + size]) for i in range(0, len(order), size)]
        batches = [b for b in batches if len(b) == size or not dropped]
        parts = []
        for batch in batches:
            loss, gradient = _loss_and_gradient(x[batch], labels[batch], w)
            w = w - rate * gradient
            parts.append(loss * (1 if equal else len(batch)))
        losses.append(sum(parts) / (len(batches) if equal else sum(map(len, batches))))
    return w, losses


def _samples(rng: Rng, n: int) -> tuple[Array, Array, Array]:
    return rng.standard_normal((n, 4)), rng.integers(0, 3, n), rng.standard_normal((4, 3))


def _training(rest: bool) -> Any:
    def draw(rng: Rng) -> Example:
        size = int(rng.integers(2, 5))
        x, labels, w = _samples(rng, size * 4 + (1 if rest else 0))
        orders = [[int(i) for i in rng.permutation(len(x))] for _ in range(3)]
        return call(x, labels, w, 0.5, size, orders)

    return draw


# One batch ------------------------------------------------------------------------------------------


def _network(rng: Rng) -> Example:
    n, d, h, k = 16, 8, 32, 4
    x, labels = rng.standard_normal((n, d)), rng.integers(0, k, n)
    return call(x, labels, rng.standard_normal((d, h)) / 2, np.zeros(h), rng.standard_normal((h, k)) / 4, np.zeros(k))


def _logits(x: Array, w1: Array, b1: Array, w2: Array, b2: Array) -> tuple[Array, Array]:
    hidden = np.maximum(x @ w1 + b1, 0)
    return hidden, hidden @ w2 + b2


def _network_gradients(
    x: Array, labels: Array, w1: Array, b1: Array, w2: Array, b2: Array, *, mask: bool = True
) -> tuple[Array, ...]:
    hidden, logits = _logits(x, w1, b1, w2, b2)
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p = (p / p.sum(axis=1, keepdims=True) - np.eye(len(b2))[labels]) / len(x)
    back = p @ w2.T * ((hidden > 0) if mask else 1)
    return x.T @ back, back.sum(axis=0), hidden.T @ p, p.sum(axis=0)


def _loss_below(most: float) -> Any:
    def judge(case: Example, result: Any) -> None:
        x, labels, *weights = case.arguments
        if not isinstance(result, tuple | list) or [np.shape(f) for f in result] != [w.shape for w in weights]:
            raise WrongError(f"overfit(...) should be w1, b1, w2, b2, of the shapes {[w.shape for w in weights]}")
        logits = _logits(x, *result)[1]
        logits = logits - logits.max(axis=1, keepdims=True)
        loss = float((np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(x)), labels]).mean())
        if not loss < most:
            raise WrongError(f"with these weights the loss is {loss:.3g}, of less than {most:g}")

    return judge


# Three bugs -----------------------------------------------------------------------------------------


def _dense(rng: Rng) -> Example:
    n, d, f = (int(i) for i in rng.integers(2, 7, 3))
    return call(rng.standard_normal((n, f)), rng.standard_normal((n, d)), rng.standard_normal((d, f)))


def _running(batches: Sequence[Array], momentum: float) -> tuple[Array, Array]:
    mean, variance = np.zeros(batches[0].shape[1]), np.ones(batches[0].shape[1])
    for x in batches:
        mean = momentum * mean + (1 - momentum) * x.mean(axis=0)
        variance = momentum * variance + (1 - momentum) * x.var(axis=0)
    return mean, variance


def _epochs(case: Example, result: Any) -> None:
    n, size, epochs, _ = case.arguments
    try:
        orders = [[place for batch in epoch for place in batch] for epoch in result]
        sizes = {len(batch) for epoch in result for batch in epoch[:-1]}
    except TypeError:
        raise WrongError("shuffled_epochs(...) should be a list of epochs, each a list of batches of places") from None
    if len(orders) != epochs or not sizes <= {size} or any(sorted(order) != list(range(n)) for order in orders):
        raise WrongError(f"each of {epochs} epochs should have each of {n} places once, in batches of {size} ({case})")
    if len({tuple(order) for order in orders}) < epochs:
        raise WrongError("two epochs have the same order")


EXERCISES = {
    "dropout": Exercise(
        "dropout by a counter", CHAPTER,
        (
            Item("mask", 4, "mask", lambda rng: call((3, int(rng.integers(2, 9))), *_counter(rng))),
            Item("dropout", 3, "dropout", lambda rng: call(rng.standard_normal((4, 6)), *_counter(rng)), after="mask"),
            Item("gradient", 3, "dropout_gradient", lambda rng: call(
                rng.standard_normal((2, 3, 4)), *_counter(rng)), after="dropout"),
        ),
        {"mask": _mask, "dropout": _dropout, "dropout_gradient": _dropout},
        hints=(
            "np.arange(number of elements, dtype='uint64') are the places; reshape the bits at the end.",
            "np.uint64(step) ^ mix(seed) is a number below 2^32, and so is what mix makes of it.",
            "The gradient is the same function of dy: the mask is computed again from seed and step.",
        ),
        mistakes={
            "mask": (("it tells what is dropped, and should tell what is kept", lambda *a: ~_mask(*a)),),
            "dropout": (
                ("what is kept is not divided by 1 - rate", lambda x, r, *a: np.where(_mask(x.shape, r, *a), x, 0)),
            ),
        },
    ),
    "momentum": Exercise(
        "gradient descent with momentum", CHAPTER,
        (
            Item("plain", 3, "sgd", lambda rng: call(*_arrays(rng, 2), _rate(rng))),
            Item("momentum", 4, "momentum_step", _momentum),
            Item("Nesterov", 3, "nesterov_step", _momentum),
        ),
        {"sgd": lambda p, g, rate: p - rate * g, "momentum_step": _velocity, "nesterov_step": _nesterov},
        hints=(
            "Each function is its equation; p - rate * g is a new array, p -= rate * g would change the old one.",
            "The new v comes first, and the new p is computed from it.",
            "Nesterov: p + momentum * v - rate * g, with the new v.",
        ),
        mistakes={
            "sgd": (("it goes up the gradient instead of down", lambda p, g, rate: p + rate * g),),
            "momentum_step": (
                ("p moves by the old v", lambda p, v, g, rate, mu: (p + v, mu * v - rate * g)),
                ("v has the other sign", lambda p, v, g, rate, mu: (p - (mu * v + rate * g), mu * v + rate * g)),
            ),
            "nesterov_step": (("this is the step of plain momentum", _velocity),),
        },
    ),
    "adam": Exercise(
        "Adam and AdamW", CHAPTER,
        (
            Item("first step", 3, "adam", _adam_step(True, False)),
            Item("later steps", 4, "adam", _adam_step(False, False)),
            Item("decay", 3, "adamw", _adam_step(False, True)),
        ),
        {"adam": _adam, "adamw": _adam},
        hints=(
            "Compute the new m and v first; m_hat and v_hat are used in the step and not kept.",
            "beta_1**t, with t the number of the step from 1 on.",
            "adamw: the step of adam, and from its p subtract rate * decay * the old p.",
        ),
        mistakes={
            "adam": (
                ("m and v are not corrected for their beginning at zero", lambda *a: _adam(*a, corrected=False)),
                ("epsilon is added under the root", lambda *a: _adam(*a, inside=True)),
            ),
            "adamw": (("the decay goes through the gradient, as in L2", lambda *a: _adam(*a, coupled=True)),),
        },
    ),
    "schedule": Exercise(
        "learning rates that change", CHAPTER,
        (
            Item("staircase", 3, "staircase", lambda rng: call(*_steps(rng, 40), 0.5, int(rng.integers(2, 9)))),
            Item("cosine", 3, "cosine", lambda rng: call(*_steps(rng, 40), 30), rounds=8),
            Item("warm-up", 4, "warmup_cosine", _warm, rounds=8),
        ),
        {
            "staircase": lambda step, rate, factor, every: rate * factor ** (step // every),
            "cosine": _cosine, "warmup_cosine": _warmup_cosine,
        },
        hints=(
            "step // every is how many times `every` steps are over.",
            "min(step / total, 1) keeps the cosine at its end.",
            "After the warm-up: the cosine of step - warmup, which takes total - warmup steps.",
        ),
        mistakes={
            "cosine": (("after `total` it rises again",
                        lambda step, peak, total: peak * (1 + math.cos(math.pi * step / total)) / 2),),
            "warmup_cosine": (("the cosine begins at step 0 instead of at the end of the warm-up",
                               lambda s, p, w, t: p * s / w if s < w else _cosine(s, p, t)),),
        },
    ),
    "training_loop": Exercise(
        "a training loop", CHAPTER,
        (
            Item("batches", 2, "batches", lambda rng: call(
                [int(i) for i in rng.permutation(int(rng.integers(3, 12)))], int(rng.integers(2, 5)))),
            Item("accuracy", 2, "accuracy", lambda rng: call(*_samples(rng, 12))),
            Item("fit", 3, "fit", _training(False)),
            Item("last batch", 3, "fit", _training(True)),
        ),
        {
            "batches": lambda order, size: [order[i : i + size] for i in range(0, len(order), size)],
            "accuracy": lambda x, labels, w: float(np.mean(np.argmax(x @ w, axis=1) == labels)), "fit": _fit,
        },
        hints=(
            "range(0, len(order), size) are the beginnings of the batches; a slice ends where the list does.",
            "x[batch] takes the samples of a batch. w = w - rate * gradient makes new weights.",
            "The mean loss of an epoch: the sum of loss * len(batch), divided by the number of samples.",
        ),
        mistakes={
            "fit": (
                ("the last, smaller batch is left out", lambda *a: _fit(*a, dropped=True)),
                ("a smaller batch counts as much as a whole one", lambda *a: _fit(*a, equal=True)),
            )
        },
    ),
    "overfit": Exercise(
        "a network that learns one batch by heart", CHAPTER,
        (
            Item("gradients", 4, "gradients", _network),
            Item("loss below 0.5", 3, "overfit", _network, _loss_below(0.5), rounds=1),
            Item("loss below 0.01", 3, "overfit", _network, _loss_below(0.01), rounds=2),
        ),
        {"gradients": _network_gradients},
        hints=(
            "The gradient with regard to the logits is (softmax - one_hot) / N.",
            "Go back line by line: dw2 = hidden.T @ p, db2 = the sum of p; then p @ w2.T, only where hidden > 0.",
            "Adam with a rate of 0.02 needs some 300 steps; plain descent with a rate of 0.5 some thousands.",
        ),
        mistakes={
            "gradients": (("ReLU's gradient is left out: where hidden is 0, nothing goes back",
                           lambda *a: _network_gradients(*a, mask=False)),),
        },
    ),
    "find_the_bug": Exercise(
        "three bugs to find", CHAPTER,
        (
            Item("dense", 3, "dense_gradients", _dense),
            Item("statistics", 4, "running_statistics", lambda rng: call(
                [rng.standard_normal((5, 3)) + 2 for _ in range(3)], 0.9)),
            Item("epochs", 3, "shuffled_epochs", lambda rng: call(
                int(rng.integers(9, 20)), int(rng.integers(2, 5)), 4, int(rng.integers(1000))), _epochs),
        ),
        {
            "dense_gradients": lambda dy, x, w: (dy @ w.T, x.T @ dy, dy.sum(axis=0)), "running_statistics": _running,
        },
        hints=(
            "Check each function by hand on its example; the third one has none, so print two epochs.",
            "dense_gradients: b is added to each row. running_statistics: which mean does the variance use?",
            "db is a sum. The variance is x.var(axis=0), around the batch's own mean. Each epoch draws its order.",
        ),
    ),
}  # fmt: skip
