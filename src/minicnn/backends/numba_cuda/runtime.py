"""CUDA through numba-cuda, or its simulator: see `minicnn.backends._gpu.runtime.Runtime`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from minicnn.backends._gpu.driver import PeerMemory
from minicnn.backends._gpu.errors import explained
from minicnn.backends._gpu.peer_sums import PeerSums, open_windows
from minicnn.backends._gpu.runtime import Beside, Event, HostArray, KernelText, Launch, Stream, in_order
from minicnn.backends.numba_cuda.arrays import Array, empty
from minicnn.backends.numba_cuda.device import THREADS, Device, Kernel, Memory, prepare_all
from minicnn.backends.numba_cuda.shim import SIMULATED, cuda
from minicnn.kernels.strides import row_major
from minicnn.ops.groups import Communicator

ADVANCE = "def kernel(cursor, steps):\n    cursor[0] = cursor[0] + steps\n"
COLLECT = """def kernel(made, rows, count, cursor, offset):
    i = cuda.grid(1)
    if i < count:
        rows[(cursor[0] + offset) * np.int64(count) + i] = made[i]
"""


def _collect(dtype: str) -> KernelText:
    return KernelText(COLLECT, (f"{dtype}*", f"{dtype}*", "int64", "int32*", "int32"), THREADS)


class NumbaCudaRuntime:
    """See `Runtime`. The simulator has finished what it was given whenever it returns.

    Args:
        device: The device.
    """

    # The simulator runs Python functions, of which there is nothing to record.
    piece = None
    captures = not SIMULATED
    advance = KernelText(ADVANCE, ("int32*", "int32"), 1)
    collect = (_collect("uint8"), _collect("uint32"))

    def __init__(self, device: Device) -> None:
        self.device, self.gpu = device, device.gpu

    @property
    def bus(self) -> str:
        return "" if SIMULATED else str(self.device.core.pci_bus_id)

    @contextmanager
    def active(self) -> Iterator[None]:
        with explained(), self.device.active():
            yield

    def use(self) -> None:
        if not SIMULATED:
            self.device.core.set_current()

    def synchronize(self, event: Event | None = None) -> None:
        if event is None:
            self.device.synchronize()
        elif not SIMULATED:
            event.sync()

    # Memory -------------------------------------------------------------------------------------

    def free(self) -> int:
        return self.device.free

    def used(self) -> int:
        return self.device.used

    def empty(self, shape: tuple[int, ...], dtype: str) -> Array:
        return empty(shape, np.dtype(dtype), self.device)

    def view(self, array: Array, offset: int, shape: tuple[int, ...], dtype: str) -> Array:
        kind = np.dtype(dtype)
        # Offsets are bytes, places elements; both are aligned for every type.
        start = (array.start * array.itemsize + offset) // kind.itemsize
        return Array(array.memory, tuple(shape), row_major(shape), start, kind)

    def address(self, array: Any) -> int | None:
        here = isinstance(array, Array) and array.device is self.device and array.contiguous
        return array.address if here else None

    def at(self, address: int, nbytes: int) -> Array:
        return Array(Memory.at(self.device, address, nbytes), (nbytes,), (1,), 0, np.dtype("uint8"))

    def clear(self, array: Array) -> None:
        array.memory.clear()

    def copy(self, source: Array, target: Array) -> None:
        places = target.start * target.itemsize, source.memory, source.start * source.itemsize
        target.memory.copy(*places, target.nbytes)

    def host(self, shape: tuple[int, ...], dtype: Any, *, pinned: bool) -> HostArray:
        array: HostArray = cuda.pinned_array(shape, dtype) if pinned and 0 not in shape else np.empty(shape, dtype)
        return array

    def send(self, source: HostArray, target: Array, stream: Stream = None) -> None:
        target.memory.send(target.start * target.itemsize, source, stream)

    # Order --------------------------------------------------------------------------------------

    def stream(self) -> Stream:
        return None if SIMULATED else self.device.core.create_stream()

    def event(self, *, timed: bool = False) -> Event:
        if SIMULATED:
            return [0.0]
        from cuda.core import EventOptions

        return self.device.core.create_event(EventOptions(timing_enabled=timed))

    def record(self, event: Event, stream: Stream = None) -> None:
        if SIMULATED:
            event[0] = time.perf_counter()
        else:
            (stream or self.device.core.default_stream).record(event)

    def wait(self, event: Event, stream: Stream = None) -> None:
        if not SIMULATED:
            (stream or self.device.core.default_stream).wait(event)

    def done(self, event: Event) -> bool:
        return SIMULATED or bool(event.is_done)

    def beside(self, launches: Sequence[Launch], *, kind: Beside) -> tuple[Launch, Launch]:
        return in_order(launches)  # a graph is built of one stream

    def current(self) -> int:
        return 0 if SIMULATED else int(self.device.stream)

    def seconds(self, start: Event, end: Event) -> float:
        return float(end[0] - start[0] if SIMULATED else (end - start) * 1e-3)

    # Other processes ----------------------------------------------------------------------------

    def reach(self, host: Communicator) -> PeerSums | None:
        return None if SIMULATED else open_windows(self, PeerMemory(), host)

    # Launching ----------------------------------------------------------------------------------

    def load(self, texts: Sequence[KernelText]) -> list[Kernel]:
        kernels = [Kernel(t.text, t.signature, t.threads, t.shared, t.title, t.cpp) for t in texts]
        prepare_all(kernels, self.device)
        return kernels

    def prepare(self, kernel: Kernel, blocks: int, arguments: Sequence[Array | int]) -> Launch:
        # Pointers keep the memory alive as long as the launch is kept.
        operands = [a.pointer if isinstance(a, Array) else a for a in arguments]
        return self.device.prepare(kernel, blocks, kernel.threads, operands)

    def capture(self, launches: Sequence[Launch]) -> Launch:
        return self.device.capture(launches)
