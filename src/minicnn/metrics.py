"""Metrics: sums that the Program accumulates on the device, and what they say at the end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from minicnn import ops
from minicnn.program.graph import Value


class Metric:
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

    def result(self, totals: Mapping[str, np.ndarray[Any, Any]]) -> Any:
        """The metric's value from its summed totals."""
        raise NotImplementedError


class _Share(Metric):
    """Metrics that are the weighted share of samples with a property."""

    def hits(self, y_true: Value, y_pred: Value) -> Value:
        """1 for each prediction that has the property, else 0."""
        raise NotImplementedError

    def totals(self, y_true: Value, y_pred: Value, weight: Value) -> dict[str, Value]:
        """See `Metric.totals`."""
        hits = self.hits(y_true, y_pred)
        if hits.ndim > 1:  # several predictions a sample
            hits = ops.mean(hits, axes=tuple(range(1, hits.ndim)))
        return {"hits": ops.sum(hits * weight), "count": ops.sum(weight)}

    def result(self, totals: Mapping[str, np.ndarray[Any, Any]]) -> float:
        """See `Metric.result`."""
        count = float(totals["count"])
        return float(totals["hits"]) / count if count else float("nan")


class Accuracy(_Share):
    """Share of samples whose largest prediction is at the label (class number or one-hot).

    With a single output per sample, predictions above the threshold stand for 1.

    Args:
        name: Key in the logs.
        threshold: For a single output: 0 for logits, 0.5 for probabilities.
    """

    def __init__(self, name: str = "accuracy", *, threshold: float = 0.5) -> None:
        super().__init__(name)
        self.threshold = threshold

    def hits(self, y_true: Value, y_pred: Value) -> Value:
        """See `_Share.hits`."""
        if y_pred.shape[-1] == 1:
            above = ops.greater(y_pred, self.threshold)
            truth = y_true if y_true.ndim == y_pred.ndim else ops.reshape(y_true, shape=y_pred.shape)
            truth = ops.greater(ops.as_float(truth, y_pred.dtype), 0.5)
            hits: Value = ops.cast(ops.equal(above, truth), dtype=y_pred.dtype)
            return hits
        hits = ops.cast(ops.equal(ops.argmax(y_pred), _class_numbers(y_true, y_pred)), dtype=y_pred.dtype)
        return hits


class TopKAccuracy(_Share):
    """Share of samples whose label is among the k largest predictions.

    Args:
        k: Number of predictions that count.
        name: Key in the logs; "top_k_accuracy" by default, with the number for k.
    """

    def __init__(self, k: int = 5, name: str | None = None) -> None:
        super().__init__(name or f"top_{k}_accuracy")
        if k < 1:
            message = f"k is at least 1. Received: k={k}."
            raise ValueError(message)
        self.k = k

    def hits(self, y_true: Value, y_pred: Value) -> Value:
        """See `_Share.hits`."""
        labels = _class_numbers(y_true, y_pred)
        mask = ops.one_hot(labels, classes=y_pred.shape[-1], dtype=y_pred.dtype)
        own = ops.sum(y_pred * mask, axes=-1, keepdims=True)
        larger = ops.sum(ops.cast(ops.greater(y_pred, own), dtype=y_pred.dtype), axes=-1)
        hits: Value = ops.cast(ops.less(larger, float(self.k)), dtype=y_pred.dtype)
        return hits


class ConfusionMatrix(Metric):
    """Weighted counts (K, K): rows are labels, columns the largest predictions.

    Args:
        name: Key in the logs.
    """

    def __init__(self, name: str = "confusion_matrix") -> None:
        super().__init__(name)

    def totals(self, y_true: Value, y_pred: Value, weight: Value) -> dict[str, Value]:
        """See `Metric.totals`."""
        k, dtype = y_pred.shape[-1], y_pred.dtype
        truth = ops.one_hot(_class_numbers(y_true, y_pred), classes=k, dtype=dtype)
        guess = ops.one_hot(ops.argmax(y_pred), classes=k, dtype=dtype)
        return {
            "counts": ops.matmul(truth * ops.reshape(weight, shape=(weight.size, 1)), guess, transpose_a=True)
        }

    def result(self, totals: Mapping[str, np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
        """See `Metric.result`."""
        return np.asarray(totals["counts"])


def _class_numbers(y_true: Value, y_pred: Value) -> Value:
    """Labels as int32 class numbers, from class numbers or one-hot rows."""
    if y_true.shape == y_pred.shape:
        labels: Value = ops.argmax(y_true)
        return labels
    return y_true if y_true.dtype == "int32" else ops.cast(y_true, dtype="int32")


METRICS: dict[str, type[Metric]] = {
    "accuracy": Accuracy,
    "acc": Accuracy,
    "top_k_accuracy": TopKAccuracy,
    "confusion_matrix": ConfusionMatrix,
}


def get_metric(given: str | Metric) -> Metric:
    """A metric by name with its defaults, or the one given."""
    if isinstance(given, Metric):
        return given
    try:
        return METRICS[given]()  # type: ignore[call-arg]
    except KeyError:
        message = f"A metric is one of {', '.join(METRICS)}, or a Metric. Received: {given!r}."
        raise ValueError(message) from None
