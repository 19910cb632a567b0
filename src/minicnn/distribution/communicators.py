"""Who else computes: one process alone, or the ranks of an MPI job."""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from minicnn.extras import install
from minicnn.ops.groups import Communicator

Host = np.ndarray[Any, Any]

# What launchers of MPI tell a process: MPICH and others by PMI, Open MPI, srun by PMIx.
_LAUNCHED = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "PMIX_RANK")

_SPIN = 1e-3  # seconds of looking again and again, before sleeping in between
_LISTEN = 0.05  # seconds between two looks at what others report
_FOLLOW = 1.0  # seconds that whoever failed has to say so, before others end the job

_ASK, _HERE, _FAILED = b"?", b"!", b"F"


class RankError(RuntimeError):
    """Another rank failed, or did not answer in time; the message names it.

    Args:
        message: What happened.
        reported: Whether another rank raises the same error, or its cause.
    """

    def __init__(self, message: str, *, reported: bool = False) -> None:
        super().__init__(message)
        self.reported = reported


class OneProcess:
    """A communicator of one rank: there is nobody to talk to."""

    rank, size = 0, 1

    def exchange(self, given: Sequence[Host], taken: Sequence[Host]) -> None:
        """See `Communicator`."""
        taken[0][...] = given[0]

    def gather(self, given: Host, taken: Sequence[Host]) -> None:
        """See `Communicator`."""
        taken[0][...] = given

    def share(self, data: bytes) -> list[bytes]:
        """See `Communicator`."""
        return [data]

    def fail(self, error: BaseException) -> None:
        """Tell the others, and end the job when this process ends."""


class MPICommunicator:
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
        self.rank, self.size, self.timeout = self._comm.rank, self._comm.size, timeout
        self._sent: list[Any] = []  # what others may not have taken yet
        self._ending = False

    def exchange(self, given: Sequence[Host], taken: Sequence[Host]) -> None:
        """See `Communicator`."""
        others = [(self.rank + k) % self.size for k in range(1, self.size)]  # not all at rank 0 first
        requests = [self._comm.Irecv(_bytes(taken[r]), r) for r in others if taken[r].size]
        requests += [self._comm.Isend(_bytes(given[r]), r) for r in others if given[r].size]
        taken[self.rank][...] = given[self.rank]
        self._wait(requests)

    def gather(self, given: Host, taken: Sequence[Host]) -> None:
        """See `Communicator`."""
        self.exchange([given] * self.size, taken)

    def share(self, data: bytes) -> list[bytes]:
        """See `Communicator`."""
        lengths = [np.zeros(1, np.int64) for _ in range(self.size)]
        self.gather(np.array([len(data)], np.int64), lengths)
        taken = [np.empty(int(n[0]), np.uint8) for n in lengths]
        self.gather(np.frombuffer(data, np.uint8), taken)
        return [t.tobytes() for t in taken]

    # Waiting ------------------------------------------------------------------------------------

    def _wait(self, requests: list[Any]) -> None:
        """Wait until all is sent and received, but not beyond the deadline."""
        start = heard = time.monotonic()
        done = self._mpi.Request.Testall
        while not done(requests):
            now = time.monotonic()
            if now - heard > _LISTEN:
                heard = now
                self._listen()
            if now - start > self.timeout:
                self._ask()
            if now - start > _SPIN:
                time.sleep(_SPIN / 20)
            elif hasattr(os, "sched_yield"):  # the rank that is waited for may need this core
                os.sched_yield()

    def _tell(self, rank: int, message: bytes) -> None:
        self._sent = [kept for kept in self._sent if not kept[0].Test()]
        self._sent.append((self._control.Isend([message, self._mpi.BYTE], rank), message))

    def _listen(self) -> set[int]:
        """Answer who asks; returns who has said that it is there.

        Raises:
            RankError: If one reports a failure.
        """
        here = set()
        status = self._mpi.Status()
        while self._control.Iprobe(status=status):
            message = bytearray(status.Get_count(self._mpi.BYTE))
            rank = status.Get_source()
            self._control.Recv([message, self._mpi.BYTE], rank)
            if message == _ASK:
                self._tell(rank, _HERE)
            elif message == _HERE:
                here.add(rank)
            else:
                self._end_at_exit(_FOLLOW)
                raise RankError(message[len(_FAILED) :].decode(), reported=True)
        return here

    def _ask(self) -> None:
        """The deadline has passed: find out who is missing.

        Raises:
            RankError: Always.
        """
        others = set(range(self.size)) - {self.rank}
        for rank in others:
            self._tell(rank, _ASK)
        missing, until = set(others), time.monotonic() + min(5.0, max(0.5, self.timeout / 10))
        while missing and time.monotonic() < until:
            missing -= self._listen()
            time.sleep(_SPIN)
        if missing:
            who = f"no answer from rank {', '.join(map(str, sorted(missing)))}"
            remedy = "Look at what that rank printed last, and whether its machine and the link to it are up"
        else:
            who = "all ranks answer, but do not compute the same"
            remedy = "Let every rank call the same methods with the same arguments"
        message = (
            f"All ranks come to each collective within timeout={self.timeout:g} seconds. Received by rank {self.rank}: "
            f"{who}. {remedy}; resume from the last back-up, with as many ranks as there are, or give a longer timeout."
        )
        raise RankError(message)

    def fail(self, error: BaseException) -> None:
        """Tell the others that this rank cannot go on, and end the job when this process ends."""
        if self._ending:  # another has said so
            return
        text = (
            str(error) if isinstance(error, RankError) else f"Rank {self.rank} failed: {type(error).__name__}: {error}"
        )
        for rank in range(self.size):
            if rank != self.rank:
                self._tell(rank, _FAILED + text.encode())
        self._end_at_exit(0.0)

    def _end_at_exit(self, after: float) -> None:
        """Leave the job without waiting for ranks that may never come."""
        if not self._ending:
            self._ending = True
            atexit.register(self._abort, after)

    def _abort(self, after: float) -> None:
        time.sleep(after)
        self._mpi.COMM_WORLD.Abort(1)


def _bytes(array: Host) -> Any:
    return array.view(np.uint8)  # MPI has no name for float16


def find(timeout: float, environment: Mapping[str, str] = os.environ) -> Communicator:
    """The communicator of the launcher that has started this process; without one, that of one process.

    Raises:
        ImportError: If a launcher of MPI has started it, and mpi4py is missing.
        RuntimeError: If it was started by torchrun.
    """
    sizes = [environment[name] for name in _LAUNCHED if name in environment]
    if not sizes and int(environment.get("WORLD_SIZE", "1")) > 1:
        message = (
            "Several processes compute together through MPI. Received: processes started by torchrun, whose engines "
            "are not supported yet. Start them with mpiexec."
        )
        raise RuntimeError(message)
    alone = not sizes or (sizes[0] == "1" and "PMIX_RANK" not in environment)
    return OneProcess() if alone else MPICommunicator(timeout)
