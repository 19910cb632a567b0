"""Sums of small arrays over ranks whose GPUs reach each other's memory: one kernel each, without NCCL."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from minicnn.backends._gpu.device import Gpu
from minicnn.backends._gpu.driver import PeerMemory
from minicnn.backends._gpu.rank_sums import messages
from minicnn.backends._gpu.runtime import KernelText, Launch, Runtime
from minicnn.distribution.prediction.links import known
from minicnn.ops.groups import Communicator, Group

LANES = 2  # what all wait for, and what goes on beside
THREADS = 256
_TYPES = {"float32": "float", "float64": "double"}
_WORD = 16  # bytes of a window for each number of a rank, of up to eight bytes: each four come with their round


class PeerSums:
    """Windows of all ranks, and kernels that sum through them; see `kernels/peers.cuh`.

    Each rank has a window for each lane, in which kernels follow each other in one order. The order of additions is
    that of a `Group` with a shard for each rank.

    Args:
        runtime: The device.
        memory: Where its windows come from.
        gpu: What is known of it.
        rank: Number of this rank.
        windows: Addresses of the ranks' windows.
    """

    def __init__(
        self, runtime: Runtime, memory: PeerMemory, gpu: Gpu, rank: int, windows: Sequence[int]
    ) -> None:  # fmt: skip
        self._memory = memory
        self._runtime, self._rank, self._windows, self._ranks = runtime, rank, windows, len(windows)
        # Blocks of a kernel: those of all lanes are on the device at a time, whatever else is there.
        self._channels, self._gpu = gpu.multiprocessors, gpu
        self._ended = runtime.host((1,), "uint32", pinned=True)  # the device reads it where it is
        self._ended[:] = 0
        self._rounds, self._places = [], []
        for lane in range(LANES):
            rounds, places = runtime.empty((self._channels,), "uint32"), runtime.empty((self._ranks + 1,), "uint64")
            runtime.clear(rounds)
            start = lane * _nbytes(gpu, self._ranks)
            runtime.send(np.array([*(w + start for w in windows), self._ended.ctypes.data], "uint64"), places)
            self._rounds.append(rounds)
            self._places.append(places)
        texts = [self._text(dtype) for dtype in _TYPES]
        self._kernels = dict(zip(_TYPES, runtime.load(texts), strict=True))
        runtime.synchronize()

    def takes(self, nbytes: int, dtype: str) -> bool:
        """True if a sum of so many bytes is taken here: no other way takes less time."""
        if dtype not in _TYPES:
            return False
        by_messages = min(messages(self._gpu, self._ranks, nbytes, once=once) for once in (True, False))
        return known()[self._gpu.links].in_peers(nbytes, self._ranks) <= by_messages

    def launch(self, source: Any, target: Any, *, beside: bool) -> Launch:
        """A launch that sums contiguous arrays of all ranks; can be captured.

        Args:
            source: This rank's array.
            target: Likewise, for the sum.
            beside: Whether it is of the second lane.
        """
        blocks = min(self._channels, -(-source.size // THREADS))
        about = self._places[beside], self._rounds[beside], self._rank, source.size, blocks
        return self._runtime.prepare(self._kernels[str(source.dtype)], blocks, (source, target, *about))

    def end(self) -> None:
        """Have kernels wait for nobody any more."""
        self._ended[:] = 1

    def close(self) -> None:
        """Leave the others' windows; the device has done what it was given."""
        for rank, address in enumerate(self._windows):
            if rank != self._rank:
                self._memory.close(address)

    def free(self) -> None:
        """Give up the own window, when all others have left it."""
        self._memory.free(self._windows[self._rank])

    def _text(self, dtype: str) -> KernelText:
        group, name = Group(self._ranks), _TYPES[dtype]
        summands = {(r, r + 1): f"x[{r}].value" for r in range(self._ranks)}
        total = group.total(summands, lambda a, b: f"({a} + {b})")
        text = f"""#include "peers.cuh"
extern "C" __global__ void __launch_bounds__({THREADS}) kernel(
    const {name}* own, {name}* total, const uint64* places, uint32* rounds, int rank, int count, int blocks) {{
  wait_for_previous();
  sum_of_peers<{self._ranks}, {THREADS}>(
      own, total, places, rounds, rank, count, blocks, [](const Summand<{name}>* x) {{
    return {total};
  }});
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
    gpu, own, handle = runtime.gpu, 0, b""
    if gpu is not None and host.size > 1 and known()[gpu.links].peer_latency:
        with suppress(OSError):  # where there is no memory left, NCCL says so
            own, handle = memory.allocate(LANES * _nbytes(gpu, host.size))
            runtime.synchronize()
    name = socket.gethostname().encode() + b"\n"
    told = host.share(name + handle if handle else b"")
    opened: dict[int, int] = {}
    with suppress(OSError):  # such as two GPUs without a path between them
        for rank, each in enumerate(told):
            if rank != host.rank and handle and each.startswith(name):  # on this machine
                opened[rank] = memory.open(each.removeprefix(name))
    reached = len(opened) == host.size - 1
    if gpu is not None and all(each == b"1" for each in host.share(b"1" if reached and handle else b"0")):
        return PeerSums(runtime, memory, gpu, host.rank, [opened.get(rank, own) for rank in range(host.size)])
    for address in opened.values():
        memory.close(address)
    return None


def _nbytes(gpu: Gpu, ranks: int) -> int:
    """Bytes of a lane of a window: two halves for each channel."""
    return gpu.multiprocessors * 2 * ranks * THREADS * _WORD
