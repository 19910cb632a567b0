"""Communicators: one process alone, or the ranks of a job; the base of the libraries that connect them."""

from __future__ import annotations

import atexit
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from minicnn.arguments import plain_arguments
from minicnn.distribution.worker import SideThread

Host = np.ndarray[Any, Any]

_SPIN = 1e-3  # seconds of looking again and again, before sleeping in between
_LISTEN = 0.05  # seconds between two looks at what others report
_LONGEST = 1 << 32  # bytes that ranks tell each other; more is none of our messages
FOLLOW = 1.0  # seconds that whoever failed has to say so, before others end the job
PART = 5.0  # seconds that ranks which have come to their end wait for each other, so that all part in order


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

    rank: int = 0
    size: int = 1

    def exchange(self, outgoing: Sequence[Host], incoming: Sequence[Host]) -> None:
        """See `Communicator`."""
        incoming[0][...] = outgoing[0]

    def gather(self, outgoing: Host, incoming: Sequence[Host]) -> None:
        """See `Communicator`."""
        incoming[0][...] = outgoing

    def add(self, array: Host) -> None:
        """See `Communicator`."""

    def share(self, data: bytes) -> list[bytes]:
        """See `Communicator`."""
        return [data]

    def send(self, array: Host, rank: int, tag: int) -> None:
        """See `Communicator`; there is nobody to send to."""

    def receive(self, array: Host, rank: int, tag: int) -> None:
        """See `Communicator`."""

    def fail(self, error: BaseException) -> None:
        """Tell the others, and end the job when this process ends."""


class Planned(OneProcess):
    """A communicator of one of several ranks that nobody starts: for Programs that are looked at, and not run.

    Args:
        rank: Number of the rank.
        size: Number of ranks.

    Example:
        >>> from minicnn.distribution import DataParallel
        >>> DataParallel(shards=8, communicator=Planned(0, 4)).ranks
        4
    """

    @plain_arguments
    def __init__(self, rank: int, size: int) -> None:
        if not 0 <= rank < size:
            raise ValueError(f"Ranks have numbers from 0 on. Received: rank={rank!r} of {size!r}.")
        self.rank, self.size = rank, size

    def _refuse(self, *_: Any) -> Any:
        raise RuntimeError(
            f"Ranks that compute together are started by a launcher. Received: rank {self.rank} of {self.size}, which "
            "is planned only. Print model.program(), or leave communicator out."
        )

    exchange = gather = add = share = send = receive = _refuse  # type: ignore[assignment]


class Ranks(ABC):
    """Several processes, as far as it does not matter what connects them.

    Args:
        rank: Number of this process.
        size: Number of processes.
        timeout: Seconds after which a rank that waits asks the others, and ends the job.
    """

    def __init__(self, rank: int, size: int, timeout: float) -> None:
        self.rank, self.size, self.timeout = rank, size, timeout
        self._ending = False

    @property
    def ending(self) -> bool:
        """True if the job ends by an error."""
        return self._ending

    @abstractmethod
    def exchange(self, outgoing: Sequence[Host], incoming: Sequence[Host]) -> None:
        """See `Communicator`."""

    @abstractmethod
    def add(self, array: Host) -> None:
        """See `Communicator`."""

    @abstractmethod
    def send(self, array: Host, rank: int, tag: int) -> None:
        """See `Communicator`."""

    @abstractmethod
    def receive(self, array: Host, rank: int, tag: int) -> None:
        """See `Communicator`."""

    @abstractmethod
    def listen(self) -> None:
        """Look at what the others report.

        Raises:
            RankError: If one reports a failure.
        """

    @abstractmethod
    def missing(self, wait: float) -> Collection[int]:
        """The ranks that do not answer within some seconds."""

    @abstractmethod
    def tell(self, text: str) -> None:
        """Report to the others that this rank cannot go on."""

    @abstractmethod
    def abort(self) -> None:
        """End the job."""

    def gather(self, outgoing: Host, incoming: Sequence[Host]) -> None:
        """See `Communicator`."""
        self.exchange([outgoing] * self.size, incoming)

    def share(self, data: bytes) -> list[bytes]:
        """See `Communicator`."""
        lengths = [np.zeros(1, np.int64) for _ in range(self.size)]
        self.gather(np.array([len(data)], np.int64), lengths)
        # A length that makes no sense is part of another message: the ranks have parted ways.
        if not all(0 <= n[0] <= _LONGEST for n in lengths):
            raise self.apart()
        taken = [np.empty(int(n[0]), np.uint8) for n in lengths]
        self.gather(np.frombuffer(data, np.uint8), taken)
        return [t.tobytes() for t in taken]

    def wait(self, done: Callable[[], Any]) -> None:
        """Wait until something is done, but not beyond the deadline."""
        # Looking first, sleeping later: most waits are shorter than a sleep.
        start = heard = time.monotonic()
        while not done():
            now = time.monotonic()
            if now - heard > _LISTEN:
                heard = now
                self.listen()
            if now - start > self.timeout:
                raise self.late()
            if now - start > _SPIN:
                time.sleep(_SPIN / 20)
            elif hasattr(os, "sched_yield"):  # the rank that is waited for may need this core
                os.sched_yield()

    def late(self) -> RankError:
        """Error for a deadline that has passed: it names the ranks that are missing."""
        missing = self.missing(min(5.0, max(0.5, self.timeout / 10)))
        if not missing:
            return self.apart()
        who = f"no answer from rank {', '.join(map(str, sorted(missing)))}"
        return self._late(who, "Look at what that rank printed last, and whether its machine and the link to it are up")

    def apart(self) -> RankError:
        """Error for a rank that computes something else than the others."""
        remedy = "Let every rank call the same methods with the same arguments"
        return self._late("all ranks answer, but do not compute the same", remedy)

    def _late(self, who: str, remedy: str) -> RankError:
        return RankError(
            f"All ranks come to each collective within timeout={self.timeout:g} seconds. Received by rank {self.rank}: "
            f"{who}. {remedy}; resume from the last back-up, with as many ranks as there are, or give a longer timeout."
        )

    def fail(self, error: BaseException) -> None:
        """Tell the others that this rank cannot go on, and end the job when this process ends."""
        if self._ending:  # another has said so
            return
        known = isinstance(error, RankError)
        if isinstance(error, RankError) and error.reported:  # all raise it: each has time to say so
            self.end_at_exit(FOLLOW)
            return
        self.tell(str(error) if known else f"Rank {self.rank} failed: {type(error).__name__}: {error}")
        self.end_at_exit(0.0)

    def end_at_exit(self, after: float) -> None:
        """Leave the job without waiting for ranks that may never come."""
        if not self._ending:
            self._ending = True
            # At exit, so that the user's own handlers still run and print.
            atexit.register(self._leave, after)

    def _leave(self, after: float) -> None:
        time.sleep(after)
        self.abort()


