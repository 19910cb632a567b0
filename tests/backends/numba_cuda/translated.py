"""The translated kernels of numba_cuda on the host: LLVM compiles their modules for the CPU instead of NVVM for a GPU.

The simulator runs the kernels' texts as Python; this runs what the translation makes of them, thread by thread.
"""

from __future__ import annotations

import ctypes
import re
import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

import llvmlite.binding as llvm

from backends.cupy.emulated import DeviceArray, EmulatedBackend, EmulatedRuntime
from minicnn.backends._gpu.runtime import KernelText, Launch
from minicnn.backends._gpu.tiles import Tiles
from minicnn.backends.numba_cuda import runtime, tiling
from minicnn.backends.numba_cuda.compiling import python_function
from minicnn.backends.numba_cuda.generation import generate
from minicnn.backends.numba_cuda.nvvm import module_of

_REGISTERS = ("tid.x", "ctaid.x", "ntid.x", "nctaid.x")
_C = {"int8": ctypes.c_int8, "uint8": ctypes.c_uint8, "int32": ctypes.c_int32, "int64": ctypes.c_int64,
      "float32": ctypes.c_float, "float64": ctypes.c_double}  # fmt: skip
_LIBRARY = ctypes.CDLL("libm.so.6")
_turn = threading.local()


@ctypes.CFUNCTYPE(None)
def _barrier() -> None:
    _turn.barrier.wait()


@ctypes.CFUNCTYPE(ctypes.c_uint32, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_uint32)
def _permute(low: int, high: int, places: int) -> int:
    data = low.to_bytes(4, "little") + high.to_bytes(4, "little")
    return int.from_bytes(bytes(data[places >> 4 * k & 7] for k in range(4)), "little")


def for_the_host(module: str, shared: int) -> str:
    """A module in the language of today's LLVM, whose registers are parameters and whose memory is the host's."""
    text = re.sub(r"^(target|!).*\n", "", module, flags=re.MULTILINE).replace(", !invariant.load !0", "")
    text = text.replace(" addrspace(3)", "").replace("llvm.nvvm.barrier0", "barrier").replace("llvm.nvvm.prmt", "prmt")
    text = re.sub(r"^declare .*sreg.*\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"call i32 @llvm\.nvvm\.read\.ptx\.sreg\.([\w.]+)\(\)", r"add i32 %\1, 0", text)
    text = text.replace("external global [0 x i8]", f"internal global [{shared} x i8] undef")
    text = re.sub(r"(\b(?:i\d+|float|double)|<[^>]*>|\[[^\]]*\])\*", "ptr", text)
    registers = ", ".join(f"i32 %{name}" for name in _REGISTERS)
    return re.sub(r"(define void @kernel\([^)]*)\)", rf"\1, {registers})", text)


class HostKernel:
    """A kernel that LLVM compiled for the CPU."""

    def __init__(self, kernel: KernelText) -> None:
        self.kernel = kernel
        module = module_of(python_function(kernel.text), kernel.signature, kernel.threads, (2, 0, 3, 2))
        self.waits = "barrier0" in module
        for name in re.findall(r"@__nv_(\w+)", module):
            llvm.add_symbol(f"__nv_{name}", ctypes.cast(getattr(_LIBRARY, name), ctypes.c_void_p).value)
        llvm.add_symbol("barrier", ctypes.cast(_barrier, ctypes.c_void_p).value)
        llvm.add_symbol("prmt", ctypes.cast(_permute, ctypes.c_void_p).value)
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        machine = llvm.Target.from_default_triple().create_target_machine()
        parsed = llvm.parse_assembly(for_the_host(module, kernel.shared))
        parsed.verify()
        self._engine = llvm.create_mcjit_compiler(parsed, machine)
        self._engine.finalize_object()
        kinds = [ctypes.c_void_p if t.endswith("*") else _C[t] for t in kernel.signature]
        prototype = ctypes.CFUNCTYPE(None, *kinds, *[ctypes.c_int32] * len(_REGISTERS))
        self._function = prototype(self._engine.get_function_address("kernel"))

    def __call__(self, blocks: int, arguments: Sequence[Any]) -> None:
        threads = self.kernel.threads
        if not self.waits:
            for block in range(blocks):
                for thread in range(threads):
                    self._function(*arguments, thread, block, threads, blocks)
            return
        barrier = threading.Barrier(threads)

        def run(thread: int) -> None:
            _turn.barrier = barrier
            for block in range(blocks):
                self._function(*arguments, thread, block, threads, blocks)
                barrier.wait()  # the next block has the same shared memory

        running = [threading.Thread(target=run, args=(thread,)) for thread in range(threads)]
        for one in running:
            one.start()
        for one in running:
            one.join()


def _launch(kernel: HostKernel, blocks: int, places: Sequence[Any], _: Sequence[Any]) -> None:
    """Launch a kernel; the arrays live as long as their places are known."""
    kernel(blocks, places)


class TranslatedRuntime(EmulatedRuntime):
    """The emulated runtime with translated kernels."""

    advance, collect = runtime.NumbaCudaRuntime.advance, runtime.NumbaCudaRuntime.collect

    def load(self, texts: Sequence[KernelText]) -> list[Any]:
        return [HostKernel(text) for text in texts]

    def prepare(self, kernel: Any, blocks: int, arguments: Sequence[Any]) -> Launch:
        whole = [a.queue if isinstance(a, DeviceArray) and a.queue is not None else a for a in arguments]
        places = [a.ctypes.data if isinstance(a, DeviceArray) else a for a in whole]
        return lambda: self._give(partial(_launch, kernel, blocks, places, whole))


class TranslatedBackend(EmulatedBackend):
    """The backend numba_cuda on that runtime, with the simulator's small tiles."""

    name = "translated"
    precisions = ("float32", "float64")
    generate = staticmethod(generate)

    def open(self, number: int) -> tuple[TranslatedRuntime, Tiles]:
        return TranslatedRuntime(), tiling.NumbaTiles(tiling.SIMULATOR, tiling._SMALL, simulated=True)

    @property
    def block(self) -> int:
        return self.tiles.limits.reduction
