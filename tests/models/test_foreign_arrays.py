"""Arrays of other libraries on the GPU of a model: taken over where they are, and predictions handed back there.

The device is played by array-api-strict; tests/backends/gpu/test_exchange.py has real ones.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from minicnn import Sequential
from minicnn.data.forms import dtype_name
from minicnn.layers import Dense, Dropout, Input

strict = pytest.importorskip("array_api_strict")

from minicnn.backends.array_api_strict import StrictBackend  # noqa: E402


class Foreign:
    """An array of another library on a GPU, of which nothing can be read from the host."""

    def __init__(self, array: Any) -> None:
        self.array, self.shape, self.dtype, self.ndim = array, array.shape, np.dtype(dtype_name(array)), array.ndim

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0

    def __dlpack__(self, **_: Any) -> Any:
        pytest.fail("left the device")

    def __array__(self, *_: Any, **__: Any) -> Any:
        pytest.fail("left the device")

    def __array_namespace__(self, **_: Any) -> Any:
        return SimpleNamespace(__name__="foreign", from_dlpack=Foreign)

    @property
    def device(self) -> str:
        return "gpu"

    def __getitem__(self, key: Any) -> Foreign:
        return Foreign(self.array[key])


class OnGpu(StrictBackend):
    """A backend that computes on the GPU on which those arrays are."""

    name = "on_gpu"

    def over(self, array: Any) -> Any:
        return array.array


def foreign(array: Any) -> Foreign:
    return Foreign(strict.asarray(array))


def network() -> Sequential:
    model = Sequential([Input((4,)), Dropout(0.25), Dense(3, activation="softmax")], backend=OnGpu())
    model.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


X = np.random.default_rng(0).random((10, 4), "float32")
Y = np.arange(10, dtype="int32") % 3
WEIGHT = np.linspace(0.5, 1.5, 10, dtype="float32")


def outcome(x: Any, y: Any, weight: Any) -> list[Any]:
    """Weights, losses and outputs after all that a model does with arrays."""
    model = network()
    history = model.fit(x, y, sample_weight=weight, batch_size=4, verbose=0, class_weight={0: 2.0})
    model.fit([(x, y, weight), (x, y, weight)], verbose=0)
    losses = [history.history["loss"], model.train_on_batch(x, y), model.evaluate(x, y, batch_size=4)]
    outputs = [model.predict(x, batch_size=4), model(x), model.predict(iter([x, x]))[:10, ...]]
    return [*losses, *model.get_weights(), *outputs]


def test_arrays_on_the_gpu_do_not_leave_it() -> None:
    expected, computed = outcome(X, Y, WEIGHT), outcome(foreign(X), foreign(Y), foreign(WEIGHT))
    for ours, theirs in zip(expected[:-3], computed[:-3], strict=True):
        np.testing.assert_array_equal(ours, theirs)
    for ours, theirs in zip(expected[-3:], computed[-3:], strict=True):
        assert isinstance(theirs, Foreign)
        np.testing.assert_array_equal(ours, np.asarray(np.from_dlpack(theirs.array)))


def test_labels_may_be_elsewhere() -> None:
    for ours, theirs in zip(outcome(X, Y, WEIGHT)[:-3], outcome(foreign(X), Y, WEIGHT)[:-3], strict=True):
        np.testing.assert_array_equal(ours, theirs)
