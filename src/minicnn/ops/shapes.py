"""The elements of an array in another shape."""

from __future__ import annotations

import math

from minicnn.ops.arrays import copy_of
from minicnn.ops.primitive import Array, Namespace, primitive
from minicnn.program.graph import Node, Spec, Value


@primitive
def reshape(x: Array, *, shape: tuple[int, ...], xp: Namespace) -> Array:
    """The elements of x in row-major order, in another shape."""
    return copy_of(xp.reshape(x, shape), xp)


@reshape.shape
def _(x: Spec, *, shape: tuple[int, ...]) -> Spec:
    if math.prod(shape) != x.size or any(n < 0 for n in shape):
        raise ValueError(
            f"reshape keeps the number of elements. Received: {x} and shape {tuple(shape)} with "
            f"{math.prod(shape)} elements."
        )
    return Spec(tuple(shape), x.dtype)


@reshape.gradient
def _(node: Node, dy: Value) -> Value:
    return reshape(dy, shape=node.inputs[0].shape)


def stop_gradient(x: Value) -> Value:
    """The same numbers as a constant: no gradient goes through it."""
    stopped: Value = reshape(x, shape=x.shape)
    stopped.program.stopped.add(id(stopped))
    return stopped


def reshape_to(x: Value, shape: tuple[int, ...]) -> Value:
    """Value x with another shape, emitting nothing if it has that shape already."""
    return x if x.shape == shape else reshape(x, shape=shape)
