"""Launches in Numba's CUDA simulator, which runs each thread of a block as a thread of the host."""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any


class _Allocations(dict[Any, Any]):
    """Shared arrays of a block by the place in the source that makes them.

    The simulator asks with `get`, and where there is none makes one and puts it here. In between no other thread may
    ask, or it would get an array of its own.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()

    def get(self, key: Any, default: Any = None) -> Any:
        """The array; or nothing, and then others wait until this thread has made it."""
        self._lock.acquire()
        found = super().get(key, default)
        if found is not None:
            self._lock.release()
        return found

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, value)
        self._lock.release()


@contextmanager
def _one_array_for_all_threads() -> Iterator[None]:
    """Lets the simulator's blocks share their arrays safely."""
    from numba.cuda.simulator.kernelapi import FakeCUDAShared

    original = FakeCUDAShared.__init__

    def initialise(self: Any, *arguments: Any) -> None:
        original(self, *arguments)
        self._allocations = _Allocations()

    FakeCUDAShared.__init__ = initialise
    try:
        yield
    finally:
        FakeCUDAShared.__init__ = original


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
