"""The GPU as data: the only place with numbers of devices; all that chooses sizes is handed a `Gpu`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

KB = 1024
# Compute capabilities from which kernels are compiled, and from which blocks are placed while the last launch ends.
LEAST, OVERLAPPING = (7, 5), (9, 0)


@dataclass(frozen=True)
class Gpu:
    """A GPU as the choice of tiles sees it. Sizes are bytes, rates are per second."""

    name: str
    capability: tuple[int, int]  # of NVIDIA's; (0, 0) for others
    multiprocessors: int  # which run blocks side by side
    shared_unasked: int  # shared memory that a block may have without asking for it
    shared_block: int  # most shared memory of a block, static and dynamic together
    shared_multiprocessor: int  # shared memory of a multiprocessor
    shared_reserved: int  # what the system takes of it for each block
    registers: int  # registers of a multiprocessor
    registers_thread: int  # most registers of a thread
    threads_block: int  # most threads of a block
    threads_multiprocessor: int  # most threads of a multiprocessor
    blocks_multiprocessor: int  # most blocks of a multiprocessor
    lanes32: int  # multiply-adds of float32 that a multiprocessor starts in a cycle
    lanes64: int  # the same for float64
    tensor: int  # multiply-adds of 16 bits that its tensor cores do in a cycle, with sums in float32
    clock: float  # cycles (boost)
    bandwidth: float  # bytes between the memory and the GPU
    l2: int  # size of the L2 cache
    memory: int  # size of the memory
    links: str = "pcie"  # the network between such GPUs of a host, by its name in `distribution.prediction`
    ahead: int = 8  # steps that the host may be ahead of it, which hide the host's delays

    @property
    def has_cuda(self) -> bool:
        """True if it is NVIDIA's; others are reached through WebGPU."""
        return self.capability > (0, 0)

    @property
    def architecture(self) -> str:
        """Architecture that kernels are compiled for, such as "sm_89"; "sm_90a" with products by warpgroups."""
        return f"sm_{self.capability[0]}{self.capability[1]}{'a' * self.has_warpgroups}"

    @property
    def has_tensor_cores(self) -> bool:
        """True if its tensor cores know all formats that kernels for them use, bfloat16 among them."""
        return self.capability >= (8, 0)

    @property
    def has_warpgroups(self) -> bool:
        """True if four warps can multiply what is in shared memory (wgmma), which later capabilities do not know."""
        return self.capability == (9, 0)

    @property
    def overlaps(self) -> bool:
        """True if blocks of a launch may be placed while the launch before it ends."""
        return self.capability >= OVERLAPPING

    def resident(self, threads: int, registers: int, shared: int) -> int:
        """Blocks that a multiprocessor runs at a time; 0 if a block does not fit.

        Args:
            threads: Threads of a block.
            registers: Registers of a thread.
            shared: Bytes of shared memory of a block, static and dynamic.
        """
        if self.misfit(threads, registers, shared):
            return 0
        warps = -(-threads // 32)
        return min(
            self.blocks_multiprocessor,
            self.threads_multiprocessor // (32 * warps),
            self.registers // (32 * warps * -(-registers // 8) * 8),
            self.shared_multiprocessor // max(1, shared + self.shared_reserved),
        )

    def misfit(self, threads: int, registers: int, shared: int) -> str | None:
        """The limit that a block with so much exceeds, in words; None if it fits. Arguments as for `resident`."""
        warps = -(-threads // 32)
        for what, asked, most in (
            ("threads", threads, self.threads_block),
            ("registers a thread", registers, self.registers_thread),
            ("registers a block", 32 * warps * -(-registers // 8) * 8, self.registers),
            ("bytes of shared memory", shared, self.shared_block),
        ):
            if asked > most:
                return f"{asked} {what}, of which {self.name} has {most}"
        return None

    def peak(self, precision: str) -> float:
        """FLOP/s of products in a precision: float32 and float64 by multiply-adds, 16 bits on tensor cores."""
        lanes = {"float32": self.lanes32, "float64": self.lanes64}.get(precision, self.tensor)
        return 2.0 * lanes * self.multiprocessors * self.clock


# By capability: shared memory of a block and of a multiprocessor, and what is reserved of it, in KB; then the rest.
# CUDA C++ Programming Guide, "Compute Capabilities"; for the last three "Arithmetic Instructions" and, for tensor
# cores with sums in float32, the white papers of the architectures.
_FIGURES = (
    "shared_block", "shared_multiprocessor", "shared_reserved", "threads_multiprocessor", "blocks_multiprocessor",
    "lanes32", "lanes64", "tensor",
)  # fmt: skip
_ARCHITECTURES: Mapping[tuple[int, int], tuple[int, ...]] = MappingProxyType({
    (7, 5): (64, 64, 0, 1024, 16, 64, 2, 512),
    (8, 0): (163, 164, 1, 2048, 32, 64, 32, 1024),
    (8, 6): (99, 100, 1, 1536, 16, 128, 2, 256),
    (8, 7): (163, 164, 1, 1536, 16, 128, 2, 512),
    (8, 9): (99, 100, 1, 1536, 24, 128, 2, 256),
    (9, 0): (227, 228, 1, 2048, 32, 128, 64, 2048),
    (10, 0): (227, 228, 1, 2048, 32, 128, 64, 4096),
    (12, 0): (99, 100, 1, 1536, 24, 128, 2, 256),
})  # fmt: skip
SHARED_BLOCKS = tuple(sorted({KB * figures[0] for figures in _ARCHITECTURES.values()}, reverse=True))


def gpu_of(name: str, capability: tuple[int, int], **reported: Any) -> Gpu:
    """A GPU with the figures of its architecture, or of the newest older one that is known, unless others are found.

    Args:
        name: Its name.
        capability: Compute capability.
        reported: What is found of it, by the names of `Gpu`; what no architecture says has to be among it.

    Raises:
        RuntimeError: If its compute capability is below the least that kernels are compiled for.
    """
    if capability < LEAST:
        raise RuntimeError(
            f"Kernels need an NVIDIA GPU of compute capability {LEAST[0]}.{LEAST[1]} or later (Turing, 2018). "
            f"Received: {name} with {capability[0]}.{capability[1]}. Use another GPU, or the backend torch or numba."
        )
    nearest = max(known for known in _ARCHITECTURES if known <= capability)
    figures: dict[str, Any] = dict(zip(_FIGURES, _ARCHITECTURES[nearest], strict=True))
    figures |= {key: figures[key] * KB for key in _FIGURES[:3]}
    figures |= {
        "shared_unasked": 48 * KB,
        "registers": 64 * KB,
        "registers_thread": 255,
        "threads_block": 1024,
    } | reported
    return Gpu(name, capability, **figures)


# What CUDA calls the figures of a block and of a multiprocessor; and all of a device that a description is made of.
_CALLED = MappingProxyType({
    "multiprocessors": "multiprocessor_count",
    "shared_unasked": "max_shared_memory_per_block",
    "shared_block": "max_shared_memory_per_block_optin",
    "shared_multiprocessor": "max_shared_memory_per_multiprocessor",
    "shared_reserved": "reserved_shared_memory_per_block",
    "registers": "max_registers_per_multiprocessor",
    "threads_block": "max_threads_per_block",
    "threads_multiprocessor": "max_threads_per_multiprocessor",
    "blocks_multiprocessor": "max_blocks_per_multiprocessor",
})  # fmt: skip
ATTRIBUTES = (*_CALLED.values(), "clock_rate", "memory_clock_rate", "global_memory_bus_width", "l2_cache_size")


def from_attributes(name: str, capability: tuple[int, int], memory: int, attributes: Mapping[str, int]) -> Gpu:
    """A GPU that is there, from what CUDA says of it.

    Args:
        name: Its name.
        capability: Compute capability.
        memory: Bytes of its memory.
        attributes: CUDA's `ATTRIBUTES` of a device, as multiprocessor_count or MultiProcessorCount.

    Raises:
        RuntimeError: See `gpu_of`.
    """
    reported = {key.replace("_", "").lower(): int(value) for key, value in attributes.items()}
    said = {name: reported.get(name.replace("_", ""), 0) for name in ATTRIBUTES}
    rate = 2e3 * said["memory_clock_rate"] * said["global_memory_bus_width"] / 8
    known = next((g for g in KNOWN.values() if g.name in name), None)  # for what newer drivers do not say
    return gpu_of(
        name,
        capability,
        clock=1e3 * said["clock_rate"] or (known.clock if known else 1.5e9),
        bandwidth=rate or (known.bandwidth if known else 300e9),
        l2=said["l2_cache_size"] or (known.l2 if known else 4 * KB * KB),
        memory=memory,
        links=known.links if known else "pcie",
        **{field: said[key] for field, key in _CALLED.items() if said[key]},
    )


_LINKED = ("A100", "H100", "H200", "B200")  # by NVLink, as they are in hosts with several
# NVIDIA's data sheets and white papers: multiprocessors, boost clock (GHz), memory bandwidth (GB/s), L2 (MB), memory.
_DEVICES = (
    ("t4", "T4", (7, 5), 40, 1.59, 320, 4, 16),
    ("a100", "A100", (8, 0), 108, 1.41, 1555, 40, 40),
    ("rtx3090", "RTX 3090", (8, 6), 82, 1.695, 936, 6, 24),
    ("rtx3060", "RTX 3060", (8, 6), 28, 1.777, 360, 3, 12),
    ("rtx4060", "RTX 4060", (8, 9), 24, 2.46, 272, 24, 8),
    ("rtx4070", "RTX 4070", (8, 9), 46, 2.475, 504, 36, 12),
    ("rtx4090", "RTX 4090", (8, 9), 128, 2.52, 1008, 72, 24),
    ("l40s", "L40S", (8, 9), 142, 2.52, 864, 96, 48),
    ("l4", "L4", (8, 9), 58, 2.04, 300, 48, 24),
    ("h100", "H100", (9, 0), 132, 1.83, 3350, 50, 80),  # the chip of the H200, with less and slower memory
    ("h200", "H200", (9, 0), 132, 1.83, 4800, 50, 141),
    ("b200", "B200", (10, 0), 148, 1.85, 8000, 126, 180),
    ("rtx5090", "RTX 5090", (12, 0), 170, 2.407, 1792, 96, 32),
)
KNOWN: Mapping[str, Gpu] = MappingProxyType({
    key: gpu_of(name, capability, multiprocessors=count, clock=clock * 1e9, bandwidth=rate * 1e9, l2=l2 * KB * KB,
                memory=memory * 10**9, links="nvlink" if name in _LINKED else "pcie")
    for key, name, capability, count, clock, rate, l2, memory in _DEVICES
})  # fmt: skip
H200 = KNOWN["h200"]
