"""Cross-entropies, also focal ones: from the probability of what is true."""

from __future__ import annotations

import math

from minicnn import ops
from minicnn.backends.base import Array, Backend
from minicnn.losses.base import EPSILON, Loss, check_distributions, check_same_shape, extremes
from minicnn.ops.checks import as_integer
from minicnn.program.graph import Value


def _check_focus(gamma: float) -> None:
    if not (gamma >= 0 and math.isfinite(gamma)):
        raise ValueError(f"gamma is a finite number of at least 0. Received: gamma={gamma}.")


def _shares(y_pred: Value) -> Value:
    """Predictions divided by their sum, as Keras does, so that none is likelier for all being large."""
    producer = y_pred.node
    if producer is not None and producer.op.name == "softmax" and producer.attrs["axis"] in (-1, y_pred.ndim - 1):
        return y_pred  # their sum is 1
    total = ops.sum(y_pred, axes=-1, keepdims=True)
    return y_pred / ops.where(ops.equal(total, 0.0), 1.0, total)  # rows of zeros stay such


def _clipped(p: Value) -> Value:
    # The logarithm of 0 is infinite, and its gradient, too.
    return ops.maximum(ops.minimum(p, 1.0 - EPSILON), EPSILON)


def _yes_and_no(y_pred: Value, logits: bool) -> tuple[Value, Value]:
    """Probabilities of 1 and of 0, each kept from 0: the difference of 1 and one near 1 has few digits in float32."""
    # 1 - sigmoid(x) would be 0 for large x, where sigmoid(-x) still has all its digits.
    p, q = (ops.sigmoid(y_pred), ops.sigmoid(-y_pred)) if logits else (y_pred, 1.0 - y_pred)
    return _clipped(p), _clipped(q)


class Crossentropy(Loss):
    """Base class of cross-entropies.

    Args:
        from_logits: Whether predictions are logits; otherwise probabilities.
        label_smoothing: Share of the target that is spread evenly over all classes.
    """

    def __init__(self, from_logits: bool = False, label_smoothing: float = 0.0) -> None:
        if not 0 <= label_smoothing < 1:
            raise ValueError(f"label_smoothing is at least 0 and below 1. Received: {label_smoothing}.")
        self.from_logits, self.label_smoothing = from_logits, label_smoothing

    def _smoothed(self, target: Value, classes: int) -> Value:
        """Targets of which a share is spread over so many classes."""
        return (
            target * (1.0 - self.label_smoothing) + self.label_smoothing / classes if self.label_smoothing else target
        )


class SparseCategoricalCrossentropy(Crossentropy):
    """-log(probability of the labelled class), from class numbers.

    Args:
        from_logits: Whether predictions are logits; otherwise probabilities, which are divided by their sum.
        ignore_class: A label whose predictions do not count, such as 255 in segmentation: the loss is the mean over
            the others of the batch. It need not be the number of a class.
        label_smoothing: Share of the label that is spread evenly over all classes.

    Input shape:
        y_true integers (N, ...), y_pred (N, ..., K).
    """

    integer_labels = True

    def __init__(
        self, from_logits: bool = False, ignore_class: int | None = None, label_smoothing: float = 0.0
    ) -> None:
        super().__init__(from_logits, label_smoothing)
        if ignore_class is not None and as_integer(ignore_class) is None:
            raise ValueError(f"ignore_class is an integer or None. Received: {ignore_class!r}.")
        self.ignore_class = as_integer(ignore_class)

    def call(self, y_true: Value, y_pred: Value) -> Value:
        if y_true.shape != y_pred.shape[:-1]:
            raise ValueError(
                "SparseCategoricalCrossentropy takes one class number for each prediction. Received: labels "
                f"{y_true.shape}, predictions {y_pred.shape}. One-hot labels belong to CategoricalCrossentropy."
            )
        # The fused primitive: backends have one kernel for the loss and its gradient.
        if self.from_logits and not self.label_smoothing:
            each = ops.softmax_cross_entropy(y_pred, y_true)
        else:
            target = ops.one_hot(y_true, classes=y_pred.shape[-1], dtype=y_pred.dtype)
            each = CategoricalCrossentropy(self.from_logits, self.label_smoothing).call(target, y_pred)
        return each if self.ignore_class is None else ops.where(ops.equal(y_true, self.ignore_class), 0.0, each)


