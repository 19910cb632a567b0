"""GPUs as data: what WebGPU guarantees, what some GPUs have, and what an adapter says of itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from minicnn.backends._gpu.device import KB, Gpu

# https://www.w3.org/TR/webgpu/#limits: what every adapter has at least.
WORKGROUP_BYTES, INVOCATIONS, STORAGE_BUFFERS, BINDING_BYTES = 16 * KB, 256, 8, 128 * KB * KB
GUARANTEED = Gpu(
    name="an adapter with the guaranteed limits", capability=(0, 0), multiprocessors=16, shared_unasked=WORKGROUP_BYTES,
    shared_block=WORKGROUP_BYTES, shared_multiprocessor=4 * WORKGROUP_BYTES, shared_reserved=0, registers=64 * KB,
    registers_thread=255, threads_block=INVOCATIONS, threads_multiprocessor=1024, blocks_multiprocessor=16, lanes32=64,
    lanes64=1, tensor=0, clock=1.5e9, bandwidth=100e9, l2=2 * KB * KB, memory=4 * 10**9,
)  # fmt: skip

# The vendors' data sheets: cores that run blocks side by side, multiply-adds of a core in a cycle, clock (GHz),
# memory bandwidth (GB/s), cache (MB), memory (GB); of integrated GPUs the memory is shared with the processor.
_DEVICES = (
    ("m4pro", "Apple M4 Pro", 20, 128, 1.58, 273, 24, 24),
    ("rx7600", "AMD Radeon RX 7600", 32, 128, 2.655, 288, 32, 8),
    ("arc-a770", "Intel Arc A770", 32, 128, 2.4, 560, 16, 16),
    ("iris-xe", "Intel Iris Xe Graphics", 12, 64, 1.3, 68, 4, 8),
)
KNOWN: Mapping[str, Gpu] = MappingProxyType({
    key: replace(GUARANTEED, name=name, multiprocessors=cores, lanes32=lanes, clock=clock * 1e9, bandwidth=rate * 1e9,
                 l2=cache * KB * KB, memory=memory * 10**9)
    for key, name, cores, lanes, clock, rate, cache, memory in _DEVICES
})  # fmt: skip


def described(info: Mapping[str, str], limits: Mapping[str, int]) -> Gpu:
    """An adapter as data, of which WebGPU tells limits alone: the rest is that of a GPU that is known, or a guess.

    Args:
        info: wgpu's description.
        limits: wgpu's limits.
    """
    from minicnn.backends._gpu.device import KNOWN as OF_CUDA

    name, everyone = info["device"], (*KNOWN.values(), *OF_CUDA.values())
    gpu = next((g for g in everyone if g.name.lower() in name.lower()), GUARANTEED)
    shared = limits["max-compute-workgroup-storage-size"]
    return replace(gpu, name=name, capability=(0, 0), shared_unasked=shared, shared_block=shared,
                   threads_block=INVOCATIONS, tensor=0)  # fmt: skip
