"""Sums over ranks whose GPUs reach each other's memory: one kernel each, without NCCL."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from minicnn.backends._gpu.costs import costs_on
from minicnn.backends._gpu.device import Gpu
from minicnn.backends._gpu.driver import PeerMemory
from minicnn.backends._gpu.peer_nodes import ROUND, ROUNDS, half, places, places_name
from minicnn.backends._gpu.rank_sums import messages
from minicnn.backends._gpu.runtime import KernelText, Launch, Runtime
from minicnn.backends.base import Array
from minicnn.distribution.prediction.links import known
from minicnn.distribution.schedule import Arrays
from minicnn.ops.groups import Communicator, Group
from minicnn.program.graph import Spec

LANES = 2  # what all wait for, and what goes on beside
THREADS = 256
RUN = 16  # bytes of which shares are counted
_TYPES = {"float32": "float", "float64": "double"}
_WORD = 16  # bytes of a window for each number of a rank, of up to eight bytes: each four come with their round


@dataclass(frozen=True)
class SharedMemory:
    """Memory of which each rank has a part that all reach: its array, all addresses, and places for each lane."""

    array: Array
    addresses: Sequence[int]
    places: Sequence[Array]

    def place(self, address: int | None, rank: int) -> int | None:
        """Runs between its beginning on this rank and an address; None outside."""
        start = self.addresses[rank]
        return (address - start) // RUN if address and start <= address < start + self.array.nbytes else None


class PeerSums:
    """Windows of all ranks, and kernels that sum through them; see `kernels/peers.cuh`.

    Each rank has a window for each lane, in which kernels follow each other in one order. The order of additions is
    that of a `Group` with a shard for each rank. A large sum is taken in shares, of arrays that lie in memory which all
    ranks reach.

    Args:
        runtime: The device.
        memory: Where its windows come from.
        gpu: What is known of it.
        host: What connects the processes.
        windows: Addresses of the ranks' windows.
        blocks: Blocks of a sum of shares, at most; None for as many as keep links busy.
    """

    def __init__(
        self, runtime: Runtime, memory: PeerMemory, gpu: Gpu, host: Communicator, windows: Sequence[int],
        blocks: int | None = None,
    ) -> None:  # fmt: skip
        self._memory, self._host = memory, host
        self._runtime, self._rank, self._windows, self._ranks = runtime, host.rank, windows, len(windows)
        # Blocks of a kernel: those of all lanes are on the device at a time, whatever else is there.
        self._channels, self._gpu = gpu.multiprocessors, gpu
        limits = costs_on(gpu).limits
        self._share_threads = limits.threads
        self._blocks = min(self._channels, blocks or max(1, int(limits.blocks * self._channels)))
        self._ended = runtime.host((1,), "uint32", pinned=True)  # the device reads it where it is
        self._ended[:] = 0
        self._rounds, self._places = [], []
        for lane in range(LANES):
            rounds = runtime.empty((2 * self._channels,), "uint32")  # those of shares, which have flags, behind others
            runtime.clear(rounds)
            start = lane * _nbytes(gpu, self._ranks)
            self._rounds.append(
                [runtime.view(rounds, k * 4 * self._channels, (self._channels,), "uint32") for k in (0, 1)]
            )
            self._places.append(self._sent([*(w + start for w in windows), self._ended.ctypes.data]))
        self._shared: list[SharedMemory] = []
        self._of_steps: list[tuple[int, list[int]]] = []  # halves of windows for sums within kernels, and addresses
        self._round = runtime.empty(ROUNDS.shape, ROUNDS.dtype)  # of these: that of words of zeros is over
        runtime.clear(self._round)
        texts = [text(dtype) for text in (self._whole, self._shares) for dtype in _TYPES]
        ways = [(at_once, dtype) for at_once in (True, False) for dtype in _TYPES]
        self._kernels = dict(zip(ways, runtime.load(texts), strict=True))
        runtime.synchronize()

    def takes(self, nbytes: int, dtype: str) -> bool:
        """True if a sum of so many bytes is taken here: no other way takes less time."""
        if dtype not in _TYPES:
            return False
        by_messages = min(messages(self._gpu, self._ranks, nbytes, once=once) for once in (True, False))
        return known()[self._gpu.links].in_peers(nbytes, self._ranks) <= by_messages

    def in_shares(self, nbytes: int) -> bool:
        """True if such a sum takes less time in shares, of which its arrays lie in shared memory."""
        links = known()[self._gpu.links]
        return links.in_shares(nbytes, self._ranks) < links.at_once(nbytes, self._ranks)

    def launch(self, source: Any, target: Any, *, beside: bool) -> Launch | None:
        """A launch that sums contiguous arrays of all ranks; can be captured.

        Those in memory of `share` are summed in shares, others at once; None if that takes longer than NCCL.

        Args:
            source: This rank's array.
            target: Likewise, for the sum.
            beside: Whether it is of the second lane.
        """
        runtime, dtype = self._runtime, str(source.dtype)
        at_once, by_shares = self._rounds[beside]
        for shared in self._shared:
            first, last = (shared.place(runtime.address(array), self._rank) for array in (source, target))
            if first is not None and last is not None and source.nbytes % (RUN * self._ranks) == 0:
                runs = source.nbytes // RUN
                blocks = min(self._blocks, -(-runs // self._ranks // self._share_threads))
                where = shared.places[beside], by_shares, self._rank, first, last
                return runtime.prepare(self._kernels[False, dtype], blocks, (*where, runs, blocks))
        if self.in_shares(source.nbytes):
            return None
        blocks = min(self._channels, -(-source.size // THREADS))
        about = self._places[beside], at_once, self._rank, source.size, blocks
        return runtime.prepare(self._kernels[True, dtype], blocks, (source, target, *about))

    def share(self, nbytes: int) -> Array:
        """An array of at least so many bytes in memory that all ranks reach; all of them ask for as many.

        Those who ask for it use it in turn.

        Raises:
            MemoryError: If a rank has too little memory; on all ranks.
        """
        if not self._shared or self._shared[-1].array.nbytes < nbytes:
            addresses = _opened(self._runtime, self._memory, self._host, nbytes)
            if addresses is None:
                raise MemoryError(
                    f"Each GPU has room for a step's gradients, and for their sums. Received: {nbytes:,} bytes, which "
                    "one of the ranks has not, or does not let others reach. Let go of other models, or leave all sums "
                    "to NCCL: NcclCommunicator(peers=False)."
                )
            places = list[Array]()
            for lane in range(LANES):
                behind = (lane + 1) * _nbytes(self._gpu, self._ranks) - _flags(self._gpu, self._ranks)
                flags = [window + behind for window in self._windows]
                places.append(self._sent([*addresses, *flags, self._ended.ctypes.data]))
            self._runtime.synchronize()
            array = self._runtime.at(addresses[self._rank], nbytes)
            self._shared.append(SharedMemory(array, addresses, places))
        return self._shared[-1].array

    def within_kernels(self, sums: Sequence[Spec]) -> Arrays:
        """Arrays that kernels need to take some sums; see `peer_nodes`. All ranks ask for the same.

        Those who ask for it use a window in turn, each with the rounds that follow those of the one before.

        Raises:
            MemoryError: If a rank has too little memory; on all ranks.
        """
        size = half(sums, self._ranks)
        if not self._of_steps or self._of_steps[-1][0] < size:
            addresses = _opened(self._runtime, self._memory, self._host, 2 * size)
            if addresses is None:
                raise MemoryError(
                    f"Each GPU has room for what ranks tell each other in a step. Received: {2 * size:,} bytes, which "
                    "one of the ranks has not, or does not let others reach. Let go of other models, or leave all sums "
                    "to NCCL: NcclCommunicator(peers=False)."
                )
            self._of_steps.append((size, addresses))
        size, addresses = self._of_steps[-1]
        rows = places(sums, addresses, size, self._ended.ctypes.data, self._rank)
        arrays = {places_name(number): self._sent(list(row)) for number, row in enumerate(rows)}
        self._runtime.synchronize()
        return {**arrays, ROUND: self._round}

    def end(self) -> None:
        """Have kernels wait for nobody any more."""
        self._ended[:] = 1

    def close(self) -> None:
        """Leave the others' windows; the device has done what it was given."""
        for addresses in self._all:
            for rank, address in enumerate(addresses):
                if rank != self._rank:
                    self._memory.close(address)

    def free(self) -> None:
        """Give up the own windows, when all others have left them."""
        for addresses in self._all:
            self._memory.free(addresses[self._rank])

    @property
    def _all(self) -> list[Sequence[int]]:
        """Addresses of everything that all ranks reach."""
        later = (each.addresses for each in self._shared), (addresses for _, addresses in self._of_steps)
        return [self._windows, *later[0], *later[1]]

    def _sent(self, addresses: Sequence[int]) -> Array:
        """Addresses on the device."""
        places = self._runtime.empty((len(addresses),), "uint64")
        self._runtime.send(np.array(addresses, "uint64"), places)
        return places

    def _whole(self, dtype: str) -> KernelText:
        name = _TYPES[dtype]
        text = f"""#include "peers.cuh"
extern "C" __global__ void __launch_bounds__({THREADS}) kernel(
    const {name}* own, {name}* total, const uint64* places, uint32* rounds, int rank, int count, int blocks) {{
  wait_for_previous();
  sum_of_peers<{self._ranks}, {THREADS}>(
      own, total, places, rounds, rank, count, blocks, [](const Summand<{name}>* x) {{
    return {self._total()};
  }});
}}
"""
        signature = (f"{dtype}*", f"{dtype}*", "uint64*", "uint32*", "int32", "int32", "int32")
        return KernelText(text, signature, THREADS, title="a sum over ranks", cpp=True)

    def _shares(self, dtype: str) -> KernelText:
        name, threads = _TYPES[dtype], self._share_threads
        numbers = "rank", "source", "target", "runs", "blocks"
        text = f"""#include "peers.cuh"
extern "C" __global__ void __launch_bounds__({threads}) kernel(
    const uint64* places, uint32* meetings, {", ".join(f"int {number}" for number in numbers)}) {{
  wait_for_previous();
  sum_of_shares<{self._ranks}, {threads}, {name}>(
      places, meetings, {", ".join(numbers)}, [](const Summand<{name}>* x) {{
    return {self._total()};
  }});
}}
"""
        signature = ("uint64*", "uint32*", *["int32"] * len(numbers))
        return KernelText(text, signature, threads, title="a sum over ranks, in shares", cpp=True)

    def _total(self) -> str:
        """The sum of what the ranks give."""
        summands = {(r, r + 1): f"x[{r}].value" for r in range(self._ranks)}
        return Group(self._ranks).total(summands, lambda a, b: f"({a} + {b})")


