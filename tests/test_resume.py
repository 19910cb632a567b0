"""Training that is interrupted in whatever way, and resumed, ends with the bits of one that was not."""

from __future__ import annotations

import os
import tempfile
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
    pytest.importorskip(backend)
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


@pytest.mark.night("tests/test_saving.py::test_every_backend_goes_on_bit_for_bit")
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


@pytest.mark.parametrize("kind", ["loader", "generator"])
def test_a_back_up_after_the_last_of_the_steps_of_an_epoch_is_resumed(kind: str, tmp_path: Path) -> None:
    x, y = digits(24)
    folder = tmp_path / "backup"

    def fit(callbacks: list[Callback], epochs: int = EPOCHS) -> Sequential:
        loader = Loader(x, y, batch_size=6, seed=5)
        endless = (batch for epoch in range(epochs) for batch in loader)
        model = compiled()
        model.fit(
            loader if kind == "loader" else endless,
            epochs=epochs,
            steps_per_epoch=STEPS,
            verbose=0,
            callbacks=callbacks,
        )
        return model

    interruption = Interrupt("on_train_end", 1, RuntimeError)
    with pytest.raises(RuntimeError):
        fit([BackupAndRestore(folder, save_freq=STEPS // 2), interruption])
    resumed = fit([BackupAndRestore(folder, save_freq=STEPS // 2)])
    assert_same_bits(arrays(resumed), arrays(fit([])))