class StoreRanks(Ranks):
    """Ranks that have met at a store of names and bytes, in the process of rank 0, and tell through it what fails.

    A store that cannot be reached may not say so for minutes: it is asked in a thread, and not waited for.
    """

    def __init__(self, rank: int, size: int, timeout: float) -> None:
        super().__init__(rank, size, timeout)
        self._asker = SideThread()

    def _ask(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Ask the store; a RuntimeError if it says nothing for some time."""
        try:
            # In a thread of its own, as a store whose process has died blocks for good.
            return self._asker.begin(lambda: call(*arguments)).result(min(5.0, max(1.0, self.timeout / 10)))
        except TimeoutError as error:
            raise RuntimeError("the process of rank 0, which has the store, does not answer") from error

    @abstractmethod
    def _set(self, key: str, value: bytes) -> None:
        """Put something into the store; a RuntimeError if it has gone."""

    @abstractmethod
    def _get(self, key: str) -> bytes | None:
        """Read a key of the store without waiting; None if nothing is there."""

    def lost(self) -> RankError:
        """Error for a lost connection: the other rank's own, or one that names it."""
        time.sleep(FOLLOW / 10)
        try:
            self.listen()
        except RankError as error:
            return error
        missing = ", ".join(map(str, sorted(self.missing(FOLLOW)))) or "unknown"
        return RankError(
            f"Every rank goes on to the end. Received by rank {self.rank}: the connection to a rank that has ended, "
            f"{missing}. Look at what that rank printed last; resume from the last back-up, with as many ranks as "
            "there are."
        )

    def listen(self) -> None:
        """See `Ranks`."""
        try:
            reported = self._ask(self._get, "failed")
        except RuntimeError:  # the deadline says so, and names it
            return
        if reported is not None:
            self.end_at_exit(FOLLOW)
            raise RankError(reported.decode(), reported=True)

    def missing(self, wait: float) -> set[int]:
        """See `Ranks`: those that do not ask the same."""
        others, until = set(range(self.size)) - {self.rank}, time.monotonic() + wait
        try:
            self._ask(self._set, f"waiting/{self.rank}", b"1")
            while others and time.monotonic() < until:
                others = {rank for rank in others if self._ask(self._get, f"waiting/{rank}") is None}
                time.sleep(1e-2)
        except RuntimeError:  # the process with the store has gone
            return {0}
        return others

    def tell(self, text: str) -> None:
        """See `Ranks`."""
        with suppress(RuntimeError):
            self._ask(self._set, "failed", text.encode())

    def abort(self) -> None:
        """See `Ranks`: nothing is waited for that threads of the library still wait for."""
        if self.rank == 0:  # it has the store, in which the others read
            time.sleep(FOLLOW)
        sys.stdout.flush()
        sys.stderr.flush()
        # Not sys.exit: threads of the library would be joined, and never end.
        os._exit(1)
