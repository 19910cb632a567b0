"""A GPU, or the simulator in its place: memory, copies, launches and graphs of launches."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import numpy as np

from minicnn.backends._gpu.device import ATTRIBUTES, Gpu, from_attributes
from minicnn.backends._gpu.errors import explained, explanation
from minicnn.backends._gpu.loading import check
from minicnn.backends._gpu.runtime import HostArray, KernelText, Launch, check_number
from minicnn.backends.cupy.compiler import compile_kernel
from minicnn.backends.numba_cuda.compiling import Signature, compile_all, machine_code, python_function
from minicnn.backends.numba_cuda.shim import SIMULATED, cuda
from minicnn.backends.numba_cuda.simulator import simulate

# A block of an elementwise or reduction kernel. The simulator makes a thread of the host for each.
THREADS = 4 if SIMULATED else 256

UNIT = 512  # bytes, of which all memory is a multiple
SMALL = 1 << 20  # bytes, up to which memory that is given back is kept for the next who asks


class Memory:
    """Bytes on a device, given back when nothing refers to them.

    Attributes:
        device: The device.
        bytes: Numba's device array of uint8, which may be longer.
        nbytes: Their number.
        address: Where they begin.
    """

    def __init__(self, device: Device, nbytes: int) -> None:
        self.device, self.nbytes = device, nbytes
        self.bytes = device.take(nbytes)
        if SIMULATED:
            self.address = int(self.bytes.view(np.uint8)._ary.ctypes.data)
        else:
            self.address = int(self.bytes.__cuda_array_interface__["data"][0])
        # Not __del__, which the interpreter may call when modules are gone already.
        weakref.finalize(self, device.release, self.bytes, nbytes)

    @classmethod
    def at(cls, device: Device, address: int, nbytes: int, owner: Any = None) -> Memory:
        """Memory that another gives back, and that `owner` keeps until then."""
        memory = cls.__new__(cls)
        memory.device, memory.nbytes, memory.address, memory.bytes = device, nbytes, address, owner
        return memory

    def write(self, offset: int, data: HostArray) -> None:
        """Copy a contiguous array of the host to a place in the memory."""
        if data.nbytes and SIMULATED:
            self.bytes[offset : offset + data.nbytes].copy_to_device(data.reshape(-1).view(np.uint8))
        elif data.nbytes:
            self.device.call("cuMemcpyHtoD", self.address + offset, data.ctypes.data, data.nbytes)

    def send(self, offset: int, data: HostArray, stream: Any = None) -> None:
        """Begin to copy a contiguous array of the host to a place in the memory, in the order of a stream."""
        if SIMULATED:
            self.write(offset, data)
        elif data.nbytes:
            handle = self.device.stream if stream is None else stream.handle
            self.device.call("cuMemcpyHtoDAsync", self.address + offset, data.ctypes.data, data.nbytes, handle)

    def read(self, offset: int, nbytes: int) -> HostArray:
        """A copy of some bytes on the host; waits for them."""
        if SIMULATED:
            return np.asarray(self.bytes[offset : offset + nbytes].copy_to_host())
        host = np.empty(nbytes, np.uint8)
        if nbytes:
            self.device.call("cuMemcpyDtoH", host.ctypes.data, self.address + offset, nbytes)
        return host

    def clear(self) -> None:
        """Set all bytes to zero; does not wait for it."""
        if SIMULATED:
            self.bytes.copy_to_device(np.zeros(self.bytes.size, np.uint8))
        else:
            self.device.call("cuMemsetD8Async", self.address, 0, self.nbytes, self.device.stream)

    def copy(self, offset: int, source: Memory, start: int, nbytes: int) -> None:
        """Copy bytes of a memory of the same device, which do not overlap; does not wait for it."""
        if SIMULATED:
            self.bytes[offset : offset + nbytes].copy_to_device(source.bytes[start : start + nbytes])
        elif nbytes:
            places = self.address + offset, source.address + start
            self.device.call("cuMemcpyDtoDAsync", *places, nbytes, self.device.stream)


@dataclass(frozen=True)
class Pointer:
    """An argument of a kernel: elements of a type at some byte of a memory."""

    memory: Memory
    offset: int
    dtype: np.dtype[Any]


@dataclass(frozen=True, eq=False)
class Kernel(KernelText):
    """A kernel that is compiled for a device when it is first launched there.

    Its text is Python that defines a function `kernel`; `kernels/names.py` says what it sees. Or it is CUDA C++.
    """

    _compiled: dict[int, Any] = field(default_factory=dict)

    def on(self, device: Device) -> Any:
        """The compiled kernel that the device launches."""
        if device.number not in self._compiled:
            if SIMULATED:
                self._compiled[device.number] = cuda.jit(python_function(self.text))
            else:
                from cuda.core import ObjectCode

                # By way of the cache on disk: a kernel takes a tenth of a second or more.
                if self.cpp and device.gpu is not None:
                    code = compile_kernel(self.text, device.gpu.architecture)
                else:
                    code = machine_code(self.text, self.signature, device.capability, self.threads)
                if device.gpu is not None:
                    check(device.gpu, self.title or "a kernel", self.threads, self.shared, code)
                with device.active():
                    compiled = ObjectCode.from_cubin(code).get_kernel("kernel")
                    _ = compiled.attributes.num_regs  # loads it now rather than while a graph is captured
                if self.shared:
                    device.allow_shared(compiled, self.shared)
                self._compiled[device.number] = compiled
        return self._compiled[device.number]


def prepare_all(kernels: Sequence[Kernel], device: Device) -> None:
    """Have several kernels compiled and loaded before they are launched."""
    if not SIMULATED:
        compile_all([(k.text, k.signature, device.capability, k.threads) for k in kernels if not k.cpp])
    for one in kernels:
        one.on(device)


@cache
def kernel(text: str, signature: Signature, threads: int = THREADS) -> Kernel:
    """The kernel of a text: made once."""
    return Kernel(text, signature, threads)


class Device:
    """One GPU; it equals its name, "cuda:0".

    Attributes:
        number: Its number.
        used: Bytes of memory in use.
        gpu: What is known of it; None in the simulator.
        capability: Compute capability.
        most_blocks: Blocks of an elementwise or reduction kernel, at most.
        core: cuda.core's device; not in the simulator.
    """

    def __init__(self, number: int) -> None:
        self.number, self.used = number, 0
        self._spare: dict[int, list[Any]] = {}
        self.capability, self.most_blocks, self.name = (0, 0), 2, "simulator"
        self.gpu: Gpu | None = None
        self._default: Any = None
        if SIMULATED:
            return
        from cuda.core import Device as CoreDevice

        with explained():
            self.core = CoreDevice(number)
            # cuda.core makes its context current for good; a user's other device must stay the current one.
            with nullcontext() if cuda.gpus.current is None else self.active():  # another that is current stays so
                self.core.set_current()
            capability, self.name = self.core.compute_capability, str(self.core.name)
            self.capability = (int(capability[0]), int(capability[1]))
            said = {name: int(getattr(self.core.properties, name)) for name in ATTRIBUTES}
            self.gpu = from_attributes(self.name, self.capability, int(self._memory().total), said)
            # Enough to fill the device; threads then loop, which costs less than more blocks.
            self.most_blocks = 8 * self.gpu.multiprocessors
            self._default = self.core.default_stream
        self._stream = self._default

    def __str__(self) -> str:
        return f"cuda:{self.number}"

    def __repr__(self) -> str:
        return f"<{self}>"

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, str) and str(self) == other)

    def __hash__(self) -> int:
        return hash(str(self))

    def _memory(self) -> Any:
        """Bytes of its memory: `total`, and `free`."""
        with self.active():
            return cuda.current_context().get_memory_info()

    @property
    def free(self) -> int:
        """Bytes of its memory that nobody has."""
        return sys.maxsize if SIMULATED else int(self._memory().free)

    @property
    def stream(self) -> Any:
        """The driver's handle of the stream that work goes to: while a graph is captured, its own."""
        return getattr(self._stream, "stream", self._stream).handle

    def active(self) -> Any:
        """Context in which Numba works on this device."""
        return cuda.gpus[self.number]

    def take(self, nbytes: int) -> Any:
        """Numba's device array of at least so many bytes. Asking CUDA for one takes longer than a small kernel."""
        self.used += nbytes
        # Few sizes, so that a later array finds memory that an earlier one gave back.
        size = -(-max(nbytes, 1) // UNIT) * UNIT
        spare = self._spare.get(size)
        if spare:
            return spare.pop()
        with self.active():
            return cuda.device_array(size, np.uint8)

    def release(self, memory: Any, nbytes: int) -> None:
        """Take memory back. All work is in one order, so that whoever gets it next comes after who had it."""
        self.used -= nbytes
        # Large memory goes back to CUDA, where others may need it.
        if memory.size <= SMALL:
            self._spare.setdefault(memory.size, []).append(memory)

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function of the driver that returns nothing.

        Raises:
            MemoryError: If the device has too little memory.
            RuntimeError: If it fails.
        """
        from cuda.bindings import driver

        with self.active():
            error = getattr(driver, name)(*arguments)[0]
        if error != driver.CUresult.CUDA_SUCCESS:
            message = f"{error.name} from {name}"
            raise explanation(message, backend="numba_cuda")

    def synchronize(self) -> None:
        """Wait until all work that was handed to the device is done."""
        if not SIMULATED:
            with explained(), self.active():
                self._default.sync()

    def allow_shared(self, kernel: Any, nbytes: int) -> None:
        """Let the blocks of a kernel have more shared memory than they may have without asking."""
        from cuda.bindings import driver

        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        self.call("cuKernelSetAttribute", attribute, nbytes, kernel.handle, self.core.device_id)

    # Launching ----------------------------------------------------------------------------------

    def prepare(self, kernel: Kernel, blocks: Any, threads: int, arguments: Sequence[Any]) -> Launch:
        """A launch whose arguments are looked at only once: calling it launches."""
        if SIMULATED:
            function = kernel.on(self)
            operands = [_simulated(a, t) for a, t in zip(arguments, kernel.signature, strict=True)]
            return partial(simulate, function, blocks, threads, operands, kernel.shared)
        from cuda.core import LaunchConfig, launch

        function = kernel.on(self)
        overlaps = self.gpu is not None and self.gpu.overlaps  # with the end of the launch ahead
        config = LaunchConfig(
            grid=blocks, block=threads, shmem_size=kernel.shared, programmatic_stream_serialization=overlaps
        )
        # Types are settled here, once, and not at each launch.
        operands = [_native(a, t) for a, t in zip(arguments, kernel.signature, strict=True)]
        return lambda: launch(self._stream, config, function, *operands)

    def launch(self, kernel: Kernel, blocks: Any, threads: int, arguments: Sequence[Any]) -> None:
        """Launch once."""
        with explained(), self.active():
            self.prepare(kernel, blocks, threads, arguments)()

    def capture(self, launches: Sequence[Launch]) -> Launch:
        """A graph of some launches one after the other: calling it runs them all.

        Raises:
            RuntimeError: In the simulator, which has no graphs.
        """
        if SIMULATED:
            raise RuntimeError("Graphs need a GPU. Received: the simulator. Use Options(graph=False).")
        with explained(), self.active():
            # Relaxed: other threads may go on using CUDA meanwhile.
            builder = self.core.create_graph_builder().begin_building("relaxed")
            self._stream = builder
            try:
                for one in launches:
                    one()
            finally:
                self._stream = self._default
                builder.end_building()
            graph = builder.complete()
            builder.close()
            # Now, so that the first launch is as quick as all others.
            graph.upload(self._default)
        return lambda: graph.launch(self._default)


def _simulated(argument: Any, kind: str) -> Any:
    """An argument for the simulator: elements from the pointer on, or a number of the right type."""
    if not isinstance(argument, Pointer):
        return float(argument) if kind.startswith("float") else int(argument)
    dtype = np.dtype(np.uint8 if kind.endswith("bool*") else kind.removeprefix("const ")[:-1])
    count = (argument.memory.nbytes - argument.offset) // dtype.itemsize
    end = argument.offset + count * dtype.itemsize
    return argument.memory.bytes[argument.offset : end].view(dtype)


def _native(argument: Any, kind: str) -> Any:
    """An argument for cuda.core: an address, or a NumPy number of the right type."""
    if isinstance(argument, Pointer):
        return argument.memory.address + argument.offset
    return getattr(np, kind)(argument)


@cache
def get_device(number: int) -> Device:
    """The device of a number.

    Raises:
        ValueError: If CUDA does not see so many.
        RuntimeError: If there is no driver or no device.
    """
    check_number(number, device_count())
    return Device(number)


def device_count() -> int:
    """Number of devices."""
    with explained():
        return len(cuda.gpus)
