"""How busy processor and GPU are."""

from __future__ import annotations

import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest

from minicnn.bench import utilisation as watched
from minicnn.bench.utilisation import utilisation
from minicnn.machine import cores


class NVMLError(Exception):
    pass


def nvml(**changes: Any) -> SimpleNamespace:
    """What nvidia-ml-py would be on a machine with a GPU that is busy every other time one looks."""
    looks: list[int] = []
    found = {
        "NVMLError": NVMLError, "nvmlInit": lambda: None, "nvmlDeviceGetHandleByIndex": lambda i: f"GPU {i}",
        "nvmlDeviceGetUtilizationRates": lambda _: (
            looks.append(0) or SimpleNamespace(gpu=100 * (len(looks) % 2), memory=30)  # type: ignore[func-returns-value]
        ), "looks": looks,
    }  # fmt: skip
    return SimpleNamespace(**found | changes)


def test_a_process_that_sleeps_is_not_busy_and_one_that_computes_is() -> None:
    with utilisation() as asleep:
        time.sleep(0.05)
    with utilisation() as awake:
        end = time.process_time() + 0.05
        while time.process_time() < end:
            pass
    assert asleep["cpu"] is not None
    assert awake["cpu"] is not None
    assert asleep["cpu"] < awake["cpu"] <= 1.1 / cores()


def test_a_gpu_is_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    module = nvml()
    monkeypatch.setitem(sys.modules, "pynvml", module)
    monkeypatch.setattr(watched, "EACH_S", 0.005)
    with utilisation() as found:
        while len(module.looks) < 10:
            time.sleep(0.005)
    assert found["gpu"] == pytest.approx(0.5, abs=0.2)
    assert found["gpu_memory"] == pytest.approx(0.3)


def test_without_a_gpu_or_nvml_there_is_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise NVMLError

    for module in (None, nvml(nvmlInit=fails)):
        monkeypatch.setitem(sys.modules, "pynvml", module)
        with utilisation() as found:
            pass
        assert (found["gpu"], found["gpu_memory"]) == (None, None)
