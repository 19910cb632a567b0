"""Simulator of kernels whose text has been checked: of CUDA kernels thread by thread, of CPU kernels with a cache.

A CPU kernel on large arrays is compiled by Numba instead.

Stands alone, as the process of a submission loads it without the rest of the library.
"""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace
from typing import Any

import numpy as np

LARGE = 10_000  # elements from which on a loop of the CPU is compiled instead of counted
LINE, LINES = 8, 32  # of the cache whose misses are counted: elements, and lines


class SimulatorError(Exception):
    """A mistake of a kernel that a machine would not forgive."""


def load(text: str, kind: str) -> Any:
    """The kernels of a text, with a function `run`.

    Args:
        text: As `language.translated` returns it.
        kind: "cuda" or "cpu".
    """
    plain: dict[str, Any] = {"float32": float, "int32": int, "math": math, "prange": range, "njit": lambda f: f}
    plain |= {f.__name__: f for f in (range, min, max, abs, int, float, len, NotImplementedError)}
    names = _executed(text, plain)
    if kind == "cuda":
        return SimpleNamespace(run=lambda name, grid, block, arrays: _launch(names[name], grid, block, arrays))
    compiled: dict[str, Any] = {}

    def run(name: str, arrays: list[Any]) -> dict[str, Any]:
        if sum(a.size for a in arrays if isinstance(a, np.ndarray)) < LARGE:
            return _count(names[name], arrays)
        if not compiled:
            import numba

            numbers = {"float32": numba.float32, "int32": numba.int32, "prange": numba.prange, "njit": numba.njit}
            compiled.update(_executed(text, {**plain, **numbers}))
        compiled[name](*arrays)
        return {"arrays": arrays}

    return SimpleNamespace(run=run)


def _executed(text: str, names: dict[str, Any]) -> dict[str, Any]:
    namespace = {"__builtins__": names, "__name__": "kernels", **names}
    exec(compile(text, "<kernels>", "exec"), namespace)
    return namespace


def _count(kernel: Any, arrays: list[Any]) -> dict[str, Any]:
    """Run a loop of the CPU, and count what it reads, writes, and brings into a cache."""
    watched = [_WatchedArray(f"argument {i + 1}", a) if isinstance(a, np.ndarray) else a for i, a in enumerate(arrays)]
    memories = [m for m in watched if isinstance(m, _WatchedArray)]
    cache = _Cache()
    for memory in memories:
        memory.clock, memory.cache = SimpleNamespace(interval=0, thread=0), cache
    kernel(*watched)
    return {
        "arrays": arrays, "reads": sum(m.reads for m in memories), "writes": sum(m.writes for m in memories),
        "misses": cache.misses,
    }  # fmt: skip


class _Cache:
    """A cache of `LINES` lines of `LINE` elements, in which the line goes that was not used for longest."""

    def __init__(self) -> None:
        self.misses, self._lines = 0, dict[Any, None]()

    def touch(self, line: Any) -> None:
        """Use a line."""
        if line in self._lines:
            del self._lines[line]
        else:
            self.misses += 1
        self._lines[line] = None
        if len(self._lines) > LINES:
            del self._lines[next(iter(self._lines))]


def _launch(kernel: Any, grid: tuple[int, int], block: tuple[int, int], arrays: list[Any]) -> dict[str, Any]:
    """Launch a CUDA kernel.

    Returns:
        The arrays after it, elements read from and written to them, barriers, and accesses to shared memory.
    """
    watched = [_WatchedArray(f"argument {i + 1}", a) if isinstance(a, np.ndarray) else a for i, a in enumerate(arrays)]
    clock, barriers, accesses = SimpleNamespace(interval=0, thread=0), 0, 0
    for memory in watched:
        if isinstance(memory, _WatchedArray):
            memory.clock = clock
    for by, bx in itertools.product(range(grid[1]), range(grid[0])):
        shared: list[_WatchedArray] = []
        threads = [
            (number, kernel(_Place((x, y), (bx, by), block, grid, shared, clock), *watched))
            for number, (y, x) in enumerate(itertools.product(range(block[1]), range(block[0])))
        ]
        while True:
            clock.interval += 1
            alive = []
            for clock.thread, thread in threads:
                try:
                    next(thread)
                    alive.append((clock.thread, thread))
                except StopIteration:
                    continue
            if not alive:
                break
            if len(alive) < len(threads):
                raise SimulatorError(
                    f"{len(alive)} of {len(threads)} threads of a block come to a barrier, others do not"
                )
            barriers += 1
        accesses += sum(m.reads + m.writes for m in shared)
    memories = [m for m in watched if isinstance(m, _WatchedArray)]
    return {
        "arrays": [m.array if isinstance(m, _WatchedArray) else m for m in watched],
        "reads": sum(m.reads for m in memories), "writes": sum(m.writes for m in memories), "barriers": barriers,
        "shared": accesses,
    }  # fmt: skip


