"""Training that is interrupted in whatever way, and resumed, ends with the bits of one that was not."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minicnn import Sequential
from minicnn.callbacks import (
    BackupAndRestore,
    Callback,
    CSVLogger,
    EarlyStopping,
    History,
    LearningRateScheduler,
    ModelCheckpoint,
    ReduceLROnPlateau,
)
from minicnn.data import Loader
from minicnn.optimizers import SGD, Adam, Optimizer, RMSprop
from minicnn.schedules import OneCycle
from support.small_training import Interrupt, arrays, assert_same_bits, compiled, digits

# Where there is a file system in memory, the thousands of small files that are written here go there.
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None

EPOCHS = 3
STEPS = 4  # of 6 samples each, the last of 5


def jitter(x: np.ndarray[Any, Any], rng: np.random.Generator) -> np.ndarray[Any, Any]:
    return (x.astype(np.int32) + rng.integers(0, 20, x.shape)).clip(0, 255).astype(np.uint8)


@dataclass
class Recipe:
    """A training, made anew with the same arguments each time that it is begun or resumed."""

    optimizer: Callable[[], Optimizer]
    callbacks: Callable[[Path], list[Callback]] = lambda folder: []
    loader: bool = False
    options: dict[str, Any] = field(default_factory=dict)

    def fit(self, model: Sequential, folder: Path, more: list[Callback]) -> History:
        x, y = digits()
        validation = digits(7, seed=1)
        callbacks = [*more, *self.callbacks(folder)]
        if self.loader:
            loader = Loader(x, y, batch_size=6, seed=5, transform=jitter, workers=2)
            return model.fit(
                loader, epochs=EPOCHS, verbose=0, callbacks=callbacks, validation_data=validation, **self.options
            )
        return model.fit(x, y, 6, EPOCHS, 0, callbacks, validation_data=validation, **self.options)


def everything(folder: Path) -> list[Callback]:
    return [
        CSVLogger(folder / "log.csv"),
        EarlyStopping("loss", patience=1, min_delta=0.05, restore_best_weights=True),
        ReduceLROnPlateau("val_loss", factor=0.5, patience=1, min_delta=0.1),
        LearningRateScheduler(lambda epoch, rate: rate * 0.9),  # at the start of each epoch, so once in each
        ModelCheckpoint(folder / "best", "loss", save_best_only=True),
        ModelCheckpoint(folder / "every-{epoch}-{batch}", save_freq=3, save_weights_only=True),
    ]


RECIPES = {
    "everything": Recipe(lambda: Adam(0.02), everything, options={"seed": 11}),
    "momentum": Recipe(lambda: SGD(OneCycle(0.1, EPOCHS * STEPS), 0.9), options={"class_weight": {0: 2.0, 1: 0.5}}),
    "loader": Recipe(lambda: RMSprop(0.01, momentum=0.5), everything, loader=True),
    "pad": Recipe(lambda: Adam(0.01), options={"last_batch": "pad", "shuffle": False}),
}

POINTS = [
    "on_train_batch_begin",
    "on_train_batch_end",
    "on_epoch_begin",
    "on_epoch_end",
    "on_test_begin",
    "on_train_end",
]


interruptions = st.builds(
    Interrupt,
    st.sampled_from(POINTS),
    st.integers(1, EPOCHS * STEPS),
    st.sampled_from([RuntimeError, KeyboardInterrupt, SystemExit]),
)


def result(model: Sequential, history: History, folder: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Everything that a training leaves behind, to the bit."""
    left = {f"state/{name}": array for name, array in arrays(model).items()}
    left |= {f"history/{name}": np.array(values) for name, values in history.history.items()}
    for path in folder.iterdir():
        if path.is_file():
            left[f"file/{path.name}"] = np.frombuffer(path.read_bytes(), np.uint8)
    return left


class Models:
    """Models for one recipe on one backend; with JAX one is used again, because compiling takes seconds."""

    def __init__(self, recipe: Recipe, backend: str) -> None:
        self._make = lambda: compiled(backend, recipe.optimizer())
        self._kept = self._make() if backend == "jax" else None
        self._first: Mapping[str, Any] = self._kept.get_state() if self._kept else {}

    def __call__(self) -> Sequential:
        if self._kept is None:
            return self._make()
        self._kept.set_state(self._first)
        return self._kept


@cache
def uninterrupted(name: str, backend: str) -> tuple[Models, dict[str, np.ndarray[Any, Any]]]:
    models = Models(RECIPES[name], backend)
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        model = models()
        history = RECIPES[name].fit(model, Path(folder), [])
        return models, result(model, history, Path(folder))


def check(name: str, backend: str, breaks: list[Interrupt], save_freq: Any) -> None:
    models, expected = uninterrupted(name, backend)
    with tempfile.TemporaryDirectory(dir=MEMORY) as base:
        folder, backup = Path(base, "out"), Path(base, "backup")
        folder.mkdir()
        history = None
        for interruption in [*breaks, None]:
            model = models()
            more = [BackupAndRestore(backup, save_freq), *([interruption] if interruption else [])]
            try:
                history = RECIPES[name].fit(model, folder, more)
            except (RuntimeError, KeyboardInterrupt, SystemExit):
                continue
            break
        assert history is not None
        assert_same_bits(result(model, history, folder), expected)
        assert not backup.exists()


