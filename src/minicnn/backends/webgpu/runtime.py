"""WebGPU through wgpu: see `minicnn.backends._gpu.runtime.Runtime`."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
import wgpu
from wgpu.backends.wgpu_native import ffi, lib
from wgpu.backends.wgpu_native._api import libf

from minicnn.backends._gpu.runtime import HostArray, KernelText, Launch, OneQueue, check_number
from minicnn.backends._gpu.slabs import UNIT, Memory, Pieces, Slabs
from minicnn.backends.webgpu.adapters import adapters, explained, limits_of, period
from minicnn.backends.webgpu.arrays import Array, first_byte
from minicnn.backends.webgpu.devices import described
from minicnn.backends.webgpu.launching import USES, Binder, Dispatch

PENDING = 512  # dispatches that wait for others before they are submitted
AHEAD = 4  # submissions that the host may be ahead of the adapter
_FOLDER = files(__package__)
COPY = _FOLDER.joinpath("copy.wgsl").read_text(encoding="utf-8")
COPY_BYTES, COLLECT = (
    KernelText(COPY.replace("//row", f"let row = {row};"), (), 256)
    for row in ("0u", "m2[arguments[1][0]] + arguments[1][1]")
)
ADVANCE = KernelText(_FOLDER.joinpath("advance.wgsl").read_text(encoding="utf-8"), (), 1)


class Event:
    """A place in the order of all work; a timed one has a timestamp there."""

    def __init__(self, queries: Any = None) -> None:
        self.queries, self.moment = queries, 0.0


class WebGpuRuntime(OneQueue):
    """See `Runtime`. All work is in the order of one queue; copies from the host have been made when `send` returns.

    Args:
        adapter: wgpu's adapter.
        number: Its number.
    """

    captures = True
    advance, collect = ADVANCE, (COLLECT, COLLECT)

    def __init__(self, adapter: Any, number: int) -> None:
        self.name, self.adapter = f"adapter:{number}", adapter
        self._lock = threading.RLock()
        self._timed = "timestamp-query" in adapter.features
        with explained():
            self._device = adapter.request_device_sync(
                required_features=["timestamp-query"] * self._timed, required_limits=limits_of(adapter)
            )
        limits = self._device.limits
        most = min(limits["max-storage-buffer-binding-size"], limits["max-buffer-size"], 2**32 - UNIT)
        self.slabs = Slabs(self._buffer, most // UNIT * UNIT)
        self.gpu = described(adapter.info, limits)
        self._binder = Binder(self._device, self.hand)
        self._pending: list[Dispatch | Event] = []
        self._recorded: list[Dispatch] | None = None
        self._submissions = 0

    @contextmanager
    def active(self) -> Iterator[None]:
        with explained():
            yield

    # Memory -------------------------------------------------------------------------------------

    @property
    def piece(self) -> int:
        return self.slabs.most

    def free(self) -> int:
        return min(self.gpu.memory - self.used(), self.piece)  # no array is larger than a slab

    def used(self) -> int:
        return self.slabs.used

    def _buffer(self, size: int) -> Any:
        with explained():
            return self._device.create_buffer(size=size, usage=USES["storage"])

    def empty(self, shape: tuple[int, ...], dtype: str) -> Array:
        nbytes = math.prod(shape) * np.dtype(dtype).itemsize
        if nbytes > self.piece and (len(shape) > 1 or dtype != "uint8"):  # an arena comes in pieces
            raise ValueError(
                f"An array fits into one binding of {self.gpu.name}: {self.piece:,} bytes. Received: {dtype}"
                f"[{','.join(map(str, shape))}], of {nbytes:,} bytes. Use fewer units, smaller images, a smaller "
                "batch_size, a GPU with larger ones, or another backend."
            )
        memory: Any = (Memory if nbytes <= self.piece else Pieces)(self, self.slabs, nbytes)
        return Array(memory, 0, shape, dtype)

    def view(self, array: Array, offset: int, shape: tuple[int, ...], dtype: str) -> Array:
        memory, first = array.memory, array.start + offset
        if isinstance(memory, Pieces):
            memory, first = memory.pieces[first // self.piece], first % self.piece
        return Array(memory, first, shape, dtype)

    def address(self, array: Any) -> int | None:
        if not isinstance(array, Array) or array.memory.runtime is not self:
            return None
        # Slabs lie apart, so that no two arrays have one address.
        return (self.slabs.number(array.memory.slab) << 40) + array.memory.first + array.start

    def clear(self, array: Array) -> None:
        self._copy(array, array, 0)

    def copy(self, source: Array, target: Array) -> None:
        """Copy to an array of as many bytes, or of several times as many: again and again."""
        self._copy(source, target, source.nbytes)

    def _copy(self, source: Array, target: Array, period: int) -> None:
        if target.nbytes:
            blocks = -(-(target.nbytes // 4 + 2) // 256)
            numbers = [first_byte(source), first_byte(target), target.nbytes, period]
            self._bound(COPY_BYTES, blocks, [source, target], numbers)()

    def host(self, shape: tuple[int, ...], dtype: str, *, pinned: bool) -> HostArray:
        return np.empty(shape, dtype)

    def send(self, source: HostArray, target: Array, stream: Any = None) -> None:
        if not source.nbytes:
            return
        data = np.ascontiguousarray(source).reshape(-1).view(np.uint8)
        first = first_byte(target)
        if first % 4:  # a copy by a kernel begins anywhere
            between = self.empty((data.size,), "uint8")
            self.send(data, between)
            self.copy(between, Array(target.memory, target.start, (data.size,), "uint8"))
            return
        with self._lock, explained():
            self.flush()
            whole = data.size // 4 * 4
            queue, buffer = self._device.queue, target.memory.slab.buffer
            if whole:
                queue.write_buffer(buffer, first, data[:whole])
            if whole < data.size:  # neighbours in the last word stay
                rest = self._read(buffer, first + whole, 4)
                rest[: data.size - whole] = data[whole:]
                queue.write_buffer(buffer, first + whole, rest)

    def read(self, array: Array) -> HostArray:
        """A copy on the host; waits for it."""
        if not array.nbytes:
            return np.empty(array.shape, array.dtype)
        first = first_byte(array)
        begin, end = first // 4 * 4, -(-(first + array.nbytes) // 4) * 4
        with self._lock, explained():
            self.flush()
            data = self._read(array.memory.slab.buffer, begin, end - begin)
        return data[first - begin :][: array.nbytes].view(array.dtype).reshape(array.shape)

    def _read(self, buffer: Any, first: int, nbytes: int) -> HostArray:
        return np.frombuffer(self._device.queue.read_buffer(buffer, first, nbytes), np.uint8).copy()

    # Order --------------------------------------------------------------------------------------

    def hand(self, one: Dispatch | Event) -> None:
        """Put something behind all that was handed over before."""
        with self._lock:
            if self._recorded is not None:
                if isinstance(one, Dispatch):
                    self._recorded.append(one)
                return
            self._pending.append(one)
            if len(self._pending) >= PENDING:
                self.flush()

    def flush(self) -> None:
        """Submit what waits."""
        with self._lock:
            work, self._pending = self._pending, []
            self._submit(work)

    def _submit(self, work: Sequence[Dispatch | Event]) -> None:
        if not work:
            return
        with self._lock, explained():
            encoder, current = self._device.create_command_encoder(), None
            bind, run, pipeline = (
                lib.wgpuComputePassEncoderSetBindGroup, lib.wgpuComputePassEncoderDispatchWorkgroups,
                lib.wgpuComputePassEncoderSetPipeline,
            )  # fmt: skip
            for one in work:
                if isinstance(one, Event):
                    if current is not None:
                        current.end()
                    writes = {"query_set": one.queries, "beginning_of_pass_write_index": 0}
                    current = encoder.begin_compute_pass(timestamp_writes=writes)
                    continue
                if current is None:
                    current = encoder.begin_compute_pass()
                # wgpu's own methods check each call, which takes longer than the call.
                handle = current._internal
                pipeline(handle, one.pipeline._internal)
                bind(handle, 0, one.group._internal, 1, one.first)
                run(handle, *one.count, 1)
            if current is not None:
                current.end()
            self._device.queue.submit([encoder.finish()])
            self._submissions += 1
            if self._submissions % AHEAD == 0:
                self._poll(wait=self._submissions % (2 * AHEAD) == 0)

    def _poll(self, *, wait: bool) -> None:
        libf.wgpuDevicePoll(self._device._internal, wait, ffi.NULL)

    def synchronize(self, event: Event | None = None) -> None:
        if event is not None and event.queries is None:
            return  # what the host wrote has been taken along already
        with self._lock, explained():
            self.flush()
            self._poll(wait=True)

    def event(self, *, timed: bool = False) -> Event:
        timed = timed and self._timed
        return Event(self._device.create_query_set(type="timestamp", count=1) if timed else None)

    def record(self, event: Event, stream: Any = None) -> None:
        if event.queries is not None:
            self.hand(event)
        else:
            self.flush()  # copies from the host overtake what waits
            event.moment = time.perf_counter()

    def seconds(self, start: Event, end: Event) -> float:
        if start.queries is None:
            return end.moment - start.moment
        return self._ticks(end) - self._ticks(start)

    def _ticks(self, event: Event) -> float:
        if not event.moment:
            buffer = self._device.create_buffer(
                size=8, usage=wgpu.BufferUsage.QUERY_RESOLVE | wgpu.BufferUsage.COPY_SRC
            )
            encoder = self._device.create_command_encoder()
            encoder.resolve_query_set(event.queries, 0, 1, buffer, 0)
            self._device.queue.submit([encoder.finish()])
            ticks = int(np.frombuffer(self._device.queue.read_buffer(buffer), np.uint64)[0])
            event.moment = ticks * 1e-9 * period(self._device)
        return event.moment

    # Launching ----------------------------------------------------------------------------------

    def load(self, texts: Sequence[KernelText]) -> list[KernelText]:
        return list(texts)  # compiled when it is known which of their arrays share a slab

    def prepare(self, kernel: KernelText, blocks: int, arguments: Sequence[Array | int]) -> Launch:
        arrays = [a for a in arguments if isinstance(a, Array)]
        integers = [a for a in arguments if not isinstance(a, Array)]
        if kernel is not COLLECT:
            numbers = [first_byte(a) // 4 if isinstance(a, Array) else a for a in arguments]
            return self._bound(kernel, blocks, arrays, numbers)
        source, rows, cursor = arrays
        size = source.nbytes
        numbers = [first_byte(source), first_byte(rows), size, size, first_byte(cursor) // 4, integers[-1]]
        return self._bound(kernel, -(-(size // 4 + 2) // 256), arrays, numbers)

    def _bound(self, kernel: KernelText, blocks: int, arrays: Sequence[Array], numbers: Sequence[int]) -> Dispatch:
        with self._lock, explained():
            if any(isinstance(one, Dispatch) for one in self._pending):
                self.flush()  # the place of the arguments may be one that they had
            return self._binder.bound(kernel.text, blocks, arrays, numbers)

    def capture(self, launches: Sequence[Launch]) -> Launch:
        with self._lock:
            work: list[Dispatch] = []
            self._recorded = work
            try:
                for one in launches:
                    one()
            finally:
                self._recorded = None
        # As a graph of CUDA, it is for whoever has its arrays at the same places, and keeps none alive: a data set that
        # comes again has the place that it had, and the graph that there is.
        work = [replace(one, memories=()) for one in work]

        def replay() -> None:
            self.flush()
            self._submit(work)

        return replay


@cache
def runtime_of(number: int) -> WebGpuRuntime:
    """The adapter of a number.

    Raises:
        ValueError: If there are not so many.
        RuntimeError: If there is none.
    """
    if not adapters():
        raise RuntimeError(
            "The webgpu backend needs a GPU with a driver for Vulkan, Metal or Direct3D 12. Received: no adapter. "
            "Install the driver of your GPU, or Mesa's software adapter (Debian: mesa-vulkan-drivers); or use another "
            "backend."
        )
    check_number(number, len(adapters()), "webgpu", "`minicnn info` lists")
    return WebGpuRuntime(adapters()[number], number)
