"""Compiled kernels on disk, and the line on the terminal while they compile."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
import time
from collections import deque
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import pytest

from minicnn import Sequential
from minicnn.backends import backend_class
from minicnn.layers import Dense, Input
from support.small_training import compiled, digits
from support.tolerances import SUM

pytest.importorskip("numba")


@pytest.fixture
def small_source() -> Any:
    from minicnn.backends.numba.kernel import Lines
    from minicnn.backends.numba.threads import pool

    pool(1)  # compiles kernels of its own
    out = Lines()
    with out.block("for i in range(start, stop):"):
        out("fstore(y + i * 4, float32(i) * float32(3))")
    return out.source("test", "y")


def _result(source: Any) -> list[float]:
    from minicnn.backends.numba.kernel import compile_source
    from minicnn.backends.numba.threads import KernelList, pool

    y = np.zeros(4, "float32")
    made = compile_source(source)
    pool(1).run(KernelList([[(made.address, np.asarray([y.ctypes.data], np.int64), 4)]]))
    return y.tolist()


@pytest.mark.parametrize("damage", [b"", b"nonsense", None])
def test_damaged_files_are_compiled_anew(
    damage: bytes | None, small_source: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from minicnn.backends.numba import kernel, store

    monkeypatch.setenv("MINICNN_CACHE", str(tmp_path))
    monkeypatch.setattr(kernel, "_COMPILED", {})
    assert _result(small_source) == [0, 3, 6, 9]
    (file,) = store.place("").parent.glob("*.bin")
    good = file.read_bytes()
    monkeypatch.setattr(kernel, "_COMPILED", {})
    assert _result(small_source) == [0, 3, 6, 9]  # from the disk
    assert file.read_bytes() == good
    flipped = bytes([*good[:-1], good[-1] ^ 1])
    file.write_bytes(flipped if damage is None else damage)
    monkeypatch.setattr(kernel, "_COMPILED", {})
    assert _result(small_source) == [0, 3, 6, 9]
    assert len(file.read_bytes()) == len(good)
    assert [f.name for f in store.place("").parent.iterdir()] == [file.name]  # nothing is left over


def test_without_a_folder_kernels_still_compile(
    small_source: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from minicnn.backends.numba import kernel

    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("MINICNN_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr(kernel, "_COMPILED", {})
    assert _result(small_source) == [0, 3, 6, 9]


def test_another_process_compiles_what_this_one_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from minicnn.backends.numba import kernel, machine_code, store

    monkeypatch.setenv("MINICNN_CACHE", str(tmp_path))
    monkeypatch.setattr(kernel, "_COMPILED", {})
    own, here = machine_code.object_code, []

    def counted(*args: Any) -> bytes:
        """Compiles one kernel here, once the other process has compiled all others."""
        here.append(args)
        folder, deadline = store.place("").parent, time.monotonic() + 60
        while len(list(folder.glob("*.bin"))) < 6 and time.monotonic() < deadline:
            time.sleep(0.01)
        return own(*args)

    monkeypatch.setattr(machine_code, "object_code", counted)
    sources = []
    for k in range(7):
        out = kernel.Lines()
        with out.block("for i in range(start, stop):"):
            out(f"fstore(y + i * 4, float32(i) * float32({k}))")
        sources.append(out.source(f"times {k}", "y"))
    assert len(kernel.compile_all([*sources, *sources], processes=2)) == 14
    assert len(here) == 1
    for k, source in enumerate(sources):
        assert _result(source) == [0, k, 2 * k, 3 * k]


def test_progress_is_for_terminals(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from minicnn.backends import _progress as progress

    monkeypatch.setattr(progress, "PATIENCE", -1.0)
    with progress.Progress(2) as line:
        line.next("conv2d")
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with progress.Progress(2) as line:
        line.next("conv2d")
    assert "compiling kernel 1 of 2: conv2d" in capsys.readouterr().err


def test_files_are_of_one_cpu_and_one_version(monkeypatch: pytest.MonkeyPatch) -> None:
    import llvmlite

    from minicnn.backends.numba import cpus, store

    def forget() -> None:
        cpus.host.cache_clear()
        store._platform.cache_clear()

    forget()
    before = store.place("a")
    for change in (
        lambda: monkeypatch.setattr(llvmlite, "__version__", "0.0"),
        lambda: monkeypatch.setenv("NUMBA_CPU_NAME", "another"),
        lambda: monkeypatch.setenv("NUMBA_CPU_FEATURES", "+avx2"),
    ):
        change()
        forget()
        assert store.place("a") != before
        before = store.place("a")
    monkeypatch.undo()
    forget()


def test_kernels_whose_operations_change_have_other_names(monkeypatch: pytest.MonkeyPatch) -> None:
    from minicnn.backends.numba import store

    store.key.cache_clear()
    before = store.key("text")
    store.key.cache_clear()
    monkeypatch.setattr(store, "_writers", lambda: "other code")
    assert store.key("text") != before
    store.key.cache_clear()


def test_names_cover_the_code_of_every_operation() -> None:
    from minicnn.backends.numba import kernel, registers, store

    operations = kernel._ALL | registers.operations(1, 1)
    files = {Path(made.emit.__code__.co_filename).stem for made in operations.values() if hasattr(made, "emit")}
    assert files <= set(store.WRITERS)


def test_a_folder_that_cannot_be_written(small_source: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from minicnn.backends.numba import kernel

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError

    monkeypatch.setenv("MINICNN_CACHE", str(tmp_path))
    monkeypatch.setattr("tempfile.mkstemp", refuse)  # the superuser can write to any folder
    monkeypatch.setattr(kernel, "_COMPILED", {})
    assert _result(small_source) == [0, 3, 6, 9]
    assert not list(tmp_path.rglob("*.bin"))


PROGRAM = """
    import sys
    import numpy as np
    from minicnn import Sequential
    from minicnn.backends import backend_class
    from minicnn.layers import Dense, Input

    model = Sequential([Input((5,)), Dense(3, "tanh")], backend=backend_class("numba")(threads=1), seed=1)
    model.compile("sgd", "mse")
    call = getattr(model, sys.argv[1])
    print([float(call(np.ones((17, 5)), np.ones((17, 3)), return_dict=True)["loss"]) for _ in range(3)])
