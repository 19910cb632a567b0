"""Threads of the numba backend: how many, among those of the user, after a fork, and idle between steps."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minicnn.backends import backend_class, get_backend
from support.numba_check import backend, train
from support.small_training import arrays, assert_same_bits, compiled, digits
from support.tolerances import STEP

pytest.importorskip("numba")

BACKEND = "numba"
FORKS = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")


# How many -----------------------------------------------------------------------------------------


def test_the_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    from minicnn.backends.numba.cpus import cores

    monkeypatch.delenv("MINICNN_THREADS", raising=False)
    assert get_backend(BACKEND).threads == cores()  # type: ignore[attr-defined]
    monkeypatch.setenv("MINICNN_THREADS", "3")
    assert get_backend(BACKEND).threads == 3  # type: ignore[attr-defined]
    assert backend_class(BACKEND).describe()["threads"] == "3"
    assert "threads=3" in repr(get_backend(BACKEND))
    monkeypatch.setenv("MINICNN_THREADS", "many")
    with pytest.raises(ValueError, match=r"MINICNN_THREADS is an integer of at least 1\. Received: 'many'"):
        get_backend(BACKEND)
    with pytest.raises(ValueError, match=r"threads is an integer of at least 1\. Received: threads=0"):
        backend(0)


class Machine:
    """Files of a system with four CPUs, and of a process that may use three of them."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.system, self.process = root / "sys", root / "proc"
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 3}, raising=False)

    def write(self, name: str, text: str) -> None:
        (self.system / name).parent.mkdir(parents=True, exist_ok=True)
        (self.system / name).write_text(text + "\n")

    def groups(self, *lines: str) -> None:
        self.process.mkdir(exist_ok=True)
        (self.process / "cgroup").write_text("\n".join(lines) + "\n")

    @property
    def cores(self) -> int:
        from minicnn.backends.numba.cpus import cores

        return cores(self.system, self.process)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def test_cores_are_those_that_the_process_may_use(machine: Machine) -> None:
    assert machine.cores == 3


def test_hyperthreads_of_one_core_count_once(machine: Machine) -> None:
    for cpu, siblings in enumerate(("0-1", "0-1", "2-3", "2-3")):
        machine.write(f"devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", siblings)
    assert machine.cores == 2


@pytest.mark.parametrize(("limit", "expected"), [("max 100000", 3), ("250000 100000", 2), ("50000 100000", 1)])
def test_a_quota_limits_the_threads(machine: Machine, limit: str, expected: int) -> None:
    machine.groups("1:name=systemd:/x", "0::/user/me")
    machine.write("fs/cgroup/user/me/cpu.max", "max 100000")
    machine.write("fs/cgroup/user/cpu.max", limit)  # the parent's quota holds too
    assert machine.cores == expected


def test_a_quota_in_the_older_form(machine: Machine) -> None:
    machine.groups("4:memory:/m", "3:cpu,cpuacct:/box", "0::/")
    machine.write("fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us", "200000")
    machine.write("fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us", "100000")
    assert machine.cores == 2
    machine.write("fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us", "-1")  # none
    assert machine.cores == 3


# What they do -------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 2, 3, 8, 64])
def test_the_same_bits_every_time(threads: int) -> None:
    first, *others = (compiled(backend(threads)) for _ in range(3))
    losses = train(first, 5)
    for other in others:
        assert train(other, 5) == losses
        assert_same_bits(arrays(other), arrays(first))


def test_threads_sleep_between_steps() -> None:
    model = compiled(backend(2))
    x, _ = digits(40)
    model.predict(x)
    before = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - before < 0.1


def test_threads_sleep_once_they_have_settled() -> None:
    from minicnn.backends.numba import threads

    train(compiled(backend(2)), 2)
    pool = threads.pool(2)
    pool.settle(10)
    assert threads.interpreting.SWITCHED_ON or (pool._lines[1:-1, 0] == threads._ASLEEP).all()


@pytest.mark.parametrize("threads", [2, 5])
def test_lists_come_before_and_after_threads_fall_asleep(threads: int) -> None:
    from minicnn.backends.numba.kernel import KernelCode, compile_source
    from minicnn.backends.numba.threads import WAIT_S, KernelList, pool

    counts = np.zeros(64, np.int64)
    lines = ("for i in range(start, stop):", "    astore(x + 8 * i, aload(x + 8 * i) + 1)")
    counting = compile_source(KernelCode("count", ("x",), lines))
    kernel = (counting.address, np.asarray([counts.ctypes.data], np.int64), 64)
    kernels = KernelList([[kernel], [kernel]])
    gaps = np.random.default_rng(0).choice([0.0, 0.5, 0.9, 1.0, 1.1, 2.0], 2000) * WAIT_S
    for gap in gaps:
        pool(threads).run(kernels)
        end = time.perf_counter() + gap
        while time.perf_counter() < end:
            pass
    assert (counts == 2 * len(gaps)).all()


