"""Changing shapes: views where that is possible, copies where the standard's result is new."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from minicnn.backends.numba_cuda import dtypes
from minicnn.backends.numba_cuda.arrays import Array, Shape, empty
from minicnn.backends.numba_cuda.elementwise import broadcast_steps, compute, contiguous, same_device
from minicnn.kernels.strides import row_major


def axis_of(axis: int, ndim: int) -> int:
    """An axis counted from the first.

    Raises:
        IndexError: If there is no such axis.
    """
    if not -ndim <= axis < ndim:
        raise IndexError(f"An axis is from {-ndim} to {ndim - 1}. Received: {axis}.")
    return axis % ndim


def axes_of(axis: int | Sequence[int] | None, ndim: int) -> tuple[int, ...]:
    """Axes counted from the first, in order; all of them for None."""
    if axis is None:
        return tuple(range(ndim))
    named = (axis,) if isinstance(axis, int) else tuple(axis)
    axes = tuple(sorted({axis_of(a, ndim) for a in named}))
    if len(axes) != len(named):
        raise ValueError(f"Each axis is named once. Received: {named}.")
    return axes


def broadcast_shapes(*shapes: Shape) -> Shape:
    """The shape that shapes broadcast to."""
    return tuple(int(n) for n in np.broadcast_shapes(*shapes))


def reshape(x: Array, /, shape: Sequence[int], *, copy: bool | None = None) -> Array:
    """The same elements in another shape; a view if they are contiguous."""
    wanted = list(shape)
    if -1 in wanted:
        rest = -math.prod(wanted)
        wanted[wanted.index(-1)] = x.size // rest if rest else 0
    if math.prod(wanted) != x.size or min(wanted, default=0) < 0:
        raise ValueError(f"A reshaped array has as many elements. Received: {tuple(shape)} for {x.shape}.")
    if copy is False and not x.contiguous:
        raise ValueError(
            f"A view in another shape needs a contiguous array. Received: strides {x.strides} with copy=False."
        )
    source = contiguous(x, copy=bool(copy))
    return source.view(tuple(wanted), row_major(wanted))


def permute_dims(x: Array, /, axes: Sequence[int]) -> Array:
    """The axes in another order."""
    order = [axis_of(a, x.ndim) for a in axes]
    if sorted(order) != list(range(x.ndim)):
        raise ValueError(f"axes names each of {x.ndim} axes once. Received: {tuple(axes)}.")
    return x.view(tuple(x.shape[a] for a in order), tuple(x.steps[a] for a in order))


def matrix_transpose(x: Array, /) -> Array:
    """The last two axes exchanged."""
    return x.mT


def moveaxis(x: Array, source: int | Sequence[int], destination: int | Sequence[int], /) -> Array:
    """Some axes moved to other places."""
    old = [source] if isinstance(source, int) else list(source)
    new = [destination] if isinstance(destination, int) else list(destination)
    old, new = [axis_of(a, x.ndim) for a in old], [axis_of(a, x.ndim) for a in new]
    order = [a for a in range(x.ndim) if a not in old]
    for to, axis in sorted(zip(new, old, strict=True)):
        order.insert(to, axis)
    return permute_dims(x, order)


def expand_dims(x: Array, /, axis: int | Sequence[int]) -> Array:
    """New axes of length 1, which have these places in the result."""
    if not isinstance(axis, int):
        for at in axes_of(axis, x.ndim + len(axis)):
            x = expand_dims(x, at)
        return x
    at = axis_of(axis, x.ndim + 1)
    return x.view((*x.shape[:at], 1, *x.shape[at:]), (*x.steps[:at], 0, *x.steps[at:]))


def squeeze(x: Array, /, axis: int | Sequence[int]) -> Array:
    """Without some axes of length 1."""
    gone = axes_of(axis, x.ndim)
    if any(x.shape[a] != 1 for a in gone):
        raise ValueError(f"Axes that are squeezed have length 1. Received: axes {gone} of shape {x.shape}.")
    kept = [a for a in range(x.ndim) if a not in gone]
    return x.view(tuple(x.shape[a] for a in kept), tuple(x.steps[a] for a in kept))


def broadcast_to(x: Array, /, shape: Sequence[int]) -> Array:
    """A view in which axes of length 1 are repeated."""
    wanted = tuple(shape)
    if broadcast_shapes(x.shape, wanted) != wanted:
        raise ValueError(f"An array broadcasts to a shape that extends its own. Received: {wanted} for {x.shape}.")
    return x.view(wanted, broadcast_steps(x, wanted))


def broadcast_arrays(*arrays: Array) -> tuple[Array, ...]:
    """Views of all arrays in their common shape."""
    shape = broadcast_shapes(*(a.shape for a in arrays))
    return tuple(broadcast_to(a, shape) for a in arrays)


def flip(x: Array, /, *, axis: int | Sequence[int] | None = None) -> Array:
    """Elements in reverse order along axes."""
    flipped = axes_of(axis, x.ndim)
    offset = sum((x.shape[a] - 1) * x.steps[a] for a in flipped) if x.size else 0
    return x.view(x.shape, tuple(-s if a in flipped else s for a, s in enumerate(x.steps)), offset)


def concat(arrays: Sequence[Array], /, *, axis: int | None = 0) -> Array:
    """Arrays one after the other along an axis; flattened first if it is None."""
    parts = [reshape(a, (-1,)) for a in arrays] if axis is None else list(arrays)
    at = axis_of(0 if axis is None else axis, parts[0].ndim)
    kind = dtypes.result_type(*parts)
    rest = {(*a.shape[:at], *a.shape[at + 1 :]) for a in parts}
    if len(rest) > 1 or len({a.ndim for a in parts}) > 1:
        raise ValueError(
            f"Arrays differ in length along one axis only. Received: {[a.shape for a in parts]} and axis {at}."
        )
    first = parts[0]
    total = sum(a.shape[at] for a in parts)
    joined = empty((*first.shape[:at], total, *first.shape[at + 1 :]), kind, same_device(parts))
    start = 0
    for part in parts:
        compute("x0", joined.view(part.shape, joined.steps, start * joined.steps[at]), (part,))
        start += part.shape[at]
    return joined


def stack(arrays: Sequence[Array], /, *, axis: int = 0) -> Array:
    """Arrays of one shape along a new axis."""
    at = axis_of(axis, arrays[0].ndim + 1)
    return concat([expand_dims(a, axis=at) for a in arrays], axis=at)


def unstack(x: Array, /, *, axis: int = 0) -> tuple[Array, ...]:
    """The parts of an array along an axis."""
    at = axis_of(axis, x.ndim)
    moved = moveaxis(x, at, 0)
    return tuple(moved[k] for k in range(x.shape[at]))


def tile(x: Array, repetitions: Sequence[int], /) -> Array:
    """The array several times along each axis."""
    times = tuple(repetitions)
    lead = max(0, len(times) - x.ndim)
    times = (*[1] * (x.ndim - len(times)), *times)
    shape = (*[1] * lead, *x.shape)
    source = reshape(x, tuple(v for n in shape for v in (1, n)))
    wide = broadcast_to(source, tuple(v for t, n in zip(times, shape, strict=True) for v in (t, n)))
    return reshape(wide, tuple(t * n for t, n in zip(times, shape, strict=True)), copy=True)


__all__ = [
    "broadcast_arrays", "broadcast_shapes", "broadcast_to", "concat", "expand_dims", "flip", "matrix_transpose",
    "moveaxis", "permute_dims", "reshape", "squeeze", "stack", "tile", "unstack",
]  # fmt: skip
