"""Threads that run a list of kernels together, waiting for each other after each one without going back to Python.

Each thread but the caller's has a box, in which the caller puts the address of the list. A thread that has done its
share looks into its box for a moment, since the next step mostly comes at once and to wake a thread takes as long as
many a kernel; then it says in the box that it is asleep, and sleeps until the caller wakes it.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections import deque
from itertools import compress, repeat
from queue import SimpleQueue
from typing import Any
from weakref import WeakSet

import numpy as np

from minicnn.backends.numba import interpreting
from minicnn.backends.numba.cpus import cores
from minicnn.backends.numba.kernel import KernelCode, callable_of, compile_source

WAIT_S = 2e-4  # before a thread sleeps: somewhat longer than Python takes between the steps of a training
NAP_S = 1e-3  # before a thread sleeps that waits for a share: one that oversleeps misses the next list
STEAL_S = 2e-6  # before a thread does the share of another that has yet to begin with it
_LINE = 8  # numbers in a line of the cache, of which threads that do not mean each other share none

# What a thread's line says of it: EMPTY while it looks for a list, POSTED when it may take one, BUSY once it has.
_EMPTY, _ASLEEP, _POSTED, _BUSY = 0, 1, 2, 3

# drive(line, thread, threads): the line holds the thread's state, the number of the group whose share of this thread
# comes next, the address of a list of groups of kernels, the numbers of its first group and of the one after its last,
# the address of the counter of shares done, and how many rounds a thread waits before it steals and before it sleeps.
# Groups and shares are numbered on from list to list, so one that comes late finds that all has been done. Only who has
# claimed a share may look into the list: it lives at least until that share is done.
_DRIVER = KernelCode(
    "driver",
    ("state", "claim", "groups", "first", "end", "counter", "patience", "limit"),
    (
        f"lines = table - {8 * _LINE} * start",
        "wait = patience",
        "for group in range(first, end):",
        "    done = stop * (group + 1)",
        "    share = start",
        "    tried = 0",
        "    while tried < stop and atomic_load(counter) < done:",
        f"        if atomic_replace(lines + {8 * _LINE} * share + 8, group, group + 1) == group:",
        "            entry = aload(groups + 8 * (group - first))",
        "            last = aload(groups + 8 * (group - first) + 8)",
        "            while entry < last:",
        "                items = aload(entry + 16)",
        "                begin = (items * share + stop - 1) // stop",  # so that one item is the caller's
        "                until = (items * (share + 1) + stop - 1) // stop",
        "                if until > begin:",
        "                    call_kernel(aload(entry), aload(entry + 8), begin, until)",
        "                entry += 24",
        "            atomic_add(counter, 1)",
        "            wait = patience if tried == 0 else 0",  # who is away now is likely to be so at the next group
        "        waited = 0",
        "        while tried == 0 and waited < wait and atomic_load(counter) < done:",
        "            pause()",
        "            waited += 1",
        "        tried += 1",
        "        share = (share + 1) % stop",
        "    waited = 0",
        "    while atomic_load(counter) < done:",
        "        if waited < limit:",
        "            pause()",
        "            waited += 1",
        "        else:",  # the system has taken the CPU from the thread that has the share
        "            nap()",
    ),
)

# alone(groups, 0, number of groups): everything, by one thread.
_ALONE = KernelCode(
    "alone",
    ("entry",),
    (
        "last = aload(table + 8 * stop)",
        "while entry < last:",
        "    call_kernel(aload(entry), aload(entry + 8), 0, aload(entry + 16))",
        "    entry += 24",
    ),
)

# serve(table, thread, threads): drives the lists that are posted until none has come for some rounds of waiting.
_SERVER = KernelCode(
    "server",
    ("line", "driver", "rounds"),
    (
        "awake = True",
        "while awake:",
        f"    if atomic_replace(line, {_POSTED}, {_BUSY}) == {_POSTED}:",
        "        call_kernel(driver, line, start, stop)",
        f"        atomic_exchange(line, {_EMPTY})",
        "    waited = 0",
        f"    while atomic_load(line) == {_EMPTY} and waited < rounds:",
        "        pause()",
        "        waited += 1",
        "    if waited == rounds:",
        f"        awake = atomic_replace(line, {_EMPTY}, {_ASLEEP}) != {_EMPTY}",
    ),
)

# post(table, 0, threads): writes a list into the lines, and says which threads are asleep. A thread that has
# yet to take the last list does not get to see it any more; one that is still busy with it is left alone.
_POSTER = KernelCode(
    "poster",
    ("lines", "asleep", "groups", "first", "end"),
    (
        "for i in range(start, stop):",
        f"    line = lines + {8 * _LINE} * i",
        f"    atomic_replace(line, {_POSTED}, {_EMPTY})",
        f"    if atomic_load(line) != {_BUSY}:",
        "        astore(line + 16, groups)",
        "        astore(line + 24, first)",
        "        astore(line + 32, end)",
        f"        ustore(asleep + i, uint8(atomic_exchange(line, {_POSTED}) == {_ASLEEP}))",
        "    else:",
        "        ustore(asleep + i, uint8(0))",
    ),
)

# pauses(table, start, stop): as many rounds of waiting.
_PAUSES = KernelCode(
    "pauses", ("counter",), ("for i in range(start, stop):", "    atomic_load(counter)", "    pause()")
)

Entry = tuple[int, np.ndarray[Any, Any], int]  # address of a kernel, its table of buffers and numbers, number of items


class KernelList:
    """Kernels that run one after the other.

    Args:
        groups: Kernels that do not depend on each other; threads wait for each other after each group.
    """

    def __init__(self, groups: list[list[Entry]]) -> None:
        self._tables = [table for group in groups for _, table, _ in group]
        self.groups = len(groups)
        # The address of each group's first kernel, and the end of the last; then address, table and items of each.
        head = self.groups + 1
        self._numbers = np.empty(head + 3 * len(self._tables), np.int64)
        self.address = self._numbers.ctypes.data
        counts = np.cumsum([0, *map(len, groups)])
        self._numbers[:head] = self.address + 8 * (head + 3 * counts)
        entries = [(function, table.ctypes.data, items) for group in groups for function, table, items in group]
        self._numbers[head:] = np.ravel(entries)


class Pool:
    """Threads of one process; they wait in C without the interpreter's lock, and end with the process.

    The work of each group is cut into as many shares as there are threads, whoever does them. Each thread begins with
    its own and then does those that nobody has begun, so it waits only for what is under way: beside other processes
    the threads seldom have all their cores at the same moment.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads
        # One list at a time: boxes hold one.
        self._lock = threading.Lock()
        self._alone = callable_of(_ALONE)
        if threads == 1:
            return
        # Lines of the cache: one for each thread, the caller's first, and the counter's. They live as long as the pool.
        self._lines = np.zeros((threads + 1, _LINE), np.int64)
        self._done = 0  # groups of all lists so far
        # A queue that is written in C wakes a thread without the interpreter's lock being taken twice.
        self._calls: list[SimpleQueue[None]] = [SimpleQueue() for _ in range(threads)]
        self._asleep = bytearray(threads)
        flags = np.frombuffer(self._asleep, np.uint8)
        self._drive, self._post, self._serve = callable_of(_DRIVER), callable_of(_POSTER), callable_of(_SERVER)
        self._posted = np.array([self._address(0), flags.ctypes.data, 0, 0, 0], np.int64)
        # NumPy takes longer to tell an address than a short kernel runs.
        self._first_line, self._post_table = self._address(0), self._posted.ctypes.data
        self._list = self._posted.data[2:]
        # How long a round of waiting takes depends on the CPU: the pause instruction takes 10 to 140 cycles.
        second = self._rounds()
        rounds, patience, limit = (int(second * wait) + 1 for wait in (WAIT_S, STEAL_S, NAP_S))
        self._lines[:, 5:] = self._address(threads), patience, limit
        self._lines[threads] = 0
        self._lines[1:threads, 0] = _ASLEEP
        self._driver = compile_source(_DRIVER)
        for i in range(1, threads):
            table = np.array([self._address(i), self._driver.address, rounds], np.int64)
            threading.Thread(
                target=self._work, args=(i, self._calls[i], table), daemon=True, name=f"minicnn-{i}"
            ).start()

    def _address(self, line: int) -> int:
        return int(self._lines.ctypes.data) + line * 8 * _LINE

    def _rounds(self) -> float:
        """Rounds of waiting in a second."""
        pauses, table, count = callable_of(_PAUSES), np.array([self._address(self.threads)], np.int64), 500

        def rate() -> float:
            start = time.perf_counter()
            pauses(table.ctypes.data, 0, count)
            return count / max(time.perf_counter() - start, 1e-9)  # a clock may be coarse

        # The system may take the CPU away meanwhile; then threads would go to sleep at once, for as long as they live.
        return max(rate() for _ in range(5))

    def _work(self, number: int, calls: SimpleQueue[None], table: np.ndarray[Any, Any]) -> None:
        while True:
            calls.get()
            self._serve(table.ctypes.data, number, self.threads)

    def settle(self, patience: float = 1.0) -> None:
        """Wait until all threads sleep, but no longer than so many seconds."""
        end = time.perf_counter() + patience
        while self.threads > 1 and (self._lines[1:-1, 0] != _ASLEEP).any() and time.perf_counter() < end:
            time.sleep(WAIT_S)

    def run(self, kernels: KernelList) -> None:
        """Run kernels on all threads; one caller at a time, unless its thread is the only one."""
        if self.threads == 1:
            self._alone(kernels.address, 0, kernels.groups)
            return
        with self._lock:
            first = self._done
            self._done += kernels.groups
            self._list[0], self._list[1], self._list[2] = kernels.address, first, self._done
            # Lazily, by C code alone: an exception of the interpreter cannot come in between.
            waking = map(SimpleQueue.put, compress(self._calls, self._asleep), repeat(None))  # once it is known who is
            # All is done or nothing, even if the user interrupts: that is noticed after calls, not within them.
            try:
                try:
                    self._post(self._post_table, 0, self.threads)
                finally:
                    deque(waking, 0)
            finally:
                # The caller does shares, too, and returns only when all are done, since buffers may be freed then.
                self._drive(self._first_line, 0, self.threads)