def test_a_thread_that_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    from minicnn.backends.numba import threads

    expected = train(compiled(backend(2)), 6)
    time.sleep(10 * threads.WAIT_S)  # then it sleeps
    model, pool = compiled(backend(2)), threads.pool(2)
    calls = pool._calls
    with monkeypatch.context() as patch:
        patch.setattr(pool, "_calls", [threads.SimpleQueue() for _ in calls])  # nobody wakes it
        losses = train(model, 3)
    calls[1].put(None)  # it comes late, to work that has been done
    assert losses + train(model, 3) == expected


BUSY = 2 * (os.cpu_count() or 1)


def test_threads_beside_busy_processes_take_little_longer_than_one() -> None:
    models = {threads: compiled(backend(threads)) for threads in (1, 2)}
    steps = dict.fromkeys(models, 0)
    times = dict.fromkeys(models, 0.0)
    for model in models.values():
        train(model, 2)
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(BUSY)]
    try:
        for _ in range(8):
            for threads, model in models.items():
                start = time.perf_counter()
                while time.perf_counter() - start < 0.2:
                    steps[threads] += len(train(model, 1))
                times[threads] += time.perf_counter() - start
    finally:
        for process in busy:
            process.kill()
            process.wait()
    mean = {threads: times[threads] / steps[threads] for threads in models}
    assert mean[2] < 6 * mean[1]  # it is about the same; waiting for a thread without a core takes 50 times as long


def test_several_threads_of_the_user_predict() -> None:
    model = compiled(backend(2))
    x, _ = digits(40)
    expected = model.predict(x)
    with ThreadPoolExecutor(4) as callers:
        for made in callers.map(lambda _: model.predict(x), range(80)):
            np.testing.assert_array_equal(made, expected)


def test_models_train_in_threads_of_the_user() -> None:
    expected = compiled(backend(2))
    losses = train(expected, 20)
    models = [compiled(backend(threads)) for threads in (2, 2, 1)]
    with ThreadPoolExecutor(3) as callers:
        made = list(callers.map(lambda model: train(model, 20), models))
    assert made[0] == made[1] == losses
    assert made[2] == pytest.approx(losses, rel=STEP)
    for model in models[:2]:
        assert_same_bits(arrays(model), arrays(expected))


def test_threads_that_compile_a_kernel_at_once_get_one_address(monkeypatch: pytest.MonkeyPatch) -> None:
    from minicnn.backends.numba import kernel

    barrier, places = threading.Barrier(3), iter([1, 2, 3])

    def slow(*_: object) -> Any:
        made = kernel.LoadedCode(next(places), None)
        barrier.wait()  # all have found nothing and compiled
        return made

    monkeypatch.setattr(kernel, "_native", slow)
    monkeypatch.setattr(kernel, "_COMPILED", {})
    source = kernel.KernelCode("test", (), ("return",))
    with ThreadPoolExecutor(3) as callers:
        addresses = [made.address for made in callers.map(kernel.compile_source, [source] * 3)]
    # The others' code is let go of, so nobody may hold an address in it.
    assert addresses == [kernel._COMPILED[kernel._key(source)].address] * 3


@pytest.mark.parametrize("call", ["_post", "_drive"])
def test_an_interrupt_leaves_the_threads_in_step(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from minicnn.backends.numba import threads

    expected = train(compiled(backend(2)), 6)
    model = compiled(backend(2))
    losses = train(model, 3)
    pool = threads.pool(2)
    done, seen = getattr(pool, call), []

    def interrupted(*arguments: int) -> None:
        done(*arguments)
        if arguments[1] == 0 and not seen:
            seen.append(arguments)
            raise KeyboardInterrupt

    monkeypatch.setattr(pool, call, interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(model, 1)
    assert losses + train(model, 3) == expected


# Forks --------------------------------------------------------------------------------------------


def forked(work: Any) -> int:
    """Exit code of a forked child that runs a function."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads: what is tested
        child = os.fork()
    if not child:
        code = 1
        try:
            code = 0 if work() else 2
        finally:
            os._exit(code)
    end = time.monotonic() + 300
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, 9)
    os.waitpid(child, 0)
    pytest.fail("the child hangs")


@FORKS
def test_a_forked_child_goes_on_training() -> None:
    expected = train(compiled(backend(2)), 6)
    model = compiled(backend(2))
    losses = train(model, 3)
    assert forked(lambda: losses + train(model, 3) == expected) == 0
    assert losses + train(model, 3) == expected


@FORKS
def test_a_fork_while_another_thread_is_in_a_step() -> None:
    from minicnn.backends.numba import threads

    expected = train(compiled(backend(2)), 4)
    model = compiled(backend(2))
    losses = train(model, 2)
    pool, lock = threads.pool(2), threads.ForkSafeLock()
    with pool._lock, threads._POOLS_LOCK, lock:  # as another thread would hold them

        def work() -> bool:
            with lock:
                return losses + train(model, 2) == expected

        assert forked(work) == 0
    assert losses + train(model, 2) == expected


def _train_elsewhere(steps: int) -> list[float]:
    return train(compiled(backend(2)), steps)


@FORKS
def test_processes_of_the_user_train() -> None:
    expected = train(compiled(backend(2)), 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        with multiprocessing.get_context("fork").Pool(2) as workers:
            found = workers.map_async(_train_elsewhere, [3, 3]).get(timeout=300)
    assert found == [expected, expected]
