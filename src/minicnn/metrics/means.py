"""Metrics that are the mean of a number for each prediction."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from minicnn import losses, ops
from minicnn.backends.base import Array, Backend
from minicnn.losses import get_loss
from minicnn.losses.base import extremes, is_distribution
from minicnn.metrics.base import Mean, class_numbers, finite, truth_of
from minicnn.ops.checks import positive
from minicnn.program.graph import Value


class MeanLoss(Mean):
    """Weighted mean of a loss that one watches without training for it.

    Args:
        loss: Loss or its name, or a function of (y_true, y_pred).
        name: Key in the logs; that of the loss if None.
    """

    def __init__(self, loss: Any, name: str | None = None) -> None:
        self.loss = get_loss(loss)
        super().__init__(name or (loss if isinstance(loss, str) else self.loss.name))

    def each(self, y_true: Value, y_pred: Value) -> Value:
        return self.loss.call(y_true, y_pred)

    def counted(self, y_true: Value, y_pred: Value) -> Value | None:
        return self.loss.counted(y_true, y_pred)


class Accuracy(Mean):
    """Share of samples whose largest prediction is at the label (class number or one-hot).

    With a single output per sample, predictions above the threshold stand for 1. Of equal largest predictions
    the first counts.

    Args:
        threshold: For a single output: 0 for logits, 0.5 for probabilities.
    """

    def __init__(self, name: str = "accuracy", *, threshold: float = 0.5) -> None:
        super().__init__(name)
        self.threshold = finite("threshold", threshold)

    def each(self, y_true: Value, y_pred: Value) -> Value:
        if y_pred.shape[-1] == 1:
            truth = y_true if y_true.ndim == y_pred.ndim else ops.reshape(y_true, shape=y_pred.shape)
            hits = ops.equal(ops.greater(y_pred, self.threshold), ops.greater(ops.as_float(truth, y_pred.dtype), 0.5))
        else:
            hits = ops.equal(ops.argmax(y_pred), class_numbers(y_true, y_pred))
        return ops.as_float(hits, y_pred.dtype)

    def check_targets(self, y_true: Array, backend: Backend) -> None:
        """See `Metric.check_targets`: 0 and 1, or shares of the classes in each row."""
        xp, (least, most) = backend.xp, extremes(y_true, backend)
        classes = -1 <= least <= most <= 1 and extremes(xp.abs(y_true - xp.round(y_true)), backend)[1] == 0
        if not classes and not is_distribution(y_true, backend):
            message = (
                f"An accuracy compares classes. Received: targets from {least} to {most} that are neither classes nor "
                "shares of them. Watch 'mean_absolute_error' or 'root_mean_squared_error' instead."
            )
            warnings.warn(message, stacklevel=2)


class TopKCategoricalAccuracy(Mean):
    """Share of samples whose label is among the k largest predictions; ties count in its favour, NaN against it.

    Args:
        k: Number of predictions that count.
    """

    def __init__(self, k: int = 5, name: str = "top_k_categorical_accuracy") -> None:
        super().__init__(name)
        self.k = positive("k", k)

    def each(self, y_true: Value, y_pred: Value) -> Value:
        mask = ops.one_hot(class_numbers(y_true, y_pred), classes=y_pred.shape[-1], dtype="bool")
        score = ops.sum(ops.where(mask, y_pred, 0.0), axes=-1, keepdims=True)
        # Those that are not at most the label's are larger, or one of the two is NaN.
        # The label's is not compared with itself computed anew, which a compiler may round otherwise.
        at_most = ops.sum(ops.as_float(ops.less_equal(ops.where(mask, score, y_pred), score), y_pred.dtype), axes=-1)
        return ops.as_float(ops.greater(at_most, float(y_pred.shape[-1] - self.k)), y_pred.dtype)


class SparseTopKCategoricalAccuracy(TopKCategoricalAccuracy):
    """`TopKCategoricalAccuracy` by Keras's name for class numbers."""

    def __init__(self, k: int = 5, name: str = "sparse_top_k_categorical_accuracy") -> None:
        super().__init__(k, name)


class CategoricalAccuracy(Accuracy):
    """`Accuracy` by Keras's name for one-hot labels."""

    def __init__(self, name: str = "categorical_accuracy") -> None:
        super().__init__(name)


class SparseCategoricalAccuracy(Accuracy):
    """`Accuracy` by Keras's name for class numbers."""

    def __init__(self, name: str = "sparse_categorical_accuracy") -> None:
        super().__init__(name)


class BinaryAccuracy(Mean):
    """Share of predictions on the same side of the threshold as 0 or 1, their labels.

    Args:
        threshold: Predictions above it stand for 1.
    """

    def __init__(self, name: str = "binary_accuracy", threshold: float = 0.5) -> None:
        super().__init__(name)
        self.threshold = finite("threshold", threshold)

    def each(self, y_true: Value, y_pred: Value) -> Value:
        predicted = ops.as_float(ops.greater(y_pred, self.threshold), y_pred.dtype)
        return ops.as_float(ops.equal(predicted, truth_of(y_true, y_pred)), y_pred.dtype)

    check_targets = Accuracy.check_targets


class CosineSimilarity(Mean):
    """Cosine of the angle between target and prediction: 1 where their directions agree; the loss is minus that.

    Args:
        axis: The axis, not the batch, along which they are vectors.
    """

    _plain_name = "CosineSimilarityMetric"

    def __init__(self, name: str = "cosine_similarity", axis: int = -1) -> None:
        super().__init__(name)
        self.axis = axis

    def each(self, y_true: Value, y_pred: Value) -> Value:
        return -losses.CosineSimilarity(self.axis).call(ops.as_float(y_true, y_pred.dtype), y_pred)


class RootMeanSquaredError(Mean):
    """Root of the mean of squared differences."""

    def __init__(self, name: str = "root_mean_squared_error") -> None:
        super().__init__(name)

    def each(self, y_true: Value, y_pred: Value) -> Value:
        return ops.square(y_pred - truth_of(y_true, y_pred))

    def result(self, totals: Mapping[str, np.ndarray[Any, Any]]) -> float:
        return math.sqrt(super().result(totals))
