"""Threads that run a list of kernels together, waiting for each other after each one without going back to Python.

Each thread but the caller's has a box, in which the caller puts the address of the list. A thread that has done its
share looks into its box for a moment, since the next step mostly comes at once and to wake a thread takes as long as
many a kernel; then it says in the box that it is asleep, and sleeps until the caller wakes it.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from itertools import compress, repeat
from queue import SimpleQueue
from typing import Any
from weakref import WeakSet

import numpy as np
from numba.core import config

from minicnn.backends.numba.cpus import cores
from minicnn.backends.numba.kernel import Source, callable_of, compile_source

WAIT_S = 2e-4  # before a thread sleeps: somewhat longer than Python takes between the steps of a training
_LINE = 8  # numbers in a line of the cache, of which threads that do not mean each other share none

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

_EMPTY, _ASLEEP = 0, 1  # what a box holds else

# serve(table, thread, threads): drives the lists that come into a box until none has come for some rounds of waiting.
_SERVER = Source(
    "server",
    ("box", "driver", "rounds"),
    (
        "awake = True",
        "while awake:",
        f"    found = atomic_exchange(box, {_EMPTY})",
        f"    if found > {_ASLEEP}:",
        "        call_kernel(driver, found, start, stop)",
        "    waited = 0",
        f"    while atomic_load(box) == {_EMPTY} and waited < rounds:",
        "        pause()",
        "        waited += 1",
        "        if waited % 1000 == 0:",
        "            yield_cpu()",
        "    if waited == rounds:",
        f"        awake = atomic_replace(box, {_EMPTY}, {_ASLEEP}) != {_EMPTY}",
    ),
)

# post(table, first, last): puts an address into those boxes, and says which threads are asleep.
_POSTER = Source(
    "poster",
    ("address", "boxes", "asleep"),
    (
        "for i in range(start, stop):",
        f"    ustore(asleep + i, uint8(atomic_exchange(boxes + {8 * _LINE} * i, address) == {_ASLEEP}))",
    ),
)

# pauses(table, start, stop): as many rounds of waiting.
_PAUSES = Source("pauses", ("counter",), ("for i in range(start, stop):", "    atomic_load(counter)", "    pause()"))

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
        # Lines of the cache: the counter's, which lives as long as the pool and only grows, so that a thread that
        # leaves late finds nothing that has been reused; then the boxes'.
        self._lines = np.zeros((threads + 1, _LINE), np.int64)
        self._lines[2:] = _ASLEEP
        self._calls: list[SimpleQueue[None]] = [SimpleQueue() for _ in range(threads - 1)]
        if threads == 1:
            return
        self._asleep = bytearray(threads - 1)
        flags = np.frombuffer(self._asleep, np.uint8)
        self._post, self._serve = callable_of(_POSTER), callable_of(_SERVER)
        self._posted = np.array([0, self._address(2), flags.ctypes.data], np.int64)
        driver, rounds = compile_source(_DRIVER), self._rounds()
        for i, calls in enumerate(self._calls, start=1):
            table = np.array([self._address(1 + i), driver, rounds], np.int64)
            threading.Thread(target=self._work, args=(i, calls, table), daemon=True, name=f"minicnn-{i}").start()

    def _address(self, line: int) -> int:
        return int(self._lines.ctypes.data) + line * 8 * _LINE

    def _rounds(self) -> int:
        """How many rounds of waiting take WAIT_S."""
        pauses, table, count = callable_of(_PAUSES), np.array([self._address(1)], np.int64), 2000
        start = time.perf_counter()
        pauses(table.ctypes.data, 0, count)
        return int(count * WAIT_S / max(time.perf_counter() - start, 1e-9)) + 1  # a clock may be coarse

    def _work(self, number: int, calls: SimpleQueue[None], table: np.ndarray[Any, Any]) -> None:
        while True:
            calls.get()
            self._serve(table.ctypes.data, number, self.threads)

    def run(self, kernels: KernelList) -> None:
        """Run kernels on all threads; one caller at a time."""
        with self._lock:
            kernels.table[1] = self._address(1)
            kernels.table[2] = self._lines[1, 0]
            if self.threads == 1:
                self._drive(kernels.address, 0, 1)
                return
            self._posted[0] = kernels.address
            others, table = self.threads - 1, self._posted.ctypes.data
            waking = map(SimpleQueue.put, compress(self._calls, self._asleep), repeat(None))  # once it is known who is
            # All threads start or none, even if the user interrupts: that is noticed after calls, not within them.
            try:
                try:
                    self._post(table, 0, others)
                finally:
                    deque(waking, 0)
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
