"""A small training that has everything that could go astray when it is interrupted, saved or moved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from minicnn import Model, Sequential
from minicnn.layers import (
    Activation,
    BatchNormalization,
    Conv2D,
    Dense,
    Dropout,
    Flatten,
    Input,
    MaxPooling2D,
    Rescaling,
)
from minicnn.losses import SparseCategoricalCrossentropy
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