"""


def _process(call: str, cache: Path, **environ: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM), call]
    return subprocess.Popen(
        command, env=os.environ | {"MINICNN_CACHE": str(cache)} | environ, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


@pytest.mark.no_cover
def test_processes_that_compile_at_once(tmp_path: Path) -> None:
    processes = [_process("test_on_batch", tmp_path) for _ in range(2)]  # which compiles less than training
    results = [p.communicate(timeout=120) for p in processes]
    assert [p.returncode for p in processes] == [0, 0], results
    assert results[0] == results[1]
    assert results[0][1] == ""  # nothing on a standard error that is no terminal
    files = list(tmp_path.rglob("*"))
    assert not [f for f in files if f.suffix == ".tmp"]
    compiled = {f: f.stat().st_mtime_ns for f in files if f.suffix == ".bin"}
    assert compiled
    assert _process("test_on_batch", tmp_path).communicate(timeout=120) == results[0]
    assert {f: f.stat().st_mtime_ns for f in tmp_path.rglob("*.bin")} == compiled  # none compiled anew


@pytest.mark.no_cover
def test_with_the_jit_switched_off(tmp_path: Path) -> None:
    """NUMBA_DISABLE_JIT=1: kernels run as Python, and nothing is stored."""
    process = _process("train_on_batch", tmp_path, NUMBA_DISABLE_JIT="1")
    out, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert not list(tmp_path.rglob("*.bin"))
    losses = [float(n) for n in out.strip(" []\n").split(",")]
    model = Sequential([Input((5,)), Dense(3, "tanh")], backend="numpy", seed=1)
    model.compile("sgd", "mse")
    expected = [
        float(model.train_on_batch(np.ones((17, 5)), np.ones((17, 3)), return_dict=True)["loss"]) for _ in range(3)
    ]
    assert losses == pytest.approx(expected, rel=SUM)


def _trained(sizes: range) -> Sequential:
    model = compiled(backend_class("numba")(threads=2))  # whose kernels test_numba_threads.py needs as well
    for n in sizes:
        model.train_on_batch(*digits(n))
    return model


@pytest.mark.no_cover
def test_another_batch_size_compiles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from minicnn.backends.numba import kernel

    _trained(range(65, 66))
    asked: list[str] = []
    native = kernel._native
    monkeypatch.setattr(kernel, "_native", lambda source, key: asked.append(source.name) or native(source, key))
    kept = _trained(range(67, 80))
    assert kept.steps_taken == 13
    assert asked == []


@pytest.mark.no_cover
def test_kernels_from_the_disk_go_with_their_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    from minicnn.backends.numba import kernel

    _trained(range(67, 68))  # now they are there
    monkeypatch.setattr(kernel, "_COMPILED", WeakValueDictionary())
    monkeypatch.setattr(kernel, "_LATEST", deque(maxlen=0))
    model = _trained(range(67, 68))
    assert len(kernel._COMPILED) > 10
    del model
    gc.collect()
    assert not kernel._COMPILED


RESIDENT = Path("/proc/self/statm")


@pytest.mark.no_cover
@pytest.mark.skipif(not RESIDENT.exists(), reason="no such file on this system")
def test_many_batch_sizes_do_not_fill_memory() -> None:
    def resident() -> float:
        return int(RESIDENT.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6

    model = Sequential([Input((4,)), Dense(2)], backend=backend_class("numba")(threads=1))
    model.compile("sgd", "mse")
    for n in range(1, 151):
        model.train_on_batch(np.ones((n, 4)), np.ones((n, 2)))
        if n == 40:  # as many steps are kept as ever will be
            before = resident()
    assert resident() - before < 30
