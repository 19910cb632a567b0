"""Small trainings with everything that could go astray when they are interrupted, saved or moved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from minicnn import Model, Sequential
from minicnn.callbacks import Callback
from minicnn.layers import (
    Activation,
    Add,
    BatchNormalization,
    Concatenate,
    Conv2D,
    Dense,
    Dropout,
    Flatten,
    GlobalAveragePooling2D,
    Input,
    MaxPooling2D,
    Rescaling,
)
from minicnn.losses import Huber, SparseCategoricalCrossentropy
from minicnn.metrics import TopKCategoricalAccuracy
from minicnn.optimizers import Optimizer

CLASSES = 3


def digits(samples: int = 23, seed: int = 0) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Images (N, 6, 6, 1) uint8 and class numbers (N,)."""
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 256, (samples, 6, 6, 1)).astype(np.uint8)
    return x, (x.reshape(samples, -1).mean(axis=1) * CLASSES // 256).astype(np.int32)


def network(backend: Any = "numpy", *, seed: int = 0, units: int = CLASSES) -> Sequential:
    """A convolutional network with batch normalisation and dropout."""
    layers = [
        Input((6, 6, 1), dtype="uint8"),
        Rescaling(1 / 255),
        Conv2D(4, 3, use_bias=False),
        BatchNormalization(),
        Activation("relu"),
        MaxPooling2D(),
        Flatten(),
        Dropout(0.3),
        Dense(units),
    ]
    return Sequential(layers, backend=backend, seed=seed)


def compiled(backend: Any = "numpy", optimizer: str | Optimizer = "adam", **options: Any) -> Sequential:
    """That network, ready to be trained."""
    model = network(backend, **options)
    model.compile(optimizer, SparseCategoricalCrossentropy(from_logits=True), ["accuracy"])
    return model


def arrays(model: Model) -> dict[str, np.ndarray[Any, Any]]:
    """All state that training carries on: weights, statistics, optimizer state, step counter."""
    state: dict[str, np.ndarray[Any, Any]] = model.get_state()["arrays"]
    return state


def assert_same_bits(actual: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Assert that two sets of arrays have the same names, dtypes, shapes and bits."""
    assert set(actual) == set(expected)
    for name, array in expected.items():
        assert actual[name].dtype == array.dtype, name
        assert actual[name].shape == array.shape, name
        assert actual[name].tobytes() == array.tobytes(), name


def go_on(model: Model, epochs: int = 1, **options: Any) -> Any:
    """Train a model on the images, in batches of which the last is not full."""
    return model.fit(*digits(), 6, epochs, verbose=0, **options)


def assert_equal_models(one: Model, other: Model, x: Any) -> None:
    """Assert that two models make the same predictions for x and hold the same state."""
    a, b = one.predict(x), other.predict(x)
    for left, right in zip(a if isinstance(a, list) else [a], b if isinstance(b, list) else [b], strict=True):
        np.testing.assert_array_equal(left, right)
    assert_same_bits(arrays(other), arrays(one))


_TRAINED: dict[str, Sequential] = {}


def trained(backend: str = "numpy") -> Sequential:
    """A model after an epoch; made once, and not to be changed."""
    if backend not in _TRAINED:
        _TRAINED[backend] = compiled(backend)
        go_on(_TRAINED[backend])
    return _TRAINED[backend]


def two_tasks(optimizer: str | Optimizer = "adam") -> tuple[Model, list[Any], list[Any]]:
    """Two inputs, branches, a shared layer, a nested model, two outputs; and its data."""
    image, numbers = Input((6, 6, 1), name="image"), Input((4,), name="numbers")
    inner_in = Input((6, 6, 2))
    inner = Model(inner_in, Conv2D(2, 1, activation="relu")(inner_in), name="inner")
    a = Conv2D(2, 3, padding="same")(image)
    b = Conv2D(2, 1, kernel_initializer="he_normal")(image)
    joined = Concatenate()([Add()([a, inner(b)]), inner(a)])
    shared = Dense(3, name="shared")
    features = Dropout(0.2)(GlobalAveragePooling2D()(joined))
    sum_ = Add()([shared(features), shared(numbers)])
    model = Model(
        [image, numbers], [Dense(1)(sum_), Dense(CLASSES, "softmax")(sum_)], backend="numpy", seed=3, name="two"
    )
    losses = [Huber(0.7), "categorical_crossentropy"]
    model.compile(optimizer, losses, [[], ["accuracy", TopKCategoricalAccuracy(2)]], loss_weights=[1.0, 0.25])
    x, labels = digits()
    rng = np.random.default_rng(5)
    y = [rng.normal(size=(len(x), 1)), np.eye(CLASSES)[labels]]
    return model, [x / 255.0, rng.normal(size=(len(x), 4))], y


def places(tree: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) of a tree of plain data."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    found = [(tree, key) for key, _ in items]
    return found + [deeper for container, key in found for deeper in places(container[key])]


class Interrupt(Callback):
    """Breaks training off when a point, such as "on_epoch_end", comes for the count-th time."""

    def __init__(self, point: str, count: int, error: type[BaseException]) -> None:
        self._left = count

        def interrupt(*_: Any) -> None:
            self._left -= 1
            if self._left == 0:
                raise error

        setattr(self, point, interrupt)
