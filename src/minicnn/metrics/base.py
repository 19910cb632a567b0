"""The metric, and the parts that several share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np

from minicnn import ops
from minicnn.backends.base import Array, Backend
from minicnn.configured import Configured
from minicnn.losses.base import mean_of_samples, of_samples
from minicnn.program.graph import Value

HostArray = np.ndarray[Any, Any]


class Metric(Configured):
    """Base class: `totals` emits what one batch adds, `result` turns the sums into a number.

    Args:
        name: Key in the logs.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def totals(self, y_true: Value, y_pred: Value, weight: Value) -> dict[str, Value]:
        """Arrays that are summed over all batches.

        Args:
            y_true: Labels or targets of the batch.
            y_pred: The model's output.
            weight: Weight of each sample, shape (N,), or of each of its predictions, (N, ...).
        """
        raise NotImplementedError

    def check_targets(self, y_true: Array, backend: Backend) -> None:
        """Warn if floating-point targets, which the loss accepts, make no sense for the metric."""

    def check_labels(self, y_true: Array, backend: Backend) -> None:
        """Raise a ValueError if the class numbers of a sparse loss are none that the metric takes."""

    def result(self, totals: Mapping[str, np.ndarray[Any, Any]]) -> Any:
        """The metric's value from its summed totals."""
        raise NotImplementedError


class Mean(Metric):
    """Base class of metrics that are the weighted mean of a number for each prediction.

    Itself it is, in a step of one's own, the mean of what `update_state` is given: a scalar, or numbers of the samples.

    Args:
        name: Key in the logs.
    """

    def __init__(self, name: str = "mean") -> None:
        super().__init__(name)

    def each(self, y_true: Value, y_pred: Value) -> Value:
        """The number for each prediction, shape (N,) or (N, ...)."""
        raise NotImplementedError

    def counted(self, y_true: Value, y_pred: Value) -> Value | None:
        """1 for each prediction that counts, 0 for the others; None if all count."""
        return None

    def totals(self, y_true: Value, y_pred: Value, weight: Value) -> dict[str, Value]:
        each, counted = self.each(y_true, y_pred), self.counted(y_true, y_pred)
        if counted is not None:
            weight = counted * ops.reshape(weight, shape=(*weight.shape, *[1] * (counted.ndim - weight.ndim)))
        each = of_samples("A metric", self.name, each, y_true, y_pred, weight)
        return {"total": ops.sum(each), "count": ops.sum(mean_of_samples(weight))}

    def result(self, totals: Mapping[str, np.ndarray[Any, Any]]) -> float:
        """See `Metric.result`; NaN if no sample has any weight."""
        count = float(totals["count"])
        return float(totals["total"]) / count if count else float("nan")


# Below every prediction that counts.
NEVER = -1e30


def class_numbers(y_true: Value, y_pred: Value) -> Value:
    """Labels as int32 class numbers, one for each row of predictions, from class numbers or one-hot rows."""
    if y_true.shape == y_pred.shape:
        return ops.argmax(y_true)
    if y_true.size != y_pred.size // y_pred.shape[-1]:
        raise ValueError(
            f"Labels of a metric are a class number for each row of the predictions, or of their shape. Received: "
            f"labels {y_true.shape}, predictions {y_pred.shape}. Reshape the labels."
        )
    if y_true.shape != y_pred.shape[:-1]:
        y_true = ops.reshape(y_true, shape=y_pred.shape[:-1])
    return y_true if y_true.dtype == "int32" else ops.cast(y_true, dtype="int32")


def truth_of(y_true: Value, y_pred: Value) -> Value:
    """Labels as numbers of the predictions' shape: as they are, or class numbers as one-hot rows."""
    if y_true.shape == y_pred.shape or y_pred.shape[-1] == 1:
        same = y_true if y_true.shape == y_pred.shape else ops.reshape(y_true, shape=y_pred.shape)
        return ops.as_float(same, y_pred.dtype)
    return ops.one_hot(class_numbers(y_true, y_pred), classes=y_pred.shape[-1], dtype=y_pred.dtype)


def only_largest(x: Value, k: int) -> Value:
    """The k largest along the last axis, the first of equal ones; `NEVER` elsewhere."""
    # k times the largest, as the Array API has no top-k; k is small.
    rest = x
    for _ in range(min(k, x.shape[-1])):
        largest = ops.one_hot(ops.argmax(rest), classes=x.shape[-1], dtype="bool")
        rest = ops.where(largest, 2 * NEVER, rest)
    return ops.where(ops.equal(rest, 2 * NEVER), x, NEVER)


def of_places(weight: Value, shape: Sequence[int], rows: int | None = None) -> Value:
    """Weights (N,) or (N, ...) for the places of that shape, flat; `rows` if its last axis does not count."""
    rows = math.prod(shape) if rows is None else rows
    spread = ops.broadcast_to(ops.reshape(weight, shape=(weight.size, 1)), shape=(weight.size, rows // weight.size))
    return ops.reshape(spread, shape=(rows,))


def count_pairs(labels: Value, guesses: Value, weights: Value, classes: int, guessed: int | None = None) -> Value:
    """Weighted counts (K, K) of class numbers; of so many columns where other numbers are guessed."""
    truth, predicted = (ops.one_hot(ops.reshape(v, shape=weights.shape), classes=k, dtype=weights.dtype)
                    for v, k in ((labels, classes), (guesses, guessed or classes)))  # fmt: skip
    # A product of one-hot rows counts all pairs of classes, without writing to places that several samples share.
    return ops.matmul(truth * ops.reshape(weights, shape=(weights.size, 1)), predicted, transpose_a=True)


def checked_thresholds(thresholds: Any) -> list[float]:
    """Thresholds for probabilities as a list, of one or several.

    Raises:
        ValueError: If one is no number from 0 to 1, or there is none.
    """
    several = thresholds if isinstance(thresholds, Sequence | np.ndarray) and np.ndim(thresholds) else [thresholds]
    if not len(several) or not all(isinstance(t, Real) and 0 <= float(t) <= 1 for t in several):
        raise ValueError(
            f"Thresholds are numbers from 0 to 1, at least one. Received: {thresholds!r:.80}. Predictions that are "
            "logits have a sigmoid or a softmax as the model's last layer."
        )
    return [float(t) for t in several]


def finite(name: str, value: Any) -> float:
    """The value, if it is a finite number."""
    if not isinstance(value, Real) or not math.isfinite(value):
        raise ValueError(f"{name} is a finite number. Received: {name}={value!r}.")
    return float(value)


def ratio_of(a: HostArray, b: HostArray) -> HostArray:
    """Quotient a / b, and 0 where b is 0."""
    # Nothing of nothing is 0, as in Keras.
    return np.divide(a, b, out=np.zeros_like(a), where=b != 0)
