"""Sums of losses and metrics over long epochs: as right as at their start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minicnn import Sequential, losses, metrics
from minicnn.backends.numpy import NumpyBackend
from minicnn.callbacks import BackupAndRestore, LambdaCallback
from minicnn.distribution import DataParallel
from minicnn.distribution.communicators import OneProcess
from minicnn.layers import Conv2D, Dense, Input, Reshape
from minicnn.loop import totals as module
from minicnn.loop.totals import Totals
from support.model_cases import FAST, MeanOutput, identity
from support.small_training import Interrupt
from support.steps import evaluated, one_step
from support.tolerances import LONG_SUM

BACKENDS = [*FAST, "numba"]
FULL = 2**24  # where float32 ends to hold all integers


def classifier(backend: Any, given: list[Any], **options: Any) -> Sequential:
    """A model whose predictions are its inputs, which can be trained, at a rate of 0."""
    model = Sequential([Input((3,)), Dense(3)], backend=backend)
    model.compile("sgd", losses.SparseCategoricalCrossentropy(from_logits=True), given, **options)
    model.optimizer.learning_rate = 0.0  # type: ignore[union-attr]
    model.set_weights({"dense/kernel": np.eye(3)})
    return model


def nearly_full(model: Sequential, x: Any, y: Any) -> Totals:
    """Totals of an epoch in which every count stands just below 2^24, those of one sample alone excepted."""
    one = evaluated(model, one_step(model, x[:1], y[:1]))
    full = {
        name: model.backend.asarray(np.where(model.backend.to_numpy(a) > 0, FULL - 1, 0).astype("float32"))
        for name, a in one.arrays.items()
    }
    return Totals(full, {}, 1, FULL - 1)


X = np.eye(3)[[0, 1, 2, 0, 0, 0]].astype("float32")
Y = np.array([0, 0, 2, 0, 1, 2])


@pytest.mark.parametrize("backend", BACKENDS)
def test_counts_go_on_beyond_what_float32_holds(backend: str) -> None:
    model = classifier(
        backend,
        ["accuracy", metrics.ConfusionMatrix(), metrics.Precision(class_id=0), metrics.Recall(class_id=0),
         metrics.MeanIoU(3, sparse_y_pred=False), metrics.F1Score(), metrics.TopKCategoricalAccuracy(1)],
    )  # fmt: skip
    before = nearly_full(model, X, Y)
    totals = before
    for row in range(1, len(X)):
        totals = evaluated(model, one_step(model, X[row : row + 1], Y[row : row + 1]), totals)
    logs = model._training.logs(totals)
    counts = np.array([[FULL, 0, 0], [1, 0, 0], [1, 0, 1]], float)
    counts[0, 1] = 1
    # The first sample stands for 2^24 - 1 alike ones.
    np.testing.assert_array_equal(logs["confusion_matrix"], counts)
    every = FULL + 4
    assert logs["accuracy"] == logs["top_k_categorical_accuracy"] == (FULL + 1) / every
    assert logs["precision"] == FULL / (FULL + 2)
    assert logs["recall"] == FULL / (FULL + 1)
    assert logs["mean_io_u"] == pytest.approx((FULL / (FULL + 3) + 0 + 1 / 2) / 3, rel=1e-15)
    assert logs["f1_score"][0] == pytest.approx(2 * FULL / (2 * FULL + 3), rel=1e-15)


@pytest.mark.parametrize("backend", BACKENDS)
def test_accuracy_of_a_training_that_goes_on_beyond_2_to_the_24(backend: str) -> None:
    model = classifier(backend, ["accuracy"])
    started = nearly_full(model, X, Y)

    def begin(epoch: int, logs: Any) -> None:
        model._training.totals = started

    history = model.fit(X, Y, 1, 1, 0, [LambdaCallback(on_epoch_begin=begin)], shuffle=False).history
    assert history["accuracy"] == [(FULL - 1 + 3) / (FULL - 1 + 6)]


def test_a_mean_over_many_steps_is_that_of_its_numbers() -> None:
    """0.1 is always rounded to the same side; added up in float32 it would be wrong by more than 1e-4."""
    model = Sequential([Input((1,)), Reshape((1,))], backend="numpy")
    model.compile("sgd", MeanOutput())
    x = np.full((8000, 1), 0.1, "float32")
    assert model.evaluate(x, x, batch_size=1) == pytest.approx(float(np.float32(0.1)), rel=LONG_SUM)


@pytest.mark.parametrize("shards", [1, 2])
def test_what_a_step_may_count(shards: int) -> None:
    """The number of predictions of the whole batch; a mean counts its samples."""
    model = Sequential([Input((4, 5, 2)), Conv2D(3, 1)], backend="numpy")
    for measured, counted in ((["accuracy"], 6), ([metrics.ConfusionMatrix()], 6 * 4 * 5 * 3)):
        model.compile(
            "sgd", losses.SparseCategoricalCrossentropy(True), measured,
            distribution=DataParallel(shards, communicator=OneProcess()),
        )  # fmt: skip
        for kind in ("train", "evaluate"):
            executor = model._training.executor
            assert executor.program(kind, model._training.step.feed(6)).counted == counted  # type: ignore[arg-type]


@pytest.mark.parametrize("counted", [1, 1000, 2**24, 2**30])
def test_totals_move_before_a_count_is_full(counted: int) -> None:
    totals, moves = Totals(), 0
    for _ in range(3 * module.STEPS):
        if totals.room(counted) < 1:
            totals, moves = totals.moved(np.asarray), moves + 1
        assert totals.room(counted) >= 1
        sums = {"n": np.asarray(totals.arrays.get("n", np.float32(0)) + np.float32(counted), "float32")}
        totals = totals.added(sums, 1, counted)
    assert totals.read(np.asarray)["n"] == 3 * module.STEPS * counted
    assert moves >= 2


def fit(at_once: int, shards: int = 1, callbacks: Any = ()) -> Any:
    """History of two epochs of 11 steps."""
    backend = NumpyBackend()
    backend.steps_at_once = at_once
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(44, 3)), rng.integers(0, 3, 44)
    distribution = DataParallel(shards, communicator=OneProcess()) if shards > 1 else None
    model = classifier(backend, ["accuracy", metrics.ConfusionMatrix()], distribution=distribution)
    return model.fit(x, y, 4, 2, 0, callbacks).history


def test_when_totals_move_depends_on_nothing_but_the_batches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "STEPS", 3)
    expected = fit(1)
    for at_once in (5, 11):
        np.testing.assert_equal(fit(at_once), expected)
    np.testing.assert_array_equal(np.sum(expected["confusion_matrix"], axis=(1, 2)), [44, 44])
    np.testing.assert_equal(fit(1, shards=2)["accuracy"], expected["accuracy"])
    with pytest.raises(RuntimeError):
        fit(1, callbacks=[BackupAndRestore(tmp_path, 4), Interrupt("on_train_batch_end", 17, RuntimeError)])
    np.testing.assert_equal(fit(1, callbacks=[BackupAndRestore(tmp_path, 4)]), expected)


def test_a_state_holds_totals_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STEPS", 3)
    model = identity((2,), metrics=["mae"])
    totals = Totals()
    run = one_step(model, np.ones((2, 2)), np.zeros((2, 2)))
    for _ in range(5):
        totals = evaluated(model, run, totals)
    state = totals.get_state(np.asarray)
    assert (state["steps"], float(state["earlier"]["metric/loss/count"])) == (2, 6)
    again = Totals.of_state(state, np.asarray)
    assert (again.steps, again.counted) == (totals.steps, totals.counted)
    np.testing.assert_equal(again.read(np.asarray), totals.read(np.asarray))
