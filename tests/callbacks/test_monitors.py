from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicnn import Sequential
from minicnn.callbacks import EarlyStopping, LambdaCallback, ModelCheckpoint, ReduceLROnPlateau, TerminateOnNaN
from minicnn.callbacks.monitors import Monitor
from minicnn.layers import Dense, Input
from minicnn.losses import SparseCategoricalCrossentropy
from support.small_training import arrays, assert_same_bits, compiled, digits


class Weights:
    """Stands for a model whose weights are the number of the epoch."""

    def __init__(self) -> None:
        self.stop_training = False
        self.now = np.array(-1)

    def get_weights(self) -> dict[str, Any]:
        return {"w": self.now.copy()}

    def set_weights(self, weights: dict[str, Any]) -> None:
        self.now = weights["w"]


def epochs_run(callback: EarlyStopping, values: Sequence[float], first: int = 0) -> tuple[int, int]:
    """How many epochs are run before the callback stops training, and whose weights are left."""
    callback.model = model = Weights()  # type: ignore[assignment]
    if not first:
        callback.on_train_begin({})
    done = first
    for epoch, value in enumerate(values[first:], start=first):
        model.now = np.array(epoch)
        callback.on_epoch_end(epoch, {"val_loss": value})
        done = epoch + 1
        if model.stop_training:
            break
    callback.on_train_end({})
    return done, int(model.now)


@pytest.mark.parametrize(
    ("arguments", "values", "expected"),
    [
        ({}, [3, 2, 1, 1, 0], 4),  # equal is not better
        ({}, [3, 4, 0], 2),
        ({"patience": 2}, [3, 4, 4, 0], 3),
        ({"patience": 2}, [3, 4, 2, 3, 1, 2, 2, 0], 7),
        ({"min_delta": 1}, [5, 3.5, 3, 0], 3),  # 3.5 is better by 1.5, 3 by half
        ({"min_delta": -1}, [5, 3.5, 3, 0], 3),
        ({"mode": "max"}, [1, 2, 3, 2, 9], 4),
        ({"mode": "max", "min_delta": 1}, [1, 3, 3.5, 9], 3),
        ({"baseline": 2.0, "patience": 2}, [5, 4, 3, 1], 4),  # better each time: never stopped, as in Keras
        ({"baseline": 2.0, "patience": 2}, [5, 5, 5, 1], 2),
        ({"baseline": 2.0, "patience": 2}, [1, 5, 5, 0], 3),
        ({"start_from_epoch": 3}, [1, 2, 3, 4, 5, 0], 5),
        ({"start_from_epoch": 3, "patience": 2}, [1, 2, 3, 4, 5, 5, 0], 6),
        ({}, [math.nan, math.nan, 0], 2),
        ({}, [3, 2, 1], 3),
    ],
)
def test_early_stopping_stops_where_keras_does(arguments: dict[str, Any], values: list[float], expected: int) -> None:
    assert epochs_run(EarlyStopping(**arguments), values)[0] == expected


@pytest.mark.parametrize(
    ("values", "left"), [([3, 1, 2, 2, 2], 1), ([3, 2, 1], 2), ([math.nan, math.nan, math.nan], 0)]
)
def test_the_best_weights_are_put_back(values: list[float], left: int) -> None:
    callback = EarlyStopping(patience=2, restore_best_weights=True)
    assert epochs_run(callback, values)[1] == left
    assert callback.best_epoch == left


def test_without_being_asked_the_last_weights_stay() -> None:
    assert epochs_run(EarlyStopping(patience=2), [3, 1, 2, 2])[1] == 3


@given(
    st.lists(st.sampled_from([1.0, 2.0, 3.0, math.nan]), min_size=1, max_size=12),
    st.integers(0, 3),
    st.integers(0, 11),
    st.booleans(),
)
def test_early_stopping_goes_on_from_its_state(values: list[float], patience: int, cut: int, restore: bool) -> None:
    whole = EarlyStopping(patience=patience, restore_best_weights=restore)
    expected = epochs_run(whole, values)
    first, second = (EarlyStopping(patience=patience, restore_best_weights=restore) for _ in range(2))
    cut = min(cut, expected[0] - 1)
    epochs_run(first, values[:cut])
    second.model = Weights()  # type: ignore[assignment]
    second.set_state(first.get_state())
    assert epochs_run(second, values, cut) == expected if cut else True


def test_it_says_when_it_stops(capsys: pytest.CaptureFixture[str]) -> None:
    epochs_run(EarlyStopping(verbose=1), [3, 4])
    assert capsys.readouterr().out == "Epoch 2: stopped early; val_loss was best, 3, in epoch 1.\n"
    epochs_run(EarlyStopping(verbose=1), [3, 2])
    assert not capsys.readouterr().out


