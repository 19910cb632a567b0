"""Launches in Numba's CUDA simulator, where the threads of a block take turns from barrier to barrier."""

from __future__ import annotations

import math
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any


@contextmanager
def _one_array_for_all_threads() -> Iterator[None]:
    """Gives all threads of a block the same shared arrays.

    The simulator knows an array of a launch by the line that makes it. Blocks of one launch may have arrays of other
    sizes from that line, if they compute other products.
    """
    from numba.cuda.simulator.kernelapi import FakeCUDAShared

    original = FakeCUDAShared.array

    def array(self: Any, shape: Any, dtype: Any, *alignment: Any) -> Any:
        if shape == 0:  # what a launch asks for
            return original(self, shape, dtype, *alignment)
        frame = sys._getframe(1)
        key = frame.f_code.co_filename, frame.f_lineno, shape, dtype
        if key not in self._allocations:
            self._allocations[key] = original(FakeCUDAShared(0), shape, dtype, *alignment)
        return self._allocations[key]

    FakeCUDAShared.array = array
    try:
        yield
    finally:
        FakeCUDAShared.array = original


class _Block:
    """A block, whose threads compute one at a time.

    The simulator has a thread of the host for each and asks all of them, over and over, whether they wait at a barrier.
    Here one thread of the host computes them one after the other, until one waits: then another takes over. Who came
    last to a barrier goes on first, so that the order turns round: what lacks a barrier reads too early in one of two.
    """

    def __init__(self, compute: Callable[[], None], threads: int) -> None:
        self.compute, self.left = compute, list(range(threads))[::-1]
        self.waiting: list[Any] = []  # at the barrier
        self.released: list[Any] = []
        self.failure: BaseException | None = None
        self.ended = threading.Event()

    def run(self, start: Callable[[_Block], None]) -> None:
        """Compute all, with this to start a thread of the host, and raise what the first to fail has raised."""
        self.start = start
        self.hand_on()
        self.ended.wait()
        if self.failure is not None:
            raise self.failure

    def hand_on(self) -> None:
        """Another thread of the host goes on, as this one waits or ends."""
        if self.left:
            self.start(self)
            return
        if not self.released:
            self.released, self.waiting = self.waiting, []
        if self.released:
            self.released.pop().turn.release()
        else:
            self.ended.set()

    def wait(self, thread: Any) -> None:
        """Have a thread of the host wait until all threads of the block have come to the barrier or ended."""
        self.waiting.append(thread)
        self.hand_on()
        thread.turn.acquire()
        if self.failure is not None:
            raise RuntimeError("Another thread of the block has failed.")


@cache
def _take_turns() -> None:
    """Have the simulator run blocks so."""
    from numba.cuda.simulator import kernel

    class Thread(kernel.BlockThread):  # type: ignore[misc]
        """A thread of the host, which the simulator's functions ask where they are."""

        def __init__(self, block: _Block, manager: Any, place: Any) -> None:
            super().__init__(None, manager, place, (0, 0, 0), False)
            self.block, self.turn = block, threading.Lock()
            self.turn.acquire()

        def run(self) -> None:
            try:
                while self.block.left:
                    self.thread_id = self.block.left.pop()
                    self.threadIdx = kernel.Dim3(self.thread_id, 0, 0)
                    self.block.compute()
            except BaseException as error:  # whoever launched raises it: one that is lost would be waited for
                self.block.failure = self.block.failure or error
                self.block.left.clear()
            self.block.hand_on()

        def syncthreads(self) -> None:
            self.block.wait(self)

    def run(manager: Any, place: Any, *arguments: Any) -> None:
        block = _Block(lambda: manager._f(*arguments), math.prod(manager._block_dim))
        block.run(lambda block: Thread(block, manager, place).start())

    kernel.BlockManager.run = run


def simulate(function: Any, blocks: Any, threads: int, arguments: Sequence[Any], shared: int = 0) -> None:
    """Launch a kernel, with so many bytes of shared memory beside what it declares, and wait for it."""
    _take_turns()
    with warnings.catch_warnings(), _one_array_for_all_threads():
        warnings.simplefilter("ignore", RuntimeWarning)  # overflow and division by zero are what they are on a GPU
        function[blocks, threads, 0, shared](*arguments)
