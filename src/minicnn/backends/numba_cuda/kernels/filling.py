"""Filling shared memory from memory."""

from __future__ import annotations

from typing import Any

from minicnn.backends.numba_cuda.kernels.decorators import Function, block, choose, device, index, slot, unrolled
from minicnn.backends.numba_cuda.shim import cuda

AT_ONCE = 16  # loads under way before the first is stored
WIDE_AT_ONCE = 6  # the same where each brings four elements


def keeping(width: int) -> Function:
    """Function keep(values, u, fetched): put a tuple of so many elements, 1 or 4, into registers, the u-th of such."""

    @device
    def one(values: Any, u: Any, fetched: Any) -> None:
        values[slot(u)] = fetched[0]

    @device
    def four(values: Any, u: Any, fetched: Any) -> None:
        values[slot(u * 4)] = fetched[0]
        values[slot(u * 4 + 1)] = fetched[1]
        values[slot(u * 4 + 2)] = fetched[2]
        values[slot(u * 4 + 3)] = fetched[3]

    return four if width == 4 else one


def fill(T: Any, total: int, threads: int, load: Function, place: Function, width: int = 1, step: int = 1) -> Function:
    """Function filled(p, at, shared, thread) that all threads call to fill shared memory.

    Loads are under way together; load is also called with k = 0 by threads that have nothing left.

    Args:
        T: Type of the elements.
        total: Loads of all threads together.
        threads: Threads of a block.
        load: load(p, at, k): a tuple of `width` elements, for k < total.
        place: place(k): where the first of them goes.
        width: Elements of a load, 1 or 4.
        step: Distance in shared memory between the elements of a load.
    """
    steps = -(-total // threads)
    # Loads are issued together, so that a thread waits for memory once for all; each holds registers meanwhile, which
    # bounds how many.
    run = min(AT_ONCE if width == 1 else WIDE_AT_ONCE, steps)
    load, place, keep, zero, count = device(load), device(place), keeping(width), index(0), run * width

    @device
    def load_one(u: Any, s: Any) -> None:
        p, at, values, first = s
        k = index(first + u * threads)
        keep(values, u, load(p, at, choose(k < total, k, zero)))

    @device
    def store_one(u: Any, s: Any) -> None:
        shared, values, first = s
        k = index(first + u * threads)
        # Loads need no branch, since they may read element 0 once more, but a store outside would be one into another's
        # memory.
        if k < total:
            start = place(k)
            for w in range(width):
                shared[slot(start + w * step)] = values[slot(u * width + w)]

    load_all, store_all = unrolled(run, load_one), unrolled(run, store_one)

    @block
    def filled(p: Any, at: Any, shared: Any, thread: Any) -> None:
        values = cuda.local.array(count, T)
        for begin in range(0, steps, run):
            first = index(thread + begin * threads)
            load_all((p, at, values, first))
            store_all((shared, values, first))

    return filled