class _Place:
    """The module `cuda` as one thread sees it."""

    def __init__(self, thread: Any, block: Any, sides: Any, grid: Any, shared: list[Any], clock: Any) -> None:
        def xyz(pair: Any, last: int) -> Any:
            return SimpleNamespace(x=pair[0], y=pair[1], z=last)

        self.threadIdx, self.blockIdx = xyz(thread, 0), xyz(block, 0)
        self.blockDim, self.gridDim = xyz(sides, 1), xyz(grid, 1)
        self._number, self._shared, self._clock = 0, shared, clock
        self.shared, self.local = SimpleNamespace(array=self._block), SimpleNamespace(array=self._mine)

    def _block(self, shape: Any, dtype: Any) -> Any:
        """The next array in shared memory, which all threads of the block have in common."""
        if self._number == len(self._shared):
            self._shared.append(self._mine(shape, dtype, f"shared array {self._number + 1}"))
        self._number += 1
        return self._shared[self._number - 1]

    def _mine(self, shape: Any, dtype: Any, name: str = "local array") -> Any:
        memory = _WatchedArray(name, np.full(shape, np.nan, "float32"))
        memory.clock = self._clock
        return memory

    def grid(self, axes: int) -> Any:
        """Place of the thread in the grid."""
        pairs = [(getattr(self.blockIdx, a) * getattr(self.blockDim, a) + getattr(self.threadIdx, a)) for a in "xy"]
        return pairs[0] if axes == 1 else tuple(pairs)

    def gridsize(self, axes: int) -> Any:
        """Threads of the grid."""
        pairs = [getattr(self.gridDim, a) * getattr(self.blockDim, a) for a in "xy"]
        return pairs[0] if axes == 1 else tuple(pairs)


class _WatchedArray:
    """An array that counts accesses, knows where it ends, and sees threads that do not wait for each other."""

    clock: Any
    cache: _Cache | None = None

    def __init__(self, name: str, array: Any) -> None:
        self.array, self.name, self.reads, self.writes = array, name, 0, 0
        self.shape, self.size = array.shape, array.size
        self._writer: dict[Any, tuple[int, int]] = {}
        self._reader: dict[Any, tuple[int, int]] = {}
        self._strides = [s // array.itemsize for s in array.strides]

    def __getitem__(self, at: Any) -> Any:
        self._within(at)
        self.reads += 1
        now = (self.clock.interval, self.clock.thread)
        self._alone(self._writer.get(at), "reads", "writes", at)
        last = self._reader.get(at)
        self._reader[at] = now if last is None or last[0] != now[0] or last == now else (now[0], -1)  # -1: several
        return self.array[at].item()

    def __setitem__(self, at: Any, value: Any) -> None:
        self._within(at)
        self.writes += 1
        self._alone(self._writer.get(at), "writes", "writes", at)
        self._alone(self._reader.get(at), "writes", "reads", at)
        self._writer[at] = (self.clock.interval, self.clock.thread)
        self.array[at] = value

    def _alone(self, other: tuple[int, int] | None, mine: str, theirs: str, at: Any) -> None:
        if other is not None and other[0] == self.clock.interval and other[1] != self.clock.thread:
            raise SimulatorError(
                f"a race: one thread {mine} element {at} of {self.name} and another {theirs} it, "
                "and no barrier is between them"
            )

    def _within(self, at: Any) -> None:
        places = at if isinstance(at, tuple) else (at,)
        if len(places) != len(self.shape) or not all(isinstance(i, int) for i in places):
            raise SimulatorError(f"an index of {self.name} is {len(self.shape)} integers. It is {at!r}")
        for axis, i in enumerate(places):
            if not 0 <= i < self.shape[axis]:
                raise SimulatorError(
                    f"index {i} is outside axis {axis} of {self.name}, of {self.shape[axis]}: "
                    "a machine would read or write anything"
                )
        if self.cache is not None:
            place = sum(i * s for i, s in zip(places, self._strides, strict=True))
            self.cache.touch((self.name, place // LINE))
