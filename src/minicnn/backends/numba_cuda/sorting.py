"""The order of elements, searching in what is in order, and places that are not zero.

A result whose shape depends on the data has its length read from the device, which waits for it: in `nonzero`, the
`unique_` functions, `x[mask]`, and `repeat` with an array of repeats.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from minicnn.backends.numba_cuda import dtypes
from minicnn.backends.numba_cuda.arrays import Array, empty, launch
from minicnn.backends.numba_cuda.creation import arange, asarray
from minicnn.backends.numba_cuda.elementwise import FUNCTIONS, astype, contiguous, same_device
from minicnn.backends.numba_cuda.manipulation import axis_of, flip, moveaxis, reshape
from minicnn.backends.numba_cuda.reductions import count_nonzero

INDEX = np.dtype("int64")

# An element's place among SHORT neighbours is the number of those that go ahead of it. Then runs are merged in pairs:
# its place in the pair is its place in its run and the number of the other run's elements that go ahead of it. Of equal
# elements the first goes ahead, so that the result is stable, and is the same each time.
SHORT = 32
_RANK = """def kernel(count, n, keys, out):
    for i in range(cuda.grid(1), count, cuda.gridsize(1)):
        row = i // n * n
        start = (i - row) // {short} * {short}
        place = row + start
        for other in range(row + start, row + min(start + {short}, n)):
            if before(keys[other], keys[i]) or (other < i and not before(keys[i], keys[other])):
                place += 1
        out[place] = i - row
"""
_MERGE = """def kernel(count, n, length, keys, order, out):
    for i in range(cuda.grid(1), count, cuda.gridsize(1)):
        row = i // n * n
        run = (i - row) // length
        right = run % 2 == 1
        start = min((run - 1 if right else run + 1) * length, n)
        stop = min(start + length, n)
        ahead = insertion(keys, row, order, start, stop, keys[row + order[i]], right) - start
        out[i - length + ahead if right else i + ahead] = order[i]
"""
_SEARCH = """def kernel(count, n, right, keys, order, values, out):
    for i in range(cuda.grid(1), count, cuda.gridsize(1)):
        out[i] = insertion(keys, 0, order, 0, n, values[i], right != 0)
"""


def argsort(x: Array, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Array:
    """Places of the elements along an axis in ascending order; equal ones keep theirs, NaN counts as the largest."""
    at = axis_of(axis, x.ndim)
    if descending:
        return FUNCTIONS["subtract"](x.shape[at] - 1, flip(argsort(flip(x, axis=at), axis=at), axis=at))
    keys = contiguous(moveaxis(x, at, -1))
    n = keys.shape[-1]
    order, other = (empty(keys.shape, INDEX, x.device) for _ in range(2))
    if keys.size:
        launch(_RANK.format(short=SHORT), (keys.size, n), (keys, order))
        length = SHORT
        while length < n:
            launch(_MERGE, (keys.size, n, length), (keys, order, other))
            order, other, length = other, order, 2 * length
    return moveaxis(order, -1, at)


def searchsorted(x1: Array, x2: Any, /, *, side: str = "left", sorter: Array | None = None) -> Array:
    """Places of x2's elements in the sorted vector x1, ahead of equal ones (left) or behind them (right)."""
    if side not in ("left", "right") or x1.ndim != 1:
        raise ValueError(
            f"searchsorted gets a vector and side='left' or 'right'. Received: shape {x1.shape}, side={side!r}."
        )
    kind, device = dtypes.result_type(x1, x2), same_device([a for a in (x1, x2, sorter) if isinstance(a, Array)])
    keys, values = (contiguous(asarray(x, dtype=kind, device=device)) for x in (x1, x2))
    order = arange(x1.size, device=device) if sorter is None else contiguous(astype(sorter, INDEX, copy=False))
    ranks = empty(values.shape, INDEX, device)
    if ranks.size:
        launch(_SEARCH, (ranks.size, x1.size, int(side == "right")), (keys, order, values, ranks))
    return ranks


def places(x: Array) -> Array:
    """Places in row-major order of the elements that differ from 0; reads their number from the device."""
    mask = astype(reshape(x, (-1,)), "bool", copy=False)
    order = argsort(FUNCTIONS["logical_not"](mask))
    return order[: int(count_nonzero(mask))]


def nonzero(x: Array, /) -> tuple[Array, ...]:
    """Indices along each axis of the elements that differ from 0; reads their number from the device."""
    if not x.ndim:
        raise ValueError("nonzero is for arrays with axes. Received: an array of shape (). Compare it with 0.")
    at, indices = places(x), list[Array]()
    for axis, n in enumerate(x.shape):
        inner = math.prod(x.shape[axis + 1 :])
        indices.append(FUNCTIONS["remainder"](FUNCTIONS["floor_divide"](at, inner), n))
    return tuple(indices)


__all__ = ["argsort", "nonzero", "searchsorted"]
