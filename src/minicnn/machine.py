"""The machine: what it is, what libraries made of it, and settings that a program makes before it loads NumPy."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

# What OpenBLAS's SkylakeX kernels need, and the names of kernels that do without it.
AVX512 = frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"})
OLDER = ("haswell", "zen", "excavator", "sandybridge", "nehalem", "prescott", "core2", "generic")
CORETYPE = "OPENBLAS_CORETYPE"
PACKAGES = (
    "numpy", "array-api-compat", "torch", "jax", "array-api-strict", "click", "matplotlib", "pillow", "pooch", "psutil",
    "rich", "safetensors", "threadpoolctl",
)  # fmt: skip
# Those that say more about a machine where they are, and are not missed elsewhere.
OTHERS = ("jaxlib", "llvmlite", "numba", "cupy-cuda12x", "cupy-cuda13x", "numba-cuda", "cuda-core")


# Whether `prepare` has set OPENBLAS_CORETYPE.
set_by_us = False


def is_terminal(stream: Any) -> bool:
    """True if a stream, such as what stands in for sys.stdout, is a terminal; None is the one of pythonw."""
    isatty = getattr(stream, "isatty", None)
    return isatty is not None and bool(isatty())


@dataclass(frozen=True)
class Processor:
    """The CPU.

    Attributes:
        model: Its name.
        vendor: Its maker, such as "AuthenticAMD"; empty where it is not known.
        flags: Its instruction sets, as Linux names them; empty where they are not known.
    """

    model: str
    vendor: str = ""
    flags: frozenset[str] = frozenset()

    @property
    def avx512(self) -> bool:
        """True if the processor has what OpenBLAS's AVX-512 kernels need."""
        return self.flags >= AVX512


@cache
def processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> Processor:
    """The CPU as Linux describes it; elsewhere its name alone."""
    facts: dict[str, str] = {}
    try:
        text = cpuinfo.read_text("utf-8", errors="replace")
    except OSError:
        text = ""
    for line in text.split("\n\n")[0].splitlines():
        key, _, value = line.partition(":")
        facts[key.strip()] = value.strip()
    model = facts.get("model name") or platform.processor() or platform.machine() or "unknown"
    return Processor(model, facts.get("vendor_id", ""), frozenset(facts.get("flags", "").split()))


@cache
def second_level_cache(system: Path = Path("/sys")) -> int:
    """Bytes of a core's second-level cache; 1 MiB where Linux does not say."""
    for folder in sorted((system / "devices/system/cpu/cpu0/cache").glob("index*")):
        with suppress(OSError, ValueError):
            if (folder / "level").read_text().strip() == "2":
                return 1024 * int((folder / "size").read_text().strip().removesuffix("K"))
    return 1 << 20


@cache
def last_level_cache(system: Path = Path("/sys")) -> tuple[int, int]:
    """Bytes of the last-level cache, and cores that share it; 16 MiB of all cores where Linux does not say."""
    levels = dict[int, tuple[int, int]]()
    for folder in sorted((system / "devices/system/cpu/cpu0/cache").glob("index*")):
        with suppress(OSError, ValueError):
            level, size, shared = ((folder / name).read_text().strip() for name in ("level", "size", "shared_cpu_map"))
            levels[int(level)] = 1024 * int(size.removesuffix("K")), int(shared.replace(",", ""), 16).bit_count()
    return levels[max(levels)] if levels else (1 << 24, os.cpu_count() or 1)


# Settings -----------------------------------------------------------------------------------------


def prepare(environ: MutableMapping[str, str] = os.environ) -> None:
    """Make the settings that make NumPy and PyTorch fast on this machine; call it before NumPy is imported.

    It sets what `choose_openblas_kernels`, `keep_freed_memory` and `share_cores` describe, each only if
    the user has not.
    """
    global set_by_us
    set_by_us = choose_openblas_kernels(environ)
    keep_freed_memory(environ)
    share_cores(environ)


