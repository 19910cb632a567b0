"""What a model holds goes when the model goes, and does not grow without end."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import numpy as np
import pytest

from minicnn import Sequential, layers
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
