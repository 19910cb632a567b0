"""Threads that run a list of kernels together, waiting for each other after each one without going back to Python."""

from __future__ import annotations

import os
import threading
from collections import deque
from itertools import repeat
from queue import SimpleQueue
from typing import Any
from weakref import WeakSet

import numpy as np
from numba.core import config

from minicnn.backends.numba.cpus import cores
from minicnn.backends.numba.kernel import Source, callable_of

# drive(table, thread, threads): table holds the number of kernels, the address of the counter that all threads add to
# when they wait for each other, what it stands at before, and for each kernel its address, its table, its number of
# items, and whether the threads wait for each other after it.
_DRIVER = Source(
    "driver",
    ("count", "counter", "base"),
    (
        "for k in range(count):",
        "    entry = table + 24 + 32 * k",
        "    items = aload(entry + 16)",
        "    first = items * start // stop",
        "    last = items * (start + 1) // stop",
        "    if last > first:",
        "        call_kernel(aload(entry), aload(entry + 8), first, last)",
        "    if aload(entry + 24):",
        "        atomic_add(counter, 1)",
        "        base += stop",
        "        spins = 0",
        "        while atomic_load(counter) < base:",
        "            pause()",
        "            spins += 1",
        "            if spins > 1000:",  # somebody else needs the CPU more
        "                yield_cpu()",
    ),
)

Entry = tuple[int, np.ndarray[Any, Any], int]  # address of a kernel, its table of buffers and numbers, number of items


class KernelList:
    """Kernels that run one after the other.

    Args:
        groups: Kernels that do not depend on each other; threads wait for each other after each group.
    """

    def __init__(self, groups: list[list[Entry]]) -> None:
        self._tables = [table for group in groups for _, table, _ in group]
        flat = [len(self._tables), 0, 0]
        for group in groups:
            for i, (function, table, items) in enumerate(group, start=1):
                flat += [function, table.ctypes.data, items, int(i == len(group))]
        self.waits = len(groups)
        self.table = np.array(flat, np.int64)
        self.address = self.table.ctypes.data


class Pool:
    """Threads of one process; they wait in C without the interpreter's lock, and end with the process."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._drive = callable_of(_DRIVER)
        self._lock = threading.Lock()
        # The counter has a cache line of its own, lives as long as the pool and only grows: a thread that leaves
        # late finds nothing that has been reused.
        self._counter = np.zeros(16, np.int64)
        self._calls: list[SimpleQueue[int]] = [SimpleQueue() for _ in range(threads - 1)]
        for i, calls in enumerate(self._calls, start=1):
            threading.Thread(target=self._work, args=(i, calls), daemon=True, name=f"minicnn-{i}").start()

    def _work(self, number: int, calls: SimpleQueue[int]) -> None:
        while True:
            self._drive(calls.get(), number, self.threads)

    def run(self, kernels: KernelList) -> None:
        """Run kernels on all threads; one caller at a time."""
        with self._lock:
            kernels.table[1] = self._counter.ctypes.data + 64
            kernels.table[2] = self._counter[8]
            # All threads start or none, even if the user interrupts: no signal comes between calls that C makes.
            try:
                deque(map(SimpleQueue.put, self._calls, repeat(kernels.address)), maxlen=0)
            finally:
                self._drive(kernels.address, 0, self.threads)


class Lock:
    """A lock that is free in a forked child, where the thread that held it does not exist."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        _LOCKS.add(self)

    def reset(self) -> None:
        """Make it free."""
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


_LOCKS: WeakSet[Lock] = WeakSet()
_POOLS: dict[int, Pool] = {}
_POOLS_LOCK = Lock()


def pool(threads: int) -> Pool:
    """The pool of this process with that many threads; what is interpreted runs in the caller's alone."""
    count = 1 if config.DISABLE_JIT else threads
    with _POOLS_LOCK:
        if count not in _POOLS:
            _POOLS[count] = Pool(count)
        return _POOLS[count]


def _forget() -> None:
    """Threads do not survive a fork: the child makes pools of its own."""
    _POOLS.clear()
    for lock in _LOCKS:
        lock.reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def default_threads() -> int:
    """MINICNN_THREADS, else the cores that this process may use.

    Raises:
        ValueError: If MINICNN_THREADS is not a positive integer.
    """
    given = os.environ.get("MINICNN_THREADS")
    if not given:
        return cores()
    if not given.isdecimal() or not int(given):
        message = f"MINICNN_THREADS is an integer of at least 1. Received: {given!r}. Unset it to use all cores."
        raise ValueError(message)
    return int(given)
