"""Memory of the process and of the device that a candidate takes."""

from __future__ import annotations

import ctypes
import gc
import platform
import tracemalloc
from collections.abc import Callable
from typing import Any

from minicnn.backends.base import Backend
from minicnn.extras import needing
from minicnn.machine import PeakMemory

MB = 1e6


def resident() -> int:
    """Bytes of main memory that this process holds now.

    Raises:
        ImportError: If psutil is missing.
    """
    with needing("Measuring memory needs", "psutil"):
        import psutil
    return int(psutil.Process().memory_info().rss)


def footprint(peak: PeakMemory, backend: Backend) -> dict[str, float | None]:
    """Memory of this process in MB (10^6 bytes): now, at its peak, and on the device if that has its own."""
    device = backend.memory()
    return {
        "process_mb": resident() / MB,
        "peak_mb": peak.peak() / MB,
        "device_mb": None if device is None else device / MB,
    }


def allocated(backend: Backend, call: Callable[[], object]) -> int | None:
    """Most bytes that a call has allocated at a time; None where the library does not tell.

    NumPy reports to tracemalloc, PyTorch to its profiler on the CPU and to a counter of its own on CUDA, CuPy to hooks.
    """
    call()
    backend.synchronize()
    if backend.name == "numpy":
        tracemalloc.start()
        call()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak
    if backend.name == "torch" and backend.device == "cpu":
        return _torch_peak(call)
    if backend.name == "torch" and backend.device.startswith("cuda"):
        import torch

        before = torch.cuda.memory_allocated(backend.device)
        torch.cuda.reset_peak_memory_stats(backend.device)
        call()
        backend.synchronize()
        return int(torch.cuda.max_memory_allocated(backend.device)) - before
    return _cupy_peak(call) if backend.name == "cupy" else None


def _cupy_peak(call: Callable[[], object]) -> int:
    """The running sum of what CuPy's pool gives and takes, at its highest."""
    import cupy

    class Watch(cupy.cuda.MemoryHook):  # type: ignore[misc]  # cupy has no types
        name = "minicnn"

        def __init__(self) -> None:
            self.sizes: dict[int, int] = {}
            self.peak = 0

        def malloc_postprocess(self, **kwargs: Any) -> None:
            self.sizes[kwargs["mem_ptr"]] = kwargs["mem_size"]
            self.peak = max(self.peak, sum(self.sizes.values()))

        def free_postprocess(self, **kwargs: Any) -> None:
            self.sizes.pop(kwargs["mem_ptr"], None)

    with Watch() as watch:
        kept = call()
    del kept
    return int(watch.peak)


def _torch_peak(call: Callable[[], object]) -> int:
    """The running sum of what PyTorch's allocator gives and takes, at its highest."""
    import torch

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        kept = call()
    del kept
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    live = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak


def let_go() -> None:
    """Return free memory to the system, so that the next measurement starts from what is in use."""
    gc.collect()
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)