class ForkSafeLock:
    """A lock that is free in a forked child, where the thread that held it does not exist.

    Attributes:
        now: The lock itself, for those who enter it often.
    """

    def __init__(self) -> None:
        self.now = threading.Lock()
        _LOCKS.add(self)

    def reset(self) -> None:
        """Make it free."""
        self.now = threading.Lock()

    def __enter__(self) -> None:
        self.now.acquire()

    def __exit__(self, *_: object) -> None:
        self.now.release()


_LOCKS: WeakSet[ForkSafeLock] = WeakSet()
_POOLS: dict[int, Pool] = {}
_POOLS_LOCK = ForkSafeLock()


def pool(threads: int) -> Pool:
    """The pool of this process with that many threads; what is interpreted runs in the caller's alone."""
    # Interpreted kernels hold the interpreter's lock, so that threads would only wait for each other.
    count = 1 if interpreting.SWITCHED_ON else threads
    known = _POOLS.get(count)
    if known is not None:
        return known
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


@atexit.register
def _settle() -> None:
    """Threads look for work in code that is freed when the interpreter ends."""
    for each in _POOLS.values():
        each.settle()


def default_threads() -> int:
    """MINICNN_THREADS, else the cores that this process may use.

    Raises:
        ValueError: If MINICNN_THREADS is not a positive integer.
    """
    asked = os.environ.get("MINICNN_THREADS")
    if not asked:
        return cores()
    if not asked.isdecimal() or not int(asked):
        raise ValueError(
            f"MINICNN_THREADS is an integer of at least 1. Received: {asked!r}. Unset it to use all cores."
        )
    return int(asked)
