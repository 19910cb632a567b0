"""The ranks that torchrun or mpiexec has started, through torch.distributed."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import numpy as np

from minicnn.distribution.communicators import Host, RankError, StoreRanks
from minicnn.distribution.launchers import launched
from minicnn.extras import install


class TorchCommunicator(StoreRanks):
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
        atexit.register(self._hand_over)

    def exchange(self, given: Sequence[Host], taken: Sequence[Host]) -> None:
        """See `Communicator`."""
        tensor = self._torch.from_numpy
        sent = np.concatenate([_bytes(array) for array in given])
        received = np.empty(sum(array.nbytes for array in taken), np.uint8)
        lengths = [[array.nbytes for array in arrays] for arrays in (taken, given)]
        self._done(self._dist.all_to_all_single, tensor(received), tensor(sent), *lengths, self._group)
        start = 0
        for array, own in zip(taken, given, strict=True):
            if array is not own:
                _bytes(array)[...] = received[start : start + array.nbytes]
            start += array.nbytes

    def add(self, array: Host) -> None:
        """See `Communicator`."""
        self._done(self._dist.all_reduce, self._torch.from_numpy(array), self._dist.ReduceOp.SUM, self._group)

    def _done(self, collective: Callable[..., Any], *arguments: Any) -> None:
        try:
            work = collective(*arguments, async_op=True)
            self.wait(work.is_completed)
            work.wait()
        except RankError:
            raise
        except RuntimeError as error:  # a connection that another has closed
            raise self.lost() from error

    def send(self, array: Host, rank: int, tag: int) -> None:
        """See `Communicator`."""
        if len(self._given) > 1000:  # the others have long taken the first
            del self._given[:500]
        self._given.append((self._dist.isend(self._torch.from_numpy(_bytes(array)), rank, tag=tag), array))

    def _hand_over(self) -> None:
        """Stay until others have taken what was sent: gloo keeps it here until they ask for it."""
        with suppress(RuntimeError):  # a rank that has gone; who waits for it says so
            for work, _ in [] if self._ending else self._given:
                work.wait(timedelta(seconds=self.timeout))

    def receive(self, array: Host, rank: int, tag: int) -> None:
        """See `Communicator`."""
        try:
            work = self._dist.irecv(self._torch.from_numpy(_bytes(array)), rank, tag=tag)
            work.wait(timedelta(seconds=self.timeout))
        except RuntimeError as error:
            raise (self.late() if "imed out" in str(error) else self.lost()) from error

    def _set(self, key: str, value: bytes) -> None:
        self._store.set(key, value)

    def _get(self, key: str) -> bytes | None:
        return bytes(self._store.get(key)) if self._store.check([key]) else None


def _bytes(array: Host) -> Host:
    return array.view(np.uint8)
