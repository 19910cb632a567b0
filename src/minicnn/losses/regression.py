"""Losses of regression: from the differences between predictions and targets."""

from __future__ import annotations

import math

from minicnn import ops
from minicnn.backends.base import Array, Backend
from minicnn.losses.base import EPSILON, Loss, check_same_shape, extremes
from minicnn.program.graph import Value


class MeanSquaredError(Loss):
    """Mean of squared differences over the last axis."""

    def call(self, y_true: Value, y_pred: Value) -> Value:
        check_same_shape(self, y_true, y_pred)
        return ops.mean(ops.square(y_pred - y_true), axes=-1)


class MeanAbsoluteError(Loss):
    """Mean of absolute differences over the last axis."""

    def call(self, y_true: Value, y_pred: Value) -> Value:
        check_same_shape(self, y_true, y_pred)
        return ops.mean(ops.abs(y_pred - y_true), axes=-1)


class Huber(Loss):
    """Squared near 0, linear beyond delta: d^2 / 2 or delta (|d| - delta / 2), the mean over the last axis.

    Args:
        delta: Difference at which the loss becomes linear.
    """

    def __init__(self, delta: float = 1.0) -> None:
        if not (delta > 0 and math.isfinite(delta)):
            raise ValueError(f"delta is a finite number above 0. Received: delta={delta}.")
        self.delta = delta

    def call(self, y_true: Value, y_pred: Value) -> Value:
        check_same_shape(self, y_true, y_pred)
        size = ops.abs(y_pred - y_true)
        inside = ops.minimum(size, self.delta)  # |d| <= delta: d^2 / 2; beyond: delta^2 / 2 + delta (|d| - delta)
        return ops.mean(ops.square(inside) * 0.5 + (size - inside) * self.delta, axes=-1)


class LogCosh(Loss):
    """log(cosh(d)) of differences d, the mean over the last axis: d^2 / 2 near 0, |d| - log(2) far from it."""

    def call(self, y_true: Value, y_pred: Value) -> Value:
        check_same_shape(self, y_true, y_pred)
        size = ops.abs(y_pred - y_true)
        inside = ops.minimum(size, 20.0)  # beyond, the slope is 1 to the last digit of float64
        # cosh(d) = 1 + (exp(-d) - 1)^2 / (2 exp(-d)), which loses no digits near 0.
        excess = ops.square(ops.expm1(-inside)) / (ops.exp(-inside) * 2.0)
        return ops.mean(ops.log1p(excess) + (size - inside), axes=-1)


class Poisson(Loss):
    """p - t log(p), the mean over the last axis: counts t of an expected count p."""

    def call(self, y_true: Value, y_pred: Value) -> Value:
        check_same_shape(self, y_true, y_pred)
        return ops.mean(y_pred - y_true * ops.log(y_pred + EPSILON), axes=-1)

    def check_targets(self, y_true: Array, backend: Backend) -> None:
        """See `Loss.check_targets`: counts."""
        least, _ = extremes(y_true, backend)
        if not least >= 0:
            raise ValueError(
                f"Targets of Poisson are counts, at least 0. Received: {least}. Use another loss of regression."
            )
