"""Facts about the machine, and the settings that are made before NumPy is loaded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from minicnn import machine

ZEN5 = machine.Processor("AMD EPYC 9755", "AuthenticAMD", machine.AVX512 | {"fpu"})
SKYLAKE = machine.Processor("Xeon", "GenuineIntel", machine.AVX512)
ZEN3 = machine.Processor("AMD EPYC 7763", "AuthenticAMD", frozenset({"avx2"}))


def python(code: str, **environ: str) -> str:
    unset = (machine.CORETYPE, "GLIBC_TUNABLES")
    kept = {k: v for k, v in os.environ.items() if k not in unset and not k.startswith("MALLOC_")}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**kept, **environ}, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_cpu_is_read_from_cpuinfo(tmp_path: Path) -> None:
    features = " ".join(machine.AVX512)
    first = f"processor : 0\nvendor_id\t: AuthenticAMD\nmodel name\t: AMD EPYC 9755\nflags\t\t: fpu {features}"
    (tmp_path / "cpuinfo").write_text(first + "\n\nprocessor : 1\nmodel name : another\n")
    assert machine.processor(tmp_path / "cpuinfo") == ZEN5
    assert ZEN5.avx512
    assert not ZEN3.avx512


def test_without_cpuinfo_the_cpu_has_a_name_all_the_same(tmp_path: Path) -> None:
    cpu = machine.processor(tmp_path / "nothing")
    assert cpu.model
    assert not cpu.avx512


def test_caches_are_as_linux_describes_them(tmp_path: Path) -> None:
    assert machine.second_level_cache(tmp_path) == 1 << 20
    assert machine.last_level_cache(tmp_path)[0] == 16 << 20
    for index, (level, size) in enumerate((("1", "48K"), ("1", "32K"), ("2", "2048K"), ("3", "32768K"))):
        folder = tmp_path / f"elsewhere/devices/system/cpu/cpu0/cache/index{index}"
        folder.mkdir(parents=True)
        (folder / "level").write_text(f"{level}\n")
        (folder / "size").write_text(f"{size}\n")
        (folder / "shared_cpu_map").write_text("ff,00000003\n" if level == "3" else "1\n")
    assert machine.second_level_cache(tmp_path / "elsewhere") == 2 << 20
    assert machine.last_level_cache(tmp_path / "elsewhere") == (32 << 20, 10)


@pytest.mark.parametrize(
    ("cpu", "environ", "expected"),
    [
        (ZEN5, {}, "SKYLAKEX"),
        (ZEN5, {machine.CORETYPE: "Haswell"}, "Haswell"),
        (SKYLAKE, {}, None),
        (ZEN3, {}, None),
    ],
)
def test_openblas_kernels_are_chosen_for_new_amd_cpus_alone(
    monkeypatch: pytest.MonkeyPatch, cpu: machine.Processor, environ: dict[str, str], expected: str | None
) -> None:
    monkeypatch.setattr(machine, "processor", lambda: cpu)
    before = dict(environ)
    assert machine.choose_openblas_kernels(environ) == (environ != before)
    assert environ.get(machine.CORETYPE) == expected


def test_the_command_sets_the_variable_before_numpy_is_imported() -> None:
    code = """
import os, sys
class Spy:
    def find_spec(self, name, path=None, target=None):
        if name == "numpy":
            print("numpy sees", os.environ.get("OPENBLAS_CORETYPE"))
sys.meta_path.insert(0, Spy())
from minicnn import machine
machine.processor = lambda: machine.Processor("Zen 5", "AuthenticAMD", machine.AVX512)
sys.argv = ["minicnn", "--version"]
from minicnn.__main__ import main
assert "numpy" not in sys.modules
try:
    main()
except SystemExit as end:
    assert end.code == 0