def share_cores(environ: MutableMapping[str, str] = os.environ) -> None:
    """Give each of several processes that a launcher has started on this machine its share of the cores."""
    count = local_ranks(environ)
    if count > 1:
        # A launcher that binds each process to its cores has shared them out already.
        share = cores() if cores() < (os.cpu_count() or 1) else max(1, cores() // count)
        # Before NumPy is imported, which reads them once. Ranks that each take all cores slow each other down.
        for name in ("MINICNN_THREADS", "OMP_NUM_THREADS"):
            environ.setdefault(name, str(share))


def local_ranks(environ: Mapping[str, str] = os.environ) -> int:
    """How many processes a launcher has started on this machine."""
    names = ("MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE", "LOCAL_WORLD_SIZE")
    count = next((environ[name] for name in names if environ.get(name)), "1")
    return max(1, int(count)) if count.isdecimal() else 1


def local_rank(environ: Mapping[str, str] = os.environ) -> int:
    """Number of this process among those that a launcher has started on this machine, from 0."""
    names = ("MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK", "LOCAL_RANK", "SLURM_LOCALID")
    return int(next((environ[name] for name in names if name in environ), "0"))


def choose_openblas_kernels(environ: MutableMapping[str, str] = os.environ) -> bool:
    """Set OPENBLAS_CORETYPE=SKYLAKEX where OpenBLAS would run AVX2 kernels on an AVX-512 CPU of AMD's.

    OpenBLAS knows CPUs by their numbers, and takes a new one, such as a Zen 5, for an old one: its matrix
    products then have half the speed. It reads the variable when it is loaded, with NumPy.

    Returns:
        Whether the variable was set.
    """
    cpu = processor()
    # OpenBLAS knows Intel's CPUs, and falls back to AVX2 on AMD's that are newer than itself.
    if CORETYPE in environ or cpu.vendor != "AuthenticAMD" or not cpu.avx512:
        return False
    environ[CORETYPE] = "SKYLAKEX"
    return True


def keep_freed_memory(environ: Mapping[str, str] = os.environ) -> bool:
    """Have glibc keep memory that is freed, rather than hand it back to Linux and ask for it again.

    A training step makes and frees the same large arrays each time. By default each of them is new memory from
    the system, whose pages are filled with zeros one by one when first touched; that can take half of a step.
    The price is that the process stays as large as it once was.

    Returns:
        Whether the settings were made: on Linux with glibc, if no variable of the environment sets any.
    """
    configured = any(name.startswith("MALLOC_") for name in environ) or "glibc.malloc" in environ.get(
        "GLIBC_TUNABLES", ""
    )
    if configured or sys.platform != "linux" or platform.libc_ver()[0] != "glibc":
        return False
    import ctypes

    # Numbers from malloc.h: M_MMAP_MAX = none, M_TRIM_THRESHOLD = never, M_TOP_PAD in bytes, and M_ARENA_MAX = one for
    # all threads, since what a thread's own hands back is not kept.
    settings = {-4: 0, -1: -1, -2: 256 * 2**20, -8: 1}
    libc = ctypes.CDLL(None)
    return all(libc.mallopt(name, value) for name, value in settings.items())


# Facts --------------------------------------------------------------------------------------------


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def thread_pools() -> list[dict[str, Any]]:
    """Libraries with threads that are loaded (BLAS, OpenMP), as threadpoolctl describes them; none without it."""
    import numpy  # noqa: F401  # loads its BLAS

    try:
        from threadpoolctl import threadpool_info
    except ImportError:
        return []
    keys = ("user_api", "internal_api", "version", "architecture", "num_threads", "prefix")
    return [{k: pool[k] for k in keys if pool.get(k) is not None} for pool in threadpool_info()]


def blas(pools: list[dict[str, Any]]) -> str:
    """NumPy's BLAS in words, from `thread_pools`: its name, version, kernels and number of threads."""
    for pool in pools:
        if pool.get("user_api") == "blas":
            kernels = f", {pool['architecture']} kernels" if "architecture" in pool else ""
            threads = f", {pool['num_threads']} threads" if "num_threads" in pool else ""
            return f"{pool['internal_api']} {pool.get('version', '')}".strip() + kernels + threads
    import numpy as np

    library = np.show_config(mode="dicts").get("Build Dependencies", {}).get("blas", {})
    return f"{library.get('name', 'unknown')} {library.get('version', '')}".strip()


def mistaken_kernels(pools: list[dict[str, Any]], cpu: Processor) -> str | None:
    """Name of the kernels that OpenBLAS runs, if they leave the AVX-512 units of the CPU idle; else None."""
    if cpu.avx512:
        for pool in pools:
            if pool.get("internal_api") == "openblas" and str(pool.get("architecture", "")).lower() in OLDER:
                return str(pool["architecture"])
    return None


def warnings() -> list[str]:
    """Warnings of what slows NumPy down on this machine, and how to mend it."""
    kernels = mistaken_kernels(thread_pools(), processor())
    if kernels is None:
        return []
    pinned = os.environ.get(CORETYPE)
    why = f"{CORETYPE}={pinned} is set" if pinned else "it does not know this CPU"
    return [
        f"OpenBLAS runs {kernels} kernels on a CPU with AVX-512, as {why}: matrix products take up to twice as long. "
        f"Remedy: export {CORETYPE}=SKYLAKEX before Python starts."
    ]


def versions() -> dict[str, str | None]:
    """Versions of Python, minicnn and the packages that it can use; None for those that are missing."""
    from importlib.metadata import PackageNotFoundError, version

    from minicnn import __version__

    versions_by_name: dict[str, str | None] = {"python": platform.python_version(), "minicnn": __version__}
    for package in (*PACKAGES, *OTHERS):
        try:
            versions_by_name[package] = version(package)
        except PackageNotFoundError:
            versions_by_name[package] = None
    return versions_by_name


def facts() -> dict[str, Any]:
    """Facts about a machine by which a figure that was measured on it can be judged, as plain data."""
    pools = thread_pools()
    return {
        "cpu": processor().model,
        "cores": cores(),
        "memory_mb": total_memory() // 2**20,
        "system": platform.platform(),
        "blas": blas(pools),
        "threads": {p.get("prefix", p["user_api"]): p.get("num_threads") for p in pools},
        "environment": {k: v for k, v in sorted(os.environ.items()) if _shapes_speed(k)},
        "versions": {name: v for name, v in versions().items() if v},
    }


def _shapes_speed(variable: str) -> bool:
    beginnings = (
        "OPENBLAS_", "OMP_", "MKL_", "MALLOC_", "XLA_", "JAX_", "CUDA_VISIBLE", "GLIBC_TUNABLES", "NUMBA_",
        "MINICNN_THREADS",
    )  # fmt: skip
    return variable.startswith(beginnings)


# Memory -------------------------------------------------------------------------------------------


def total_memory() -> int:
    """Bytes of main memory; 0 where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 0


class PeakMemory:
    """The largest resident memory of this process since the object was made, in bytes.

    On Linux the kernel's own mark, set back at the start; elsewhere the mark of the whole process.

    Attributes:
        start: Resident memory at the start.
    """

    def __init__(self) -> None:
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")  # sets VmHWM to VmRSS: see man 5 proc
        self.start = _status("VmRSS") or _process_peak()

    def growth(self) -> int:
        """Bytes by which the peak lies above the start."""
        return max(self.peak() - self.start, 0)

    def peak(self) -> int:
        """The largest resident memory so far, in bytes."""
        return _status("VmHWM") or _process_peak()


def _status(field: str) -> int:
    """A field of /proc/self/status in bytes; 0 where there is none."""
    try:
        lines = Path("/proc/self/status").read_text("ascii", errors="replace").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:")), 0)


def _process_peak() -> int:
    """The largest resident memory of this process where there is no /proc: macOS and Windows."""
    try:
        import resource
    except ImportError:
        import psutil

        return int(getattr(psutil.Process().memory_info(), "peak_wset", 0))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
