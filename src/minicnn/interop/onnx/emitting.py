"""Emission of ONNX's operators as primitives, and the parts that several of them share."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from minicnn import ops
from minicnn.interop.counterparts import NoCounterpartError
from minicnn.interop.onnx.tensors import HostArray
from minicnn.program.graph import Program, Value

Attributes = dict[str, Any]
MOST_KNOWN = 1 << 16  # elements of an array that is computed while a graph is read: a shape, axes, an index
MOST_ELEMENTS = 1 << 28  # of any array


class Emitter:
    """The Program that operators are written to, and the answers that they need.

    Attributes:
        program: The Program.
        opset: Version of the operators.
        training: Whether layers act as in training.
        draw: Gives uniform numbers of a shape.
        assign: Takes the new value of a moving statistic, by the Value of the old one.
        batch: The number of samples that the file was written for, if it is fixed, and that of the trace.
        dtype: Type in which the model computes what is float32 in the file.
    """

    def __init__(
        self, program: Program, opset: int, *, training: bool = False, draw: Callable[..., Value] | None = None,
        assign: Callable[[Value, Value], None] | None = None, batch: tuple[int, int] | None = None,
        dtype: str = "float32",
    ) -> None:  # fmt: skip
        self.program, self.opset, self.training = program, opset, training
        self.draw, self.assign, self.batch, self.dtype = draw, assign, batch, dtype
        self._known: dict[int, tuple[Value, HostArray]] = {}

    def constant(self, data: Any, dtype: Any = None) -> Value:
        """A constant."""
        array = np.asarray(data, dtype)
        return self.program.constant(array.astype(self.dtype) if array.dtype == np.float32 else array)

    def known(self, x: Value) -> HostArray:
        """The elements of a small array that follows from constants."""
        if x.data is not None:
            return x.data
        if id(x) not in self._known:
            if x.node is None or x.size > MOST_KNOWN:
                raise NoCounterpartError("a shape, an axis or an index that depends on the data")
            import array_api_compat.numpy as xp

            results = x.node.op.reference(*map(self.known, x.node.inputs), xp=xp, **x.node.attrs)
            results = results if len(x.node.outputs) > 1 else (results,)
            self._known |= {id(v): (v, np.asarray(a)) for v, a in zip(x.node.outputs, results, strict=True)}
        return self._known[id(x)][1]

    def integers(self, x: Value | None) -> list[int] | None:
        """The elements of a small array of integers."""
        return None if x is None else [int(n) for n in self.known(x).reshape(-1)]

    def axes(self, a: Attributes, x: Value | None, name: str = "axes") -> list[int] | None:
        """Axes, which are an attribute in older versions and an input in newer ones."""
        return a[name] if name in a else self.integers(x)


def axis_at(axis: int, ndim: int) -> int:
    """An axis counted from the first."""
    if not -ndim <= axis < max(ndim, 1):
        raise NoCounterpartError(f"axis {axis} of {ndim}")
    return axis % max(ndim, 1)


def sized(shape: Sequence[int]) -> tuple[int, ...]:
    """A shape, if arrays of it are no attack on the memory."""
    if math.prod(shape) > MOST_ELEMENTS or any(n < 0 for n in shape):
        raise NoCounterpartError(f"an array of shape {list(shape)}")
    return tuple(shape)


def reshaped(x: Value, shape: Sequence[int]) -> Value:
    """X in another shape; itself if that is its own."""
    return x if x.shape == tuple(shape) else ops.reshape(x, shape=tuple(shape))


def permuted(x: Value, axes: Sequence[int]) -> Value:
    """Axes reordered; two permutations that undo each other are none."""
    axes = tuple(axes)
    if x.node is not None and x.node.op is ops.permute:
        before = x.node.attrs["axes"]
        if tuple(before[a] for a in axes) == tuple(range(x.ndim)):
            return x.node.inputs[0]
    return x if axes == tuple(range(x.ndim)) else ops.permute(x, axes=axes)


def box(x: Value, axis: int, start: int, stop: int) -> Value:
    """A part of x along one axis."""
    return ops.slice_(x, bounds=tuple((start, stop) if i == axis else (0, n) for i, n in enumerate(x.shape)))


def taken(x: Value, axis: int, index: HostArray) -> Value:
    """Elements along one axis by their places."""
    order = (axis, *(i for i in range(x.ndim) if i != axis))
    rows = ops.take(permuted(x, order), x.program.constant(index.astype("int32").reshape(-1)))
    y = permuted(rows, tuple(order.index(i) for i in range(x.ndim)))
    return reshaped(y, sized((*x.shape[:axis], *index.shape, *x.shape[axis + 1 :])))
