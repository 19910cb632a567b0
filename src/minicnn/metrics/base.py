"""What a metric is, and what several share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from minicnn import ops
from minicnn.backends.base import Array, Backend
from minicnn.program.graph import Value
from minicnn.setting import Setting

HostArray = np.ndarray[Any, Any]


class Metric(Setting):
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
            weight: Weight of each sample, shape (N,).
        """
        raise NotImplementedError

    def check_targets(self, y_true: Array, backend: Backend) -> None:
        """Warn if floating-point targets, which the loss accepts, make no sense for the metric."""

    def result(self, totals: Mapping[str, np.ndarray[Any, Any]]) -> Any:
        """The metric's value from its summed totals."""
        raise NotImplementedError


class Mean(Metric):
    """Base class of metrics that are the weighted mean of a number for each prediction."""

    def each(self, y_true: Value, y_pred: Value) -> Value:
        """The number for each prediction, shape (N,) or (N, ...)."""
        raise NotImplementedError

    def totals(self, y_true: Value, y_pred: Value, weight: Value) -> dict[str, Value]:
        each = self.each(y_true, y_pred)
        if not isinstance(each, Value):
            raise TypeError(
                f"A metric composes a Value of primitives. Received: {each!r:.80} from {self.name!r}. Return what they "
                "give: a number for each prediction."
            )
        if each.ndim > 1:  # several predictions a sample
            each = ops.mean(each, axes=tuple(range(1, each.ndim)))
        return {"total": ops.sum(each * weight), "count": ops.sum(weight)}

    def result(self, totals: Mapping[str, np.ndarray[Any, Any]]) -> float:
        """See `Metric.result`; NaN if no sample has any weight."""
        count = float(totals["count"])
        return float(totals["total"]) / count if count else float("nan")


# Below every prediction that counts.
NEVER = -1e30


def class_numbers(y_true: Value, y_pred: Value) -> Value:
    """Labels as int32 class numbers, from class numbers or one-hot rows."""
    if y_true.shape == y_pred.shape:
        return ops.argmax(y_true)
    return y_true if y_true.dtype == "int32" else ops.cast(y_true, dtype="int32")


def truth_of(y_true: Value, y_pred: Value) -> Value:
    """Labels as numbers of the predictions' shape: as they are, or class numbers as one-hot rows."""
    if y_true.shape == y_pred.shape or y_pred.shape[-1] == 1:
        same = y_true if y_true.shape == y_pred.shape else ops.reshape(y_true, shape=y_pred.shape)
        return ops.as_float(same, y_pred.dtype)
    return ops.one_hot(class_numbers(y_true, y_pred), classes=y_pred.shape[-1], dtype=y_pred.dtype)


def only_largest(x: Value, k: int) -> Value:
    """The k largest along the last axis, the first of equal ones; `NEVER` elsewhere."""
    rest = x
    for _ in range(min(k, x.shape[-1])):
        largest = ops.one_hot(ops.argmax(rest), classes=x.shape[-1], dtype="bool")
        rest = ops.where(largest, 2 * NEVER, rest)
    return ops.where(ops.equal(rest, 2 * NEVER), x, NEVER)


def of_places(weight: Value, shape: Sequence[int], rows: int | None = None) -> Value:
    """Weights of the samples (N,) for the places of that shape, flat; `rows` if its last axis does not count."""
    rows = math.prod(shape) if rows is None else rows
    spread = ops.broadcast_to(ops.reshape(weight, shape=(shape[0], 1)), shape=(shape[0], rows // shape[0]))
    return ops.reshape(spread, shape=(rows,))


def count_pairs(labels: Value, guesses: Value, weights: Value, classes: int) -> Value:
    """Weighted counts (K, K) of class numbers."""
    truth, found = (ops.one_hot(ops.reshape(v, shape=weights.shape), classes=classes, dtype=weights.dtype)
                    for v in (labels, guesses))  # fmt: skip
    return ops.matmul(truth * ops.reshape(weights, shape=(weights.size, 1)), found, transpose_a=True)


def ratio_of(a: HostArray, b: HostArray) -> HostArray:
    """A / b, and 0 where b is 0."""
    return np.divide(a, b, out=np.zeros_like(a), where=b != 0)
