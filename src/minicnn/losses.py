"""Losses: from labels and predictions to one number for each sample."""

from __future__ import annotations

import math

from minicnn import ops
from minicnn.backends.base import Array, Backend
from minicnn.program.graph import Value

# How far the sum of a distribution may be from 1: rounding of the shortest formats.
_SUM_TOLERANCE = 1e-2

# Probabilities are kept this far from 0 and 1 before their logarithm is taken, as in Keras.
_EPSILON = 1e-7


class Loss:
    """Base class: a subclass emits the loss of each sample; the Model takes the mean over the batch."""

    # Whether labels are class numbers (int32) rather than floating-point targets.
    integer_labels = False

    @property
    def name(self) -> str:
        """Name in the Program."""
        return type(self).__name__.lower()

    def call(self, y_true: Value, y_pred: Value) -> Value:
        """Loss of each sample, shape (N,) or (N, ...) where a sample has many predictions.

        Args:
            y_true: Labels or targets.
            y_pred: The model's output.
        """
        raise NotImplementedError

    def check_targets(self, y_true: Array, backend: Backend) -> None:
        """Raise a ValueError if targets are outside the loss's domain; called before anything is computed.

        Args:
            y_true: Floating-point targets on the backend; class numbers of sparse losses are checked elsewhere.
            backend: Where they are checked.
        """


def extremes(array: Array, backend: Backend) -> tuple[float, float]:
    """The smallest and the largest element, found where the array is; NaN if there is one."""
    return float(backend.to_numpy(backend.xp.min(array))), float(backend.to_numpy(backend.xp.max(array)))


def _check_same_shape(loss: Loss, y_true: Value, y_pred: Value) -> None:
    if y_true.shape != y_pred.shape:
        message = (
            f"{type(loss).__name__} takes targets of the shape of the predictions. Received: targets {y_true.shape}, "
            f"predictions {y_pred.shape}. For class numbers use a sparse loss; otherwise reshape the targets."
        )
        raise ValueError(message)


def _check_smoothing(label_smoothing: float) -> None:
    if not 0 <= label_smoothing < 1:
        message = f"label_smoothing is at least 0 and below 1. Received: {label_smoothing}."
        raise ValueError(message)


def _clipped(p: Value) -> Value:
    return ops.maximum(ops.minimum(p, 1.0 - _EPSILON), _EPSILON)


class SparseCategoricalCrossentropy(Loss):
    """-log(probability of the labelled class), from class numbers.

    Args:
        from_logits: Whether predictions are logits; otherwise probabilities that sum to 1.
        label_smoothing: Share of the label that is spread evenly over all classes.

    Input shape:
        y_true integers (N, ...), y_pred (N, ..., K).
    """

    integer_labels = True

    def __init__(self, from_logits: bool = False, label_smoothing: float = 0.0) -> None:
        _check_smoothing(label_smoothing)
        self.from_logits, self.label_smoothing = from_logits, label_smoothing

    def call(self, y_true: Value, y_pred: Value) -> Value:
        """See `Loss.call`."""
        if y_true.shape != y_pred.shape[:-1]:
            message = (
                "SparseCategoricalCrossentropy takes one class number for each prediction. Received: labels "
                f"{y_true.shape}, predictions {y_pred.shape}. One-hot labels belong to CategoricalCrossentropy."
            )
            raise ValueError(message)
        if self.from_logits and not self.label_smoothing:
            loss: Value = ops.softmax_cross_entropy(y_pred, y_true)
            return loss
        target = ops.one_hot(y_true, classes=y_pred.shape[-1], dtype=y_pred.dtype)
        return CategoricalCrossentropy(self.from_logits, self.label_smoothing).call(target, y_pred)


class CategoricalCrossentropy(Loss):
    """-sum(target * log(probability)), from a distribution over the classes for each sample.

    Args:
        from_logits: Whether predictions are logits; otherwise probabilities that sum to 1.
        label_smoothing: Share of the target that is spread evenly over all classes.

    Input shape:
        y_true and y_pred (N, ..., K).
    """

    def __init__(self, from_logits: bool = False, label_smoothing: float = 0.0) -> None:
        _check_smoothing(label_smoothing)
        self.from_logits, self.label_smoothing = from_logits, label_smoothing

    def call(self, y_true: Value, y_pred: Value) -> Value:
        """See `Loss.call`."""
        _check_same_shape(self, y_true, y_pred)
        target = y_true
        if self.label_smoothing:
            target = y_true * (1.0 - self.label_smoothing) + self.label_smoothing / y_pred.shape[-1]
        log_p = ops.log_softmax(y_pred) if self.from_logits else ops.log(_clipped(y_pred))
        return -ops.sum(target * log_p, axes=-1)

    def check_targets(self, y_true: Array, backend: Backend) -> None:
        """See `Loss.check_targets`: rows are distributions."""
        least, _ = extremes(y_true, backend)
        low, high = extremes(backend.xp.sum(y_true, axis=-1), backend)
        if not (least >= 0 and low >= 1 - _SUM_TOLERANCE and high <= 1 + _SUM_TOLERANCE):
            message = (
                "Targets of CategoricalCrossentropy are a distribution over the classes in each row: numbers of at "
                f"least 0 with the sum 1. Received: numbers from {least}, sums from {low} to {high}. For class numbers "
                "use SparseCategoricalCrossentropy, for several labels a sample BinaryCrossentropy."
            )
            raise ValueError(message)


