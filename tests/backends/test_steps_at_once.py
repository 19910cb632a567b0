"""Backends that are given many training steps together: the same training as one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from minicnn import Sequential, callbacks, layers
from minicnn.backends.numpy import NumpyBackend


def _fit(at_once: int, **fit: Any) -> tuple[dict[str, Any], dict[str, Any], list[int]]:
    backend = NumpyBackend()
    backend.steps_at_once = at_once
    model = Sequential(
        [layers.Input((3,)), layers.Dense(4, activation="relu"), layers.Dropout(0.2), layers.Dense(2)], backend=backend
    )
    model.compile("adam", "mse", ["mae"])
    rng = np.random.default_rng(0)
    calls: list[int] = []

    class Watch(callbacks.Callback):
        every_batch = False

        def on_train_batch_end(self, batch: int, logs: Any) -> None:
            calls.append(batch)

    history = model.fit(
        rng.standard_normal((22, 3)), rng.standard_normal((22, 2)), batch_size=4, epochs=2, verbose=0,
        callbacks=[Watch(), *fit.pop("callbacks", [])],
        **fit,
    )  # fmt: skip
    return history.history, model.get_weights(), calls


@pytest.mark.parametrize("last_batch", ["keep", "drop", "pad"])
def test_many_steps_are_the_same_steps(last_batch: str) -> None:
    one, many = _fit(1, last_batch=last_batch), _fit(4, last_batch=last_batch)
    assert one[0] == many[0]
    for key, array in one[1].items():
        np.testing.assert_array_equal(many[1][key], array)
    steps = {"keep": 6, "drop": 5, "pad": 6}[last_batch]
    assert one[2] == [*range(steps)] * 2
    assert many[2] == {"keep": [3, 4, 5], "drop": [3, 4], "pad": [3, 5]}[last_batch] * 2


def test_a_callback_that_needs_every_batch_is_called_for_each() -> None:
    seen: list[int] = []
    watch = callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: seen.append(batch))
    assert _fit(4, callbacks=[watch])[2] == [*range(6)] * 2 == seen
    quiet = callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: None)
    assert _fit(4, callbacks=[quiet])[2] == [3, 4, 5] * 2
