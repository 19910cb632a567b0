"""Training and saving are killed at chosen points and at random moments: nothing is lost, and no bit is another."""

from __future__ import annotations

import random
import signal
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minicnn import Model
from support.campaign import BACKENDS, size
from support.killed import finish, start

pytestmark = [
    pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs signals of POSIX"),
    pytest.mark.no_cover,
]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables by which processes share what JAX and Numba have compiled."""
    folder = str(tmp_path_factory.mktemp("compiled"))
    return {
        "JAX_COMPILATION_CACHE_DIR": folder, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "MINICNN_CACHE": folder,
    }  # fmt: skip


def check_end(backend: str, folder: Path, compiled: dict[str, str], *kills: str) -> str:
    """A training that is killed at these points goes on to its end, with the bits of one that is not: their digest."""
    resumed, undisturbed = finish(start("fit", backend, folder, *kills, "to-the-end", **compiled)).split()[-2:]
    assert resumed == undisturbed
    assert not folder.exists()  # nor what was left of the file that was being written
    return undisturbed


@pytest.mark.parametrize(
    ("backend", "kills"),
    [
        ("numpy", ["write:1", "write:3", "fsync:3", "replace:1"]),
        ("numpy", ["fsync:6", "replace:4"]),
        ("torch", ["write:4"]),
        ("jax", ["replace:3"]),
    ],
)
def test_fit_killed_while_it_writes(backend: str, kills: list[str], tmp_path: Path, compiled: dict[str, str]) -> None:
    """Each kill but the first meets a training that goes on from a back-up."""
    check_end(backend, tmp_path / "backup", compiled, *kills)


def kill_at_a_moment(process: Any, rng: random.Random, longest: float) -> tuple[int, str]:
    """Kill a process some time after its first line: its code, and what it printed after that line."""
    with process:
        process.stdout.readline()
        time.sleep(rng.uniform(0, longest))
        process.kill()
        return process.wait(), process.stdout.read()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("seed", range(size(50, 1)))
def test_fit_killed_at_random_moments(seed: int, backend: str, tmp_path: Path, compiled: dict[str, str]) -> None:
    rng, folder, ready = random.Random(seed), tmp_path / "backup", set()
    for _ in range(rng.randint(1, 3)):
        code, out = kill_at_a_moment(start("fit", backend, folder, "time", **compiled), rng, 0.5)
        if code == 0:  # it was ready before, and with it went the back-up
            ready.add(out.split()[-1])
    assert ready <= {check_end(backend, folder, compiled)}


def number_of(path: Path) -> int:
    """The one number that all weights of a saved model have."""
    found = {float(n) for array in Model.load(path, backend="numpy").get_weights().values() for n in np.unique(array)}
    assert len(found) == 1
    return int(found.pop())


@pytest.mark.parametrize("seed", range(size(100, 3)))
def test_save_killed_at_random_moments(seed: int, tmp_path: Path) -> None:
    rng, path = random.Random(seed), tmp_path / "model"
    where = rng.choice(["time", "write", "fsync", "replace"])
    if where == "time":
        _, out = kill_at_a_moment(start("save", "numpy", path, where), rng, 0.3)
    else:
        point = f"{where}:{rng.randint(1, 9)}"
        out = finish(start("save", "numpy", path, point), -signal.SIGKILL).removeprefix("ready")
    saved = int([0, *out.split()][-1])
    assert path.exists() or saved == 0
    if path.exists():
        assert number_of(path) in (saved, saved + 1)


def test_two_that_save_to_one_file_leave_it_whole_at_any_time(tmp_path: Path) -> None:
    path = tmp_path / "model"
    writers = [start("save", "numpy", path, "time") for _ in range(2)]
    looks = 0
    while any(w.poll() is None for w in writers):
        if path.exists():
            assert number_of(path) >= 1
            looks += 1
        time.sleep(0.005)
    for writer in writers:
        finish(writer)
    assert looks > 5
    assert number_of(path) == 99
    assert list(tmp_path.iterdir()) == [path]


@cache
def arguments() -> list[str]:
    return ["train", "mlp", "--data", "synthetic_digits", "--samples", "300", "--epochs", "3", "--out"]


@cache
def undisturbed_run(backend: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "run")
        finish(start(*arguments(), out, "--backend", backend, module="minicnn"))
        return (out / "model.safetensors").read_bytes()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("seed", range(size(50, 1)))
def test_train_killed_at_random_moments(seed: int, backend: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    expected, rng, model = undisturbed_run(backend), random.Random(seed), tmp_path / "run" / "model.safetensors"
    command = [*arguments(), model.parent, "--backend", backend, "--overwrite"]
    for _ in range(rng.randint(1, 2)):
        kill_at_a_moment(start(*command, module="minicnn"), rng, 1.0)
        assert not model.exists() or model.read_bytes() == expected
    finish(start(*command, module="minicnn"))
    assert model.read_bytes() == expected