"""
    first, second = python(code).splitlines()
    assert first == "numpy sees SKYLAKEX"
    assert second.startswith("minicnn, version ")


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator")
def test_freed_memory_is_kept_unless_the_user_has_decided() -> None:
    code = "from minicnn import machine; print(machine.keep_freed_memory())"
    expected = str(machine.platform.libc_ver()[0] == "glibc")
    assert python(code) == expected
    assert python(code, MALLOC_ARENA_MAX="1") == "False"
    assert python(code, GLIBC_TUNABLES="glibc.malloc.check=1") == "False"


def test_elsewhere_the_allocator_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    assert not machine.keep_freed_memory({})


OPENBLAS = {"user_api": "blas", "internal_api": "openblas", "version": "0.3.31", "num_threads": 2}


@pytest.mark.parametrize(
    ("cpu", "architecture", "expected"),
    [
        (ZEN5, "Haswell", "Haswell"),
        (ZEN5, "Zen", "Zen"),
        (SKYLAKE, "Haswell", "Haswell"),
        (ZEN5, "SkylakeX", None),
        (ZEN5, "Cooperlake", None),
        (ZEN3, "Zen", None),
    ],
)
def test_mistaken_kernels(cpu: machine.Processor, architecture: str, expected: str | None) -> None:
    other = {"user_api": "openmp", "internal_api": "openmp", "architecture": "Haswell"}
    assert machine.mistaken_kernels([other, {**OPENBLAS, "architecture": architecture}], cpu) == expected


def test_mistaken_kernels_come_with_reason_and_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "processor", lambda: ZEN5)
    monkeypatch.setattr(machine, "thread_pools", lambda: [{**OPENBLAS, "architecture": "Haswell"}])
    monkeypatch.setenv(machine.CORETYPE, "Haswell")
    (given,) = machine.warnings()
    assert "OPENBLAS_CORETYPE=Haswell is set" in given
    assert "export OPENBLAS_CORETYPE=SKYLAKEX" in given
    monkeypatch.delenv(machine.CORETYPE)
    (unknown,) = machine.warnings()
    assert "it does not know this CPU" in unknown
    monkeypatch.setattr(machine, "thread_pools", lambda: [{**OPENBLAS, "architecture": "SkylakeX"}])
    assert machine.warnings() == []


def test_blas_is_named_with_or_without_threadpoolctl(monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine.blas([{**OPENBLAS, "architecture": "Zen"}]) == "openblas 0.3.31, Zen kernels, 2 threads"
    monkeypatch.setitem(sys.modules, "threadpoolctl", None)
    assert machine.thread_pools() == []
    built_with = np.show_config(mode="dicts")["Build Dependencies"]["blas"]["name"]
    assert machine.blas([]).startswith(built_with)


def test_facts_hold_what_a_figure_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("SECRET", "1")
    facts = machine.facts()
    assert facts["cores"] >= 1
    assert facts["memory_mb"] > 100
    assert facts["environment"]["OMP_NUM_THREADS"] == "1"
    assert "SECRET" not in facts["environment"]
    assert facts["versions"]["numpy"] == np.__version__
    assert None not in facts["versions"].values()


def test_a_missing_package_has_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "PACKAGES", ("numpy", "no-such-package"))
    assert machine.versions()["no-such-package"] is None


def test_peak_memory_sees_an_array_that_is_gone_again() -> None:
    code = """
from minicnn.machine import PeakMemory
before = bytes(120 * 2**20); del before  # a peak that was before does not count
memory = PeakMemory()
grown = bytearray(b"x") * (60 * 2**20); del grown
print(memory.growth() // 2**20, memory.peak() >= memory.start)
"""
    growth, at_least = python(code).split()
    assert 55 <= int(growth) <= (80 if sys.platform == "linux" else 200)
    assert at_least == "True"


def test_where_there_is_no_proc_the_process_keeps_its_mark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    psutil = pytest.importorskip("psutil")  # loaded first, as its Linux part needs resource itself
    monkeypatch.setattr(machine, "_status", lambda field: 0)
    memory = machine.PeakMemory()
    assert memory.start > 2**20
    assert memory.growth() >= 0
    monkeypatch.setitem(sys.modules, "resource", None)
    peak = type("Info", (), {"peak_wset": 77})
    monkeypatch.setattr(psutil.Process, "memory_info", lambda self: peak)
    assert machine._process_peak() == 77
    monkeypatch.undo()
    monkeypatch.setattr(machine, "Path", lambda name: tmp_path / "nothing")
    assert machine._status("VmRSS") == 0


def test_memory_of_a_system_that_does_not_say(monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine.total_memory() > 2**27
    monkeypatch.delattr(os, "sysconf")
    assert machine.total_memory() == 0
