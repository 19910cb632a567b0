"""Utilisation of processor and GPU while something is computed, and the load of other programs on the cores."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from minicnn.machine import cores

DISTURBING = 0.1  # share of the cores' time from which on it is said that other programs take it
EACH_S = 0.1  # NVML itself looks at a GPU every sixth of a second to every second


@contextmanager
def utilisation() -> Iterator[dict[str, float | None]]:
    """Context manager: how busy this process kept the machine.

    Yields:
        A dictionary that has, afterwards, "cpu": the share of all cores' time that this process computed; "gpu": the
        share of time in which the first GPU ran a kernel, and "gpu_memory", in which it read or wrote its memory, as
        NVML samples them; None without nvidia-ml-py and a GPU.
    """
    shares: dict[str, float | None] = {"cpu": None, "gpu": None, "gpu_memory": None}
    samples: list[tuple[int, int]] = []
    stop, device = threading.Event(), _device()
    watcher = threading.Thread(target=_watch, args=(device, samples, stop), daemon=True)
    if device is not None:
        watcher.start()
    wall, computed = time.perf_counter(), time.process_time()
    try:
        yield shares
    finally:
        wall, computed = time.perf_counter() - wall, time.process_time() - computed
        stop.set()
        if device is not None:
            watcher.join()
        shares["cpu"] = computed / wall / cores()
        if samples:
            shares |= {k: sum(s[i] for s in samples) / len(samples) / 100 for i, k in enumerate(("gpu", "gpu_memory"))}


def _device() -> tuple[Any, Any] | None:
    """NVML and its handle of the first GPU; None without."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        return pynvml, pynvml.nvmlDeviceGetHandleByIndex(0)
    except pynvml.NVMLError:
        return None


def _watch(device: Any, samples: list[tuple[int, int]], stop: threading.Event) -> None:
    nvml, handle = device
    while not stop.wait(EACH_S):
        rates = nvml.nvmlDeviceGetUtilizationRates(handle)
        samples.append((rates.gpu, rates.memory))


class Others:
    """Other programs: how busy they keep the cores that this process may use, from when the object was made.

    They are all but this process and those that it has started; other guests of a virtual machine are among them.
    """

    def __init__(self) -> None:
        self._start = _seconds()

    def busy(self) -> float | None:
        """Share of the cores' time in which others computed; None where it is not known: without psutil, on Windows."""
        now = _seconds()
        if self._start is None or now is None:
            return None
        wall, theirs = (b - a for a, b in zip(self._start, now, strict=True))
        return min(max(theirs / max(wall, 1e-9) / cores(), 0.0), 1.0)


def disturbance(busy: float | None) -> str | None:
    """Words that begin a sentence on how busy others were; None if they were not."""
    if busy is None or busy < DISTURBING:
        return None
    return f"other programs kept the cores busy for {busy:.0%} of their time"


def _seconds() -> tuple[float, float] | None:
    """Seconds of a clock, and those that others have computed till then."""
    try:
        import psutil
    except ImportError:
        return None
    if sys.platform == "win32":  # does not say what processes took that have ended
        return None
    ours = sum(os.times()[:4])  # with what processes took that have ended
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            ours += sum(process.cpu_times()[:4])
    used = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    idle = ("idle", "iowait", "guest", "guest_nice")  # time of guests is part of that of users
    every = [times._asdict() for number, times in enumerate(psutil.cpu_times(percpu=True)) if number in used]
    return time.perf_counter(), sum(v for times in every for k, v in times.items() if k not in idle) - ours
