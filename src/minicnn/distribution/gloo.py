"""The ranks that torchrun or mpiexec has started, through torch.distributed."""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import numpy as np

from minicnn.distribution.communicators import PART, Host, RankError, StoreRanks
from minicnn.distribution.launchers import launched
from minicnn.distribution.worker import SideThread
from minicnn.extras import install
from minicnn.ops.groups import Group

if TYPE_CHECKING:
    from minicnn.backends.base import Backend


class TorchCommunicator(StoreRanks):
    """Ranks that torch.distributed connects: by gloo, and by NCCL for tensors on a GPU.

    Sums of the backend `torch` are taken where its tensors are, those of other backends in the host's memory. The ranks
    meet at the address in the environment variables MASTER_ADDR and MASTER_PORT, which torchrun sets; without them on
    this machine, at port 29500. What fails is told through the same store by which they have met.

    Args:
        timeout: Seconds after which a rank that waits asks the others, and ends the job.
        transport: "nccl" or "gloo" for sums of tensors on a GPU, of which gloo takes them in the host's memory; None is
            NCCL where PyTorch has it. Tensors of the CPU always go by gloo.

    Raises:
        ImportError: If PyTorch is missing.
        ValueError: If there is no such transport.
        RuntimeError: If the ranks do not meet within the time.
    """

    def __init__(self, timeout: float = 300.0, transport: str | None = None) -> None:
        if transport not in (None, "gloo", "nccl"):
            raise ValueError(
                f"transport is 'gloo', 'nccl' or None, which chooses by the device. Received: transport={transport!r}."
            )
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
                atexit.register(self._part)
            self._group = dist.group.WORLD
            if self.rank == 0:
                self._store.set_timeout(deadline)
        except (RuntimeError, ValueError) as error:
            raise RuntimeError(
                f"All ranks meet at {place} within timeout={timeout:g} seconds. Received: {str(error)[:300]}. Set "
                "MASTER_ADDR and MASTER_PORT to a name and a free port of the machine of rank 0."
            ) from error
        self._torch, self._dist = torch, dist
        self._on_gpus = transport == "nccl" or (transport is None and dist.is_nccl_available())
        self._of_gpus: Any = None  # the group that NCCL connects
        self._sending: list[Any] = []  # what others may not have taken yet
        atexit.register(self._hand_over)

    def exchange(self, outgoing: Sequence[Host], incoming: Sequence[Host]) -> None:
        """See `Communicator`."""
        tensor = self._torch.from_numpy
        # As bytes, since gloo does not know all types of NumPy.
        sent = np.concatenate([_bytes(array) for array in outgoing])
        received = np.empty(sum(array.nbytes for array in incoming), np.uint8)
        lengths = [[array.nbytes for array in arrays] for arrays in (incoming, outgoing)]
        self._done(self._dist.all_to_all_single, tensor(received), tensor(sent), *lengths, group=self._group)
        start = 0
        for array, source in zip(incoming, outgoing, strict=True):
            if array is not source:
                _bytes(array)[...] = received[start : start + array.nbytes]
            start += array.nbytes

    def add(self, array: Host) -> None:
        """See `Communicator`."""
        self._done(self._dist.all_reduce, self._torch.from_numpy(array), group=self._group)

    # Tensors where they are ---------------------------------------------------------------------

    def takes(self, backend: Backend) -> bool:
        """True if sums of a backend's arrays are taken where these are, by `total`."""
        on_gpu = backend.device.startswith("cuda")
        return backend.name == "torch" and (self._on_gpus if on_gpu else backend.device == "cpu")

    def total(self, arrays: Sequence[Any], group: Group) -> list[Any]:
        """Sums over all ranks, as `all_reduce` takes them: in the tree, or as the transport likes to.

        Args:
            arrays: Tensors of one dtype and device: those of the first of the rank's sums, then of the next, and so on.
            group: Who has which shards.
        """
        torch, count = self._torch, len(arrays) // group.parts
        first = arrays[:count]
        joined = [torch.cat([a.reshape(-1) for a in arrays[i : i + count]]) for i in range(0, len(arrays), count)]
        whole = self._in_tree(joined, group) if group.deterministic else self._by_library(joined, group)
        sizes = [a.numel() for a in first]
        return [part.reshape(a.shape) for part, a in zip(torch.split(whole, sizes), first, strict=True)]

    def _by_library(self, joined: Sequence[Any], group: Group) -> Any:
        whole = sum(joined[1:], start=joined[0]) if group.held() else self._torch.zeros_like(joined[0])
        self._done(self._dist.all_reduce, whole, group=self._connected(whole))
        return whole

    def _in_tree(self, joined: Sequence[Any], group: Group) -> Any:
        """Each rank gets everybody's sums of its share of the elements, adds them up, and gives the result to all."""
        torch, size, like = self._torch, joined[0].numel(), joined[0]
        share = -(-size // group.ranks)
        held = [torch.nn.functional.pad(flat, (0, share * group.ranks - size)) for flat in joined[: len(group.spans())]]
        outgoing = torch.stack(held).reshape(len(held), group.ranks, share).movedim(0, 1) if held else like[:0]
        counts = [len(group.spans(rank)) * share for rank in range(group.ranks)]
        taken, connected = like.new_empty(sum(counts)), self._connected(like)
        lengths = counts, [len(held) * share] * group.ranks
        self._done(self._dist.all_to_all_single, taken, outgoing.reshape(-1), *lengths, group=connected)
        spans = [span for rank in range(group.ranks) for span in group.spans(rank)]
        share_total = group.total(dict(zip(spans, taken.reshape(-1, share), strict=True)), lambda a, b: a + b)
        whole = like.new_empty(share * group.ranks)
        # PyTorch 2.13's name, and the one before it
        gather = getattr(self._dist, "all_gather_single", None) or self._dist.all_gather_into_tensor
        self._done(gather, whole, share_total.contiguous(), group=connected)
        return whole[:size]

    def _connected(self, like: Any) -> Any:
        """The group for tensors of a device; the first time on GPUs all ranks wait for each other."""
        if like.device.type == "cpu":
            return self._group
        if self._of_gpus is None:

            def connect() -> Any:
                self._torch.cuda.set_device(like.device)
                group = self._dist.new_group(backend="nccl", timeout=timedelta(seconds=2 * self.timeout + 60))
                self._dist.all_reduce(self._torch.zeros(1, device=like.device), group=group)
                self._torch.cuda.synchronize(like.device)
                return group

            # Connecting blocks without a deadline of its own.
            begun = SideThread().begin(connect)
            self.wait(begun.done)
            try:
                self._of_gpus = begun.result()
            except RuntimeError as error:
                raise RuntimeError(
                    f"Ranks of the backend torch on GPUs have one each, which NCCL connects. Received by rank "
                    f"{self.rank} on {like.device}: {str(error)[:300]}. Start as many processes as there are GPUs, or "
                    "give communicator=TorchCommunicator(transport='gloo'), which sums in the host's memory."
                ) from error
        return self._of_gpus

    # What is waited for -------------------------------------------------------------------------

    def _done(self, collective: Callable[..., Any], *arguments: Any, group: Any) -> None:
        try:
            work = collective(*arguments, group=group, async_op=True)
            self.wait(work.is_completed)
            work.wait()
        except RankError:
            raise
        except RuntimeError as error:  # a connection that another has closed
            raise self.lost() from error

    def send(self, array: Host, rank: int, tag: int) -> None:
        """See `Communicator`."""
        if len(self._sending) > 1000:  # the others have long taken the first
            del self._sending[:500]
        self._sending.append((self._dist.isend(self._torch.from_numpy(_bytes(array)), rank, tag=tag), array))

    def _hand_over(self) -> None:
        """Stay until others have taken what was sent: gloo keeps it here until they ask for it."""
        with suppress(RuntimeError):  # a rank that has gone; who waits for it says so
            for work, _ in [] if self._ending else self._sending:
                work.wait(timedelta(seconds=self.timeout))

    def _part(self) -> None:
        """End PyTorch's threads and connections, once all ranks are done with them.

        What is left to the end of the process may end it by SIGABRT, in a thread that nobody has joined.
        """
        with suppress(RuntimeError):  # a rank that has gone
            together = None if self._ending else self._dist.barrier(group=self._group, async_op=True)
            until = time.monotonic() + PART
            while together is not None and not together.is_completed() and time.monotonic() < until:
                time.sleep(1e-3)
            if together is not None and together.is_completed():
                together.wait()
                self._dist.destroy_process_group()

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
