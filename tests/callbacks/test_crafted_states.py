"""Back-ups whose state somebody has changed, with a checksum that fits: taken up whole, or refused whole."""

from __future__ import annotations

import copy
import shutil
import warnings
from collections.abc import Callable
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
    LambdaCallback,
    ModelCheckpoint,
    ReduceLROnPlateau,
    Timer,
)
from minicnn.files import SavedModelError, Tensors, read_tensors, write_tensors
from minicnn.layers import BatchNormalization, Dense, Input
from minicnn.optimizers import Adam, Optimizer
from minicnn.schedules import ExponentialDecay
from support.small_training import Interrupt, arrays, assert_same_bits, places

STEPS, EPOCHS = 3, 2
SUMS = "model/totals/arrays/metric/loss"


def model_of(optimizer: str | Optimizer = "adam") -> Sequential:
    model = Sequential([Input((4,)), Dense(3), BatchNormalization(), Dense(2)], backend="numpy")
    model.compile(optimizer, "mse", ["mae"])
    return model


def fit(model: Sequential, folder: Path, *more: Callback) -> Any:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(6, 4)), rng.normal(size=(6, 2))
    callbacks = [
        Timer(), CSVLogger(folder / "log.csv"), ModelCheckpoint(folder / "best", "loss", save_best_only=True),
        EarlyStopping("loss", patience=9, restore_best_weights=True), ReduceLROnPlateau("loss"),
        BackupAndRestore(folder / "backup", 1), *more,
    ]  # fmt: skip
    return model.fit(x, y, 2, EPOCHS, 0, callbacks)


