"""The ranks of an MPI job, through mpi4py."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from minicnn.distribution.communicators import FOLLOW, Host, RankError, Ranks
from minicnn.extras import install

_ASK, _HERE, _FAILED = b"?", b"!", b"F"


class MPICommunicator(Ranks):
    """The ranks of an MPI job, through mpi4py.

    Arrays go from rank to rank without a copy in between. While it waits, a rank listens to what others report on a
    channel of their own: who has failed, and who asks whether it is still there.

    Args:
        timeout: Seconds after which a rank that waits asks the others, and ends the job.
        comm: An mpi4py communicator; that of all processes if None.

    Raises:
        ImportError: If mpi4py or an MPI library is missing.
    """

    def __init__(self, timeout: float = 300.0, comm: Any = None) -> None:
        try:
            from mpi4py import MPI
        except (ImportError, RuntimeError) as error:  # RuntimeError: it finds no libmpi
            message = f"Several processes compute together through mpi4py and an MPI library: {install('mpi')}. {error}"
            raise ImportError(message, name="mpi4py") from error
        self._mpi = MPI
        world = MPI.COMM_WORLD if comm is None else comm
        self._comm, self._control = world.Dup(), world.Dup()
        super().__init__(self._comm.rank, self._comm.size, timeout)
        self._sent: list[Any] = []  # messages that others may not have taken yet, and arrays
        self._given: list[Any] = []
        self._here: set[int] = set()  # who has said that it is there

    def exchange(self, given: Sequence[Host], taken: Sequence[Host]) -> None:
        """See `Communicator`."""
        others = [(self.rank + k) % self.size for k in range(1, self.size)]  # not all at rank 0 first
        requests = [self._comm.Irecv(_bytes(taken[r]), r) for r in others if taken[r].size]
        requests += [self._comm.Isend(_bytes(given[r]), r) for r in others if given[r].size]
        if taken[self.rank] is not given[self.rank]:
            taken[self.rank][...] = given[self.rank]
        self.wait(lambda: self._mpi.Request.Testall(requests))

    def add(self, array: Host) -> None:
        """See `Communicator`."""
        self.wait(self._comm.Iallreduce(self._mpi.IN_PLACE, array).Test)

    def send(self, array: Host, rank: int, tag: int) -> None:
        """See `Communicator`."""
        self._given = [kept for kept in self._given if not kept[0].Test()]
        self._given.append((self._comm.Isend(_bytes(array), rank, tag), array))

    def receive(self, array: Host, rank: int, tag: int) -> None:
        """See `Communicator`."""
        self.wait(self._comm.Irecv(_bytes(array), rank, tag).Test)

    def wait(self, done: Callable[[], Any]) -> None:
        """See `Ranks`; what MPI refuses, such as more bytes than are asked for, comes from ranks that have parted."""
        try:
            super().wait(done)
        except self._mpi.Exception as error:
            raise self.apart() from error

    def _send(self, rank: int, message: bytes) -> None:
        self._sent = [kept for kept in self._sent if not kept[0].Test()]
        self._sent.append((self._control.Isend([message, self._mpi.BYTE], rank), message))

    def listen(self) -> None:
        """Answer who asks; see `Ranks`."""
        status = self._mpi.Status()
        while self._control.Iprobe(status=status):
            message = bytearray(status.Get_count(self._mpi.BYTE))
            rank = status.Get_source()
            self._control.Recv([message, self._mpi.BYTE], rank)
            if message == _ASK:
                self._send(rank, _HERE)
            elif message == _HERE:
                self._here.add(rank)
            else:
                self.end_at_exit(FOLLOW)
                raise RankError(message[len(_FAILED) :].decode(), reported=True)

    def missing(self, wait: float) -> set[int]:
        """See `Ranks`."""
        others, until = set(range(self.size)) - {self.rank}, time.monotonic() + wait
        self._here.clear()
        for rank in others:
            self._send(rank, _ASK)
        while others - self._here and time.monotonic() < until:
            self.listen()
            time.sleep(1e-3)
        return others - self._here

    def tell(self, text: str) -> None:
        """See `Ranks`."""
        for rank in range(self.size):
            if rank != self.rank:
                self._send(rank, _FAILED + text.encode())

    def abort(self) -> None:
        """See `Ranks`."""
        self._mpi.COMM_WORLD.Abort(1)


def _bytes(array: Host) -> Any:
    return array.view(np.uint8)  # MPI has no name for float16
