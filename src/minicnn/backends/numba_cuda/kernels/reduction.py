"""Sums and maxima over many terms, and sums of the parts that other kernels left, always in the same order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from minicnn.backends.numba_cuda.kernels.decorators import Function, block, choose, device, index, slot, unrolled
from minicnn.backends.numba_cuda.kernels.scalars import larger
from minicnn.backends.numba_cuda.shim import cuda

AT_ONCE = 8  # parts under way before the first is added


@dataclass(frozen=True)
class ReduceTile:
    """O results over R terms each, which are cut into PARTS; a block makes OX results with RX threads each.

    Attributes:
        TERMS_FIRST: Whether the terms of neighbouring threads, not the results, lie next to each other.
        LARGEST: Whether a maximum is taken rather than a sum.
        RUN: Terms under way before the first is added.
    """

    O: int  # noqa: E741
    R: int
    PARTS: int
    OX: int
    RX: int
    TERMS_FIRST: bool
    LARGEST: bool
    RUN: int = 8


def reduce(T: Any, tile: ReduceTile, term: Function, out: Function) -> Function:
    """The function of a block: out(p, part, o, value) for each result, over term(p, o, r)."""
    O, R, PARTS, OX, RX = tile.O, tile.R, tile.PARTS, tile.OX, tile.RX  # noqa: E741
    # Neighbouring threads read what lies side by side, terms or results, so that one transaction serves them all.
    TERMS_FIRST, LARGEST, SIZE, RUN = tile.TERMS_FIRST, tile.LARGEST, tile.OX * tile.RX, tile.RUN
    TERMS = -(-R // PARTS)  # of a part
    start = T(-float("inf")) if LARGEST else T(0)

    @device
    def join(a: Any, b: Any) -> Any:
        return larger(a, b) if LARGEST else a + b

    @device
    def load(u: Any, s: Any) -> None:
        p, values, o, r = s
        values[u] = T(term(p, index(o), index(r + u * RX)))

    load_all = unrolled(RUN, load)

    @block
    def run(p: Any, number: Any) -> None:
        shared = cuda.shared.array(SIZE, T)
        values = cuda.local.array(RUN, T)
        thread = cuda.threadIdx.x
        part, o0 = number % PARTS, number // PARTS * OX
        rx = thread % RX if TERMS_FIRST else thread // OX
        ox = thread // RX if TERMS_FIRST else thread % OX
        o, first = index(o0 + ox), part * TERMS
        last, r = index(min(first + TERMS, R)), index(first + rx)
        total = start
        if o < O:
            # All loads of a run are issued before the first is added; a sum that waits for each of its terms takes RUN
            # times as long.
            while r + (RUN - 1) * RX < last:
                load_all((p, values, o, r))
                for u in range(RUN):
                    total = join(total, values[u])
                r = index(r + RUN * RX)
            while r < last:
                total = join(total, T(term(p, o, r)))
                r = index(r + RX)
        shared[slot(rx * OX + ox)] = total
        # A tree of a fixed shape, without atomic additions: the same bits in every run.
        half = RX // 2
        while half > 0:
            cuda.syncthreads()
            if rx < half:
                total = join(total, shared[slot((rx + half) * OX + ox)])
                shared[slot(rx * OX + ox)] = total
            half //= 2
        if rx == 0 and o < O:
            out(p, part, index(o), total)

    return run


def add_partial_sums(T: Any, size: int, parts: int, slices: int, lanes: int, term: Function, out: Function) -> Function:
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
    SHARED, STEPS = slices * lanes, -(-parts // slices)
    RUN = min(AT_ONCE, STEPS)
    zero, start = T(0), index(0)

    @device
    def load(u: Any, s: Any) -> None:
        p, values, i, first = s
        part = index(first + u * slices)
        real = part < parts
        values[u] = choose(real, T(term(p, choose(real, index(part * size + i), start))), zero)

    load_all = unrolled(RUN, load)

    @block
    def run(p: Any, number: Any) -> None:
        shared = cuda.shared.array(SHARED, T)
        values = cuda.local.array(RUN, T)
        thread = cuda.threadIdx.x
        lane, piece = thread % lanes, thread // lanes
        i = index(number * lanes + lane)
        total = zero
        if i < size:
            for step in range(0, STEPS, RUN):
                load_all((p, values, i, piece + step * slices))
                for u in range(RUN):
                    total += values[u]
        shared[slot(thread)] = total
        cuda.syncthreads()
        if piece == 0 and i < size:
            # One thread adds the slices, in order; there are few, and another order would give other bits.
            for other in range(1, slices):
                total += shared[slot(other * lanes + lane)]
            out(p, i, total)

    return run
