"""Ranks as threads of one process: what MPI does, without it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

Host = np.ndarray[Any, Any]


class ThreadRanks:
    """Communicators for several threads, each of which is a rank.

    Args:
        size: Number of ranks.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.given: list[Any] = [None] * size
        self.barrier = threading.Barrier(size, timeout=60)
        self.boxes: dict[Any, queue.Queue[Host]] = {}
        self._lock = threading.Lock()
        self.sent = [0] * size  # bytes that went from each rank to others

    def mail(self, sender: int, receiver: int, tag: int) -> queue.Queue[Host]:
        """What has been sent and not been received yet."""
        with self._lock:  # two threads that find none would each make one
            return self.boxes.setdefault((sender, receiver, tag), queue.Queue())

    def communicator(self, rank: int) -> Any:
        """That of one rank."""
        return _ThreadCommunicator(self, rank)

    def run(self, work: Callable[[Any], Any]) -> list[Any]:
        """`work(communicator)` on every rank at once; the results by rank, or the error of the one that failed."""
        with ThreadPoolExecutor(self.size) as pool:
            futures = [pool.submit(work, self.communicator(rank)) for rank in range(self.size)]
            errors = [future.exception() for future in futures]
            for error in errors:
                if error is not None and not isinstance(error, threading.BrokenBarrierError):
                    raise error
            return [future.result() for future in futures]


class _ThreadCommunicator:
    def __init__(self, ranks: ThreadRanks, rank: int) -> None:
        self._ranks, self.rank, self.size = ranks, rank, ranks.size

    def exchange(self, given: Sequence[Host], taken: Sequence[Host]) -> None:
        ranks = self._ranks
        ranks.given[self.rank] = given
        ranks.sent[self.rank] += sum(g.nbytes for r, g in enumerate(given) if r != self.rank)
        ranks.barrier.wait()
        for r, array in enumerate(taken):
            assert ranks.given[r][self.rank].shape == array.shape
            if array is not given[r]:
                array[...] = ranks.given[r][self.rank]
        ranks.barrier.wait()

    def gather(self, given: Host, taken: Sequence[Host]) -> None:
        self.exchange([given] * self.size, taken)

    def add(self, array: Host) -> None:
        taken = [np.empty_like(array) for _ in range(self.size)]
        self.gather(array, taken)
        array[...] = np.sum(taken[::-1], axis=0)

    def share(self, data: bytes) -> list[bytes]:
        self._ranks.given[self.rank] = data
        self._ranks.barrier.wait()
        everyone = list(self._ranks.given)
        self._ranks.barrier.wait()
        return everyone

    def send(self, array: Host, rank: int, tag: int) -> None:
        assert array.ndim == 1
        self._ranks.sent[self.rank] += array.nbytes
        self._ranks.mail(self.rank, rank, tag).put(array.copy())

    def receive(self, array: Host, rank: int, tag: int) -> None:
        letters = self._ranks.mail(rank, self.rank, tag)
        for _ in range(300):  # a minute
            try:
                array[...] = letters.get(timeout=0.2)
            except queue.Empty:
                if self._ranks.barrier.broken:
                    raise threading.BrokenBarrierError from None
            else:
                return
        raise TimeoutError(f"Every rank sends what others wait for. Received by rank {self.rank}: nothing from {rank}.")

    def fail(self, error: BaseException) -> None:
        if not getattr(error, "reported", False):  # which all raise
            self._ranks.barrier.abort()