@pytest.fixture(scope="module")
def backup(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tensors, dict[str, Any]]:
    """A back-up that was made within the second epoch."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.raises(RuntimeError):
        fit(model_of(), folder, Interrupt("on_train_batch_end", STEPS + 2, RuntimeError))
    return read_tensors(folder / "backup" / "backup.safetensors")


def resumed(folder: Path, tensors: Tensors, about: dict[str, Any], model: Sequential | None = None) -> Any:
    """The History of a training that goes on from a crafted back-up, or None after an error of ours."""
    path = folder / "backup" / "backup.safetensors"
    path.parent.mkdir(exist_ok=True)
    try:
        write_tensors(path, tensors, about)
    except ValueError:  # no plain data: no such file can be
        return None
    model = model or model_of()
    before = copy.deepcopy(arrays(model)), model.optimizer.learning_rate, model.samples_seen  # type: ignore[union-attr]
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of callbacks that have no state in the back-up
        try:
            return fit(model, folder)
        except SavedModelError as error:
            text = str(error)
            assert str(path) in text
            assert text.endswith(".")
            assert_same_bits(arrays(model), before[0])
            assert (model.optimizer.learning_rate, model.samples_seen) == before[1:]  # type: ignore[union-attr]
            return None


def test_what_was_not_changed_is_taken_up(tmp_path: Path, backup: tuple[Tensors, dict[str, Any]]) -> None:
    model, plain = model_of(), model_of()
    history = resumed(tmp_path, *backup, model)
    assert history.epoch == [0, 1]
    (tmp_path / "plain").mkdir()
    assert fit(plain, tmp_path / "plain").history["loss"] == history.history["loss"]
    assert_same_bits(arrays(model), arrays(plain))


def state(part: str, key: str, value: Any) -> Callable[[Tensors, dict[str, Any]], Any]:
    def change(tensors: Tensors, about: dict[str, Any]) -> None:
        found = about["state"]["model"] if part == "model" else about["state"]["callbacks"][part]
        found[key] = value

    return change


CHANGES: dict[str, Callable[[Tensors, dict[str, Any]], Any]] = {
    "no state": lambda tensors, about: about.pop("state"),
    "no about": lambda tensors, about: about.pop("about"),
    "no format": lambda tensors, about: about.pop("format"),
    "another format": lambda tensors, about: about.update(format=1),
    "a state that is a list": lambda tensors, about: about.update(state=[]),
    "no weights": lambda tensors, about: about["state"]["model"]["arrays"].pop("dense/kernel"),
    "other weights": lambda tensors, about: tensors.update({"model/arrays/dense/kernel": np.zeros((4, 4), "f4")}),
    "weights of another type": lambda tensors, about: tensors.update({"model/arrays/dense/bias": np.zeros(3, "i4")}),
    "an unknown array": lambda tensors, about: about["state"]["model"]["arrays"].update(
        more={"$tensor": "model/arrays/dense/bias"}
    ),
    "an unknown tensor": state("model", "arrays", {"dense/kernel": {"$tensor": "none"}}),
    "a tensor named by a list": state("model", "arrays", {"dense/kernel": {"$tensor": []}}),
    "a float that is none": state("model", "learning_rate", {"$float": "rate"}),
    "no learning rate": state("model", "learning_rate", None),
    "a huge learning rate": state("model", "learning_rate", 10**400),
    "a learning rate in words": state("model", "learning_rate", "low"),
    "a position of three": state("model", "position", [0, 1, 2]),
    "a position in another epoch of more steps": state("model", "position", [1, 77]),
    "negative steps": state("model", "steps_taken", -1),
    "steps beyond int32": state("model", "steps_taken", 2**40),
    "a flag that is a number": state("model", "stop_training", 3),
    "huge samples": state("model", "samples_seen", 10**400),
    "no totals": state("model", "totals", {}),
    "totals without their parts": state("model", "totals", {"arrays": {}}),
    "a count of zero": lambda tensors, about: tensors.update({f"{SUMS}/count": np.zeros((), "f4")}),
    "totals of another shape": lambda tensors, about: tensors.update({f"{SUMS}/total": np.zeros(5, "f4")}),
    "steps that are no number": lambda tensors, about: about["state"]["model"]["totals"].update(steps="2"),
    "earlier sums of another type": lambda tensors, about: (
        tensors.update(more=np.zeros((), "f4")),
        about["state"]["model"]["totals"]["earlier"].update({"metric/loss/count": {"$tensor": "more"}}),
    ),
    "history without epochs": state("History", "epoch", None),
    "history of numbers": state("History", "history", {"loss": 3}),
    "patience in words": state("EarlyStopping", "wait", "long"),
    "best weights of another model": state("EarlyStopping", "best_weights", {}),
    "a best value in words": state("ModelCheckpoint", "best", "good"),
    "a best rate that is a list": state("ReduceLROnPlateau", "best", [1]),
    "rows in words": state("CSVLogger", "rows", "many"),
    "time without end": state("Timer", "time", {"$float": "inf"}),
    "a callback without its parts": lambda tensors, about: about["state"]["callbacks"].update(Timer={}),
    "a callback with a list": lambda tensors, about: about["state"]["callbacks"].update(Timer=[]),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_crafted_state_is_refused_and_nothing_has_changed(
    change: Callable[[Tensors, dict[str, Any]], Any], tmp_path: Path, backup: tuple[Tensors, dict[str, Any]]
) -> None:
    tensors, about = copy.deepcopy(backup)
    change(tensors, about)
    assert resumed(tmp_path, tensors, about) is None
    assert (tmp_path / "backup" / "backup.safetensors").exists()


def test_set_state_refuses_as_well() -> None:
    model = model_of()
    before = arrays(model)
    for wrong in ({}, None, {**model.get_state(), "position": None}, {**model.get_state(), "arrays": {}}):
        with pytest.raises(ValueError, match=r"A state of Sequential has position, .*\. Received: .*\. Use "):
            model.set_state(wrong)  # type: ignore[arg-type]
    assert_same_bits(arrays(model), before)


def test_a_schedule_without_end_is_refused_where_it_overflows() -> None:
    model = model_of(Adam(ExponentialDecay(1.0, 1, 10.0, True)))
    with pytest.raises(ValueError, match="steps_taken = 2000"):
        model.set_state({**model.get_state(), "steps_taken": 2000})
    model.set_state(model.get_state())


def test_callbacks_of_others_that_fail_are_refused(tmp_path: Path, backup: tuple[Tensors, dict[str, Any]]) -> None:
    class Strict(Callback):
        seen = 0

        def get_state(self) -> dict[str, Any]:
            return {"seen": self.seen}

        def set_state(self, state: Any) -> None:
            self.seen = state["seen"]
            raise KeyError("other")

    tensors, about = copy.deepcopy(backup)
    about["state"]["callbacks"]["Strict"] = {"seen": 3}
    (tmp_path / "backup").mkdir()
    write_tensors(tmp_path / "backup" / "backup.safetensors", tensors, about)
    model, strict = model_of(), Strict()
    before = arrays(model)
    with pytest.raises(SavedModelError, match=r"a callback does not take its state \(KeyError: 'other'\)"):
        fit(model, tmp_path, strict)
    assert strict.seen == 0
    assert_same_bits(arrays(model), before)


# Mutations ----------------------------------------------------------------------------------------------------

ANYTHING = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 7), st.sampled_from([2**31, 2**63, 10**30, -(10**400), 10**400]),
    st.floats(allow_nan=False, allow_infinity=False), st.sampled_from(["", "loss", "nan", "dense/kernel", "\ud800"]),
    st.just([]), st.just({}), st.lists(st.integers(-1, 3), max_size=3), st.just({"$float": "nan"}),
    st.just({"$float": 3}), st.just({"$tensor": "none"}), st.just({"$tensor": "model/arrays/dense/kernel"}),
    st.just({"$tensor": "model/arrays/step"}), st.just({"loss": {}}), st.just({"$tensor": {}}),
)  # fmt: skip
ARRAYS = st.sampled_from(
    [
        np.zeros(()),
        np.zeros((), "f4"),
        np.zeros(3, "f4"),
        np.full((4, 3), np.nan, "f4"),
        np.zeros((0,)),
        np.array(5, "i4"),
    ]
)


@settings(max_examples=2 * settings().max_examples)  # more with HYPOTHESIS_PROFILE=nightly
@given(st.data())
def test_any_state_is_taken_up_or_refused_whole(
    backup: tuple[Tensors, dict[str, Any]], tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    tensors, about = copy.deepcopy(backup)
    for _ in range(data.draw(st.integers(1, 3))):
        if data.draw(st.integers(0, 3)) == 0:
            tensors[data.draw(st.sampled_from(sorted(tensors)))] = data.draw(ARRAYS)
            continue
        container, key = data.draw(st.sampled_from(places(about)))
        if isinstance(container, dict) and data.draw(st.booleans()):
            container.pop(key)
        else:
            container[key] = copy.deepcopy(data.draw(ANYTHING))
    folder = tmp_path_factory.mktemp("crafted")
    try:
        resumed(folder, tensors, about)
    finally:
        shutil.rmtree(folder)


# The folder ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [True, False])
def test_a_folder_that_vanishes_after_the_last_save_takes_nothing_with_it(keep: bool, tmp_path: Path) -> None:
    class Vanish(Callback):
        runs_last = True

        def on_train_end(self, logs: Any) -> None:
            shutil.rmtree(tmp_path / "backup")

    callbacks = [Vanish(), BackupAndRestore(tmp_path / "backup", delete_checkpoint=not keep)]
    history = model_of().fit(np.zeros((4, 4)), np.zeros((4, 2)), 2, EPOCHS, 0, callbacks)
    assert history.epoch == [0, 1]


def test_a_back_up_that_cannot_be_deleted_is_warned_about(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Any) -> None:
        raise PermissionError(13, "no", path)

    lock = LambdaCallback(on_train_end=lambda logs: monkeypatch.setattr("os.unlink", refuse))
    with pytest.warns(
        UserWarning, match=r"A back-up is deleted when training has ended\. Received: .*Delete '.*backup"
    ):
        history = model_of().fit(np.zeros((4, 4)), np.zeros((4, 2)), 2, EPOCHS, 0, [lock, BackupAndRestore(tmp_path)])
    assert history.epoch == [0, 1]
