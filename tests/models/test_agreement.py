"""The same weights, shuffles and dropout masks everywhere: losses of the first 100 steps agree across backends."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

from minicnn import Model, Sequential, zoo
from minicnn.data import synthetic_digits
from minicnn.layers import (
    Activation,
    AveragePooling2D,
    BatchNormalization,
    Conv2D,
    Dense,
    DepthwiseConv2D,
    Dropout,
    Flatten,
    Input,
    Rescaling,
)
from minicnn.losses import SparseCategoricalCrossentropy
from minicnn.optimizers import SGD, Adam, Optimizer
from minicnn.schedules import CosineDecay
from minicnn.tolerance import tolerance
from support.model_cases import StepLosses

Array = np.ndarray[Any, Any]
BATCH, STEPS = 8, 100
X, Y = synthetic_digits(BATCH * STEPS // 2, seed=1)  # two epochs


def digits(name: str) -> Callable[[str], Model]:
    return lambda backend: zoo.get_model(
        name, backend=backend, seed=3, preprocessing=[Rescaling(1 / 255)], input_dtype="uint8"
    )


def normalized(backend: str) -> Model:
    """What the networks of the zoo for digits lack: statistics, random masks, an average, a smooth activation."""
    layers = [
        Input((28, 28, 1), dtype="uint8"),
        Rescaling(1 / 255),
        Conv2D(4, 3, strides=2, use_bias=False),
        BatchNormalization(),
        Activation("relu"),
        AveragePooling2D(),
        DepthwiseConv2D(3, activation="gelu"),
        Flatten(),
        Dropout(0.4),
        Dense(10),
    ]
    return Sequential(layers, backend=backend, seed=3)


NETWORKS: dict[str, tuple[Callable[[str], Model], Callable[[], Optimizer]]] = {
    "mlp": (digits("mlp"), lambda: SGD(0.1)),
    "platforms": (digits("platforms"), lambda: SGD(0.01, 0.9)),
    "kernels": (digits("kernels"), lambda: SGD(0.01)),
    "lenet5": (digits("lenet5"), lambda: SGD(CosineDecay(0.0, STEPS - 10, warmup_target=0.1, warmup_steps=10))),
    "normalized": (normalized, lambda: Adam(0.003)),
}


def losses(name: str, backend: str, samples: int = len(X), epochs: int = 2) -> Array:
    make, optimizer = NETWORKS[name]
    model = make(backend)
    model.compile(optimizer(), SparseCategoricalCrossentropy(from_logits=True), ["accuracy"])
    steps = StepLosses()
    model.fit(X[:samples], Y[:samples], BATCH, epochs, 0, [steps])
    return np.asarray(steps.losses)


@cache
def expected(name: str) -> Array:
    found = losses(name, "numpy")
    assert len(found) == STEPS
    assert np.mean(found[-20:]) < np.mean(found[:20])  # it learns
    return found


def longest_sum(name: str) -> int:
    """Terms of the longest sum of a step: a multiply-add for each of them and each result."""
    model = NETWORKS[name][0]("numpy")
    model.compile("sgd", SparseCategoricalCrossentropy(from_logits=True))
    return max(n.cost.flops // (2 * n.outputs[0].size) for n in model.program(batch_size=BATCH).nodes)


def assert_agree(found: Array, wanted: Array, terms: int) -> None:
    # Each step starts from what the ones before it have rounded, as if all steps were one sum.
    for step, (a, b) in enumerate(zip(found, wanted, strict=True)):
        rtol, atol = tolerance("float32", terms * (step + 1))
        assert abs(a - b) <= atol + rtol * abs(b), (step, a, b)


# Those that compile take a small one by day. The other two have most kinds of operations between them.
BY_DAY = "tests/models/test_agreement.py::test_a_hundred_steps"
TRAINED = [(name, "torch") for name in sorted(NETWORKS)] + [
    pytest.param(name, backend, marks=[pytest.mark.no_cover, *marks])
    for name, backend, marks in (
        ("mlp", "numba", []), ("normalized", "jax", []),
        *((name, "numba", [pytest.mark.night(BY_DAY)]) for name in ("kernels", "normalized")),
        ("kernels", "jax", [pytest.mark.night(BY_DAY)]),
    )
]  # fmt: skip


@pytest.mark.parametrize(("name", "backend"), TRAINED)
def test_a_hundred_steps(name: str, backend: str) -> None:
    assert_agree(losses(name, backend), expected(name), longest_sum(name))


@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_a_few_steps_of_the_strictest_library(name: str) -> None:
    pytest.importorskip("array_api_strict")
    few = losses(name, "array_api_strict", 3 * BATCH, 1)
    assert_agree(few, losses(name, "numpy", 3 * BATCH, 1), longest_sum(name))


def test_the_tolerance_tells_networks_apart() -> None:
    """Another seed, or another mask in one layer, is far outside."""
    here = expected("normalized")
    model = normalized("numpy")
    model.layers[-2].rate = 0.39  # type: ignore[attr-defined]
    model.compile(Adam(0.003), SparseCategoricalCrossentropy(from_logits=True))
    steps = StepLosses()
    model.fit(X[:BATCH], Y[:BATCH], BATCH, 1, 0, [steps], shuffle=False)
    with pytest.raises(AssertionError):
        assert_agree(np.asarray(steps.losses), here[:1], longest_sum("normalized"))


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
def test_the_same_bits_every_time(backend: str) -> None:
    model = normalized(backend)
    model.compile(Adam(0.003), SparseCategoricalCrossentropy(from_logits=True))
    start, runs = model.get_state(), []
    for _ in range(3):
        model.set_state(start)
        steps = StepLosses()
        model.fit(X[: 8 * BATCH], Y[: 8 * BATCH], BATCH, 1, 0, [steps])
        runs.append((steps.losses, {path: w.tobytes() for path, w in model.get_weights().items()}))
    assert runs[0] == runs[1] == runs[2]
