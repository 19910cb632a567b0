"""The CPU: its cores that are worth a thread each, and which instructions code for it may have."""

from __future__ import annotations

import ctypes
import os
import platform
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import llvmlite.binding as llvm

from minicnn.machine import second_level_cache

SYSTEM = Path("/sys")
PROCESS = Path("/proc/self")


def cores(system: Path = SYSTEM, process: Path = PROCESS) -> int:
    """Cores that this process may use: by its affinity, of the hyperthreads of one core one, at most its CPU quota."""
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    # Two hyperthreads share the units that multiply: a second one brings nothing but waiting.
    groups = {_read(system / f"devices/system/cpu/cpu{n}/topology/thread_siblings_list") or str(n) for n in allowed}
    limit = quota(system, process)
    return max(1, len(groups) if limit is None else min(len(groups), int(limit)))


def quota(system: Path = SYSTEM, process: Path = PROCESS) -> float | None:
    """CPUs' worth of time that the control group of this process gets, the least of its parents' too; None if all."""
    quotas = []
    for line in _read(process / "cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            root, files = system / "fs/cgroup", ["cpu.max"]
        elif "cpu" in controllers.split(","):
            root, files = system / "fs/cgroup" / controllers, ["cpu.cfs_quota_us", "cpu.cfs_period_us"]
        else:
            continue
        here = root / path.lstrip("/")
        for folder in (here, *here.parents):
            numbers = " ".join(_read(folder / name) for name in files).split()
            if len(numbers) == 2 and numbers[0].isdecimal() and int(numbers[1]):
                quotas.append(int(numbers[0]) / int(numbers[1]))
            if folder == root:
                break
    return min(quotas, default=None)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


# Cycles that were measured on CPUs with AVX-512, and are as good as any guess for others: of threads that wait for each
# other after a kernel, of an element that is packed, and of a cycle of multiply-adds with channels in the lanes.
HANDOFF, PACKED, CHANNELS = 2500, 2, 1.25


@dataclass(frozen=True)
class WinogradCosts:
    """Times of Winograd's filtering, in those of a multiply-add of 16 floats in a direct convolution.

    Attributes:
        product: A multiply-add of its products.
        element: Transforming a vector of 16 samples, an element of a tile and channel, with waiting for memory, in
            tiles of 4x4 outputs.
        weight: Transforming a vector of weights.
        gradient_element: Like `element`, for weight gradients.
        gradient_sum: A vector of a weight gradient's sums, which are loaded and stored for each group of tiles, and for
            each part and thread at the end.
        small_element: Like `element`, in tiles of 2x2 outputs.
        backward: By how much an element of an input gradient takes longer, which another image mostly masks.
    """

    product: float
    element: float
    weight: float
    gradient_element: float
    gradient_sum: float
    small_element: float
    backward: float

    def transforms(self, outputs: int) -> float:
        """Time of an element of a tile of so many outputs."""
        return self.small_element + (self.element - self.small_element) * (outputs - 4) / 12


# Measured by the floats that a multiply-add unit takes at a time: on an EPYC with AVX-512, and on a Xeon.
WINOGRAD = {8: WinogradCosts(1.0, 8, 80, 8, 12, 4.5, 1.2), 16: WinogradCosts(0.9, 22, 50, 32, 6, 22, 1.0)}
HALVED = ("znver4",)  # CPUs that multiply registers of 16 floats in two halves
STORED = 1 << 16  # bytes of pages that stores find without waiting: 16 of 4 KiB


@dataclass(frozen=True)
class FewSamplesCosts:
    """Bounds within which gradients of dense layers on few samples have units in the lanes.

    Attributes:
        transposed: Weights that are transposed while the lanes of a sum along the units are added up.
        transposed_afar: The same where the second-level cache does not hold the weights.
        least: Samples up to which sums along the units are always faster.
        most: Samples beyond which they never are.
        share: Parts of the second-level cache, of which one may be dy while weights pass.
        ahead: Weights between the one that is fetched and the one in use.
    """

    transposed: int = 3  # within steps, which fill the cache with images
    transposed_afar: int = 2
    least: int = 8
    most: int = 128
    share: int = 8
    ahead: int = 256


FEW_SAMPLES = FewSamplesCosts()
FAR = 3  # cycles that a cache line takes from memory while a thread multiplies
COPIED = 4096  # bytes of an array that is copied in less time than NumPy takes to tell where others are


@dataclass(frozen=True)
class Costs:
    """Times of work on a CPU, in those of a multiply-add of 16 floats, and sizes by which it is chosen.

    Attributes:
        channels: One with channels in the lanes; it loads more.
        packing: An element that moves from plain arrays to blocks of samples, or back.
        handoff: Waiting of all threads for each other, after a kernel.
        read_often: Positions that read a weight, up to which its way from memory takes longer than they do.
        kept: Weights that stay in the second-level cache beside images.
        winograd: Those of Winograd's filtering.
        stored: Bytes of the pages that stores find without waiting.
        far: A cache line of weights, which comes from memory while a thread multiplies.
        few_samples: Those of dense layers on few samples.
        copied: Bytes of an input or output that is rather copied than its place told.
    """

    channels: float
    packing: float
    handoff: float
    read_often: int
    kept: int
    winograd: WinogradCosts
    stored: int = STORED
    far: float = FAR
    few_samples: FewSamplesCosts = FEW_SAMPLES
    copied: int = COPIED


@dataclass(frozen=True)
class MatrixTiles:
    """Registers that hold matrices of bfloat16 and float32, as AMX has them.

    Attributes:
        rows: Rows of each.
        row_bytes: Bytes of a row.
        count: How many there are.
        cycles: From one product of two of them to the next.
    """

    rows: int = 16
    row_bytes: int = 64
    count: int = 8
    cycles: int = 16

    @property
    def nbytes(self) -> int:
        """Bytes of a tile."""
        return self.rows * self.row_bytes

    @property
    def together(self) -> int:
        """Rows and columns of a square of sums, with as many tiles of operands beside it."""
        side = 1
        while (side + 1) * (side + 3) <= self.count:
            side += 1
        return side


AMX = MatrixTiles()

# Numbers of Linux: a process asks for the state of tiles before it uses them, once for all of its threads.
_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA = 158, 0x1023, 18


@cache
def tiles_permitted() -> bool:
    """True if the system lets this process use tiles; asks for it."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return False
    return bool(ctypes.CDLL(None).syscall(_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA) == 0)


@dataclass(frozen=True)
class Target:
    """A CPU that code is compiled for.

    Attributes:
        triple: Architecture and system, as "aarch64-unknown-linux-gnu".
        cpu: LLVM's name of it, as "x86-64-v3".
        features: What it has beyond that, or has not, as "+avx2,-avx512f".
    """

    triple: str
    cpu: str
    features: str = ""

    @property
    def architecture(self) -> str:
        """Name of the architecture: "x86_64", "aarch64" or another."""
        name = self.triple.partition("-")[0]
        return {"amd64": "x86_64", "arm64": "aarch64"}.get(name, name)

    @property
    def accumulators(self) -> int:
        """Vectors of 16 floats that a tile sums in: three quarters of the registers, since inputs need the others."""
        if "+avx512f" in self.features.split(","):
            return 24  # of 32 registers
        # 16 registers of 8 floats, or 32 of 4, hold 8 vectors; 16 of 4 hold 4.
        return 6 if self.architecture == "aarch64" or "+avx2" in self.features.split(",") else 3

    @property
    def pixels(self) -> int:
        """Neighbouring outputs of a tile, by preference: each has a vector of inputs, which takes registers, too."""
        return 3 if self.accumulators == 24 else 1

    @property
    def costs(self) -> Costs:
        """Costs of work: cycles that were measured, by what the registers do in one of two multiply-add units."""
        floats = {24: 16, 3: 4}.get(self.accumulators, 4 if self.architecture == "aarch64" else 8)  # of a register
        rate = 2 * floats / 16  # multiply-adds of 16 floats in a cycle
        # A cache line of 16 weights takes some 2 cycles from beyond the second level.
        read_often, kept = max(1, int(2 * rate)), second_level_cache() // 32
        # Narrower units take the same cycles for each of their instructions as those of 8 floats.
        winograd = WINOGRAD[16 if floats == 16 and self.cpu not in HALVED else 8]
        # Threads are as many on all registers, which then give the same bits: waiting counts as on the widest.
        return Costs(CHANNELS, PACKED * rate, HANDOFF * 2, read_often, kept, winograd, far=FAR * rate)

    @property
    def multiplies_bfloat16(self) -> bool:
        """True if there is an instruction for products of pairs of bfloat16 on vectors of 16 lanes."""
        return {"+avx512f", "+avx512bf16"} <= set(self.features.split(","))

    @property
    def tiles(self) -> MatrixTiles | None:
        """Tiles that multiply bfloat16, if there are any."""
        return AMX if {"+amx-tile", "+amx-bf16"} <= set(self.features.split(",")) else None


@cache
def host() -> Target:
    """This CPU, or the one that NUMBA_CPU_NAME and NUMBA_CPU_FEATURES describe."""
    cpu, features = os.environ.get("NUMBA_CPU_NAME"), os.environ.get("NUMBA_CPU_FEATURES")
    if features is None:  # the name of another CPU says all
        features = llvm.get_host_cpu_features().flatten() if cpu in (None, llvm.get_host_cpu_name()) else ""
    if "+amx-tile" in features.split(",") and not tiles_permitted():
        features = features.replace("+amx-tile", "-amx-tile")
    return Target(llvm.get_process_triple(), cpu or llvm.get_host_cpu_name(), features)
