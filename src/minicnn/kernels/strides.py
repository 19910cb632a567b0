"""Arrays in memory: how far apart neighbours are along each axis, in elements."""

from __future__ import annotations

import math
from collections.abc import Sequence

Numbers = tuple[int, ...]


def row_major(shape: Sequence[int]) -> Numbers:
    """Strides of an array without gaps."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def collapse(shape: Sequence[int], strides: Sequence[Sequence[int]]) -> tuple[Numbers, list[Numbers]]:
    """The fewest axes over which arrays of one shape can be walked, at least one, and their strides along these."""
    kept: list[int] = []
    sizes: list[int] = []
    for axis, n in enumerate(shape):
        if n == 1:
            continue
        if kept and all(s[kept[-1]] == s[axis] * n for s in strides):
            sizes[-1] *= n
            kept[-1] = axis
        else:
            kept.append(axis)
            sizes.append(n)
    return tuple(sizes) or (1,), [tuple(s[axis] for axis in kept) or (0,) for s in strides]
