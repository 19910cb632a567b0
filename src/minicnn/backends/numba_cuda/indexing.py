"""Indexing: views by integers, slices, newaxis and ellipsis; gathering rows by integer arrays."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from minicnn.backends.numba_cuda.arrays import Array, empty
from minicnn.backends.numba_cuda.elementwise import compute, contiguous


def get(x: Array, key: Any, *, only_views: bool = False) -> Array:
    """x[key].

    Raises:
        IndexError: If the key is not of a kind that is supported, or outside of the array.
    """
    parts = key if isinstance(key, tuple) else (key,)
    arrays = [p for p in parts if (isinstance(p, Array) and p.ndim) or isinstance(p, np.ndarray | list)]
    if arrays:
        if only_views or len(parts) > 1 or not isinstance(arrays[0], Array) or arrays[0].dtype.kind not in "iu":
            message = (
                "An index is integers, slices, newaxis and ellipsis, or for reading one integer array by itself. "
                f"Received: {key!r}. Use take, or where with a mask."
            )
            raise IndexError(message)
        rows = take(x, _flat(arrays[0]), axis=0)
        return rows.view((*arrays[0].shape, *x.shape[1:]), _steps(arrays[0].shape, x.shape[1:]))
    return _view(x, parts)


def _flat(x: Array) -> Array:
    whole = contiguous(x)
    return whole.view((x.size,), (1,))


def _steps(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    shape = tuple(n for part in shapes for n in part)
    return tuple(math.prod(shape[k + 1 :]) for k in range(len(shape)))


def _view(x: Array, parts: tuple[Any, ...]) -> Array:
    given = sum(1 for p in parts if p is not None and p is not Ellipsis)
    if given > x.ndim or sum(1 for p in parts if p is Ellipsis) > 1:
        message = f"An index has at most one entry for each of {x.ndim} axes. Received: {parts}."
        raise IndexError(message)
    if not any(p is Ellipsis for p in parts):
        parts = (*parts, Ellipsis)
    shape: list[int] = []
    steps: list[int] = []
    offset, axis = 0, 0
    for part in parts:
        if part is None:
            shape.append(1)
            steps.append(0)
            continue
        if part is Ellipsis:
            count = x.ndim - given
            shape += x.shape[axis : axis + count]
            steps += x.steps[axis : axis + count]
            axis += count
            continue
        n, step = x.shape[axis], x.steps[axis]
        if isinstance(part, slice):
            start, stop, by = part.indices(n)
            length = len(range(start, stop, by))
            shape.append(length)
            steps.append(step * by)
            offset += start * step if length else 0
        else:
            offset += _place(part, n, axis) * step
        axis += 1
    return x.view(tuple(shape), tuple(steps), offset)


def _place(part: Any, n: int, axis: int) -> int:
    if isinstance(part, bool | float) or not hasattr(part, "__index__"):
        message = (
            "An index is integers, slices, newaxis and ellipsis, or for reading one integer array by itself. "
            f"Received: {part!r}."
        )
        raise IndexError(message)
    at = int(part.__index__())
    if not -n <= at < n:
        message = f"An index along axis {axis} is from {-n} to {n - 1}. Received: {at}."
        raise IndexError(message)
    return at % n


def take(x: Array, indices: Array, /, *, axis: int | None = None) -> Array:
    """Elements along an axis, by an integer vector."""
    if indices.ndim != 1 or indices.dtype.kind not in "iu" or (axis is None and x.ndim != 1):
        message = (
            "take gets a vector of integers, and an axis unless x is a vector. "
            f"Received: {indices.dtype}{list(indices.shape)} and axis={axis}."
        )
        raise ValueError(message)
    at = 0 if axis is None else _axis(axis, x.ndim)
    outer, n, inner = math.prod(x.shape[:at]), x.shape[at], math.prod(x.shape[at + 1 :])
    shape = (*x.shape[:at], indices.size, *x.shape[at + 1 :])
    source, made = contiguous(x), empty(shape, x.dtype, x.device)
    rows = contiguous(indices)
    place = "x1[i // a1 % a0]"
    row = f"({place} + a2 if {place} < 0 else {place})"
    text = f"x0[(i // a3) * a4 + {row} * a1 + i % a1]"
    numbers = (indices.size, inner, n, indices.size * inner, n * inner)
    if outer and made.size:
        compute(text, made, (source, rows), numbers, whole=True)
    return made


def take_along_axis(x: Array, indices: Array, /, *, axis: int = -1) -> Array:
    """Elements along an axis, each from the place that an array of integers of the result's shape names."""
    from minicnn.backends.numba_cuda.manipulation import broadcast_shapes, broadcast_to

    at = _axis(axis, x.ndim)
    if indices.ndim != x.ndim:
        message = f"indices has as many axes as x. Received: {indices.ndim} and {x.ndim}."
        raise ValueError(message)
    shape = list(
        broadcast_shapes((*x.shape[:at], 1, *x.shape[at + 1 :]), (*indices.shape[:at], 1, *indices.shape[at + 1 :]))
    )
    n, m = x.shape[at], indices.shape[at]
    whole = contiguous(broadcast_to(x, (*shape[:at], n, *shape[at + 1 :])))
    rows = contiguous(broadcast_to(indices, (*shape[:at], m, *shape[at + 1 :])))
    inner = math.prod(shape[at + 1 :])
    made = empty((*shape[:at], m, *shape[at + 1 :]), x.dtype, x.device)
    row = "(x1[i] + a1 if x1[i] < 0 else x1[i])"
    compute(
        f"x0[(i // a2) * a3 + {row} * a0 + i % a0]", made, (whole, rows), (inner, n, m * inner, n * inner), whole=True
    )
    return made


def _axis(axis: int, ndim: int) -> int:
    if not -ndim <= axis < ndim:
        message = f"An axis is from {-ndim} to {ndim - 1}. Received: {axis}."
        raise IndexError(message)
    return axis % ndim