class CategoricalCrossentropy(Crossentropy):
    """-sum(target * log(probability)), from a distribution over the classes for each sample.

    Args:
        from_logits: Whether predictions are logits; otherwise probabilities, which are divided by their sum.

    Input shape:
        y_true and y_pred (N, ..., K).
    """

    def call(self, y_true: Value, y_pred: Value) -> Value:
        check_same_shape(self, y_true, y_pred)
        target = self._smoothed(y_true, y_pred.shape[-1])
        log_p = ops.log_softmax(y_pred) if self.from_logits else ops.log(_clipped(_shares(y_pred)))
        return -ops.sum(target * log_p, axes=-1)

    def check_targets(self, y_true: Array, backend: Backend) -> None:
        """See `Loss.check_targets`: rows are distributions."""
        check_distributions(self, y_true, backend)


class BinaryCrossentropy(Crossentropy):
    """-t log(p) - (1 - t) log(1 - p), the mean over the last axis.

    Args:
        label_smoothing: Targets are moved by this share towards 1/2.

    Input shape:
        y_true and y_pred (N, ..., K).
    """

    soft_labels = True

    def call(self, y_true: Value, y_pred: Value) -> Value:
        check_same_shape(self, y_true, y_pred)
        t = self._smoothed(y_true, 2)
        if self.from_logits:
            # From logits without a logarithm of a rounded probability.
            loss = (1.0 - t) * ops.softplus(y_pred) + t * ops.softplus(-y_pred)
        else:
            p, q = _yes_and_no(y_pred, False)
            loss = -(t * ops.log(p) + (1.0 - t) * ops.log(q))
        return ops.mean(loss, axes=-1)

    def check_targets(self, y_true: Array, backend: Backend) -> None:
        """See `Loss.check_targets`: probabilities."""
        least, most = extremes(y_true, backend)
        if not 0 <= least <= most <= 1:
            raise ValueError(
                f"Targets of {type(self).__name__} are from 0 to 1. Received: numbers from {least} to {most}. "
                "For class numbers use SparseCategoricalCrossentropy; make labels of -1 and 1 "
                "(y + 1) / 2."
            )


class BinaryFocalCrossentropy(Crossentropy):
    """Binary cross-entropy times (1 - p_t)^gamma, p_t = t p + (1 - t)(1 - p), the mean over the last axis.

    Easy samples count less (arXiv:1708.02002).

    Args:
        apply_class_balancing: Whether targets of 1 weigh alpha, and those of 0 weigh 1 - alpha.
        alpha: See there.
        gamma: Exponent, at least 0; 0 gives the cross-entropy.
        label_smoothing: Targets are moved by this share towards 1/2.

    Input shape:
        y_true and y_pred (N, ..., K).
    """

    soft_labels = True

    def __init__(
        self, apply_class_balancing: bool = False, alpha: float = 0.25, gamma: float = 2.0, from_logits: bool = False,
        label_smoothing: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__(from_logits, label_smoothing)
        _check_focus(gamma)
        self.apply_class_balancing, self.alpha, self.gamma = apply_class_balancing, alpha, gamma

    def call(self, y_true: Value, y_pred: Value) -> Value:
        check_same_shape(self, y_true, y_pred)
        t = self._smoothed(y_true, 2)
        p, q = _yes_and_no(y_pred, self.from_logits)
        loss = -(t * ops.log(p) + (1.0 - t) * ops.log(q))
        loss = loss * ops.power(t * q + (1.0 - t) * p, self.gamma)
        if self.apply_class_balancing:
            loss = loss * (t * self.alpha + (1.0 - t) * (1.0 - self.alpha))
        return ops.mean(loss, axes=-1)

    check_targets = BinaryCrossentropy.check_targets


class CategoricalFocalCrossentropy(Crossentropy):
    """-sum(alpha (1 - p)^gamma target log(p)) over the classes (arXiv:1708.02002).

    Args:
        alpha: Factor.
        gamma: Exponent, at least 0.
        from_logits: Whether predictions are logits; otherwise numbers that are divided by their sum.

    Input shape:
        y_true and y_pred (N, ..., K).
    """

    def __init__(
        self, alpha: float = 0.25, gamma: float = 2.0, from_logits: bool = False, label_smoothing: float = 0.0
    ) -> None:
        super().__init__(from_logits, label_smoothing)
        _check_focus(gamma)
        self.alpha, self.gamma = alpha, gamma

    def call(self, y_true: Value, y_pred: Value) -> Value:
        check_same_shape(self, y_true, y_pred)
        t = self._smoothed(y_true, y_pred.shape[-1])
        p = _clipped(ops.softmax(y_pred) if self.from_logits else _shares(y_pred))
        return ops.sum(t * ops.log(p) * ops.power(1.0 - p, self.gamma) * -self.alpha, axes=-1)

    check_targets = CategoricalCrossentropy.check_targets
