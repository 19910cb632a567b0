"""What a model holds goes when the model goes, and does not grow without end."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from minicnn import Sequential, layers
from minicnn.initializers import Initializer
from minicnn.loop import executor

X, Y = np.ones((8, 3), "float32"), np.ones((8, 2), "float32")


@pytest.fixture
def without_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def _model() -> Sequential:
    model = Sequential([layers.Input((3,)), layers.Dense(4), layers.Dropout(0.1), layers.Dense(2)], backend="numpy")
    model.compile("adam", "mse", ["accuracy"])
    return model


@pytest.mark.usefixtures("without_collection")
@pytest.mark.parametrize("verbose", [0, 1, 2])
def test_a_model_goes_at_once(verbose: int) -> None:
    model = _model()
    kept = model.layers
    history = model.fit(X, Y, batch_size=4, epochs=2, verbose=verbose, validation_split=0.25)
    model.predict(X)
    model.explain()
    known = weakref.ref(model), weakref.ref(model._training)
    weights = [weakref.ref(weight) for layer in kept for weight in layer.weights]
    del model, history
    assert [ref() for ref in known] == [None, None]
    assert len(kept) == 3
    del kept
    assert [ref() for ref in weights] == [None] * 4


def test_compiled_steps_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "COMPILED", 3)
    model = _model()
    for size in (1, 2, 3, 1, 4, 5):
        model.predict(X[:size], batch_size=8)
        assert len(model._training.executor._compiled) <= 3
    assert [feed.batch for _, feed in model._training.executor._compiled] == [1, 4, 5]


class _Noting(Initializer):
    """Draws normal values, and notes who draws which, and whether garbage is collected meanwhile."""

    def __init__(self) -> None:
        self.drawn: list[tuple[Sequence[int], int, bool]] = []

    def __call__(self, shape: Sequence[int], rng: np.random.Generator) -> np.ndarray[Any, Any]:
        self.drawn.append((shape, threading.get_ident(), gc.isenabled()))
        return rng.normal(size=shape)


def test_large_first_values_are_drawn_while_a_step_is_compiled() -> None:
    units, initializer = executor.LARGE // 256, _Noting()

    def model() -> Sequential:
        dense = [layers.Dense(n, kernel_initializer=initializer) for n in (256, units, 3)]
        return Sequential([layers.Input((2,)), *dense], backend="numpy")

    first, second = model(), model()
    known = first.get_weights()  # without a step
    initializer.drawn.clear()
    second.predict(np.ones((1, 2), "float32"))
    here = threading.get_ident()
    large, *small = sorted(initializer.drawn, key=lambda one: -np.prod(one[0]))
    assert (tuple(large[0]), large[1] != here, large[2]) == ((256, units), True, False)
    assert [(one[1], one[2]) for one in small] == [(here, True)] * 2
    assert gc.isenabled()
    for a, b in zip(known, second.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
