"""Filling shared memory from memory."""

from __future__ import annotations

from typing import Any

from minicnn.backends.numba_cuda.kernels.decorators import Function, block, choose, device, index, slot, unrolled
from minicnn.backends.numba_cuda.shim import cuda

AT_ONCE = 16  # loads under way before the first is stored


def fill(T: Any, total: int, threads: int, load: Function, place: Function) -> Function:
    """Function filled(p, at, shared, thread) that all threads call to fill shared memory.

    Loads are under way together; load is also called with k = 0 by threads that have nothing left.

    Args:
        T: Type of the elements.
        total: Loads of all threads together.
        threads: Threads of a block.
        load: load(p, at, k): an element, for k < total.
        place: place(k): where it goes.
    """
    steps = -(-total // threads)
    # Loads are issued together, so that a thread waits for memory once for all; each holds registers meanwhile, which
    # bounds how many.
    run = min(AT_ONCE, steps)
    load, place, zero = device(load), device(place), index(0)

    @device
    def load_one(u: Any, s: Any) -> None:
        p, at, values, first = s
        k = index(first + u * threads)
        values[slot(u)] = load(p, at, choose(k < total, k, zero))

    @device
    def store_one(u: Any, s: Any) -> None:
        shared, values, first = s
        k = index(first + u * threads)
        # Loads need no branch, since they may read element 0 once more, but a store outside would be one into another's
        # memory.
        if k < total:
            shared[slot(place(k))] = values[slot(u)]

    load_all, store_all = unrolled(run, load_one), unrolled(run, store_one)

    @block
    def filled(p: Any, at: Any, shared: Any, thread: Any) -> None:
        values = cuda.local.array(run, T)
        for begin in range(0, steps, run):
            first = index(thread + begin * threads)
            load_all((p, at, values, first))
            store_all((shared, values, first))

    return filled
