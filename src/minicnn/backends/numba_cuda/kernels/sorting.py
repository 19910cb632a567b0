"""Ranks of elements among sorted ones: the core of `xp.argsort` and `xp.searchsorted`."""

from __future__ import annotations

from typing import Any

from minicnn.backends.numba_cuda.kernels.decorators import device


@device
def before(a: Any, b: Any) -> Any:
    """True if a is sorted ahead of b: the smaller is, and NaN comes last."""
    return a < b or (a == a and b != b)


@device
def insertion(keys: Any, row: Any, order: Any, start: Any, stop: Any, key: Any, right: Any) -> Any:
    """The place from start to stop where a key belongs, behind its equals if `right`, by halves.

    keys[row + order[row + i]] ascends with i from start to stop.
    """
    low, high = start, stop
    while low < high:
        middle = (low + high) // 2
        other = keys[row + order[row + middle]]
        if (right and not before(key, other)) or before(other, key):
            low = middle + 1
        else:
            high = middle
    return low
