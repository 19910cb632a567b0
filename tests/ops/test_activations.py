"""Activation functions: values, gradients, and behaviour far out."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicnn import ops
from minicnn.backends import get_backend
from minicnn.program import Program
from minicnn.tolerance import tolerance
from support.gradcheck import check_gradients, run_primitive
from support.numerics import assert_close
from support.strategies import away_from_zero, normal, seeds, shapes
from support.tolerances import ELEMENT


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def _cdf(x: float) -> float:
    return 0.5 * math.erfc(-x / math.sqrt(2))


FORMULAS: dict[str, tuple[dict[str, Any], Callable[[float], float]]] = {
    "relu": ({}, lambda x: max(x, 0.0)),
    "relu6": ({}, lambda x: min(max(x, 0.0), 6.0)),
    "leaky_relu": ({"negative_slope": 0.2}, lambda x: x if x > 0 else 0.2 * x),
    "elu": ({"alpha": 0.5}, lambda x: x if x > 0 else 0.5 * math.expm1(x)),
    "sigmoid": ({}, _sigmoid),
    "tanh": ({}, math.tanh),
    "silu": ({}, lambda x: x * _sigmoid(x)),
    "erf": ({}, math.erf),
    "gelu": ({}, lambda x: x * _cdf(x)),
    "gelu (tanh)": (
        {"approximate": True},
        lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    ),
}


@pytest.mark.parametrize("name", FORMULAS)
@given(shape=shapes(), seed=seeds)
def test_formula_and_gradient(name: str, shape: tuple[int, ...], seed: int) -> None:
    attrs, formula = FORMULAS[name]
    op = ops.REGISTRY[name.split()[0]]
    x = away_from_zero(shape, seed) * 3
    x = np.where(np.abs(x - 6) < 0.01, 5.9, x)  # relu6 has a kink there
    assert_close(run_primitive(op, x, **attrs).ravel(), np.asarray([formula(float(v)) for v in x.flat]))
    check_gradients(op, x, seed=seed, **attrs)


def test_default_attributes_are_keras_defaults() -> None:
    assert run_primitive(ops.leaky_relu, np.asarray(-10.0)) == pytest.approx(-3)
    assert run_primitive(ops.elu, np.asarray(-1.0)) == pytest.approx(math.expm1(-1))


@pytest.mark.parametrize("name", FORMULAS)
def test_far_out(name: str) -> None:
    """No overflow warning (which would be an error here), and the limits of each function."""
    attrs, _ = FORMULAS[name]
    op = ops.REGISTRY[name.split()[0]]
    x = np.asarray([-1e30, -800.0, -90.0, 90.0, 800.0, 1e30])
    if attrs.get("approximate"):
        x = x[1:-1]
    with np.errstate(under="ignore"):
        y = run_primitive(op, x, **attrs)
    limit = {"sigmoid": (0, 1), "tanh": (-1, 1), "erf": (-1, 1), "relu6": (0, 6)}.get(name.split()[0])
    if limit:
        np.testing.assert_allclose(y, [limit[0]] * 3 + [limit[1]] * 3, atol=1e-38)
    else:
        np.testing.assert_allclose(y[len(y) // 2 :], x[len(x) // 2 :])
        assert np.isfinite(y).all()
    for dtype in ("float32", "float64"):
        extreme = np.asarray([-100.0, 100.0], dtype)
        assert np.isfinite(op.reference(extreme, xp=get_backend("numpy").xp, **attrs)).all()


def test_relu_of_infinities_and_gradient_at_zero() -> None:
    y = run_primitive(ops.relu, np.asarray([-np.inf, -0.0, np.inf]))
    np.testing.assert_array_equal(y, [0, 0, np.inf])
    dx = run_primitive(ops.relu_gradient, np.ones(3), np.asarray([0.0, -0.0, 2.0]))
    np.testing.assert_array_equal(dx, [0, 0, 1])
    assert not np.signbit(run_primitive(ops.relu, np.asarray([-1.0])))[0]


@pytest.mark.parametrize(
    ("library", "dtype"),
    [("numpy", "float32"), ("torch", "float32"), ("jax", "float32"), ("numpy", "float64"), ("torch", "float64")],
)
def test_erf_is_exact_to_three_units(library: str, dtype: str) -> None:
    x = np.concatenate([np.linspace(-7, 7, 20001), [-1e3, 1e3, 0.0]]).astype(dtype)
    backend = get_backend(library)
    y = backend.to_numpy(ops.erf.reference(backend.asarray(x), xp=backend.xp)).astype("float64")
    exact = np.asarray([math.erf(float(v)) for v in x])
    assert np.max(np.abs(y - exact)) <= 3 * np.finfo(dtype).eps


def test_gelu_is_exact_to_the_error_of_erf() -> None:
    x = np.linspace(-10, 10, 10001)
    exact = np.asarray([float(v) * _cdf(float(v)) for v in x])
    assert np.max(np.abs(run_primitive(ops.gelu, x) - exact)) < tolerance("float64")[1]


@pytest.mark.parametrize("op", [ops.softmax, ops.log_softmax], ids=str)
@given(shape=shapes(min_dims=1), seed=seeds, data=st.data())
def test_softmax(op: Any, shape: tuple[int, ...], seed: int, data: st.DataObject) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    x = normal(shape, seed)
    e = np.exp(x)
    expected = e / e.sum(axis=axis, keepdims=True)
    expected = np.log(expected) if op is ops.log_softmax else expected
    assert_close(run_primitive(op, x, axis=axis), expected, terms=shape[axis])
    check_gradients(op, x, seed=seed, axis=axis, rtol=ELEMENT)


def test_softmax_far_out() -> None:
    x = np.asarray([[1e4, 0.0, -1e4], [-1e4, -1e4, -1e4], [1e308, 0.0, 1e308]])
    np.testing.assert_allclose(run_primitive(ops.softmax, x), [[1.0, 0.0, 0.0], [1 / 3] * 3, [0.5, 0.0, 0.5]])
    y = run_primitive(ops.log_softmax, x[:2])
    np.testing.assert_allclose(y, [[0.0, -1e4, -2e4], [-math.log(3)] * 3])


def test_errors() -> None:
    program = Program()
    x = program.input("x", (2, 3))
    with pytest.raises(ValueError, match=r"softmax takes one axis from -2 to 1\. Received: 2"):
        ops.softmax(x, axis=2)
    with pytest.raises(TypeError, match=r"relu takes floating-point arrays\. Received: uint8\[4\]"):
        ops.relu(program.input("n", (4,), "uint8"))
    with pytest.raises(ValueError, match=r"relu_gradient takes dy and y of one shape"):
        ops.relu_gradient(x, program.input("y", (3, 2)))
    with pytest.raises(TypeError, match=r"gelu takes the keyword arguments \['approximate'\].*unknown: \['exact'\]"):
        ops.gelu(x, exact=True)