class BinaryCrossentropy(Loss):
    """-t log(p) - (1 - t) log(1 - p), the mean over the last axis.

    Args:
        from_logits: Whether predictions are logits; otherwise probabilities.
        label_smoothing: Targets are moved by this share towards 1/2.

    Input shape:
        y_true and y_pred (N, ..., K).
    """

    def __init__(self, from_logits: bool = False, label_smoothing: float = 0.0) -> None:
        _check_smoothing(label_smoothing)
        self.from_logits, self.label_smoothing = from_logits, label_smoothing

    def call(self, y_true: Value, y_pred: Value) -> Value:
        """See `Loss.call`."""
        _check_same_shape(self, y_true, y_pred)
        t = y_true * (1.0 - self.label_smoothing) + 0.5 * self.label_smoothing if self.label_smoothing else y_true
        if self.from_logits:
            # max(x, 0) - x t + log(1 + exp(-|x|)) neither overflows nor cancels; max(x, 0) is (x + |x|) / 2, so that
            # the slopes of |x| cancel at 0 whatever sign 0 is given there.
            size = ops.abs(y_pred)
            loss = y_pred * (0.5 - t) + (size * 0.5 + ops.log1p(ops.exp(-size)))
        else:
            p = _clipped(y_pred)
            loss = -(t * ops.log(p) + (1.0 - t) * ops.log(1.0 - p))
        mean: Value = ops.mean(loss, axes=-1)
        return mean

    def check_targets(self, y_true: Array, backend: Backend) -> None:
        """See `Loss.check_targets`: probabilities."""
        least, most = extremes(y_true, backend)
        if not 0 <= least <= most <= 1:
            message = (
                "Targets of BinaryCrossentropy are from 0 to 1. Received: numbers from "
                f"{least} to {most}. For class numbers use SparseCategoricalCrossentropy; make labels of -1 and 1 "
                "(y + 1) / 2."
            )
            raise ValueError(message)


class MeanSquaredError(Loss):
    """Mean of squared differences over the last axis."""

    def call(self, y_true: Value, y_pred: Value) -> Value:
        """See `Loss.call`."""
        _check_same_shape(self, y_true, y_pred)
        mean: Value = ops.mean(ops.square(y_pred - y_true), axes=-1)
        return mean


class MeanAbsoluteError(Loss):
    """Mean of absolute differences over the last axis."""

    def call(self, y_true: Value, y_pred: Value) -> Value:
        """See `Loss.call`."""
        _check_same_shape(self, y_true, y_pred)
        mean: Value = ops.mean(ops.abs(y_pred - y_true), axes=-1)
        return mean


class Huber(Loss):
    """Squared near 0, linear beyond delta: d^2 / 2 or delta (|d| - delta / 2), the mean over the last axis.

    Args:
        delta: Difference at which the loss becomes linear.
    """

    def __init__(self, delta: float = 1.0) -> None:
        if not (delta > 0 and math.isfinite(delta)):
            message = f"delta is a finite number above 0. Received: delta={delta}."
            raise ValueError(message)
        self.delta = delta

    def call(self, y_true: Value, y_pred: Value) -> Value:
        """See `Loss.call`."""
        _check_same_shape(self, y_true, y_pred)
        size = ops.abs(y_pred - y_true)
        inside = ops.minimum(size, self.delta)  # |d| <= delta: d^2 / 2; beyond: delta^2 / 2 + delta (|d| - delta)
        mean: Value = ops.mean(ops.square(inside) * 0.5 + (size - inside) * self.delta, axes=-1)
        return mean


LOSSES: dict[str, type[Loss]] = {
    "sparse_categorical_crossentropy": SparseCategoricalCrossentropy,
    "categorical_crossentropy": CategoricalCrossentropy,
    "binary_crossentropy": BinaryCrossentropy,
    "mean_squared_error": MeanSquaredError,
    "mse": MeanSquaredError,
    "mean_absolute_error": MeanAbsoluteError,
    "mae": MeanAbsoluteError,
    "huber": Huber,
}


def get_loss(given: str | Loss) -> Loss:
    """A loss by name with its defaults, or the one given."""
    if isinstance(given, Loss):
        return given
    if isinstance(given, str) and given in LOSSES:
        return LOSSES[given]()
    message = f"A loss is one of {', '.join(LOSSES)}, or a Loss. Received: {given!r}."
    raise ValueError(message)
