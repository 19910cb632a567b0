"""Indexing: views by integers, slices, newaxis and ellipsis; gathering by integer arrays; masks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from minicnn.backends.numba_cuda.arrays import Array, empty
from minicnn.backends.numba_cuda.elementwise import assign, compute, contiguous, same_device, where
from minicnn.backends.numba_cuda.manipulation import axis_of, broadcast_shapes, broadcast_to, reshape
from minicnn.backends.numba_cuda.sorting import places
from minicnn.kernels.strides import row_major

_OF_HOST = (np.ndarray, list)


def get(x: Array, key: Any, *, only_views: bool = False) -> Array:
    """x[key].

    Raises:
        IndexError: If the key is not of a kind that is supported, or outside of the array.
    """
    parts = key if isinstance(key, tuple) else (key,)
    arrays = [p for p in parts if (isinstance(p, Array) and (p.ndim or p.dtype.kind == "b")) or isinstance(p, _OF_HOST)]
    if not arrays:
        return _view(x, parts)
    if not only_views and len(parts) == 1 and isinstance(parts[0], Array) and parts[0].dtype.kind == "b":
        return take(_rows(x, _checked_mask(x, parts[0]).ndim), places(parts[0]), axis=0)
    if only_views or len(parts) > x.ndim or not all(_is_integer(p) for p in parts):
        raise IndexError(
            "An index is integers, slices, newaxis and ellipsis, or a mask by itself, or for reading integers and "
            f"integer arrays, no more than axes. Received: {key!r}. Use take, or where with a mask."
        )
    at: Array = _places(x.shape, parts) if len(parts) > 1 else parts[0]
    rows = take(_rows(x, len(parts)), at if at.ndim == 1 else reshape(at, (-1,)), axis=0)
    shape = (*at.shape, *x.shape[len(parts) :])
    return rows.view(shape, row_major(shape))


def put(x: Array, key: Any, value: Any) -> None:
    """x[key] = value: through a mask a number, or an array that broadcasts to the axes behind the mask's."""
    if not (isinstance(key, Array) and key.dtype.kind == "b"):
        assign(get(x, key, only_views=True), value)
        return
    behind = x.ndim - _checked_mask(x, key).ndim
    if isinstance(value, Array) and value.ndim > behind:
        raise ValueError(
            f"Through a mask a number is assigned, or an array of at most {behind} axes, those behind the mask's. "
            f"Received: shape {value.shape}. Use x[...] = where(mask, values, x)."
        )
    if key.size:
        assign(x, where(reshape(key, (*key.shape, *[1] * behind)), value, x))


def _is_integer(part: Any) -> bool:
    return part.dtype.kind in "iu" if isinstance(part, Array) else isinstance(part, int) and not isinstance(part, bool)


def _rows(x: Array, axes: int) -> Array:
    """The array with its first axes as one."""
    return x if axes == 1 else reshape(x, (math.prod(x.shape[:axes]), *x.shape[axes:]))


def _places(shape: tuple[int, ...], parts: Sequence[Any]) -> Array:
    """Places of rows by integers and integer arrays, one for each of an array's first axes."""
    arrays: list[Array] = []
    numbers: list[int] = []
    text = "0"
    for axis, (n, part) in enumerate(zip(shape, parts, strict=False)):
        name = f"np.int64(x{len(arrays)})" if isinstance(part, Array) else f"a{len(numbers) + 1}"
        text = f"({text}) * a{len(numbers)} + ({name} + a{len(numbers)} if {name} < 0 else {name})"
        numbers.append(n)
        if isinstance(part, Array):
            arrays.append(part)
        else:
            numbers.append(_place(part, n, axis))
    places = empty(broadcast_shapes(*(a.shape for a in arrays)), np.dtype("int64"), same_device(arrays))
    compute(text, places, arrays, numbers)
    return places


def _checked_mask(x: Array, mask: Array) -> Array:
    if mask.ndim > x.ndim or any(m not in (n, 0) for n, m in zip(x.shape, mask.shape, strict=False)):
        raise IndexError(f"A mask has the lengths of the array's first axes. Received: {mask.shape} for {x.shape}.")
    return mask


def _view(x: Array, parts: tuple[Any, ...]) -> Array:
    indexed = sum(1 for p in parts if p is not None and p is not Ellipsis)
    dots = [k for k, p in enumerate(parts) if p is Ellipsis]
    if indexed > x.ndim or len(dots) > 1:
        raise IndexError(f"An index has at most one entry for each of {x.ndim} axes. Received: {parts}.")
    at = dots[0] if dots else len(parts)
    parts = (*parts[:at], *[slice(None)] * (x.ndim - indexed), *parts[at + 1 :])
    shape: list[int] = []
    steps: list[int] = []
    offset, axis = 0, 0
    for part in parts:
        if part is None:
            shape.append(1)
            steps.append(0)
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
        raise IndexError(
            "An index is integers, slices, newaxis and ellipsis, or for reading one integer array by itself. "
            f"Received: {part!r}."
        )
    at = int(part.__index__())
    if not -n <= at < n:
        raise IndexError(f"An index along axis {axis} is from {-n} to {n - 1}. Received: {at}.")
    return at % n


def take(x: Array, indices: Array, /, *, axis: int | None = None) -> Array:
    """Elements along an axis, by an integer vector."""
    if indices.ndim != 1 or indices.dtype.kind not in "iu" or (axis is None and x.ndim != 1):
        raise ValueError(
            "take gets a vector of integers, and an axis unless x is a vector. "
            f"Received: {indices.dtype}{list(indices.shape)} and axis={axis}."
        )
    at = 0 if axis is None else axis_of(axis, x.ndim)
    if not x.shape[at] and indices.size:
        raise IndexError(f"take needs elements along axis {at}. Received: an array of shape {x.shape}.")
    behind = x.ndim - at - 1
    rows = indices.view((indices.size, *[1] * behind), (*indices.steps, *[0] * behind))
    return _gathered(x, rows, at, (*x.shape[:at], indices.size, *x.shape[at + 1 :]))


def take_along_axis(x: Array, indices: Array, /, *, axis: int = -1) -> Array:
    """Elements along an axis, each from the place that an array of integers of the result's shape names."""
    at = axis_of(axis, x.ndim)
    if indices.ndim != x.ndim:
        raise ValueError(f"indices has as many axes as x. Received: {indices.ndim} and {x.ndim}.")
    whole = list(broadcast_shapes(*((*a.shape[:at], 1, *a.shape[at + 1 :]) for a in (x, indices))))
    whole[at] = x.shape[at]
    source = broadcast_to(x, whole)
    whole[at] = indices.shape[at]
    return _gathered(source, indices, at, tuple(whole))


def _gathered(x: Array, rows: Array, axis: int, shape: tuple[int, ...]) -> Array:
    """An array of some shape whose elements are taken along an axis, from places that broadcast to that shape."""
    n, inner, gathered = x.shape[axis], math.prod(shape[axis + 1 :]), empty(shape, x.dtype, same_device((x, rows)))
    text = "w0[i // a2 * a3 + (x0 + a1 if x0 < 0 else x0) * a0 + i % a0]"
    compute(text, gathered, (rows,), (inner, n, shape[axis] * inner, n * inner), (contiguous(x),))
    return gathered


__all__ = ["take", "take_along_axis"]
