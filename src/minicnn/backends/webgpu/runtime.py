"""WebGPU through wgpu: see `minicnn.backends._gpu.runtime.Runtime`."""

from __future__ import annotations

import re
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import wgpu
from wgpu.backends.wgpu_native import GPUShaderModule, ffi, lib
from wgpu.backends.wgpu_native._api import libf
from wgpu.backends.wgpu_native.extras import set_instance_extras

from minicnn.backends._gpu.device import Gpu
from minicnn.backends._gpu.runtime import HostArray, KernelText, Launch, in_order
from minicnn.backends.webgpu.arrays import Array
from minicnn.backends.webgpu.devices import described

UNIT = 256  # bytes, of which all memory is a multiple: no binding begins elsewhere
FIRST, LARGEST = 1 << 24, 1 << 28  # bytes of the first slab, and of the largest that is more than one array needs
PENDING = 512  # dispatches that wait for others before they are submitted
AHEAD = 4  # submissions that the host may be ahead of the adapter
_WRITES = wgpu.BufferUsage.COPY_DST | wgpu.BufferUsage.COPY_SRC
_USES = {"storage": wgpu.BufferUsage.STORAGE | _WRITES, "uniform": wgpu.BufferUsage.UNIFORM | _WRITES}

# Copies bytes, in whole words of the target: each thread has one, so that arrays may begin anywhere. Arguments: first
# bytes of source and target, their number, whether zeros are written instead; and the step's row, if there is a cursor.
COPY = """
@group(0) @binding(0) var<uniform> arguments: array<vec4<u32>, 2>;
//memories
fn byte(at: u32) -> u32 { return (m0[at / 4u] >> (at % 4u * 8u)) & 255u; }
@compute @workgroup_size(256)
fn kernel(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) count: vec3<u32>) {
    let n = arguments[0][2];
    //row
    let to = arguments[0][1] + row * n;
    let word = to / 4u + id.x + id.y * count.x * 256u;
    let begin = word * 4u - to + arguments[0][0];  // may wrap around, as do its uses
    if (word * 4u >= to + n) { return; }
    if (word * 4u >= to && word * 4u + 4u <= to + n && begin % 4u == 0u) {
        m1[word] = select(m0[begin / 4u], 0u, arguments[0][3] == 1u);
        return;
    }
    var bits = m1[word];
    for (var k = 0u; k < 4u; k++) {
        let at = word * 4u + k;
        if (at >= to && at < to + n) {
            let value = select(byte(begin + k), 0u, arguments[0][3] == 1u);
            bits = (bits & ~(255u << (k * 8u))) | (value << (k * 8u));
        }
    }
    m1[word] = bits;
}
"""
COLLECT = KernelText(COPY.replace("//row", "let row = m2[arguments[1][0]] + arguments[1][1];"), (), 256)
COPY_BYTES = KernelText(COPY.replace("//row", "let row = 0u;"), (), 256)
ADVANCE = KernelText(
    """
@group(0) @binding(0) var<uniform> arguments: array<vec4<u32>, 1>;
//memories
@compute @workgroup_size(1)
fn kernel() { m0[arguments[0][0]] += arguments[0][1]; }
""",
    (),
    1,
)


@dataclass(eq=False)
class Slab:
    """A buffer that holds many arrays: a kernel binds few of them, however many arrays it reads.

    Attributes:
        buffer: The buffer.
        free: Stretches that nobody has: where each begins, and its size.
    """

    buffer: Any
    free: dict[int, int]


class Memory:
    """Bytes of a slab, given back when nothing refers to them.

    Attributes:
        runtime: The adapter.
        slab: The slab.
        first: Where they begin.
        nbytes: Their number.
    """

    def __init__(self, runtime: WebGpuRuntime, nbytes: int) -> None:
        self.runtime, self.nbytes = runtime, nbytes
        self.slab, self.first, size = runtime.take(nbytes)
        # Whoever collects garbage may hold the lock: what comes back is put away by whoever asks next.
        weakref.finalize(self, runtime.returned.append, (self.slab, self.first, size))


class Pieces:
    """Memory that is larger than a slab: several, one behind the other. No array in it lies in two.

    Attributes:
        runtime: The adapter.
        pieces: The memories, all of the size of a slab but the last.
    """

    def __init__(self, runtime: WebGpuRuntime, nbytes: int) -> None:
        self.runtime, most = runtime, runtime.piece
        self.pieces = [Memory(runtime, min(most, nbytes - first)) for first in range(0, nbytes, most)]


