"""wgpu's adapters, what it has beside WebGPU, and its errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

import wgpu
from wgpu.backends.wgpu_native import GPUShaderModule, ffi, lib
from wgpu.backends.wgpu_native._api import libf
from wgpu.backends.wgpu_native.extras import set_instance_extras

from minicnn.backends._gpu.errors import Cause, explanation

_CAUSES: tuple[Cause, ...] = (
    (
        ("ot enough memory", "ut of memory"), MemoryError, "A step's arrays fit in the memory of the GPU.",
        "Use a smaller batch_size, or let go of other models and arrays.",
    ),
    (
        ("lost", "Device with"), RuntimeError, "The GPU's device stays while a model uses it.",
        "Start the process again, and continue from what ModelCheckpoint or BackupAndRestore has saved.",
    ),
)  # fmt: skip
_OTHER = (
    RuntimeError, "Kernels run without an error.",
    "Please report it, with what `minicnn info` prints; with reference_only=True no kernel of a plan runs.",
)  # fmt: skip


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
        raise explanation(" ".join(str(error).split()), causes=_CAUSES, other=_OTHER) from error


@cache
def adapters() -> tuple[Any, ...]:
    """wgpu's adapters, GPUs first; each once, though it may be there for several interfaces."""
    with suppress(RuntimeError):  # somebody uses wgpu already
        # OpenGL is no way to compute, and its drivers complain where there is no screen.
        set_instance_extras(backends=["Vulkan", "Metal", "DX12"])
    listed = wgpu.gpu.enumerate_adapters_sync()
    order = {"DiscreteGPU": 0, "IntegratedGPU": 1, "VirtualGPU": 2, "CPU": 3}
    return tuple(sorted(listed, key=lambda a: order.get(a.info["adapter_type"], 4)))


def module(device: Any, code: str) -> Any:
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


def limits_of(adapter: Any) -> dict[str, int]:
    """Limits to ask for: the adapter's, of what kernels use."""
    names = ("max-storage-buffer-binding-size", "max-buffer-size", "max-compute-workgroup-storage-size",
             "max-storage-buffers-per-shader-stage")  # fmt: skip
    return {name: adapter.limits[name] for name in names}
