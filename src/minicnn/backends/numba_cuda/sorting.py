"""Sorting, searching in what is sorted, and what follows from both: places that are not zero, unique elements.

A result whose shape depends on the data has its length read from the device, which waits for it: in `nonzero`, the
`unique_` functions, `x[mask]`, and `repeat` with an array of repeats.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from minicnn.backends.numba_cuda import dtypes
from minicnn.backends.numba_cuda.arrays import Array, empty
from minicnn.backends.numba_cuda.creation import arange, asarray, ones
from minicnn.backends.numba_cuda.device import THREADS, kernel
from minicnn.backends.numba_cuda.elementwise import FUNCTIONS, astype, contiguous, same_device
from minicnn.backends.numba_cuda.indexing import take, take_along_axis
from minicnn.backends.numba_cuda.manipulation import axis_of, concat, flip, moveaxis, reshape
from minicnn.backends.numba_cuda.reductions import count_nonzero, diff

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


def _launch(text: str, numbers: tuple[int, ...], arrays: tuple[Array, ...]) -> None:
    signature = (*["int64"] * len(numbers), *(f"{a.dtype.name}*" for a in arrays))
    blocks = min(arrays[0].device.most_blocks, -(-numbers[0] // THREADS))
    arrays[0].device.launch(kernel(text, signature), blocks, THREADS, (*numbers, *(a.pointer for a in arrays)))


def argsort(x: Array, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Array:
    """Places of the elements along an axis in ascending order; equal ones keep theirs, NaN counts as the largest."""
    at = axis_of(axis, x.ndim)
    if descending:
        return FUNCTIONS["subtract"](x.shape[at] - 1, flip(argsort(flip(x, axis=at), axis=at), axis=at))
    keys = contiguous(moveaxis(x, at, -1))
    n = keys.shape[-1]
    order, other = (empty(keys.shape, INDEX, x.device) for _ in range(2))
    if keys.size:
        _launch(_RANK.format(short=SHORT), (keys.size, n), (keys, order))
        length = SHORT
        while length < n:
            _launch(_MERGE, (keys.size, n, length), (keys, order, other))
            order, other, length = other, order, 2 * length
    return moveaxis(order, -1, at)


def sort(x: Array, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Array:
    """The elements along an axis in ascending order; NaN counts as the largest."""
    return take_along_axis(x, argsort(x, axis=axis, descending=descending), axis=axis)


def searchsorted(x1: Array, x2: Any, /, *, side: str = "left", sorter: Array | None = None) -> Array:
    """Where x2's elements belong in the sorted vector x1, ahead of equal ones (left) or behind them (right)."""
    if side not in ("left", "right") or x1.ndim != 1:
        message = f"searchsorted gets a vector and side='left' or 'right'. Received: shape {x1.shape}, side={side!r}."
        raise ValueError(message)
    kind, device = dtypes.result_type(x1, x2), same_device([a for a in (x1, x2, sorter) if isinstance(a, Array)])
    keys, values = (contiguous(asarray(x, dtype=kind, device=device)) for x in (x1, x2))
    order = arange(x1.size, device=device) if sorter is None else contiguous(astype(sorter, INDEX, copy=False))
    made = empty(values.shape, INDEX, device)
    if made.size:
        _launch(_SEARCH, (made.size, x1.size, int(side == "right")), (keys, order, values, made))
    return made


def places(x: Array) -> Array:
    """Places in row-major order of the elements that differ from 0; reads their number from the device."""
    found = astype(reshape(x, (-1,)), "bool", copy=False)
    order = argsort(FUNCTIONS["logical_not"](found))
    return order[: int(count_nonzero(found))]


def nonzero(x: Array, /) -> tuple[Array, ...]:
    """Indices along each axis of the elements that differ from 0; reads their number from the device."""
    if not x.ndim:
        message = "nonzero is for arrays with axes. Received: an array of shape (). Compare it with 0."
        raise ValueError(message)
    at, made = places(x), list[Array]()
    for axis, n in enumerate(x.shape):
        inner = math.prod(x.shape[axis + 1 :])
        made.append(FUNCTIONS["remainder"](FUNCTIONS["floor_divide"](at, inner), n))
    return tuple(made)


# Sets -----------------------------------------------------------------------------------------------------------


class UniqueAll(NamedTuple):
    """What `unique_all` gives."""

    values: Array
    indices: Array
    inverse_indices: Array
    counts: Array


class UniqueCounts(NamedTuple):
    """What `unique_counts` gives."""

    values: Array
    counts: Array


class UniqueInverse(NamedTuple):
    """What `unique_inverse` gives."""

    values: Array
    inverse_indices: Array


class _Groups:
    """The elements of an array in ascending order, cut where they change; each NaN is one of its own."""

    def __init__(self, x: Array) -> None:
        self.shape, self.flat = x.shape, reshape(x, (-1,))
        self.order = argsort(self.flat)
        ordered = take(self.flat, self.order)
        changes = FUNCTIONS["not_equal"](ordered[1:], ordered[:-1])
        self.starts = places(concat([ones(min(1, x.size), dtype="bool", device=x.device), changes]))

    def indices(self) -> Array:
        return take(self.order, self.starts)

    def values(self) -> Array:
        return take(self.flat, self.indices())

    def counts(self) -> Array:
        return diff(self.starts, append=asarray([self.flat.size], device=self.flat.device))

    def inverse(self) -> Array:
        behind = searchsorted(self.starts, argsort(self.order), side="right")
        return reshape(FUNCTIONS["subtract"](behind, 1), self.shape)


def unique_all(x: Array, /) -> UniqueAll:
    """The different elements in ascending order, where each is first, which one each element is, and how many are."""
    groups = _Groups(x)
    return UniqueAll(groups.values(), groups.indices(), groups.inverse(), groups.counts())


def unique_counts(x: Array, /) -> UniqueCounts:
    """The different elements in ascending order, and how many there are of each."""
    groups = _Groups(x)
    return UniqueCounts(groups.values(), groups.counts())


def unique_inverse(x: Array, /) -> UniqueInverse:
    """The different elements in ascending order, and which of them each element is."""
    groups = _Groups(x)
    return UniqueInverse(groups.values(), groups.inverse())


def unique_values(x: Array, /) -> Array:
    """The different elements in ascending order."""
    return _Groups(x).values()


def isin(x1: Any, x2: Any, /, *, invert: bool = False) -> Array:
    """Whether each element of x1 equals one of x2; if inverted, whether it equals none."""
    kind, device = dtypes.result_type(x1, x2), same_device([a for a in (x1, x2) if isinstance(a, Array)])
    x1, x2 = (asarray(x, dtype=kind, device=device) for x in (x1, x2))
    ordered = sort(reshape(x2, (-1,)))
    first, last = (searchsorted(ordered, x1, side=side) for side in ("left", "right"))
    found = FUNCTIONS["logical_and"](FUNCTIONS["less"](first, last), FUNCTIONS["equal"](x1, x1))  # NaN equals none
    return FUNCTIONS["logical_not"](found) if invert else found


__all__ = [
    "argsort", "isin", "nonzero", "searchsorted", "sort", "unique_all", "unique_counts", "unique_inverse",
    "unique_values",
]  # fmt: skip