@dataclass(frozen=True)
class Dispatch:
    """A launch that has its arguments; calling it hands it to the runtime.

    Attributes:
        runtime: The adapter.
        pipeline: The kernel.
        group: The memory that it is bound to.
        first: Where its arguments begin in their buffer.
        count: Blocks in x and y.
        slot: What holds the arguments.
        memories: Those of its arrays, which live as long.
    """

    runtime: WebGpuRuntime
    pipeline: Any
    group: Any
    first: Any
    count: tuple[int, int]
    slot: Any
    memories: tuple[Any, ...]

    def __call__(self) -> None:
        self.runtime.hand(self)


class Event:
    """A place in the order of all work; a timed one has a timestamp there."""

    def __init__(self, queries: Any = None) -> None:
        self.queries, self.submission = queries, 0
        self.moment = 0.0


class WebGpuRuntime:
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
                required_features=["timestamp-query"] * self._timed, required_limits=_limits(adapter)
            )
        limits = self._device.limits
        self.piece = (
            min(limits["max-storage-buffer-binding-size"], limits["max-buffer-size"], 2**32 - UNIT) // UNIT * UNIT
        )
        self.gpu: Gpu = described(adapter.info, limits)
        self.returned: deque[tuple[Slab, int, int]] = deque()
        self._slabs: list[Slab] = []
        self._slots: list[tuple[Any, int]] = []  # of arguments
        self._taken = 0
        self._pending: list[Dispatch | Event] = []
        self._recorded: list[Dispatch] | None = None
        self._submissions = 0
        self._layouts: dict[int, tuple[Any, Any]] = {}
        # By the page of arguments and the slabs, none of which is ever given back.
        self._groups: dict[tuple[Any, tuple[Slab, ...]], Any] = {}
        self._pipelines: dict[tuple[str, tuple[int, ...], int], Any] = {}

    @property
    def bus(self) -> str:
        return ""  # adapters do not say

    @contextmanager
    def active(self) -> Iterator[None]:
        with explained():
            yield

    def use(self) -> None:
        """Nothing: adapters are not a thread's."""

    # Memory -------------------------------------------------------------------------------------

    def free(self) -> int:
        return min(self.gpu.memory - self.used(), self.piece)  # no array is larger than a slab

    def used(self) -> int:
        self._put_away()
        return self._taken

    def _put_away(self) -> None:
        with self._lock:
            while self.returned:
                slab, first, size = self.returned.popleft()
                self._taken -= size
                before = next((f for f, n in slab.free.items() if f + n == first), None)
                if before is not None:
                    first, size = before, size + slab.free.pop(before)
                size += slab.free.pop(first + size, 0)
                slab.free[first] = size

    def take(self, nbytes: int) -> tuple[Slab, int, int]:
        """A slab, and where and how many bytes of it can be had.

        Raises:
            ValueError: If no binding is as large.
            MemoryError: If there is no memory left.
        """
        size = -(-max(nbytes, 1) // UNIT) * UNIT
        if size > self.piece:
            raise ValueError(
                f"An array fits into one binding of {self.gpu.name}: {self.piece:,} bytes. Received: {nbytes:,} bytes. "
                "Split it, or use a smaller batch_size."
            )
        with self._lock:
            self._put_away()
            found = [(n, first, slab) for slab in self._slabs for first, n in slab.free.items() if n >= size]
            if found:
                n, first, slab = min(found, key=lambda one: one[:2])
                del slab.free[first]
            else:
                n = min(self.piece, max(size, min(LARGEST, FIRST << len(self._slabs))))
                first, slab = 0, Slab(self._buffer(n, "storage"), {})
                self._slabs.append(slab)
            if n > size:
                slab.free[first + size] = n - size
            self._taken += size
        return slab, first, size

    def _buffer(self, size: int, kind: str) -> Any:
        with explained():
            return self._device.create_buffer(size=size, usage=_USES[kind])

    def empty(self, shape: tuple[int, ...], dtype: str) -> Array:
        nbytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        memory: Any = Memory(self, nbytes) if nbytes <= self.piece or len(shape) > 1 else Pieces(self, nbytes)
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
        return (self._slabs.index(array.memory.slab) << 40) + array.memory.first + array.start

    def clear(self, array: Array) -> None:
        self._copy(array, array, zeros=True)

    def copy(self, source: Array, target: Array) -> None:
        self._copy(source, target)

    def _copy(self, source: Array, target: Array, *, zeros: bool = False) -> None:
        if target.nbytes:
            blocks = -(-(target.nbytes // 4 + 2) // 256)
            numbers = [_first(source), _first(target), target.nbytes, int(zeros)]
            self._bound(COPY_BYTES.text, blocks, [source, target], numbers)()

    def host(self, shape: tuple[int, ...], dtype: str, *, pinned: bool) -> HostArray:
        return np.empty(shape, dtype)

    def send(self, source: HostArray, target: Array, stream: Any = None) -> None:
        if not source.nbytes:
            return
        data = np.ascontiguousarray(source).reshape(-1).view(np.uint8)
        first = _first(target)
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
        first = _first(array)
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

    def stream(self) -> Any:
        return None

    def event(self, *, timed: bool = False) -> Event:
        timed = timed and self._timed
        return Event(self._device.create_query_set(type="timestamp", count=1) if timed else None)

    def record(self, event: Event, stream: Any = None) -> None:
        if event.queries is not None:
            self.hand(event)
        else:
            self.flush()  # copies from the host overtake what waits
            event.moment = time.perf_counter()

    def wait(self, event: Event, stream: Any = None) -> None:
        """Nothing: there is one order."""

    def done(self, event: Event) -> bool:
        return True

    def beside(self, launches: Sequence[Launch]) -> tuple[Launch, Launch]:
        return in_order(launches)

    def current(self) -> int:
        return 0

    def seconds(self, start: Event, end: Event) -> float:
        if start.queries is None:
            return end.moment - start.moment
        return self._ticks(end) - self._ticks(start)

    def _ticks(self, event: Event) -> float:
        if not event.moment:
            buffer = self._device.create_buffer(size=8, usage=wgpu.BufferUsage.QUERY_RESOLVE | _WRITES)
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
            numbers = [_first(a) // 4 if isinstance(a, Array) else a for a in arguments]
            return self._bound(kernel.text, blocks, arrays, numbers)
        source, rows, cursor = arrays
        size = source.nbytes
        numbers = [_first(source), _first(rows), size, 0, _first(cursor) // 4, integers[-1]]
        return self._bound(kernel.text, -(-(size // 4 + 2) // 256), arrays, numbers)

    def _bound(self, text: str, blocks: int, arrays: Sequence[Array], numbers: Sequence[int]) -> Dispatch:
        """A launch of a kernel, whose memories m0, m1 ... are those of some arrays."""
        slabs = tuple(dict.fromkeys(a.memory.slab for a in arrays))
        with self._lock, explained():
            pipeline, layout = self._pipeline(text, tuple(slabs.index(a.memory.slab) for a in arrays), len(slabs))
        size = max(UNIT, -(-len(numbers) // 4) * 16)
        with self._lock, explained():
            buffer, first = self._slot(size)
            words = np.zeros(-(-len(numbers) // 4) * 4, np.uint32)
            words[: len(numbers)] = np.array(numbers, np.int64).astype(np.uint32)
            if any(isinstance(one, Dispatch) for one in self._pending):
                self.flush()  # the slot may be one that they had
            self._device.queue.write_buffer(buffer, first, words)
            group = self._groups.get((buffer, slabs))
            if group is None:
                entries = [{"binding": 0, "resource": {"buffer": buffer, "offset": 0, "size": size}}]
                entries += [
                    {"binding": k, "resource": {"buffer": s.buffer, "offset": 0, "size": s.buffer.size}}
                    for k, s in enumerate(slabs, 1)
                ]
                group = self._device.create_bind_group(layout=layout, entries=entries)
                if size <= UNIT:
                    self._groups[buffer, slabs] = group
        count = (blocks, 1) if blocks < 65536 else (65535, -(-blocks // 65535))
        slot = _Slot()
        weakref.finalize(slot, self._slots.append, (buffer, first)) if size <= UNIT else None
        offset = ffi.new("uint32_t[]", [first])
        return Dispatch(self, pipeline, group, offset, count, slot, tuple(a.memory for a in arrays))

    def _slot(self, size: int) -> tuple[Any, int]:
        if size > UNIT:
            return self._buffer(size, "uniform"), 0
        if not self._slots:
            page = self._buffer(UNIT * 256, "uniform")
            self._slots.extend((page, UNIT * k) for k in range(256))
        return self._slots.pop()

    def _pipeline(self, text: str, memories: tuple[int, ...], count: int) -> tuple[Any, Any]:
        """The pipeline of a kernel whose arrays lie in some of the bound slabs, and its layout."""
        if count not in self._layouts:
            kinds = ["uniform", *["storage"] * count]
            entries = [
                {"binding": k, "visibility": wgpu.ShaderStage.COMPUTE,
                 "buffer": {"type": kind, "has_dynamic_offset": kind == "uniform"}}
                for k, kind in enumerate(kinds)
            ]  # fmt: skip
            if count > self._device.limits["max-storage-buffers-per-shader-stage"]:
                raise ValueError(f"A kernel's arrays lie in few slabs. Received: {count}. Use a smaller batch_size.")
            group = self._device.create_bind_group_layout(entries=entries)
            self._layouts[count] = group, self._device.create_pipeline_layout(bind_group_layouts=[group])
        group, layout = self._layouts[count]
        key = text, memories, count
        if key in self._pipelines:
            return self._pipelines[key], group
        kind = "array<atomic<u32>>" if "atomicLoad(&m" in text or "atomicStore(&m" in text else "array<u32>"
        declared = "\n".join(
            f"@group(0) @binding({k + 1}) var<storage, read_write> memory{k}: {kind};" for k in range(count)
        )
        code = re.sub(r"\bm(\d+)\[", lambda m: f"memory{memories[int(m[1])]}[", text.replace("//memories", declared))
        compute = {"module": _module(self._device, code), "entry_point": "kernel"}
        self._pipelines[key] = self._device.create_compute_pipeline(layout=layout, compute=compute)
        return self._pipelines[key], group

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


class _Slot:
    """Resources of a launch, held as long as its arguments are needed."""


def _first(array: Array) -> int:
    """The first byte of an array in its slab."""
    return array.memory.first + array.start


def _module(device: Any, code: str) -> Any:
    """A shader without checks of its own: the interpreter has checked its like."""
    source, text = ffi.new("WGPUShaderSourceWGSL *"), code.encode()
    data = ffi.new("char[]", text)
    source.chain.sType = lib.WGPUSType_ShaderSourceWGSL
    source.code.data, source.code.length = data, len(text)
    descriptor = ffi.new("WGPUShaderModuleDescriptor *")
    descriptor.nextInChain = ffi.cast("WGPUChainedStruct *", source)
    return GPUShaderModule("", libf.wgpuDeviceCreateShaderModuleTrusted(device._internal, descriptor, 0), device)


def period(device: Any) -> float:
    """Nanoseconds of a tick of a timestamp."""
    return float(lib.wgpuQueueGetTimestampPeriod(device.queue._internal))


def _limits(adapter: Any) -> dict[str, int]:
    """Limits to ask for: the adapter's, of what kernels use."""
    names = ("max-storage-buffer-binding-size", "max-buffer-size", "max-compute-workgroup-storage-size",
             "max-storage-buffers-per-shader-stage")  # fmt: skip
    return {name: adapter.limits[name] for name in names}


@contextmanager
def explained() -> Iterator[None]:
    """Turns errors of wgpu into ones that name the rule, what was received and the remedy.

    Raises:
        MemoryError: If the adapter has too little memory.
        RuntimeError: If the device was lost, or a kernel is refused.
    """
    try:
        yield
    except (wgpu.GPUError, wgpu.backends.wgpu_native.GPUError) as error:
        received = " ".join(str(error).split())
        if isinstance(error, wgpu.GPUOutOfMemoryError) or "ot enough memory" in received:
            raise MemoryError(
                f"A step's arrays fit in the memory of the GPU. Received: {received} Use a smaller batch_size, or let "
                "go of other models and arrays."
            ) from error
        if "lost" in received or ("is invalid" in received and "Device" in received):
            raise RuntimeError(
                f"The GPU's device stays while a model uses it. Received: {received} Start the process again, and "
                "continue from what ModelCheckpoint or BackupAndRestore has saved."
            ) from error
        raise RuntimeError(
            f"Kernels run without an error. Received: {received} Please report it, with what `minicnn info` prints; "
            "with reference_only=True no kernel of a plan runs."
        ) from error


@cache
def adapters() -> tuple[Any, ...]:
    """wgpu's adapters, GPUs first; each once, though it may be there for several interfaces."""
    with suppress(RuntimeError):  # somebody uses wgpu already
        # OpenGL is no way to compute, and its drivers complain where there is no screen.
        set_instance_extras(backends=["Vulkan", "Metal", "DX12"])
    found = wgpu.gpu.enumerate_adapters_sync()
    order = {"DiscreteGPU": 0, "IntegratedGPU": 1, "VirtualGPU": 2, "CPU": 3}
    return tuple(sorted(found, key=lambda a: order.get(a.info["adapter_type"], 4)))


@cache
def runtime_of(number: int) -> WebGpuRuntime:
    """The adapter of a number.

    Raises:
        ValueError: If there are not so many.
        RuntimeError: If there is none.
    """
    count = len(adapters())
    if not count:
        raise RuntimeError(
            "The webgpu backend needs a GPU with a driver for Vulkan, Metal or Direct3D 12. Received: no adapter. "
            "Install the driver of your GPU, or Mesa's software adapter (Debian: mesa-vulkan-drivers); or use another "
            "backend."
        )
    if not 0 <= number < count:
        raise ValueError(
            f"The adapter is one of the {count} that `minicnn info` lists. Received: 'webgpu:{number}'. "
            f"Use webgpu:0 to webgpu:{count - 1}."
        )
    return WebGpuRuntime(adapters()[number], number)