def open_windows(
    runtime: Runtime, memory: PeerMemory, host: Communicator, blocks: int | None = None
) -> PeerSums | None:
    """Sums through windows that all ranks open, or None on all; each waits for the others.

    Args:
        runtime: The device.
        memory: Where its windows come from.
        host: What connects the processes.
        blocks: See `PeerSums`.
    """
    gpu = runtime.gpu
    reaches = gpu is not None and host.size > 1 and known()[gpu.links].peer_latency > 0
    windows = _opened(runtime, memory, host, LANES * _nbytes(gpu, host.size) if gpu is not None and reaches else 0)
    return None if windows is None or gpu is None else PeerSums(runtime, memory, gpu, host, windows, blocks)


def _opened(runtime: Runtime, memory: PeerMemory, host: Communicator, nbytes: int) -> list[int] | None:
    """Addresses of a window of every rank, each of so many bytes; None on all ranks if one has or reaches none."""
    window, handle = 0, b""
    if nbytes:
        with suppress(OSError):  # where there is no memory left, NCCL says so
            window, handle = memory.allocate(nbytes)
            runtime.synchronize()
    name = socket.gethostname().encode() + b"\n"
    told = host.share(name + handle if handle else b"")
    opened: dict[int, int] = {}
    with suppress(OSError):  # such as two GPUs without a path between them
        for rank, each in enumerate(told):
            if rank != host.rank and handle and each.startswith(name):  # on this machine
                opened[rank] = memory.open(each.removeprefix(name))
    reached = len(opened) == host.size - 1
    if all(each == b"1" for each in host.share(b"1" if reached and handle else b"0")):
        return [opened.get(rank, window) for rank in range(host.size)]
    for address in opened.values():
        memory.close(address)
    return None


def _nbytes(gpu: Gpu, ranks: int) -> int:
    """Bytes of a lane of a window: two halves for each channel, and flags."""
    return gpu.multiprocessors * 2 * ranks * THREADS * _WORD + _flags(gpu, ranks)


def _flags(gpu: Gpu, ranks: int) -> int:
    """Bytes of the flags of all channels: one of each rank."""
    return -(-gpu.multiprocessors * ranks * 4 // RUN) * RUN
