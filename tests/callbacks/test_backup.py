"""What a back-up is good for, and what it refuses."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minicnn import Sequential
from minicnn.callbacks import (
    BackupAndRestore,
    Callback,
    EarlyStopping,
    History,
    LambdaCallback,
    ReduceLROnPlateau,
    Timer,
)
from minicnn.files import SavedModelError
from minicnn.optimizers import Adam
from minicnn.schedules import OneCycle
from support.small_training import Interrupt, arrays, assert_same_bits, compiled, digits

EPOCHS = 3


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
