"""How busy processor and GPU are while something is computed."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from minicnn.machine import cores

EACH_S = 0.1  # NVML itself looks at a GPU every sixth of a second to every second


@contextmanager
def utilisation() -> Iterator[dict[str, float | None]]:
    """Context manager: how busy this process kept the machine.

    Yields:
        A dictionary that has, afterwards, "cpu": the share of all cores' time that this process computed; "gpu": the
        share of time in which the first GPU ran a kernel, and "gpu_memory", in which it read or wrote its memory, as
        NVML samples them; None without nvidia-ml-py and a GPU.
    """
    found: dict[str, float | None] = {"cpu": None, "gpu": None, "gpu_memory": None}
    samples: list[tuple[int, int]] = []
    stop, device = threading.Event(), _device()
    watcher = threading.Thread(target=_watch, args=(device, samples, stop), daemon=True)
    if device is not None:
        watcher.start()
    wall, computed = time.perf_counter(), time.process_time()
    try:
        yield found
    finally:
        wall, computed = time.perf_counter() - wall, time.process_time() - computed
        stop.set()
        if device is not None:
            watcher.join()
        found["cpu"] = computed / wall / cores()
        if samples:
            found |= {k: sum(s[i] for s in samples) / len(samples) / 100 for i, k in enumerate(("gpu", "gpu_memory"))}


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
