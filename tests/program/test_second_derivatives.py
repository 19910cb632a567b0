"""Gradients of gradients: what differentiation has written is differentiated, against finite differences in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicnn import ops
from minicnn.program import Program, Value, gradients
from support.gradcheck import check_gradients
from support.strategies import away_from_zero, distinct_values, normal, seeds
from support.tolerances import STEP, TRAINING


def slope_squared(function: Callable[..., Any]) -> Callable[..., Any]:
    """The sum of the squared gradients of a function's sum, with respect to all its inputs."""

    def squared(*values: Value) -> Value:
        slopes = gradients(values[0].program, ops.sum(ops.square(function(*values))), list(values))
        total: Value = sum((ops.sum(ops.square(slope)) for slope in slopes), start=0.0)  # type: ignore[assignment]
        return total

    return squared


ACTIVATIONS: dict[str, Callable[[Value], Value]] = {
    "tanh": ops.tanh,
    "sigmoid": ops.sigmoid,
    "softplus": ops.softplus,
    "relu": ops.relu,
    "leaky_relu": lambda x: ops.leaky_relu(x, negative_slope=0.2),
    "silu": ops.silu,
    "gelu": lambda x: ops.gelu(x, approximate=True),
    "elu": lambda x: ops.elu(x, alpha=1.0),
    "log_softmax": ops.log_softmax,
    "square": lambda x: ops.square(x) * 0.1,
}


@given(st.lists(st.sampled_from(sorted(ACTIVATIONS)), min_size=1, max_size=3), st.integers(1, 4), seeds)
def test_dense_networks(names: list[str], width: int, seed: int) -> None:
    weights = [normal((3 if i == 0 else width, width), seed, i) for i in range(len(names))]

    def network(x: Value, *kernels: Value) -> Value:
        for name, kernel in zip(names, kernels, strict=True):
            x = ACTIVATIONS[name](x @ kernel)
        return x

    check_gradients(slope_squared(network), away_from_zero((2, 3), seed), *weights, step=1e-6, rtol=STEP)


@given(
    st.sampled_from([(1, 1), (2, 2), (1, 2)]),
    st.sampled_from(["tanh", "sigmoid", "leaky_relu", "softplus"]),
    st.sampled_from(["none", "max", "average"]),
    st.booleans(),
    seeds,
)
def test_convolutional_networks(strides: Any, name: str, pooling: str, normalized: bool, seed: int) -> None:
    def network(x: Value, kernel: Value, scale: Value) -> Value:
        x = ops.conv2d(x, kernel, strides=strides, padding=((1, 1), (1, 0)))
        if normalized:
            x = ops.normalize(x, scale, scale * 0.5, axes=(1, 2), epsilon=0.1, unit=1.0)[0]
        x = ACTIVATIONS[name](x)
        if pooling == "max":
            return ops.max_pool2d(x, kernel=(2, 2), strides=(2, 2))
        return ops.average_pool2d(x, kernel=(2, 2), strides=(1, 1)) if pooling == "average" else x

    kernel, scale = normal((3, 2, 2, 2), seed, 1), normal((2,), seed, 2)
    check_gradients(slope_squared(network), distinct_values((1, 5, 5, 2), seed), kernel, scale, step=1e-6, rtol=STEP)


@given(st.integers(2, 4), seeds)
def test_cross_entropies_maxima_and_normalisations_of_a_batch(classes: int, seed: int) -> None:
    labels = np.random.default_rng(seed).integers(0, classes + 1, 3).astype("int32")  # one of them is outside

    def loss(x: Value, kernel: Value) -> Value:
        scale = x.program.constant(np.ones(classes))
        y = ops.normalize(x @ kernel, scale, scale * 0.0, axes=(0,), epsilon=0.1, unit=1.0)[0]
        each = ops.softmax_cross_entropy(y, x.program.constant(labels))
        return each + ops.max(ops.square(y), axes=1)

    check_gradients(slope_squared(loss), normal((3, 4), seed), normal((4, classes), seed, 1), step=1e-6, rtol=STEP)


@given(seeds)
def test_third_derivatives(seed: int) -> None:
    def cubic(x: Value, w: Value) -> Value:
        return slope_squared(lambda a, b: ops.tanh(a @ b))(x, w)

    check_gradients(slope_squared(cubic), normal((2, 2), seed) * 0.5, normal((2, 2), seed, 1), step=1e-6, rtol=TRAINING)


def test_windows_that_overlap_are_refused() -> None:
    program = Program()
    x = program.input("x", (1, 5, 5, 1), "float64")
    y = ops.max_pool2d(ops.tanh(x), kernel=(3, 3), strides=(2, 2))
    (slope,) = gradients(program, ops.sum(ops.square(y)), [x])
    with pytest.raises(
        TypeError, match=r"go through a max-pooling whose windows do not overlap\. Received: kernel \(3"
    ):
        gradients(program, ops.sum(ops.square(slope)), [x])
