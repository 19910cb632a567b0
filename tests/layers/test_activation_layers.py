"""Activations by name and as layers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicnn import ops
from minicnn.backends import get_backend
from minicnn.layers import ELU, Activation, Conv2D, Dense, Input, LeakyReLU, PReLU, ReLU, Softmax
from minicnn.layers.activations import ACTIVATIONS, get_activation
from minicnn.program import Program, gradients
from support.layer_check import run_layer, run_layer_check
from support.numerics import assert_close
from support.strategies import normal, seeds
from support.tolerances import ELEMENT

X = np.asarray([[-3.0, -1.0, -0.25, 0.0, 0.5, 2.0, 7.0]])


def _erf(x: Any) -> Any:
    return np.vectorize(math.erf)(x)


BY_NAME = {
    "linear": X,
    "relu": np.maximum(X, 0),
    "relu6": np.clip(X, 0, 6),
    "leaky_relu": np.where(X > 0, X, 0.2 * X),
    "elu": np.where(X > 0, X, np.expm1(X)),
    "gelu": X * 0.5 * (1 + _erf(X / math.sqrt(2))),
    "silu": X / (1 + np.exp(-X)),
    "swish": X / (1 + np.exp(-X)),
    "sigmoid": 1 / (1 + np.exp(-X)),
    "tanh": np.tanh(X),
    "selu": 1.0507009873554805 * np.where(X > 0, X, 1.6732632423543772 * np.expm1(X)),
    "celu": np.where(X > 0, X, np.expm1(X)),
    "mish": X * np.tanh(np.log1p(np.exp(X))),
    "softplus": np.log1p(np.exp(X)),
    "softsign": X / (1 + np.abs(X)),
    "hard_sigmoid": np.clip(X / 6 + 0.5, 0, 1),
    "hard_silu": X * np.clip(X / 6 + 0.5, 0, 1),
    "hard_swish": X * np.clip(X / 6 + 0.5, 0, 1),
    "log_sigmoid": -np.log1p(np.exp(-X)),
    "exponential": np.exp(X),
    "softmax": np.exp(X) / np.exp(X).sum(),
    "log_softmax": X - np.log(np.exp(X).sum()),
}


def test_all_names_are_tested() -> None:
    assert set(BY_NAME) == set(ACTIVATIONS)


@pytest.mark.parametrize("name", BY_NAME)
def test_by_name(name: str) -> None:
    assert_close(run_layer(Activation(name), X), BY_NAME[name], terms=4)
    run_layer_check(Activation(name), (2, 3), output=(2, 3), rtol=ELEMENT)


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        (ReLU(), [[0, 0, 0, 0, 0.5, 2, 7]]),
        (ReLU(max_value=6), [[0, 0, 0, 0, 0.5, 2, 6]]),
        (ReLU(max_value=1.5), [[0, 0, 0, 0, 0.5, 1.5, 1.5]]),
        (ReLU(negative_slope=0.5), [[-1.5, -0.5, -0.125, 0, 0.5, 2, 7]]),
        (ReLU(6, 0.5), [[-1.5, -0.5, -0.125, 0, 0.5, 2, 6]]),
        (ReLU(threshold=0.5), [[0, 0, 0, 0, 0, 2, 7]]),
        (ReLU(5, 0.5, 1.0), [[-2, -1, -0.625, -0.5, -0.25, 2, 5]]),
        (ReLU(0), [[0, 0, 0, 0, 0, 0, 0]]),
        (LeakyReLU(), np.where(X > 0, X, 0.3 * X)),
        (LeakyReLU(0.125), [[-0.375, -0.125, -0.03125, 0, 0.5, 2, 7]]),
        (ELU(), np.where(X > 0, X, np.expm1(X))),
        (ELU(0.5), np.where(X > 0, X, 0.5 * np.expm1(X))),
        (Softmax(), np.exp(X) / np.exp(X).sum()),
    ],
)
def test_layers_by_hand(layer: Any, expected: Any) -> None:
    assert_close(run_layer(layer, X), np.asarray(expected), terms=4)
    run_layer_check(layer, (3, 2), output=(3, 2), rtol=ELEMENT)


def test_plain_relus_are_one_primitive() -> None:
    from support.layer_check import run

    for layer, name in ((ReLU(), "relu"), (ReLU(6.0), "relu6"), (ReLU(None, 0.1), "leaky_relu")):
        assert [n.op.name for n in run(layer, X).program.nodes] == [name]


@given(seed=seeds, axis=st.sampled_from([1, 2, -1, -2]))
def test_softmax_axis(seed: int, axis: int) -> None:
    x = normal((2, 3, 4), seed)
    e = np.exp(x)
    assert_close(run_layer(Softmax(axis), x), e / e.sum(axis, keepdims=True), terms=4)


def test_functions_and_layers_are_activations() -> None:
    weights = {"kernel": [[1.0]], "bias": [0.0]}
    x = np.asarray([[-2.0], [2.0]])
    for activation in (lambda v: ops.maximum(v, -1.0), lambda v: ops.relu(v + 1.0) - 1.0):
        assert run_layer(Dense(1, activation), x, weights=weights).tolist() == [[-1], [2]]
    assert run_layer(Dense(1, LeakyReLU(0.5)), x, weights=weights).tolist() == [[-1], [2]]
    assert run_layer(Dense(1, ops.relu), x, weights=weights).tolist() == [[0], [2]]
    run_layer_check(Conv2D(2, 1, activation=LeakyReLU(0.1)), (2, 2, 1), output=(2, 2, 2),
                    weights={"kernel": (1, 1, 1, 2), "bias": (2,)})  # fmt: skip


def test_none_is_linear() -> None:
    value = object()
    assert get_activation(None)(value) is value


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Activation("softplux"), "An activation is one of linear, .* Received: 'softplux'"),
        (lambda: Activation(3), "An activation is one of .* Received: 3"),  # type: ignore[arg-type]
        (lambda: Dense(2, ["relu"]), "An activation is one of"),  # type: ignore[arg-type]
        (lambda: ReLU(max_value=-1), "max_value is a number of at least 0. Received: max_value=-1"),
        (lambda: ReLU(negative_slope=-1), "negative_slope is a number of at least 0"),
        (lambda: ReLU(threshold=-1), "threshold is a number of at least 0"),
        (lambda: LeakyReLU(None), "negative_slope is a number. Received: negative_slope=None"),  # type: ignore[arg-type]
        (lambda: ELU(True), "alpha is a number"),
        (lambda: Softmax([1, 2]), r"Softmax takes one axis, an integer. Received: axis=\[1, 2\]. Join several"),  # type: ignore[arg-type]
        (lambda: Softmax(5)(Input((2,))), "Softmax takes an axis from 1 to 1"),
    ],
)
def test_wrong_arguments(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(("shared", "shape"), [(None, (2, 3, 4)), ((1, 2), (1, 1, 4)), ((-1,), (2, 3, 1))])
def test_prelu(shared: Any, shape: Any) -> None:
    layer = PReLU("random_normal", shared)
    run_layer_check(layer, (2, 3, 4), output=(2, 3, 4), weights={"alpha": shape})
    x, alpha = np.linspace(-2, 2, 48).reshape(2, 2, 3, 4), np.linspace(0.1, 2, int(np.prod(shape))).reshape(shape)
    found = run_layer(PReLU(shared_axes=shared), x, weights={"alpha": alpha})
    np.testing.assert_allclose(found, np.where(x > 0, x, alpha * x))
    with pytest.raises(ValueError, match="PReLU takes an axis from 1 to 3"):
        run_layer(PReLU(shared_axes=[0]), x)


def test_softplus_does_not_overflow_and_its_slope_at_0_is_a_half() -> None:
    assert run_layer(Activation("softplus"), np.asarray([[-1e3, 0.0, 1e3]])).tolist() == [[0.0, np.log(2.0), 1e3]]
    program = Program()
    x = program.input("x", (1,), "float64")
    program.outputs["dx"] = gradients(program, ops.sum(get_activation("softplus")(x)), [x])[0]
    assert get_backend("numpy").compile(program)({"x": np.zeros(1)})["dx"] == 0.5
