"""Launches in Numba's CUDA simulator, which runs each thread of a block as a thread of the host."""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any


@contextmanager
def _one_array_for_all_threads() -> Iterator[None]:
    """Gives all threads of a block the same shared arrays.

    The simulator knows an array of a launch by the line that makes it, and two threads may find none at the same time.
    Blocks of one launch may have arrays of other sizes from that line, if they compute other products.
    """
    from numba.cuda.simulator.kernelapi import FakeCUDAShared

    original, lock = FakeCUDAShared.array, threading.Lock()

    def array(self: Any, shape: Any, dtype: Any, *alignment: Any) -> Any:
        if shape == 0:  # what a launch asks for
            return original(self, shape, dtype, *alignment)
        frame = sys._getframe(1)
        key = frame.f_code.co_filename, frame.f_lineno, shape, dtype
        with lock:
            if key not in self._allocations:
                self._allocations[key] = original(FakeCUDAShared(0), shape, dtype, *alignment)
            return self._allocations[key]

    FakeCUDAShared.array = array
    try:
        yield
    finally:
        FakeCUDAShared.array = original


def simulate(function: Any, blocks: Any, threads: int, arguments: Sequence[Any], shared: int = 0) -> None:
    """Launch a kernel, with so many bytes of shared memory beside what it declares, and wait for it."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # a barrier waits until each thread had its turn
    try:
        with warnings.catch_warnings(), _one_array_for_all_threads():
            warnings.simplefilter("ignore", RuntimeWarning)  # overflow and division by zero are what they are on a GPU
            function[blocks, threads, 0, shared](*arguments)
    finally:
        sys.setswitchinterval(interval)
