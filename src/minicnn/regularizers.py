"""Regularizers: what a weight adds to the loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypedDict

from minicnn import ops
from minicnn.configured import Configured, register
from minicnn.names import look_up
from minicnn.ops.normalization import directions
from minicnn.program.graph import Value
from minicnn.schedules import is_rate

EPSILON = 1e-7  # as in Keras


class Regularizer(Configured):
    """Gives a number that is added to the loss; a subclass that keeps its arguments can be saved with its layer."""

    def __call__(self, w: Value) -> Value:
        """A scalar from a weight.

        Args:
            w: The weight, of any shape.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class L1L2(Regularizer):
    """l1 sum(|w|) + l2 sum(w^2).

    Attributes:
        l1: Factor of the sum of absolute values.
        l2: Factor of the sum of squares.
    """

    l1: float = 0.0
    l2: float = 0.0

    def __post_init__(self) -> None:
        finite(l1=self.l1, l2=self.l2)

    def __call__(self, w: Value) -> Value:
        parts = [ops.sum(f(w)) * k for k, f in ((self.l1, ops.abs), (self.l2, ops.square)) if k]
        # A scalar of the Program even where both factors are 0.
        return sum(parts[1:], parts[0]) if parts else ops.sum(w) * 0.0


@dataclass(frozen=True)
class L1(Regularizer):
    """l1 sum(|w|).

    Attributes:
        l1: Factor.
    """

    l1: float = 0.01

    def __post_init__(self) -> None:
        finite(l1=self.l1)

    def __call__(self, w: Value) -> Value:
        return L1L2(l1=self.l1)(w)


@dataclass(frozen=True)
class L2(Regularizer):
    """l2 sum(w^2).

    Attributes:
        l2: Factor.
    """

    l2: float = 0.01

    def __post_init__(self) -> None:
        finite(l2=self.l2)

    def __call__(self, w: Value) -> Value:
        return L1L2(l2=self.l2)(w)


@dataclass(frozen=True)
class OrthogonalRegularizer(Regularizer):
    """factor times the mean of |cosine| over pairs of rows (or columns) of a matrix.

    Attributes:
        factor: Factor.
        mode: "rows" or "columns".
    """

    factor: float = 0.01
    mode: str = "rows"

    def __post_init__(self) -> None:
        finite(factor=self.factor)
        if self.mode not in ("rows", "columns"):
            raise ValueError(f"mode is 'rows' or 'columns'. Received: mode={self.mode!r}.")

    def __call__(self, w: Value) -> Value:
        if w.ndim != 2:
            raise ValueError(
                f"OrthogonalRegularizer is for matrices. Received: a weight of shape {w.shape}. Use L1 or L2."
            )
        rows = self.mode == "rows"
        unit = directions(w, int(rows), EPSILON**2)
        cosines = ops.matmul(unit, unit, transpose_a=not rows, transpose_b=rows)
        n = cosines.shape[0]
        # Of a row with itself the cosine is always 1: left out, it would be a constant that hides how orthogonal others
        # are.
        apart = [[float(i != j) for j in range(n)] for i in range(n)]
        return ops.sum(ops.abs(cosines) * w.program.constant(apart, w.dtype)) * (self.factor / max(n * (n - 1), 1))


l1, l2, l1_l2 = L1, L2, L1L2  # Keras's other names

REGULARIZERS: dict[str, type[Regularizer]] = {
    "l1": L1, "l2": L2, "l1_l2": L1L2, "orthogonal_regularizer": OrthogonalRegularizer,
}  # fmt: skip

register(*REGULARIZERS.values())

Limit = str | Callable[[Value], Value] | None


class Limits(TypedDict, total=False):
    """Arguments of layers: by weight, what it adds to the loss and what it becomes after a step."""

    kernel_regularizer: Limit
    kernel_constraint: Limit
    bias_regularizer: Limit
    bias_constraint: Limit
    depthwise_regularizer: Limit
    depthwise_constraint: Limit
    pointwise_regularizer: Limit
    pointwise_constraint: Limit
    gamma_regularizer: Limit
    gamma_constraint: Limit
    beta_regularizer: Limit
    beta_constraint: Limit
    alpha_regularizer: Limit
    alpha_constraint: Limit


def get_regularizer(identifier: Limit) -> Callable[[Value], Value] | None:
    """A regularizer by name with its defaults, or the function given."""
    if identifier is None or callable(identifier):
        return identifier
    return look_up("A regularizer", REGULARIZERS, identifier, "a function of a weight")()


def finite(**numbers: float) -> None:
    """Raise a ValueError unless all are numbers of at least 0 that float32 holds."""
    for name, value in numbers.items():
        if not is_rate(value):
            raise ValueError(f"{name} is a finite number of at least 0. Received: {name}={value!r}.")
