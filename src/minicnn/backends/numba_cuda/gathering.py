"""Functions that gather elements at computed places: sorted, unique and repeated elements."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Sequence
from typing import Any

import numpy as np

from minicnn.backends.numba_cuda import dtypes
from minicnn.backends.numba_cuda.arrays import Array
from minicnn.backends.numba_cuda.creation import arange, asarray, ones
from minicnn.backends.numba_cuda.elementwise import FUNCTIONS, contiguous, same_device
from minicnn.backends.numba_cuda.indexing import take, take_along_axis
from minicnn.backends.numba_cuda.manipulation import axis_of, broadcast_to, concat, expand_dims, reshape
from minicnn.backends.numba_cuda.reductions import cumulative_sum, diff
from minicnn.backends.numba_cuda.sorting import argsort, places, searchsorted


def repeat(x: Array, repeats: int | Array, /, *, axis: int | None = None) -> Array:
    """Each element several times: all as often, or each by a vector's number, of which the sum is read from the device.

    Raises:
        ValueError: If `repeats` is an array but no vector of integers, of length 1 or one for each element.
    """
    source = reshape(x, (-1,)) if axis is None else x
    at = axis_of(0 if axis is None else axis, source.ndim)
    if isinstance(repeats, Array):
        if repeats.dtype.kind not in "iu" or repeats.shape not in ((1,), (source.shape[at],)):
            raise ValueError(
                f"repeats is a number, or a vector of integers of length 1 or {source.shape[at]}. "
                f"Received: {repeats.dtype}{list(repeats.shape)}."
            )
        ends = cumulative_sum(broadcast_to(repeats, (source.shape[at],)), dtype="int64")
        total = int(ends[-1]) if ends.size else 0
        return take(source, searchsorted(ends, arange(total, device=x.device), side="right"), axis=at)
    wide = expand_dims(source, axis=at + 1)
    shape = (*source.shape[: at + 1], repeats, *source.shape[at + 1 :])
    result = (*source.shape[:at], source.shape[at] * repeats, *source.shape[at + 1 :])
    return reshape(broadcast_to(wide, shape), result, copy=True)


def roll(x: Array, /, shift: int | Sequence[int], *, axis: int | Sequence[int] | None = None) -> Array:
    """Elements moved along axes, those at the end to the beginning."""
    if axis is None:
        return reshape(roll(reshape(x, (-1,)), shift, axis=0), x.shape)
    axes, rolled = (axis,) if isinstance(axis, int) else tuple(axis), contiguous(x, copy=True)
    for by, at in zip(np.broadcast_to(shift, len(axes)).tolist(), axes, strict=True):
        n = x.shape[axis_of(at, x.ndim)]
        rolled = take(rolled, FUNCTIONS["remainder"](arange(-by, n - by, device=x.device), n), axis=at)
    return rolled


def sort(x: Array, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Array:
    """The elements along an axis in ascending order; NaN counts as the largest."""
    return take_along_axis(x, argsort(x, axis=axis, descending=descending), axis=axis)


UniqueAll = namedtuple("UniqueAll", "values indices inverse_indices counts")
UniqueCounts = namedtuple("UniqueCounts", "values counts")
UniqueInverse = namedtuple("UniqueInverse", "values inverse_indices")


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
    """Mask of the elements of x1 that equal one of x2; if inverted, of those that equal none."""
    kind, device = dtypes.result_type(x1, x2), same_device([a for a in (x1, x2) if isinstance(a, Array)])
    x1, x2 = (asarray(x, dtype=kind, device=device) for x in (x1, x2))
    ordered = sort(reshape(x2, (-1,)))
    first, last = (searchsorted(ordered, x1, side=side) for side in ("left", "right"))
    members = FUNCTIONS["logical_and"](FUNCTIONS["less"](first, last), FUNCTIONS["equal"](x1, x1))  # NaN equals none
    return FUNCTIONS["logical_not"](members) if invert else members


__all__ = ["isin", "repeat", "roll", "sort", "unique_all", "unique_counts", "unique_inverse", "unique_values"]
