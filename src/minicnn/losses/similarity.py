"""Losses by how alike targets and predictions are: as distributions, directions, regions."""

from __future__ import annotations

from collections.abc import Sequence

from minicnn import ops
from minicnn.backends.base import Array, Backend
from minicnn.losses.base import EPSILON, Loss, check_distributions, check_same_shape
from minicnn.ops.normalization import directions
from minicnn.program.graph import Value

_LEAST_SQUARE = 1e-12  # of a vector that is divided by its length


class KLDivergence(Loss):
    """sum(t log(t / p)) over the last axis (S. Kullback, R. Leibler, 1951), of distributions kept at least 1e-7."""

    def call(self, y_true: Value, y_pred: Value) -> Value:
        check_same_shape(self, y_true, y_pred)
        t, p = (ops.maximum(ops.minimum(v, 1.0), EPSILON) for v in (y_true, y_pred))
        return ops.sum(t * ops.log(t / p), axes=-1)

    def check_targets(self, y_true: Array, backend: Backend) -> None:
        """See `Loss.check_targets`: rows are distributions."""
        check_distributions(self, y_true, backend)


class CosineSimilarity(Loss):
    """Minus the cosine of the angle between target and prediction: -1 where their directions agree.

    Args:
        axis: The axis, not the batch, along which they are vectors.
    """

    def __init__(self, axis: int = -1) -> None:
        self.axis = axis

    def call(self, y_true: Value, y_pred: Value) -> Value:
        check_same_shape(self, y_true, y_pred)
        t, p = (directions(v, self.axis, _LEAST_SQUARE) for v in (y_true, y_pred))
        return -ops.sum(t * p, axes=self.axis)


class Tversky(Loss):
    """1 - s / (s + alpha e + beta m): overlap s = sum(t p), extra e = sum((1 - t) p), missed m = sum(t (1 - p)).

    For segmentation, where the classes differ in size (arXiv:1706.05721).

    Args:
        alpha: Weight of what is extra, the false positives.
        beta: Weight of what is missed, the false negatives.
        axis: Axes of the sums; all of the batch together if None, as in Keras.
    """

    def __init__(self, alpha: float = 0.5, beta: float = 0.5, axis: int | Sequence[int] | None = None) -> None:
        self.alpha, self.beta = alpha, beta
        self.axis = axis if axis is None or isinstance(axis, int) else tuple(axis)

    def call(self, y_true: Value, y_pred: Value) -> Value:
        check_same_shape(self, y_true, y_pred)
        both, t, p = (ops.sum(v, axes=self.axis) for v in (y_true * y_pred, y_true, y_pred))
        loss = 1.0 - both / (both + (p - both) * self.alpha + (t - both) * self.beta + self._epsilon)
        return loss if loss.ndim else ops.broadcast_to(loss, shape=y_pred.shape[:1])

    _epsilon = EPSILON


class Dice(Tversky):
    """1 - 2 sum(t p) / (sum(t) + sum(p)), for segmentation (arXiv:1606.04797); `Tversky` with both weights 1/2.

    Args:
        axis: Axes of the sums; all of the batch together if None, as in Keras.
    """

    def __init__(self, axis: int | Sequence[int] | None = None) -> None:
        super().__init__(axis=axis)

    _epsilon = EPSILON / 2  # Keras adds it to the sum of both
