"""Softmax and cross-entropy of short rows: a thread goes through the whole row, which is in the cache.

Each maker gets a type T, the length of a row, and row(p, i, r), element r of the row that element i of the result
belongs to.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from minicnn.backends.numba_cuda.kernels.decorators import Function, device
from minicnn.backends.numba_cuda.kernels.elementary import exp, log
from minicnn.backends.numba_cuda.kernels.scalars import larger


def statistics(T: Any, k: int, row: Function) -> Function:
    """Function made(p, i): the maximum of a row, and the sum of exponentials below it."""
    zero = T(0)

    @device
    def made(p: Any, i: Any) -> Any:
        top = T(row(p, i, 0))
        for r in range(1, k):
            top = larger(top, T(row(p, i, r)))
        total = zero
        for r in range(k):
            total += exp(T(row(p, i, r)) - top)
        return top, total

    return made


def softmax(T: Any, k: int, row: Function, logarithm: bool = False) -> Function:
    """Function element(p, i, at): element `at` of the softmax of a row, or its logarithm."""
    statistics_of = statistics(T, k, row)

    @device
    def element(p: Any, i: Any, at: Any) -> Any:
        top, total = statistics_of(p, i)
        below = T(row(p, i, at)) - top
        return below - log(total) if logarithm else exp(below) / total

    return element


log_softmax = partial(softmax, logarithm=True)


def softmax_cross_entropy(T: Any, k: int, row: Function) -> Function:
    """Function element(p, i, label): minus the logarithm of the label's probability; 0 for a label out of range."""
    zero, log_probability = T(0), log_softmax(T, k, row)

    @device
    def element(p: Any, i: Any, label: Any) -> Any:
        inside = label >= 0 and label < k
        value = -log_probability(p, i, label if inside else 0)
        return value if inside else zero

    return element


def softmax_cross_entropy_gradient(T: Any, k: int, row: Function) -> Function:
    """Function element(p, i, at, label, dy): (probability - 1 at the label) * dy."""
    zero, one, probability = T(0), T(1), softmax(T, k, row)

    @device
    def element(p: Any, i: Any, at: Any, label: Any, dy: Any) -> Any:
        value = (probability(p, i, at) - (one if at == label else zero)) * dy
        return value if label >= 0 and label < k else zero * dy

    return element


def argmax(T: Any, k: int, row: Function) -> Function:
    """Function element(p, i): place of the first maximum of a row; of the first NaN, if there is one."""

    @device
    def element(p: Any, i: Any) -> Any:
        best = T(row(p, i, 0))
        at = 0
        for r in range(1, k):
            value = T(row(p, i, r))
            if value > best or (value != value and best == best):
                best = value
                at = r
        return at

    return element
