"""How busy processor and GPU are."""

from __future__ import annotations

import sys
import time
from collections import namedtuple
from types import SimpleNamespace
from typing import Any

import pytest

from minicnn.machine import cores
from minicnn.measure import utilisation as watched
from minicnn.measure.utilisation import utilisation


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


# Other programs -----------------------------------------------------------------------------------


class Machine:
    """A machine with two cores, as psutil and the system describe it, whose times a test moves on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.busy, self.ended, self.running = 0.0, 0.0, 0.0, 0.0
        process = SimpleNamespace(children=lambda recursive: [SimpleNamespace(cpu_times=self.child), self.Gone()])
        psutil = SimpleNamespace(Error=OSError, Process=lambda: process, cpu_times=self.cores)
        monkeypatch.setitem(sys.modules, "psutil", psutil)
        monkeypatch.setattr(watched.os, "times", lambda: (1.0, 2.0, self.ended, 0.0, 99.0))
        monkeypatch.setattr(watched.os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
        monkeypatch.setattr(watched, "cores", lambda: 2)
        monkeypatch.setattr(watched.sys, "platform", "linux")
        monkeypatch.setattr(watched.time, "perf_counter", lambda: self.now)

    class Gone:
        def cpu_times(self) -> Any:
            raise OSError

    def child(self) -> tuple[float, ...]:
        return (self.running, 0.0, 0.0, 0.0, 7.0)

    def cores(self, *, percpu: bool) -> list[Any]:
        assert percpu
        kinds = ("user", "system", "steal", "guest", "idle", "iowait")
        core = namedtuple("core", kinds)  # type: ignore[misc]
        return [core(self.busy, 0.1, 0.1, 5 * self.now, 2 * self.now, self.now)] * 3  # one is not for this process


def test_what_others_compute_is_told_from_what_this_process_and_its_own_do(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    others = watched.Others()
    machine.now, machine.busy, machine.ended, machine.running = 10.0, 8.0, 3.0, 4.0
    assert others.busy() == pytest.approx((2 * 8 - 3 - 4) / 10 / 2)
    machine.busy = 3.4
    assert others.busy() == 0.0, "clocks are not exact"
    machine.busy = 30.0
    assert others.busy() == 1.0


@pytest.mark.parametrize("change", [("modules", "psutil"), ("platform", "win32")])
def test_where_it_cannot_be_told_nothing_is_said(change: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    Machine(monkeypatch)
    if change[0] == "modules":
        monkeypatch.setitem(sys.modules, "psutil", None)
    else:
        monkeypatch.setattr(watched.sys, "platform", "win32")
    assert watched.Others().busy() is None
    assert watched.disturbance(None) is None


def test_a_tenth_of_the_cores_time_is_worth_a_word() -> None:
    assert watched.disturbance(0.09) is None
    assert watched.disturbance(0.42) == "other programs kept the cores busy for 42% of their time"


def test_on_this_machine_there_is_a_share() -> None:
    pytest.importorskip("psutil")
    others = watched.Others()
    end = time.process_time() + 0.05
    while time.process_time() < end:
        pass
    busy = others.busy()
    assert busy is None or 0 <= busy <= 1
