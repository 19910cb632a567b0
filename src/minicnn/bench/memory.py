"""Memory of the process and of the device that a contender takes."""

from __future__ import annotations

import ctypes
import gc
import platform

from minicnn.backends.base import Backend
from minicnn.machine import PeakMemory

MB = 1e6


def resident() -> int:
    """Bytes of main memory that this process holds now.

    Raises:
        ImportError: If psutil is missing.
    """
    try:
        import psutil
    except ImportError as error:
        message = 'Measuring memory needs psutil: pip install "minicnn[cli]".'
        raise ImportError(message, name="psutil") from error
    return int(psutil.Process().memory_info().rss)


def footprint(peak: PeakMemory, backend: Backend) -> dict[str, float | None]:
    """Memory of this process in MB (10^6 bytes): now, at its peak, and on the device if that has its own."""
    device = backend.memory()
    return {
        "process_mb": resident() / MB,
        "peak_mb": peak.peak() / MB,
        "device_mb": None if device is None else device / MB,
    }


def let_go() -> None:
    """Hand memory that is free back to the system, so that what is measured next starts from what is in use."""
    gc.collect()
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)
