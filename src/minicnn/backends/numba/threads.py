"""Threads that run a list of kernels together, waiting for each other after each one without going back to Python."""

from __future__ import annotations

import ctypes
import os
import threading
from functools import cache
from queue import SimpleQueue
from typing import Any

import numpy as np

from minicnn.backends.numba.kernel import Source, compile_source

# drive(table, thread, threads): table holds the number of kernels, the address of the counter that all threads add to
# after each kernel, what it stands at before, and for each kernel its address, its table and its number of items.
_DRIVER = Source(
    "driver",
    ("count", "counter", "base"),
    (
        "for k in range(count):",
        "    entry = table + 24 + 24 * k",
        "    items = aload(entry + 16)",
        "    first = items * start // stop",
        "    last = items * (start + 1) // stop",
        "    if last > first:",
        "        call_kernel(aload(entry), aload(entry + 8), first, last)",
        "    atomic_add(counter, 1)",
        "    spins = 0",
        "    while atomic_load(counter) < base + (k + 1) * stop:",
        "        pause()",
        "        spins += 1",
        "        if spins > 1000:",  # somebody else needs the CPU more
        "            yield_cpu()",
    ),
)


@cache
def _driver() -> Any:
    return ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(compile_source(_DRIVER))


class KernelList:
    """Kernels that run one after the other.

    Args:
        entries: For each its address, its table of buffers and numbers, and its number of items.
    """

    def __init__(self, entries: list[tuple[int, np.ndarray[Any, Any], int]]) -> None:
        self._tables = [table for _, table, _ in entries]
        flat = [len(entries), 0, 0]
        for function, table, items in entries:
            flat += [function, table.ctypes.data, items]
        self.table = np.array(flat, np.int64)
        self.address = self.table.ctypes.data


class Pool:
    """Threads of one process; they wait in C without the interpreter's lock, and end with the process."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._lock = threading.Lock()
        # The counter has a cache line of its own, lives as long as the pool and only grows: a thread that leaves
        # late finds nothing that has been reused.
        self._counter = np.zeros(16, np.int64)
        self._base = 0
        self._calls: list[SimpleQueue[int]] = [SimpleQueue() for _ in range(threads - 1)]
        for i, calls in enumerate(self._calls, start=1):
            threading.Thread(target=self._work, args=(i, calls), daemon=True, name=f"minicnn-{i}").start()

    def _work(self, number: int, calls: SimpleQueue[int]) -> None:
        drive = _driver()
        while True:
            drive(calls.get(), number, self.threads)

    def run(self, kernels: KernelList) -> None:
        """Run kernels on all threads; one caller at a time."""
        drive = _driver()
        with self._lock:
            kernels.table[1] = self._counter.ctypes.data + 64
            kernels.table[2] = self._base
            self._base += int(kernels.table[0]) * self.threads
            for calls in self._calls:
                calls.put(kernels.address)
            drive(kernels.address, 0, self.threads)


_POOLS: dict[int, Pool] = {}
_POOLS_LOCK = threading.Lock()


def pool(threads: int) -> Pool:
    """The pool of this process with that many threads."""
    with _POOLS_LOCK:
        if threads not in _POOLS:
            _POOLS[threads] = Pool(threads)
        return _POOLS[threads]


def _forget() -> None:
    """Threads do not survive a fork: the child makes pools of its own."""
    global _POOLS_LOCK
    _POOLS.clear()
    _POOLS_LOCK = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def default_threads() -> int:
    """MINICNN_THREADS, else the CPUs that this process may use.

    Raises:
        ValueError: If MINICNN_THREADS is not a positive integer.
    """
    given = os.environ.get("MINICNN_THREADS")
    if not given:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not given.isdecimal() or not int(given):
        message = f"MINICNN_THREADS is an integer of at least 1. Received: {given!r}. Unset it to use all CPUs."
        raise ValueError(message)
    return int(given)
