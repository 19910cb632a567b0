"""Sums and maxima over many terms, and sums of the parts that other kernels left, always in the same order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from minicnn.backends.numba_cuda.kernels.decorators import Function, block, index
from minicnn.backends.numba_cuda.kernels.scalars import larger
from minicnn.backends.numba_cuda.shim import cuda


@dataclass(frozen=True)
class ReduceTile:
    """O results over R terms each, which are cut into PARTS; a block makes OX results with RX threads each.

    Attributes:
        TERMS_FIRST: Whether the terms of neighbouring threads, not the results, lie next to each other.
        LARGEST: Whether a maximum is taken rather than a sum.
    """

    O: int  # noqa: E741
    R: int
    PARTS: int
    OX: int
    RX: int
    TERMS_FIRST: bool
    LARGEST: bool


def reduce(T: Any, tile: ReduceTile, term: Function, out: Function) -> Function:
    """The function of a block: out(p, part, o, value) for each result, over term(p, o, r)."""
    O, R, PARTS, OX, RX = tile.O, tile.R, tile.PARTS, tile.OX, tile.RX  # noqa: E741
    TERMS_FIRST, LARGEST, SIZE, RUN = tile.TERMS_FIRST, tile.LARGEST, tile.OX * tile.RX, -(-tile.R // tile.PARTS)
    start = T(-float("inf")) if LARGEST else T(0)

    @block
    def run(p: Any, number: Any) -> None:
        shared = cuda.shared.array(SIZE, T)
        thread = cuda.threadIdx.x
        part, o0 = number % PARTS, number // PARTS * OX
        rx = thread % RX if TERMS_FIRST else thread // OX
        ox = thread // RX if TERMS_FIRST else thread % OX
        o, first = o0 + ox, part * RUN
        last = min(first + RUN, R)
        total = start
        if o < O:
            for r in range(first + rx, last, RX):
                value = T(term(p, index(o), index(r)))
                total = larger(total, value) if LARGEST else total + value
        shared[index(rx * OX + ox)] = total
        half = RX // 2
        while half > 0:
            cuda.syncthreads()
            if rx < half:
                value = shared[index((rx + half) * OX + ox)]
                total = larger(total, value) if LARGEST else total + value
                shared[index(rx * OX + ox)] = total
            half //= 2
        if rx == 0 and o < O:
            out(p, part, index(o), total)

    return run


def sum_parts(T: Any, size: int, parts: int, slices: int, lanes: int, term: Function, out: Function) -> Function:
    """The function of a block that adds parts: slice s of a lane's threads takes every slices-th of them.

    Args:
        T: Type of the elements.
        size: Results.
        parts: Parts of each.
        slices: Threads for each result.
        lanes: Results of a block.
        term: term(p, i) for element i of all parts, one part after the other.
        out: out(p, i, total).
    """
    SHARED = slices * lanes
    zero = T(0)

    @block
    def run(p: Any, number: Any) -> None:
        shared = cuda.shared.array(SHARED, T)
        thread = cuda.threadIdx.x
        lane, piece = thread % lanes, thread // lanes
        i = number * lanes + lane
        total = zero
        if i < size:
            for part in range(piece, parts, slices):
                total += T(term(p, index(part * size + i)))
        shared[index(thread)] = total
        cuda.syncthreads()
        if piece == 0 and i < size:
            for other in range(1, slices):
                total += shared[index(other * lanes + lane)]
            out(p, index(i), total)

    return run
