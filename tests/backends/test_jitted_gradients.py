"""Gradients of whole networks where a compiler fuses the step: it may compute a value anew, with other roundings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from minicnn import Sequential
from minicnn.backends import get_backend
from minicnn.layers import (
    BatchNormalization,
    Conv2D,
    Dense,
    Flatten,
    GlobalMaxPooling2D,
    GroupNormalization,
    Input,
    MaxPooling2D,
)
from support.network_gradients import gradient_program, largest_difference, network_gradients


def _batch_normalised() -> Sequential:
    middle = [Conv2D(8, 3), BatchNormalization(), MaxPooling2D(3, 2, "same"), Flatten()]
    return Sequential([Input((28, 28, 1)), *middle, Dense(10)])


def _group_normalised() -> Sequential:
    return Sequential([Input((12, 12, 3)), Conv2D(8, 3), GroupNormalization(2), GlobalMaxPooling2D(), Dense(10)])


NETWORKS: dict[str, tuple[Callable[[], Any], tuple[int, int, int]]] = {
    "batch normalisation": (_batch_normalised, (28, 28, 1)),
    "group normalisation": (_group_normalised, (12, 12, 3)),
}


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_on_jax(name: str, background: bool) -> None:
    pytest.importorskip("jax")
    make, shape = NETWORKS[name]
    rng = np.random.default_rng(0)
    model, x, y = make(), rng.standard_normal((32, *shape)), rng.integers(0, 3, 32)
    if background:  # many equal elements
        x[:, : shape[0] // 2] = 0
    weights = {}
    for path, weight in gradient_program(model, x, y, "float64")[1].items():
        fan = float(np.prod(weight.shape[:-1]))
        spread = (2 / fan) ** 0.5 if len(weight.shape) > 1 else 0.1
        weights[path] = rng.standard_normal(weight.shape) * spread + (len(weight.shape) == 1)
    expected = network_gradients(model, x, y, weights, get_backend("numpy"), "float64")
    error, path = largest_difference(
        network_gradients(model, x, y, weights, get_backend("jax:cpu"), "float32"), expected
    )
    assert error < 1e-3, path
