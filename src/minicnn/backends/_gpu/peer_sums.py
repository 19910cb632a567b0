"""Sums over ranks whose GPUs reach each other's memory, without NCCL: one kernel each, or copies of shares."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from minicnn.backends._gpu.device import Gpu
from minicnn.backends._gpu.driver import PeerMemory
from minicnn.backends._gpu.peer_nodes import ROUND, ROUNDS, half, places, places_name
from minicnn.backends._gpu.rank_sums import Between
from minicnn.backends._gpu.runtime import KernelText, Launch, Runtime
from minicnn.backends.base import Array
from minicnn.distribution.communicators import PART
from minicnn.distribution.prediction.links import known
from minicnn.distribution.schedule import Arrays
from minicnn.ops.groups import Communicator
from minicnn.program.graph import Spec

LANES = 2  # what all wait for, and what goes on beside
THREADS = 256
_TYPES = {"float32": "float", "float64": "double"}
_PAUSE = 1e-3  # seconds between two looks at the device
_WORD = 16  # bytes of a window for each number of a rank, of up to eight bytes: each four come with their round


@dataclass(frozen=True)
class SharedMemory:
    """Memory of which each rank has a part that all reach: its array, and the addresses of all parts."""

    array: Array
    addresses: Sequence[int]

    def offset(self, address: int | None, rank: int) -> int | None:
        """Bytes between its beginning on this rank and an address; None outside."""
        start = self.addresses[rank]
        return address - start if address and start <= address < start + self.array.nbytes else None


class PeerSums:
    """Windows of all ranks, and the sums that are taken through them; see `kernels/peers.cuh`.

    Each rank has a window for each lane, in which sums follow each other in one order. The order of additions is that
    of a `Group` with a shard for each rank. Of a large array, which lies in memory that all ranks reach, each rank
    copies its share of all, and its sum to all.

    Args:
        runtime: The device.
        memory: Where its windows come from.
        gpu: What is known of it.
        host: What connects the processes.
        windows: Addresses of the ranks' windows.
    """

    def __init__(
        self, runtime: Runtime, memory: PeerMemory, gpu: Gpu, host: Communicator, windows: Sequence[int]
    ) -> None:
        self._memory, self._host = memory, host
        self._runtime, self._rank, self._windows, self._ranks = runtime, host.rank, windows, len(windows)
        # Blocks of a kernel: those of all lanes are on the device at a time, whatever else is there.
        self._channels, self._gpu = gpu.multiprocessors, gpu
        self._ended = runtime.host((1,), "uint32", pinned=True)  # the device reads it where it is
        self._ended[:] = 0
        self._rounds: list[Array] = []
        self._places: list[Array] = []
        for lane in range(LANES):
            self._rounds.append(runtime.empty((self._channels,), "uint32"))
            runtime.clear(self._rounds[-1])
            start = lane * _nbytes(gpu, self._ranks)
            self._places.append(self._sent([*(w + start for w in windows), self._ended.ctypes.data]))
        self._shared: list[SharedMemory] = []
        self._of_steps: list[tuple[int, list[int]]] = []  # halves of windows for sums within kernels, and addresses
        self._round = runtime.empty(ROUNDS.shape, ROUNDS.dtype)  # of these: that of words of zeros is over
        runtime.clear(self._round)
        self._sums = dict(zip(_TYPES, runtime.load([self._sum(dtype) for dtype in _TYPES]), strict=True))
        runtime.synchronize()

    def takes(self, dtype: str) -> bool:
        """True if sums of such numbers are taken here."""
        return dtype in _TYPES

    def in_shares(self, nbytes: int) -> bool:
        """True if such a sum takes less time in shares, of which its arrays lie in shared memory."""
        links = known()[self._gpu.links]
        return links.in_shares(nbytes, self._ranks) < links.at_once(nbytes, self._ranks)

    def launch(self, source: Any, target: Any, *, beside: bool) -> Launch | None:
        """A launch that sums contiguous arrays of all ranks; can be captured. None of large ones: see `bring_shares`.

        Args:
            source: This rank's array.
            target: Likewise, for the sum.
            beside: Whether it is of the second lane.
        """
        if self.in_shares(source.nbytes):
            return None
        blocks = min(self._channels, -(-source.size // THREADS))
        about = self._places[beside], self._rounds[beside], self._rank, source.size, blocks
        return self._runtime.prepare(self._sums[str(source.dtype)], blocks, (source, target, *about))

    def bring_shares(self, source: Any, target: Any, *, beside: bool) -> list[Launch]:
        """Launches that bring all others' shares of an array in memory of `share`; can be captured.

        The GPU's copy engines bring them, so that no multiprocessor is taken from what is computed beside.

        Args:
            source: This rank's array, of which each rank has as large a share.
            target: Likewise, for this rank's share of all; its own stays where it is.
            beside: Whether it is of the second lane.
        """
        shared, offset = self._within(source)
        nbytes = source.nbytes // self._ranks
        offset += self._rank * nbytes
        places = [(shared.addresses[r] + offset, r * nbytes) for r in self._others()]
        rows = [(self._runtime.at(a, nbytes), self._runtime.view(target, b, (nbytes,), "uint8")) for a, b in places]
        # All have made their arrays, and read what lies where the sums go.
        return [self._meeting(0, beside=beside), *(self._copy(*pair) for pair in rows)]

    def give_share(self, target: Any, *, beside: bool) -> list[Launch]:
        """Launches that copy this rank's share of an array in memory of `share` to all others; see `bring_shares`."""
        shared, offset = self._within(target)
        nbytes = target.nbytes // self._ranks
        start = self._rank * nbytes
        share = self._runtime.view(target, start, (nbytes,), "uint8")
        theirs = [self._runtime.at(shared.addresses[r] + offset + start, nbytes) for r in self._others()]
        # All shares have come, and nobody reads this rank's array any more.
        return [*(self._copy(share, each) for each in theirs), self._meeting(1, beside=beside)]

    def _within(self, array: Any) -> tuple[SharedMemory, int]:
        """The memory of `share` in which an array lies, and bytes between their beginnings."""
        address = self._runtime.address(array)
        for shared in self._shared:
            if (offset := shared.offset(address, self._rank)) is not None:
                return shared, offset
        raise ValueError("An array whose shares are summed lies in memory of `share`. Received: one that does not.")

    def _others(self) -> list[int]:
        """The other ranks, from the next one on, so that no two begin with the same."""
        return [(self._rank + k) % self._ranks for k in range(1, self._ranks)]

    def _copy(self, source: Array, target: Array) -> Launch:
        return Between("copy of a share", partial(self._runtime.copy, source, target))

    def _meeting(self, number: int, *, beside: bool) -> Launch:
        """A launch that waits for all ranks, for the first or the second time in a sum.

        Each pair of ranks has a flag for each time and lane. It is clear when it is set anew: who comes to the second
        meeting has cleared its flags of the first one, and who comes to the first of the next sum those of the second.
        """
        start = self._flags(beside, number)
        theirs = [self._windows[r] + start + 4 * self._rank for r in self._others()]
        awaited = [self._windows[self._rank] + start + 4 * r for r in self._others()]
        return Between("wait for all ranks", partial(self._meet, theirs, awaited))

    def _meet(self, theirs: Sequence[int], awaited: Sequence[int]) -> None:
        if not self._ended[0]:
            self._memory.meet(self._runtime.current(), theirs, awaited)

    def _flags(self, lane: int, number: int) -> int:
        """Bytes of a window in front of the flags of a lane's meeting, which lie behind all lanes."""
        return LANES * _nbytes(self._gpu, self._ranks) + (LANES * number + lane) * 4 * self._ranks

    def share(self, nbytes: int) -> Array:
        """An array of at least so many bytes in memory that all ranks reach; all of them ask for as many.

        Those who ask for it use it in turn.

        Raises:
            MemoryError: If a rank has too little memory; on all ranks.
        """
        if not self._shared or self._shared[-1].array.nbytes < nbytes:
            addresses = self._reached(nbytes, "a step's gradients, and for their sums")
            array = self._runtime.at(addresses[self._rank], nbytes)
            self._shared.append(SharedMemory(array, addresses))
        return self._shared[-1].array

    def within_kernels(self, sums: Sequence[Spec]) -> Arrays:
        """Arrays that kernels need to take some sums; see `peer_nodes`. All ranks ask for the same.

        Those who ask for it use a window in turn, each with the rounds that follow those of the one before.

        Raises:
            MemoryError: If a rank has too little memory; on all ranks.
        """
        size = half(sums, self._ranks)
        if not self._of_steps or self._of_steps[-1][0] < size:
            self._of_steps.append((size, self._reached(2 * size, "what ranks tell each other in a step")))
        size, addresses = self._of_steps[-1]
        rows = places(sums, addresses, size, self._ended.ctypes.data, self._rank)
        arrays = {places_name(number): self._sent(list(row)) for number, row in enumerate(rows)}
        self._runtime.synchronize()
        return {**arrays, ROUND: self._round}

    def _reached(self, nbytes: int, purpose: str) -> list[int]:
        """Addresses of so many bytes of every rank, which all reach."""
        addresses = _opened(self._runtime, self._memory, self._host, nbytes)
        if addresses is None:
            raise MemoryError(
                f"Each GPU has room for {purpose}. Received: {nbytes:,} bytes, for which a rank has no memory, or none "
                "that others reach. Let go of other models, or leave all sums to NCCL: NcclCommunicator(peers=False)."
            )
        return addresses

    def end(self) -> None:
        """Have nobody wait any more: neither kernels, nor what the device has been given already."""
        self._ended[:] = 1
        runtime = self._runtime
        flags = runtime.at(self._windows[self._rank] + self._flags(0, 0), 4 * 2 * LANES * self._ranks)
        under_way, stream = runtime.event(), runtime.stream()
        runtime.record(under_way)
        set_all = np.frombuffer(np.ones(2 * LANES * self._ranks, "uint32").tobytes(), "uint8")
        # A meeting clears its flags, and there may be more of them; for others NCCL may wait.
        end = time.monotonic() + PART
        while not runtime.done(under_way) and time.monotonic() < end:
            runtime.send(set_all, flags, stream)
            time.sleep(_PAUSE)

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

    def _sum(self, dtype: str) -> KernelText:
        """Kernel of a sum at once."""
        name = _TYPES[dtype]
        text = f"""#include "peers.cuh"
extern "C" __global__ void __launch_bounds__({THREADS}) kernel(
    const {name}* own, {name}* total, const uint64* places, uint32* rounds, int rank, int count, int blocks) {{
  wait_for_previous();
  sum_of_peers<{self._ranks}, {THREADS}>(own, total, places, rounds, rank, count, blocks);
}}
"""
        signature = (f"{dtype}*", f"{dtype}*", "uint64*", "uint32*", "int32", "int32", "int32")
        return KernelText(text, signature, THREADS, title="a sum over ranks", cpp=True)


def open_windows(runtime: Runtime, memory: PeerMemory, host: Communicator) -> PeerSums | None:
    """Sums through windows that all ranks open, or None on all; each waits for the others.

    Args:
        runtime: The device.
        memory: Where its windows come from.
        host: What connects the processes.
    """
    gpu = runtime.gpu
    reaches = gpu is not None and host.size > 1 and known()[gpu.links].peer_latency > 0
    windows = _opened(runtime, memory, host, window(gpu, host.size) if gpu is not None and reaches else 0)
    return None if windows is None or gpu is None else PeerSums(runtime, memory, gpu, host, windows)


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
    """Bytes of a lane of a window: two halves for each channel."""
    return gpu.multiprocessors * 2 * ranks * THREADS * _WORD


def window(gpu: Gpu, ranks: int) -> int:
    """Bytes of a window: its lanes, and flags of two meetings for each, one of each rank."""
    return LANES * (_nbytes(gpu, ranks) + 2 * 4 * ranks)
