"""Layers that make one array of several: they are called on a list."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any, Unpack

from minicnn import ops
from minicnn.layers.arguments import axis_of
from minicnn.layers.layer import Layer
from minicnn.layers.options import LayerOptions
from minicnn.program.graph import Value


def _values(layer: Layer, inputs: Any, count: int | None = None) -> list[Value]:
    """The inputs, if they are a list of the right length."""
    name = type(layer).__name__
    if not isinstance(inputs, list | tuple):
        raise ValueError(
            f"{name} is called on a list of inputs, as in {name}()([a, b]). Received: one input, {inputs.spec}."
        )
    if count is not None and len(inputs) != count:
        raise ValueError(f"{name} takes exactly {count} inputs. Received: {len(inputs)}.")
    return list(inputs)


def _samples(values: list[Value]) -> str:
    return ", ".join(str((None, *v.shape[1:])) for v in values)


def _aligned(layer: Layer, inputs: Any, count: int | None = None) -> list[Value]:
    """Inputs with as many axes as the one with most; new ones come after the batch, as in Keras."""
    values = _values(layer, inputs, count)
    ndim = max(v.ndim for v in values)
    aligned = [
        v if v.ndim == ndim else ops.reshape(v, shape=(v.shape[0], *(1,) * (ndim - v.ndim), *v.shape[1:]))
        for v in values
    ]
    if any(len(set(lengths) - {1}) > 1 for lengths in zip(*(v.shape for v in aligned), strict=True)):
        raise ValueError(
            f"{type(layer).__name__} takes inputs of one shape, or with length 1 where they differ. "
            f"Received: shapes {_samples(values)}. Change the layers before it so that they agree."
        )
    return aligned


class Merging(Layer):
    """Base class of layers that combine inputs element by element.

    Input shape:
        A list of shapes that are equal, or broadcast.

    Output shape:
        Their common shape.
    """

    _combine: Callable[..., Value]

    def call(self, inputs: Any) -> Any:
        return reduce(type(self)._combine, _aligned(self, inputs))


class Add(Merging):
    """Sum of several inputs.

    Raises:
        ValueError: If it is not called on a list, or the shapes do not broadcast.

    Example:
        >>> from minicnn.layers import Input
        >>> Add()([Input((4,)), Input((4,))]).shape
        (None, 4)
    """

    _combine = ops.add


class Subtract(Merging):
    """First input minus the second; see `Add` for shapes and errors."""

    def call(self, inputs: Any) -> Any:
        a, b = _aligned(self, inputs, 2)
        return a - b


class Multiply(Merging):
    """Product of several inputs; see `Add` for shapes and errors."""

    _combine = ops.multiply


class Average(Merging):
    """Mean of several inputs; see `Add` for shapes and errors."""

    def call(self, inputs: Any) -> Any:
        values = _aligned(self, inputs)
        return reduce(ops.add, values) * (1.0 / len(values))


class Maximum(Merging):
    """Elementwise maximum of several inputs; see `Add` for shapes and errors."""

    _combine = ops.maximum


class Minimum(Merging):
    """Elementwise minimum of several inputs; see `Add` for shapes and errors."""

    _combine = ops.minimum


class Concatenate(Layer):
    """Several inputs joined along one axis.

    Args:
        axis: The axis; not the batch.

    Input shape:
        A list of shapes that are equal but for the axis.

    Output shape:
        That of the first, the axis as long as all together.

    Raises:
        ValueError: If it is not called on a list, or other axes differ.

    Example:
        >>> from minicnn.layers import Input
        >>> Concatenate()([Input((8, 8, 3)), Input((8, 8, 1))]).shape
        (None, 8, 8, 4)
    """

    def __init__(self, axis: int = -1, **options: Unpack[LayerOptions]) -> None:
        super().__init__(**options)
        self.axis = axis

    def call(self, inputs: Any) -> Any:
        values = _values(self, inputs)
        axis = axis_of("Concatenate", self.axis, values[0].ndim)
        if len({(v.ndim, *v.shape[:axis], *v.shape[axis + 1 :]) for v in values}) > 1:
            raise ValueError(
                f"Concatenate takes inputs whose shapes are equal but for axis {axis}. Received: shapes "
                f"{_samples(values)}. Change the layers before it, or crop or pad."
            )
        return ops.concat(*values, axis=axis)


def _function(kind: type[Layer]) -> Callable[..., Any]:
    """The layer as a function of its inputs, as in Keras."""

    def merged(inputs: Any, **options: Any) -> Any:
        return kind(**options)(inputs)

    merged.__name__ = merged.__qualname__ = kind.__name__.lower()
    merged.__doc__ = f"`{kind.__name__}(**options)(inputs)`, as in Keras: a tensor of a list of them."
    return merged


add, average, concatenate, maximum, minimum, multiply, subtract = map(
    _function, (Add, Average, Concatenate, Maximum, Minimum, Multiply, Subtract)
)
