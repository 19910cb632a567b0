"""Small networks for the tests of generated kernels, and their training data."""

from __future__ import annotations

from typing import Any

import numpy as np

from minicnn import Sequential, layers, losses
from minicnn.optimizers import SGD, Adam

Array = np.ndarray[Any, Any]
SAMPLES = 40


def data(shape: tuple[int, ...] = (12, 12, 1), classes: int = 5) -> tuple[Array, Array]:
    """Images whose brightness tells their class, as uint8, and labels."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, classes, SAMPLES).astype("int32")
    x = rng.integers(0, 100, (SAMPLES, *shape)) + 30 * y[:, None, None, None]
    return x.astype("uint8"), y


def lenet(backend: Any, **compiled: Any) -> Sequential:
    """Two convolutions, each with bias, relu and max-pooling, and two dense layers."""
    model = Sequential(
        [
            layers.Input((12, 12, 1), dtype="uint8"), layers.Rescaling(1 / 255), layers.Conv2D(6, 3, activation="relu"),
            layers.MaxPooling2D(), layers.Conv2D(8, 3, activation="relu"), layers.MaxPooling2D(), layers.Flatten(),
            layers.Dense(16, activation="relu"), layers.Dense(5),
        ],
        backend=backend,
    )  # fmt: skip
    model.compile(
        compiled.get("optimizer", SGD(0.05, momentum=0.9)),
        losses.SparseCategoricalCrossentropy(from_logits=True),
        ["accuracy"],
    )
    return model


def normalized(backend: Any) -> Sequential:
    """Strides, padding, groups, depthwise, batch normalisation, dropout, average pooling, Adam."""
    model = Sequential(
        [
            layers.Input((12, 12, 1), dtype="uint8"), layers.Rescaling(1 / 255),
            layers.Conv2D(4, 5, strides=2, padding="same", use_bias=False), layers.BatchNormalization(), layers.ReLU(),
            layers.DepthwiseConv2D(3, depth_multiplier=2, padding="same"),
            layers.Conv2D(6, 3, groups=2, padding="same"), layers.AveragePooling2D(),
            layers.Dropout(0.25), layers.Flatten(), layers.Dense(5),
        ],
        backend=backend,
    )  # fmt: skip
    model.compile(Adam(0.01), losses.SparseCategoricalCrossentropy(from_logits=True), ["accuracy"])
    return model


def mlp(backend: Any) -> Sequential:
    """Dense layers alone, so that a product gathers its own rows."""
    model = Sequential(
        [
            layers.Input((12, 12, 1), dtype="uint8"), layers.Rescaling(1 / 255), layers.Flatten(),
            layers.Dense(7, activation="relu"), layers.Dense(5),
        ],
        backend=backend,
    )  # fmt: skip
    loss = losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(SGD(0.1, nesterov=True, momentum=0.5), loss, ["accuracy"])
    return model


NETWORKS = {"mlp": mlp, "lenet": lenet, "normalized": normalized}