# Each example is several trainings.
few = settings(max_examples=settings().max_examples // 5)


@few
@pytest.mark.parametrize(
    ("backend", "name"), [*(("numpy", name) for name in RECIPES), ("torch", "everything"), ("torch", "loader")]
)
@given(breaks=st.lists(interruptions, max_size=3), save_freq=st.sampled_from(["epoch", 1, 2, 3, 5]))
def test_interrupted_and_resumed_ends_with_the_same_bits(
    backend: str, name: str, breaks: list[Interrupt], save_freq: Any
) -> None:
    check(name, backend, breaks, save_freq)


@few
@given(breaks=st.lists(interruptions, max_size=3), save_freq=st.sampled_from(["epoch", 1, 2, 3, 5]))
def test_interrupted_and_resumed_on_jax(breaks: list[Interrupt], save_freq: Any) -> None:
    check("everything", "jax", breaks, save_freq)


def test_the_trainings_above_are_worth_interrupting() -> None:
    _, left = uninterrupted("everything", "numpy")
    losses, rates = left["history/loss"], left["history/learning_rate"]
    assert len(losses) in (2, 3)
    assert rates[-1] < rates[0]
    assert {"file/best", "file/log.csv", "file/every-1-3"} <= set(left)
    assert len({left[k].tobytes() for k in left if k.startswith("state/")}) > 10


# Killed -----------------------------------------------------------------------------------------------------

WORKER = """
import os, signal, sys, time
sys.path.insert(0, sys.argv[1])
backend, folder, where, count = sys.argv[2], sys.argv[3], sys.argv[4], int(sys.argv[5])
from support.small_training import Interrupt, arrays, assert_same_bits, compiled, digits
from minicnn.callbacks import BackupAndRestore, Callback, ReduceLROnPlateau
import hashlib, io
import minicnn.files as files

def kill():
    os.kill(os.getpid(), signal.SIGKILL)

def counted(function):
    def call(*args, **options):
        global count
        count -= 1
        if count == 0:
            kill()
        return function(*args, **options)
    return call

if where == "write":
    class Half(io.FileIO):
        def write(self, data):
            global count
            count -= 1
            if count == 0:
                super().write(data[: len(data) // 2])
                kill()
            return super().write(data)
    files.open = lambda path, mode: Half(path, mode) if "x" in mode else open(path, mode)
elif where in ("fsync", "replace"):
    setattr(os, where, counted(getattr(os, where)))

class Slow(Callback):
    def on_train_batch_end(self, batch, logs):
        time.sleep(0.02 if where == "time" else 0)

print("ready", flush=True)
model = compiled(backend, "adam")
callbacks = [BackupAndRestore(folder, save_freq=2)] if where != "never" else []
callbacks += [ReduceLROnPlateau("loss", patience=1, min_delta=0.1), Slow()]
model.fit(*digits(), 6, 4, verbose=0, callbacks=callbacks)
total = hashlib.sha256()
for name, array in sorted(arrays(model).items()):
    total.update(name.encode() + array.tobytes())
print(total.hexdigest())
"""

killing = pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs signals of POSIX")


@cache
def compiled_programs() -> tempfile.TemporaryDirectory[str]:
    """Folder in which JAX keeps what it has compiled from one process to the next."""
    return tempfile.TemporaryDirectory(dir=MEMORY)


def work(backend: str, folder: Path, where: str = "", count: int = 0) -> subprocess.Popen[str]:
    arguments = [str(Path(__file__).parent), backend, str(folder), where, str(count)]
    environment = {
        **os.environ, "OMP_NUM_THREADS": "1",
        "JAX_COMPILATION_CACHE_DIR": compiled_programs().name, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }  # fmt: skip
    return subprocess.Popen(
        [sys.executable, "-c", WORKER, *arguments], stdout=subprocess.PIPE, text=True, env=environment
    )


@cache
def digest(backend: str) -> str:
    out, _ = work(backend, Path("/nowhere"), "never").communicate()
    return out.split()[-1]


@killing
@pytest.mark.parametrize(
    ("backend", "where", "count"),
    [
        ("numpy", "write", 1), ("numpy", "write", 3), ("numpy", "fsync", 3), ("numpy", "fsync", 6),
        ("numpy", "replace", 1), ("numpy", "replace", 4), ("torch", "write", 4), ("jax", "replace", 3),
    ],
)  # fmt: skip
def test_killed_while_it_writes(backend: str, where: str, count: int, tmp_path: Path) -> None:
    folder = tmp_path / "backup"
    with work(backend, folder, where, count) as killed:
        killed.communicate()
    assert killed.returncode == -signal.SIGKILL
    with work(backend, folder) as resumed:
        out, _ = resumed.communicate()
    assert resumed.returncode == 0
    assert out.split()[-1] == digest(backend)
    assert not folder.exists()  # nor what was left of the file that was being written


@killing
def test_killed_at_any_time(tmp_path: Path) -> None:
    folder, rng = tmp_path / "backup", random.Random(0)
    kills = 0
    for attempt in range(20):
        with work("numpy", folder, "time" if attempt < 4 else "") as process:
            assert process.stdout is not None
            process.stdout.readline()  # it is ready
            if attempt < 4:
                time.sleep(rng.uniform(0.02, 0.3))
                process.kill()
            out = process.stdout.read()
        if process.returncode == 0:
            break
        kills += 1
    assert kills >= 2
    assert out.split()[-1] == digest("numpy")
