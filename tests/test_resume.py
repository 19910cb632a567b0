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
    LambdaCallback,
    LearningRateScheduler,
    ModelCheckpoint,
    ReduceLROnPlateau,
    Timer,
)
from minicnn.data import Loader
from minicnn.files import SavedModelError
from minicnn.optimizers import SGD, Adam, Optimizer, RMSprop
from minicnn.schedules import OneCycle
from small_training import arrays, assert_same_bits, compiled, digits

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


class Interrupt(Callback):
    """Breaks training off when a point comes for the given time."""

    def __init__(self, point: str, count: int, error: type[BaseException]) -> None:
        self._left = count

        def interrupt(*_: Any) -> None:
            self._left -= 1
            if self._left == 0:
                raise error

        setattr(self, point, interrupt)


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
from small_training import arrays, compiled, digits
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
        time.sleep(0.01 if where == "time" else 0)

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


# What a back-up is good for -----------------------------------------------------------------------------------


def interrupted(folder: Path, optimizer: Any = "adam", after: int = 6, **options: Any) -> None:
    """Leave a back-up of a training behind."""
    callbacks = [BackupAndRestore(folder, 1), Interrupt("on_train_batch_end", after, RuntimeError)]
    with pytest.raises(RuntimeError):
        compiled(optimizer=optimizer).fit(*digits(), 6, EPOCHS, 0, callbacks, **options)


