"""Metrics: sums that the Program accumulates on the device, and what they say at the end."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from minicnn import ops
from minicnn.losses import LOSSES, Loss, get_loss
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


class Mean(Metric):
    """Base class of metrics that are the weighted mean of a number for each prediction."""

    def each(self, y_true: Value, y_pred: Value) -> Value:
        """The number for each prediction, shape (N,) or (N, ...)."""
        raise NotImplementedError

    def totals(self, y_true: Value, y_pred: Value, weight: Value) -> dict[str, Value]:
        """See `Metric.totals`."""
        each = self.each(y_true, y_pred)
        if each.ndim > 1:  # several predictions a sample
            each = ops.mean(each, axes=tuple(range(1, each.ndim)))
        return {"total": ops.sum(each * weight), "count": ops.sum(weight)}

    def result(self, totals: Mapping[str, np.ndarray[Any, Any]]) -> float:
        """See `Metric.result`; NaN if no sample has any weight."""
        count = float(totals["count"])
        return float(totals["total"]) / count if count else float("nan")


class MeanLoss(Mean):
    """Weighted mean of a loss that one watches without training for it.

    Args:
        loss: Loss or its name.
        name: Key in the logs; that of the loss if None.
    """

    def __init__(self, loss: str | Loss, name: str | None = None) -> None:
        self.loss = get_loss(loss)
        super().__init__(name or (loss if isinstance(loss, str) else self.loss.name))

    def each(self, y_true: Value, y_pred: Value) -> Value:
        """See `Mean.each`."""
        return self.loss.call(y_true, y_pred)


class Accuracy(Mean):
    """Share of samples whose largest prediction is at the label (class number or one-hot).

    With a single output per sample, predictions above the threshold stand for 1. Of equal largest predictions
    the first counts.

    Args:
        name: Key in the logs.
        threshold: For a single output: 0 for logits, 0.5 for probabilities.
    """

    def __init__(self, name: str = "accuracy", *, threshold: float = 0.5) -> None:
        super().__init__(name)
        self.threshold = threshold

    def each(self, y_true: Value, y_pred: Value) -> Value:
        """See `Mean.each`."""
        if y_pred.shape[-1] == 1:
            truth = y_true if y_true.ndim == y_pred.ndim else ops.reshape(y_true, shape=y_pred.shape)
            hits = ops.equal(ops.greater(y_pred, self.threshold), ops.greater(ops.as_float(truth, y_pred.dtype), 0.5))
        else:
            hits = ops.equal(ops.argmax(y_pred), _class_numbers(y_true, y_pred))
        return ops.as_float(hits, y_pred.dtype)


class TopKAccuracy(Mean):
    """Share of samples whose label is among the k largest predictions; ties count in its favour, NaN against it.

    Args:
        k: Number of predictions that count.
        name: Key in the logs; "top_k_accuracy" by default, with the number for k.
    """

    def __init__(self, k: int = 5, name: str | None = None) -> None:
        if isinstance(k, bool) or not isinstance(k, int) or k < 1:
            message = f"k is an integer of at least 1. Received: k={k!r}."
            raise ValueError(message)
        super().__init__(name or f"top_{k}_accuracy")
        self.k = k

    def each(self, y_true: Value, y_pred: Value) -> Value:
        """See `Mean.each`."""
        mask = ops.one_hot(_class_numbers(y_true, y_pred), classes=y_pred.shape[-1], dtype="bool")
        own = ops.sum(ops.where(mask, y_pred, 0.0), axes=-1, keepdims=True)
        # Those that are not at most the label's are larger, or one of the two is NaN.
        # The label's is not compared with itself computed anew, which a compiler may round otherwise.
        at_most = ops.sum(ops.as_float(ops.less_equal(ops.where(mask, own, y_pred), own), y_pred.dtype), axes=-1)
        return ops.as_float(ops.greater(at_most, float(y_pred.shape[-1] - self.k)), y_pred.dtype)


class ConfusionMatrix(Metric):
    """Weighted counts (K, K): rows are labels, columns the largest predictions.

    Args:
        name: Key in the logs.
    """

    def __init__(self, name: str = "confusion_matrix") -> None:
        super().__init__(name)

    def totals(self, y_true: Value, y_pred: Value, weight: Value) -> dict[str, Value]:
        """See `Metric.totals`."""
        *places, k = y_pred.shape
        if k < 2:
            message = f"A confusion matrix needs a prediction for each class. Received: predictions {y_pred.shape}."
            raise ValueError(message)
        rows = math.prod(places)
        labels = ops.reshape(_class_numbers(y_true, y_pred), shape=(rows,))
        guesses = ops.reshape(ops.argmax(y_pred), shape=(rows,))
        weights = ops.reshape(weight, shape=(weight.size, *(1,) * len(places[1:]), 1))
        weights = ops.reshape(ops.broadcast_to(weights, shape=(*places, 1)), shape=(rows, 1))
        truth = ops.one_hot(labels, classes=k, dtype=y_pred.dtype) * weights
        return {"counts": ops.matmul(truth, ops.one_hot(guesses, classes=k, dtype=y_pred.dtype), transpose_a=True)}

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
    """A metric by name with its defaults (a loss's name is the mean of that loss), or the one given."""
    if isinstance(given, Metric):
        return given
    if isinstance(given, str) and given in METRICS:
        return METRICS[given]()  # type: ignore[call-arg]  # each has defaults
    if isinstance(given, str) and given in LOSSES:
        return MeanLoss(given)
    message = f"A metric is one of {', '.join([*METRICS, *LOSSES])}, or a Metric. Received: {given!r}."
    raise ValueError(message)
