"""The ranks of an MPI job, through mpi4py."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np

from minicnn.distribution.communicators import FOLLOW, Host, RankError, Ranks
from minicnn.extras import install

_ASK, _HERE, _FAILED = b"?", b"!", b"F"


_NOBODY = (
    "All ranks make a communicator within timeout={:g} seconds. Received {}: no answer from another, which has ended "
    "or makes none. Look at what each rank printed last; start the job again, or give a longer timeout."
)
# MPI begins with the interpreter's lock held: only another process can look at the clock.
_WATCH = """
import os, signal, sys, threading
def end():
    print(sys.argv[3], file=sys.stderr, flush=True)
    os.kill(int(sys.argv[2]), getattr(signal, "SIGKILL", signal.SIGTERM))
    os._exit(0)
timer = threading.Timer(min(float(sys.argv[1]), threading.TIMEOUT_MAX), end)
timer.start()
sys.stdin.read()  # until the rank goes on, or has ended
timer.cancel()
"""


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
            with nullcontext() if "mpi4py.MPI" in sys.modules else _deadline(timeout):
                from mpi4py import MPI
        except (ImportError, RuntimeError) as error:  # RuntimeError: it finds no libmpi
            message = f"Several processes compute together through mpi4py and an MPI library: {install('mpi')}. {error}"
            raise ImportError(message, name="mpi4py") from error
        self._mpi = MPI
        world = MPI.COMM_WORLD if comm is None else comm
        super().__init__(world.rank, world.size, timeout)
        # Communicators of its own: messages of the user's program cannot be taken for ours, nor reports for data.
        duplicates: list[tuple[Any, Any]] = [world.Idup(), world.Idup()]
        self._wait_for_all(lambda: all(request.Test() for _, request in duplicates))
        self._comm, self._control = (communicator for communicator, _ in duplicates)
        # MPI has some 2,000 communicators; at the end of the process it frees them by itself.
        weakref.finalize(self, _free, self._comm, self._control).atexit = False
        self._sent: list[Any] = []  # messages that others may not have taken yet, and arrays
        self._sending: list[Any] = []
        self._here: set[int] = set()  # who has said that it is there

    def _wait_for_all(self, done: Callable[[], Any]) -> None:
        """Wait until all ranks make a communicator, before which none can be asked for."""
        until = time.monotonic() + self.timeout
        while not done():
            if time.monotonic() > until:
                self.end_at_exit(0.0)
                raise RankError(_NOBODY.format(self.timeout, f"by rank {self.rank}"))
            time.sleep(1e-4)

    def exchange(self, outgoing: Sequence[Host], incoming: Sequence[Host]) -> None:
        """See `Communicator`."""
        others = [(self.rank + k) % self.size for k in range(1, self.size)]  # not all at rank 0 first
        # Receives first: a message that finds its buffer is not copied.
        requests = [self._comm.Irecv(_bytes(incoming[r]), r) for r in others if incoming[r].size]
        requests += [self._comm.Isend(_bytes(outgoing[r]), r) for r in others if outgoing[r].size]
        if incoming[self.rank] is not outgoing[self.rank]:
            incoming[self.rank][...] = outgoing[self.rank]
        self.wait(lambda: self._mpi.Request.Testall(requests))

    def add(self, array: Host) -> None:
        """See `Communicator`."""
        self.wait(self._comm.Iallreduce(self._mpi.IN_PLACE, array).Test)

    def send(self, array: Host, rank: int, tag: int) -> None:
        """See `Communicator`."""
        self._sending = [kept for kept in self._sending if not kept[0].Test()]
        self._sending.append((self._comm.Isend(_bytes(array), rank, tag), array))

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


def _free(*communicators: Any) -> None:
    for communicator in communicators:
        communicator.Free()


@contextmanager
def _deadline(timeout: float) -> Iterator[None]:
    """Context manager: ends this process, with an error, unless what is done in it is done within some seconds."""
    text = _NOBODY.format(timeout, f"by process {os.getpid()}")
    command = [sys.executable, "-I", "-S", "-c", _WATCH, str(timeout), str(os.getpid()), text]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL):
        yield


def _bytes(array: Host) -> Any:
    return array.view(np.uint8)  # MPI has no name for float16
