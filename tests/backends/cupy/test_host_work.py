"""What the host does in a training step that nobody reads, counted in calls."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from backends.cupy.idle import IdleBackend, IdleRuntime
from minicnn import Sequential
from minicnn.backends._gpu import ranks
from minicnn.callbacks import LambdaCallback
from minicnn.distribution import DataParallel
from minicnn.layers import BatchNormalization, Dense, Input
from minicnn.loop.totals import Totals
from support.steps import runs_of

BATCH, STEPS = 4, 6
X, Y = np.zeros((BATCH * STEPS, 3), "float32"), np.zeros((BATCH * STEPS, 3), "float32")
MOST = 160  # calls, of Python's functions and of others, in a step of the engine; there are some 150
MOST_OF_FIT = {"arrays": 200, "loader": 430}
INLINED = ("<listcomp>", "<setcomp>", "<dictcomp>")  # calls in Python 3.11 alone


def network(layers: int) -> Sequential:
    """A network with four weights, and so much of optimizer state, in each of so many layers."""
    hidden = [layer for _ in range(layers) for layer in (Dense(3, use_bias=False), BatchNormalization())]
    model = Sequential([Input((3,)), *hidden], backend=IdleBackend())
    model.compile("adam", "mse", ["mae"])
    return model


class Calls:
    """Counts the calls of functions, of Python and others, from `start` to `stop`."""

    def __init__(self) -> None:
        self.count = 0

    def start(self) -> None:
        self._before = sys.getprofile()
        sys.setprofile(self._seen)

    def stop(self) -> None:
        sys.setprofile(self._before)

    def _seen(self, frame: Any, event: str, argument: Any) -> None:
        self.count += event == "c_call" or (event == "call" and frame.f_code.co_name not in INLINED)


def calls_of_a_step(model: Sequential) -> int:
    """Calls in a step of the engine, once graphs are there."""
    run, executor, totals, rates = (
        runs_of(model, X, Y, BATCH)[0],
        model._training.executor,
        Totals(),
        {"learning_rate": [0.1]},
    )
    for _ in range(2):
        totals = executor.train(run, totals, rates)
    calls = Calls()
    calls.start()
    executor.train(run, totals, rates)
    calls.stop()
    return calls.count


def calls_of_fit(model: Sequential, data: str) -> float:
    """Calls in a step of `fit`, in which a callback is called that reads nothing; the first and the last do not count.

    They are those from the end of one step to the end of another.
    """
    given: tuple[Any, ...] = X, Y
    if data == "loader":
        given = ([(X[at : at + BATCH], Y[at : at + BATCH]) for at in range(0, len(X), BATCH)],)
    sizes = {"batch_size": BATCH} if data == "arrays" else {}
    calls = Calls()

    def after(batch: int, logs: Any) -> None:
        if batch == 0:
            calls.start()
        elif batch == STEPS - 2:
            calls.stop()

    callback = LambdaCallback(on_train_batch_end=after)
    model.fit(*given, shuffle=False, verbose=0, callbacks=[callback], **sizes)
    return calls.count / (STEPS - 2)


def test_a_step_is_as_little_work_however_many_weights_there_are() -> None:
    few, many = network(1), network(9)
    assert calls_of_a_step(few) == calls_of_a_step(many) < MOST
    assert len(many._training.variables.cells) > 9 * 8  # or nothing was tested


def test_the_parts_of_a_cut_step_are_one_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """And those of several steps are another; the data lie somewhere else in each fit."""
    captured, capture = [], IdleRuntime.capture
    monkeypatch.setattr(IdleRuntime, "capture", lambda *given: captured.append(1) or capture(*given))
    monkeypatch.setattr(IdleBackend, "name", "cupy")  # one of those that take part in a distribution
    model = network(3)
    model.compile("adam", "mse", distribution=DataParallel(2))
    counts = []
    for _ in range(4):
        model.fit(X, Y, BATCH, verbose=0)
        counts.append(len(captured))
    assert counts[0] == 2
    assert counts[1:] == [counts[1]] * 3


def test_parts_of_a_cut_step_write_where_others_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is copied; statistics, weights and state are overwritten where they are."""
    copied: list[tuple[int, ...]] = []

    def capture(runtime: IdleRuntime, launches: list[Any]) -> Any:
        copies = [one for one in launches if getattr(one, "func", None) == runtime.copy]
        copied.extend(one.args[1].shape for one in copies)
        return lambda: None

    monkeypatch.setattr(IdleRuntime, "capture", capture)
    monkeypatch.setattr(IdleBackend, "name", "cupy")
    monkeypatch.setattr(ranks, "NODES", 1)  # a graph of one step
    model = network(3)
    model.compile("adam", "mse", distribution=DataParallel(2))
    model.fit(X, Y, BATCH, verbose=0)
    assert copied == []


def test_longer_runs_capture_nothing_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Data that arrive come in short runs, and later epochs take long ones; a second fit captures nothing."""
    captured, capture = [], IdleRuntime.capture
    monkeypatch.setattr(IdleRuntime, "capture", lambda *given: captured.append(1) or capture(*given))
    model = network(1)
    model.backend.stage_bytes = 2 * BATCH * (X[0].nbytes + Y[0].nbytes)
    for _ in range(2):
        model.fit(X, Y, BATCH, epochs=2, verbose=0)
    assert len(captured) == 1


@pytest.mark.parametrize("data", ["arrays", "loader"])
def test_a_step_of_fit_is_as_little_work_however_many_weights_there_are(data: str) -> None:
    few, many = (calls_of_fit(network(layers), data) for layers in (1, 9))
    assert few == many < MOST_OF_FIT[data]


def test_new_weights_are_seen_by_the_next_step() -> None:
    """What is known of a model's arrays is forgotten when one of them becomes another."""
    model = network(1)
    variables = model._training.variables
    calls_of_a_step(model)
    before = variables.state()
    assert variables.state() is before
    model.set_weights({path: array + 1 for path, array in model.get_weights().items()})
    after = variables.state()
    assert all(after[path] is not before[path] for path in model.get_weights())
    calls_of_a_step(model)
    assert variables.state() is after
