"""Constraints: what a weight becomes after each step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from minicnn import ops
from minicnn.configured import Configured, register
from minicnn.names import look_up
from minicnn.ops.normalization import factor_for_squares
from minicnn.program.graph import Value
from minicnn.regularizers import EPSILON, Limit, finite


class Constraint(Configured):
    """Gives what a weight becomes after a step; a subclass that keeps its arguments can be saved with its layer."""

    def __call__(self, w: Value) -> Value:
        """The weight as it is allowed, of the same shape.

        Args:
            w: The weight after the step.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class NonNeg(Constraint):
    """Negative weights become 0."""

    def __call__(self, w: Value) -> Value:
        return ops.maximum(w, 0.0)


@dataclass(frozen=True)
class MinMaxNorm(Constraint):
    """Euclidean norms along axes are brought into a range.

    Attributes:
        min_value: Least norm.
        max_value: Largest norm.
        rate: How much of the way there a step goes, up to 1.
        axis: Axes along which norms are taken: 0 for `Dense`, [0, 1, 2] for each filter of `Conv2D`.
    """

    min_value: float = 0.0
    max_value: float = 1.0
    rate: float = 1.0
    axis: int | Sequence[int] = 0

    def __post_init__(self) -> None:
        finite(min_value=self.min_value, max_value=self.max_value, rate=self.rate)

    def __call__(self, w: Value) -> Value:
        axes = self.axis if isinstance(self.axis, int) else tuple(self.axis)
        # Squares of very small or large weights would leave the range of float32.
        factor = factor_for_squares(w, axes=axes)
        w = w * factor
        length = ops.sqrt(ops.sum(ops.square(w), axes=axes, keepdims=True))
        norm = length / factor
        wanted = ops.maximum(ops.minimum(norm, self.max_value), self.min_value)
        if self.rate != 1:
            wanted = wanted * self.rate + norm * (1.0 - self.rate)
        # The small number keeps a column of zeros from being divided by zero.
        return w * (wanted / (length + factor * EPSILON))


@dataclass(frozen=True)
class MaxNorm(Constraint):
    """Euclidean norms along axes are brought down to at most max_value.

    Attributes:
        max_value: Largest norm.
        axis: See `MinMaxNorm`.
    """

    max_value: float = 2.0
    axis: int | Sequence[int] = 0

    def __post_init__(self) -> None:
        finite(max_value=self.max_value)

    def __call__(self, w: Value) -> Value:
        return MinMaxNorm(0.0, self.max_value, axis=self.axis)(w)


@dataclass(frozen=True)
class UnitNorm(Constraint):
    """Euclidean norms along axes are brought to 1.

    Attributes:
        axis: See `MinMaxNorm`.
    """

    axis: int | Sequence[int] = 0

    def __call__(self, w: Value) -> Value:
        return MinMaxNorm(1.0, 1.0, axis=self.axis)(w)


CONSTRAINTS: dict[str, type[Constraint]] = {
    "max_norm": MaxNorm, "min_max_norm": MinMaxNorm, "non_neg": NonNeg, "unit_norm": UnitNorm,
}  # fmt: skip
register(*CONSTRAINTS.values())


def get_constraint(identifier: Limit) -> Callable[[Value], Value] | None:
    """A constraint by name with its defaults, or the function given."""
    if identifier is None or callable(identifier):
        return identifier
    return look_up("A constraint", CONSTRAINTS, identifier, "a function of a weight")()
