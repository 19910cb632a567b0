"""The ranks that torchrun or mpiexec has started, through torch.distributed."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import numpy as np

from minicnn.distribution.communicators import FOLLOW, Host, RankError, Ranks
from minicnn.distribution.launchers import launched
from minicnn.extras import install


class TorchCommunicator(Ranks):
    """Ranks that torch.distributed connects, by gloo.

    They meet at the address in the environment variables MASTER_ADDR and MASTER_PORT, which torchrun sets; without them
    on this machine, at port 29500. What fails is told through the same store by which they have met.

    Args:
        timeout: Seconds after which a rank that waits asks the others, and ends the job.

    Raises:
        ImportError: If PyTorch is missing.
        RuntimeError: If the ranks do not meet within the time.
    """

    def __init__(self, timeout: float = 300.0) -> None:
        try:
            import torch
            import torch.distributed as dist
        except ImportError as error:
            message = f"torchrun's processes compute together through torch.distributed: {install('torch')}. {error}"
            raise ImportError(message, name="torch") from error
        launcher, rank, size = launched()
        place = f"{os.environ.get('MASTER_ADDR', '127.0.0.1')}:{os.environ.get('MASTER_PORT', '29500')}"
        where = "env://" if launcher == "torchrun" else f"tcp://{place}?rank={rank}&world_size={size}"
        deadline = timedelta(seconds=timeout)
        try:
            store, rank, size = next(iter(dist.rendezvous(where, timeout=deadline)))
            super().__init__(rank, size, timeout)
            attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")  # keys outlive a restart
            self._store = dist.PrefixStore(f"minicnn/{attempt}", store)
            if not dist.is_initialized():
                # Its own deadline only comes after ours, which names who is missing.
                dist.init_process_group(
                    "gloo", store=self._store, rank=rank, world_size=size, timeout=2 * deadline + timedelta(seconds=60)
                )
            self._group = dist.group.WORLD
            if self.rank == 0:
                self._store.set_timeout(deadline)
        except (RuntimeError, ValueError) as error:
            message = (
                f"All ranks meet at {place} within timeout={timeout:g} seconds. Received: {str(error)[:300]}. Set "
                "MASTER_ADDR and MASTER_PORT to a name and a free port of the machine of rank 0."
            )
            raise RuntimeError(message) from error
        self._torch, self._dist = torch, dist
        self._given: list[Any] = []  # what others may not have taken yet

    def exchange(self, given: Sequence[Host], taken: Sequence[Host]) -> None:
        """See `Communicator`."""
        tensor = self._torch.from_numpy
        sent = np.concatenate([_bytes(array) for array in given])
        received = np.empty(sum(array.nbytes for array in taken), np.uint8)
        lengths = [[array.nbytes for array in arrays] for arrays in (taken, given)]
        try:
            work = self._dist.all_to_all_single(tensor(received), tensor(sent), *lengths, self._group, async_op=True)
            self.wait(work.is_completed)
            work.wait()
        except RankError:
            raise
        except RuntimeError as error:  # a connection that another has closed
            raise self._lost() from error
        start = 0
        for array in taken:
            _bytes(array)[...] = received[start : start + array.nbytes]
            start += array.nbytes

    def send(self, array: Host, rank: int, tag: int) -> None:
        """See `Communicator`."""
        if len(self._given) > 1000:  # the others have long taken the first
            del self._given[:500]
        self._given.append((self._dist.isend(self._torch.from_numpy(_bytes(array)), rank, tag=tag), array))

    def receive(self, array: Host, rank: int, tag: int) -> None:
        """See `Communicator`."""
        try:
            work = self._dist.irecv(self._torch.from_numpy(_bytes(array)), rank, tag=tag)
            work.wait(timedelta(seconds=self.timeout))
        except RuntimeError as error:
            raise (self.late() if "imed out" in str(error) else self._lost()) from error

    def _lost(self) -> RankError:
        """What to raise when a connection is lost: what the other has said, or who it is."""
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
        if self._store.check(["failed"]):
            self.end_at_exit(FOLLOW)
            raise RankError(self._store.get("failed").decode(), reported=True)

    def missing(self, wait: float) -> set[int]:
        """See `Ranks`: those that do not ask the same."""
        others, until = set(range(self.size)) - {self.rank}, time.monotonic() + wait
        try:
            self._store.set(f"waiting/{self.rank}", b"")
            while others and time.monotonic() < until:
                others = {rank for rank in others if not self._store.check([f"waiting/{rank}"])}
                time.sleep(1e-2)
        except RuntimeError:  # the process with the store has gone
            return {0}
        return others

    def tell(self, text: str) -> None:
        """See `Ranks`."""
        with suppress(RuntimeError):
            self._store.set("failed", text.encode())

    def abort(self) -> None:
        """See `Ranks`: nothing is waited for that threads of gloo still wait for."""
        if self.rank == 0:  # it may have the store, in which the others read
            time.sleep(FOLLOW)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)


def _bytes(array: Host) -> Host:
    return array.view(np.uint8)
