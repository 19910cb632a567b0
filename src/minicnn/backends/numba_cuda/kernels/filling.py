"""Filling shared memory from memory."""

from __future__ import annotations

from typing import Any

from minicnn.backends.numba_cuda.kernels.decorators import Function, block, device, index
from minicnn.backends.numba_cuda.shim import cuda

AT_ONCE = 8  # loads under way before the first is stored


def fill(T: Any, total: int, threads: int, load: Function, place: Function) -> Function:
    """Function filled(p, at, shared, thread) that all threads call: shared[place(k)] = load(p, at, k) for k < total.

    Loads are under way together; load is also called with k = 0 by threads that have nothing left.
    """
    steps = -(-total // threads)
    run = min(AT_ONCE, steps)
    load, place = device(load), device(place)

    @block
    def filled(p: Any, at: Any, shared: Any, thread: Any) -> None:
        values = cuda.local.array(run, T)
        for step in range(0, steps, run):
            for u in range(run):
                k = index(thread + (step + u) * threads)
                values[u] = load(p, at, k if k < total else index(0))
            for u in range(run):
                k = index(thread + (step + u) * threads)
                if k < total:
                    shared[index(place(k))] = values[u]

    return filled