def test_early_stopping_in_fit() -> None:
    model = compiled()
    kept: list[Any] = []
    keep = LambdaCallback(on_epoch_end=lambda epoch, logs: kept.append(model.get_weights()))
    never_better = EarlyStopping("loss", min_delta=100.0, patience=3, restore_best_weights=True)
    history = model.fit(*digits(), 23, 20, verbose=0, callbacks=[keep, never_better])
    assert history.epoch == [0, 1, 2, 3]
    assert never_better.stopped_epoch == 3
    assert_same_bits(model.get_weights(), kept[0])


def test_it_begins_anew_in_each_training() -> None:
    model = compiled()
    callback = EarlyStopping("loss", min_delta=100.0, patience=2)
    assert [len(model.fit(*digits(), verbose=0, epochs=9, callbacks=[callback]).epoch) for _ in range(2)] == [3, 3]


@pytest.mark.parametrize(
    ("name", "more"),
    [("val_loss", False), ("accuracy", True), ("val_top_k_categorical_accuracy", True), ("error", False)],
)
def test_auto_goes_by_the_name(name: str, more: bool) -> None:
    assert Monitor(name).more is more


def test_auto_does_not_guess() -> None:
    with pytest.raises(ValueError, match=r"mode='auto' tells by the name.*monitor='f1'.*Say mode='min' or mode='max'"):
        EarlyStopping("f1")
    assert Monitor("f1", "max").more


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(ValueError, match=r"mode is 'auto', 'min' or 'max'. Received: 'least'"):
        EarlyStopping(mode="least")  # type: ignore[arg-type]


def test_an_unknown_log_is_an_error_that_names_those_that_there_are() -> None:
    with pytest.raises(ValueError, match=r"Received: 'val_loss'; there are: loss, accuracy. .*need validation data"):
        compiled().fit(*digits(), verbose=0, callbacks=[EarlyStopping()])


def test_a_matrix_cannot_be_monitored() -> None:
    with pytest.raises(ValueError, match=r"Received: 'matrix'; there are: loss."):
        Monitor("matrix", "max").value({"loss": 1.0, "matrix": np.eye(2)})


def test_terminate_on_nan_stops_at_the_step(capsys: pytest.CaptureFixture[str]) -> None:
    model = compiled()
    steps: list[int] = []

    def damage(batch: int, logs: Any) -> None:
        steps.append(batch)
        if batch == 2:
            model.set_weights({"dense/bias": np.full(3, math.nan, "float32")})

    history = model.fit(
        *digits(), 5, 3, verbose=0, callbacks=[LambdaCallback(on_train_batch_begin=damage), TerminateOnNaN()]
    )
    assert steps == [0, 1, 2]
    assert math.isnan(history.history["loss"][0])
    assert capsys.readouterr().out == "Batch 2: the loss is nan, training is stopped.\n"


@pytest.mark.parametrize(("loss", "stops"), [(math.inf, True), (-math.inf, True), (1e30, False)])
def test_terminate_on_nan_takes_infinity_for_one(loss: float, stops: bool) -> None:
    callback = TerminateOnNaN()
    callback.model = model = Weights()  # type: ignore[assignment]
    callback.on_train_batch_end(0, {"loss": loss})
    assert model.stop_training is stops


def test_terminate_on_nan_leaves_a_sound_training_alone() -> None:
    plain, watched = compiled(), compiled()
    plain.fit(*digits(), 5, 2, verbose=0)
    watched.fit(*digits(), 5, 2, verbose=0, callbacks=[TerminateOnNaN()])
    assert_same_bits(arrays(watched), arrays(plain))


def test_epochs_between_two_validations_are_not_looked_at(tmp_path: Path) -> None:
    x, y = np.random.default_rng(0).random((12, 3)), np.arange(12) % 2
    model = Sequential([Input((3,)), Dense(2)], seed=0)
    model.compile("sgd", SparseCategoricalCrossentropy(from_logits=True))
    file = tmp_path / "best.safetensors"
    watching = [EarlyStopping(patience=5), ReduceLROnPlateau(), ModelCheckpoint(file, save_best_only=True)]
    history = model.fit(x, y, epochs=4, verbose=0, validation_data=(x, y), validation_freq=2, callbacks=watching)
    assert [len(history.history[name]) for name in ("loss", "val_loss", "learning_rate")] == [4, 2, 4]
    assert file.exists()
    with pytest.raises(ValueError, match="Logs that start with 'val_' need validation data"):
        model.fit(x, y, verbose=0, callbacks=[EarlyStopping()])