def resume(folder: Path, model: Sequential | None = None, batch_size: int = 6, **options: Any) -> History:
    model = model or compiled()
    return model.fit(*digits(), batch_size, EPOCHS, 0, [BackupAndRestore(folder)], **options)


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (lambda: compiled(units=4), {}, r"graph.layers\[7\].config.units was 3, is 4"),
        (lambda: compiled(seed=1), {}, "seed was 0, is 1"),
        (lambda: compiled(optimizer="sgd"), {}, "compile.optimizer.class was 'Adam', is 'SGD'"),
        (lambda: compiled(optimizer=Adam(beta_1=0.8)), {}, "compile.optimizer.config.beta_1 was 0.9, is 0.8"),
        (lambda: compiled(optimizer=Adam(OneCycle(0.1, 9))), {}, "compile.optimizer.config.learning_rate was None, is"),
        (compiled, {"batch_size": 5}, "fit.steps was 4, is 5"),
        (compiled, {"seed": 3}, "fit.seed was 0, is 3"),
        (compiled, {"shuffle": False}, "fit.shuffle was True, is False"),
        (compiled, {"last_batch": "pad"}, "fit.last_batch was 'keep', is 'pad'"),
    ],
)
def test_the_back_up_of_another_training_is_refused(
    model: Callable[[], Sequential], options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    interrupted(tmp_path)
    new = model()
    before = arrays(new)
    with pytest.raises(SavedModelError, match=rf"another training: {message}.*Go on with what it was made with"):
        resume(tmp_path, new, **options)
    assert_same_bits(arrays(new), before)
    resume(tmp_path)  # the back-up is still there


def test_another_learning_rate_gives_way_to_that_of_the_back_up(tmp_path: Path) -> None:
    plain = compiled(optimizer=Adam(0.02))
    plain.fit(*digits(), 6, EPOCHS, 0)
    interrupted(tmp_path, Adam(0.02))
    model = compiled(optimizer=Adam(0.5))
    resume(tmp_path, model)
    assert_same_bits(arrays(model), arrays(plain))


@pytest.mark.parametrize("damage", ["truncated", "flipped", "model", "empty"])
def test_a_damaged_back_up_is_refused(damage: str, tmp_path: Path) -> None:
    interrupted(tmp_path)
    path = tmp_path / "backup.safetensors"
    content = path.read_bytes()
    if damage == "model":
        compiled().save(path)
    elif damage == "flipped":
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    else:
        path.write_bytes(content[: len(content) // 2 if damage == "truncated" else 0])
    with pytest.raises(SavedModelError, match=r"backup.safetensors"):
        resume(tmp_path)


def test_resuming_with_other_callbacks_is_warned_about(tmp_path: Path) -> None:
    interrupted(tmp_path)
    with pytest.warns(UserWarning, match=r"callbacks that it was begun with.*ReduceLROnPlateau"):
        compiled().fit(*digits(), 6, EPOCHS, 0, [BackupAndRestore(tmp_path), ReduceLROnPlateau("loss")])


def test_the_same_process_can_resume_its_own_model(tmp_path: Path) -> None:
    plain, model = compiled(), compiled()
    plain.fit(*digits(), 6, EPOCHS, 0)
    backup, stop = BackupAndRestore(tmp_path / "b", 2), Interrupt("on_train_batch_end", 7, KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        model.fit(*digits(), 6, EPOCHS, 0, [stop, backup])
    model.fit(*digits(), 6, EPOCHS, 0, [backup])
    assert_same_bits(arrays(model), arrays(plain))


def test_a_back_up_that_is_kept_ends_the_next_training_before_it_begins(tmp_path: Path) -> None:
    backup = BackupAndRestore(tmp_path, delete_checkpoint=False)
    first, second, longer, plain = (compiled() for _ in range(4))
    history = first.fit(*digits(), 6, 2, 0, [backup])
    assert second.fit(*digits(), 6, 2, 0, [backup]).history == history.history
    assert_same_bits(arrays(second), arrays(first))
    assert longer.fit(*digits(), 6, 4, 0, [backup]).epoch == [0, 1, 2, 3]
    plain.fit(*digits(), 6, 4, 0)
    assert_same_bits(arrays(longer), arrays(plain))


def test_training_that_had_stopped_does_not_go_on(tmp_path: Path) -> None:
    def callbacks() -> list[Callback]:
        stop = EarlyStopping("loss", min_delta=100.0, patience=1, restore_best_weights=True)
        return [stop, BackupAndRestore(tmp_path / "b"), Interrupt("on_train_end", 1, RuntimeError)]

    plain, model = compiled(), compiled()
    plain.fit(*digits(), 6, 5, 0, callbacks()[:1])
    with pytest.raises(RuntimeError):
        compiled().fit(*digits(), 6, 5, 0, callbacks())
    assert model.fit(*digits(), 6, 5, 0, callbacks()[:2]).epoch == [0, 1]
    assert_same_bits(arrays(model), arrays(plain))


def test_training_that_was_stopped_within_an_epoch_ends_it(tmp_path: Path) -> None:
    def stop(batch: int, logs: Any) -> None:
        stopped.stop_training = batch == 1

    def fit(model: Sequential, *more: Callback) -> History:
        stopping = LambdaCallback(on_train_batch_end=stop)
        return model.fit(*digits(), 6, 5, 0, [stopping, *more], validation_data=digits(5))

    stopped = plain = compiled()
    expected = fit(plain).history
    stopped = compiled()
    with pytest.raises(RuntimeError):
        fit(stopped, BackupAndRestore(tmp_path / "b", 1), Interrupt("on_test_begin", 1, RuntimeError))
    stopped = compiled()
    assert fit(stopped, BackupAndRestore(tmp_path / "b", 1)).history == expected
    assert_same_bits(arrays(stopped), arrays(plain))


def test_what_a_callback_does_at_the_start_of_an_epoch_is_not_done_twice(tmp_path: Path) -> None:
    def halve(epoch: int, logs: Any) -> None:
        weights = model.get_weights()
        model.set_weights({"dense/kernel": weights["dense/kernel"] / 2})

    callbacks = [LambdaCallback(on_epoch_begin=halve), BackupAndRestore(tmp_path, 1)]
    model = plain = compiled()
    plain.fit(*digits(), 6, EPOCHS, 0, callbacks[:1])
    model = compiled()
    with pytest.raises(RuntimeError):
        model.fit(*digits(), 6, EPOCHS, 0, [*callbacks, Interrupt("on_train_batch_end", 6, RuntimeError)])
    model = compiled()
    model.fit(*digits(), 6, EPOCHS, 0, callbacks)
    assert_same_bits(arrays(model), arrays(plain))


def test_states_of_all_kinds_come_back(tmp_path: Path) -> None:
    state = {
        "none": None, "nan": float("nan"), "inf": -float("inf"), "tiny": 5e-324, "third": 1 / 3, "big": 2**80,
        "text": "ü\n\"", "list": [1, [2.5, {"deep": np.arange(3, dtype=">i2")}], ()], "true": True,
        "a/b": np.ones(2), "a": {"b": np.zeros(2, bool)}, "scalar": np.float32(0.1), "array": np.array(7),
    }  # fmt: skip

    class Holder(Callback):
        found: Any = None

        def get_state(self) -> dict[str, Any]:
            return state

        def set_state(self, state: Any) -> None:
            self.found = state

    holder = Holder()
    stop = Interrupt("on_train_batch_end", 3, RuntimeError)
    with pytest.raises(RuntimeError):
        compiled().fit(*digits(), 6, 1, 0, [holder, BackupAndRestore(tmp_path, 1), stop])
    compiled().fit(*digits(), 6, 1, 0, [holder, BackupAndRestore(tmp_path, 1)])
    expected = {**state, "scalar": float(np.float32(0.1)), "list": [1, state["list"][1], []]}  # type: ignore[index]
    np.testing.assert_equal(holder.found, expected)
    assert holder.found["list"][1][1]["deep"].dtype == np.int16


def test_a_state_that_is_no_plain_data_is_an_error(tmp_path: Path) -> None:
    class Holder(Callback):
        def get_state(self) -> dict[str, Any]:
            return {"model": self}

    with pytest.raises(ValueError, match="plain data"):
        compiled().fit(*digits(), 6, 1, 0, [Holder(), BackupAndRestore(tmp_path)])
    assert not list(tmp_path.iterdir())


def test_other_files_in_the_folder_stay(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    compiled().fit(*digits(), 6, 1, 0, [BackupAndRestore(tmp_path)])
    assert [p.name for p in tmp_path.iterdir()] == ["mine"]


def test_time_goes_on_where_it_was(tmp_path: Path) -> None:
    slow = LambdaCallback(on_train_batch_end=lambda batch, logs: time.sleep(0.02))
    stop = Interrupt("on_train_batch_end", 4, RuntimeError)
    with pytest.raises(RuntimeError):
        compiled().fit(*digits(), 6, 1, 0, [Timer(), slow, BackupAndRestore(tmp_path, 1), stop])
    history = compiled().fit(*digits(), 6, 1, 0, [Timer(), slow, BackupAndRestore(tmp_path, 1)]).history
    assert history["time_s"][0] >= 0.08
    assert history["samples_per_s"] == [23 / history["time_s"][0]]


@pytest.mark.parametrize("save_freq", ["batch", 0, 1.5])
def test_save_freq_of_a_back_up(save_freq: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="save_freq is 'epoch' or a number of batches"):
        BackupAndRestore(tmp_path, save_freq)
