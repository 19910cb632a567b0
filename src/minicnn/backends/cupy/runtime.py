"""CUDA through CuPy: see `minicnn.backends._gpu.runtime.Runtime`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import cupy
import numpy as np

from minicnn.backends._gpu.device import from_attributes
from minicnn.backends._gpu.driver import PeerMemory
from minicnn.backends._gpu.errors import explained
from minicnn.backends._gpu.loading import load_all
from minicnn.backends._gpu.peer_sums import PeerSums, open_windows
from minicnn.backends._gpu.runtime import Beside, Event, HostArray, KernelText, Launch, Stream, check_number, one_by_one
from minicnn.backends.base import Array
from minicnn.backends.cupy.compiler import compile_all
from minicnn.backends.cupy.graphs import Graph
from minicnn.backends.cupy.launching import Kernel
from minicnn.backends.cupy.queue_text import ADVANCE, COLLECT
from minicnn.ops.groups import Communicator

# Of streams: few blocks that other ranks wait for would wait for all those of the rest.
PRIORITIES: dict[Beside, int] = {"sums": -1, "updates": 0, "gradients": 0}


class CupyRuntime:
    """See `Runtime`.

    Args:
        number: Number of the device.
    """

    piece = None
    captures = True
    advance, collect = ADVANCE, COLLECT

    def __init__(self, number: int) -> None:
        self.number = number
        with explained():
            check_number(number, cupy.cuda.runtime.getDeviceCount())
            self._device = cupy.cuda.Device(number)
            properties, capability = cupy.cuda.runtime.getDeviceProperties(number), self._device.compute_capability
            version = int(capability[:-1]), int(capability[-1])
            memory = int(properties["totalGlobalMem"])
            self.gpu = from_attributes(properties["name"].decode(), version, memory, self._device.attributes)
        self._beside: dict[Beside, Stream] = {}  # which are made when they are needed

    @property
    def bus(self) -> str:
        return str(self._device.pci_bus_id)

    @contextmanager
    def active(self) -> Iterator[None]:
        with explained():
            # CuPy's own context manager keeps what was current with the Device, which threads share.
            before = cupy.cuda.runtime.getDevice()
            self.use()  # even if it is the same: another library may have taken the thread's context away
            try:
                yield
            finally:
                cupy.cuda.runtime.setDevice(before)

    def use(self) -> None:
        cupy.cuda.runtime.setDevice(self.number)

    def synchronize(self, event: Event | None = None) -> None:
        (self._device if event is None else event).synchronize()

    # Memory -------------------------------------------------------------------------------------

    def free(self) -> int:
        # CuPy's pool keeps freed memory, which is free for us.
        return int(cupy.cuda.runtime.memGetInfo()[0] + cupy.get_default_memory_pool().free_bytes())

    def used(self) -> int:
        """See `Runtime.used`: what CuPy's pool has in use."""
        return int(cupy.get_default_memory_pool().used_bytes())

    def empty(self, shape: tuple[int, ...], dtype: str) -> Array:
        return cupy.empty(shape, dtype)

    def view(self, array: Array, offset: int, shape: tuple[int, ...], dtype: str) -> Array:
        return cupy.ndarray(shape, dtype, array.data + offset)

    def address(self, array: Any) -> int | None:
        if isinstance(array, cupy.ndarray) and array.flags.c_contiguous and array.data.device_id == self.number:
            return int(array.data.ptr)
        return None

    def at(self, address: int, nbytes: int) -> Array:
        memory = cupy.cuda.UnownedMemory(address, nbytes, None, self.number)
        return cupy.ndarray((nbytes,), "uint8", cupy.cuda.MemoryPointer(memory, 0))

    def clear(self, array: Array) -> None:
        array.data.memset_async(0, array.nbytes)

    def copy(self, source: Array, target: Array) -> None:
        if target.nbytes:
            stream = cupy.cuda.get_current_stream()
            # The driver's copy can be captured; CuPy's own may launch a kernel.
            cupy.cuda.runtime.memcpyAsync(target.data.ptr, source.data.ptr, target.nbytes, 3, stream.ptr)

    def host(self, shape: tuple[int, ...], dtype: Any, *, pinned: bool) -> HostArray:
        if not pinned:
            return np.empty(shape, dtype)
        count = int(np.prod(shape))
        memory = cupy.cuda.alloc_pinned_memory(max(1, count * np.dtype(dtype).itemsize))
        return np.frombuffer(memory, dtype, count).reshape(shape)

    def send(self, source: HostArray, target: Array, stream: Stream = None) -> None:
        target.data.copy_from_host_async(source.ctypes.data, source.nbytes, stream)

    # Order --------------------------------------------------------------------------------------

    def stream(self) -> Stream:
        # A stream that waits for the default one could not be captured.
        return cupy.cuda.Stream(non_blocking=True)

    def event(self, *, timed: bool = False) -> Event:
        return cupy.cuda.Event(disable_timing=not timed)

    def record(self, event: Event, stream: Stream = None) -> None:
        event.record(cupy.cuda.get_current_stream() if stream is None else stream)

    def wait(self, event: Event, stream: Stream = None) -> None:
        (cupy.cuda.get_current_stream() if stream is None else stream).wait_event(event)

    def done(self, event: Event) -> bool:
        return bool(event.done)

    def beside(self, launches: Sequence[Launch], *, kind: Beside) -> tuple[Launch, Launch]:
        if kind not in self._beside:
            self._beside[kind] = cupy.cuda.Stream(non_blocking=True, priority=PRIORITIES[kind])
        stream, before, after = self._beside[kind], self.event(), self.event()

        def begin() -> None:
            self.record(before)
            self.wait(before, stream)
            with stream:
                one_by_one(launches)
            self.record(after, stream)

        return begin, partial(self.wait, after)

    def current(self) -> int:
        return int(cupy.cuda.get_current_stream().ptr)

    def seconds(self, start: Event, end: Event) -> float:
        return float(cupy.cuda.get_elapsed_time(start, end)) * 1e-3

    # Other processes ----------------------------------------------------------------------------

    def reach(self, host: Communicator) -> PeerSums | None:
        return open_windows(self, PeerMemory(), host)

    # Launching ----------------------------------------------------------------------------------

    def load(self, texts: Sequence[KernelText]) -> list[Kernel]:
        def load(text: KernelText, code: bytes) -> Kernel:
            return Kernel(code, text.threads, text.shared, text.title, overlaps=self.gpu.overlaps and text.overlaps)

        return load_all(self.gpu, texts, compile_all([t.text for t in texts], self.gpu.architecture), load)

    def prepare(self, kernel: Kernel, blocks: int, arguments: Sequence[Array | int]) -> Launch:
        return kernel.prepared(blocks, arguments)

    def capture(self, launches: Sequence[Launch]) -> Launch:
        stream = self.stream()
        with stream:
            stream.begin_capture()
            try:
                for launch in launches:
                    launch()
            except BaseException:
                with suppress(cupy.cuda.runtime.CUDARuntimeError):  # the capture is void
                    stream.end_capture()
                raise
            return Graph(cupy.cuda.runtime.streamEndCapture(stream.ptr)).launch
