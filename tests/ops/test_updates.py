"""Optimizer updates against the formulas, one number at a time, over several steps."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicnn import ops
from minicnn.program import Program
from support.gradcheck import run_primitive
from support.numerics import assert_close
from support.strategies import normal, seeds

STEPS = 4
decays = st.sampled_from([0.0, 0.01])


def _gradients(seed: int) -> list[Any]:
    return [normal((2, 3), seed, i) for i in range(STEPS)]


def _each(function: Any, *arrays: Any) -> Any:
    """Apply a function of Python floats element by element."""
    made = [function(*map(float, elements)) for elements in zip(*(a.ravel() for a in arrays), strict=True)]
    return [np.asarray(column).reshape(arrays[0].shape) for column in zip(*made, strict=True)]


@given(seed=seeds, rate=st.floats(1e-3, 1), decay=decays)
def test_sgd(seed: int, rate: float, decay: float) -> None:
    p, g = normal((2, 3), seed), normal((2, 3), seed, 1)
    (expected,) = _each(lambda p, g: (p - rate * decay * p - rate * g,), p, g)
    assert_close(run_primitive(ops.sgd_update, p, g, np.asarray(rate), weight_decay=decay), expected)


@given(seed=seeds, rate=st.floats(1e-3, 1), momentum=st.floats(0, 0.99), nesterov=st.booleans(), decay=decays)
def test_momentum(seed: int, rate: float, momentum: float, nesterov: bool, decay: float) -> None:
    def step(p: float, v: float, g: float) -> tuple[float, float]:
        p -= rate * decay * p
        v = momentum * v - rate * g
        return (p + momentum * v - rate * g if nesterov else p + v), v

    p = q = normal((2, 3), seed)
    v = w = np.zeros((2, 3))
    for g in _gradients(seed):
        attrs = {"momentum": momentum, "nesterov": nesterov, "weight_decay": decay}
        p, v = run_primitive(ops.momentum_update, p, v, g, np.asarray(rate), **attrs)
        q, w = _each(step, q, w, g)
        assert_close(p, q, STEPS)
        assert_close(v, w, STEPS)


@given(
    seed=seeds, rate=st.floats(1e-3, 1), b1=st.sampled_from([0.0, 0.9]), b2=st.sampled_from([0.0, 0.999]), decay=decays
)
def test_adam(seed: int, rate: float, b1: float, b2: float, decay: float) -> None:
    p = q = normal((2, 3), seed)
    m = v = a = b = np.zeros((2, 3))
    for t, g in enumerate(_gradients(seed), 1):

        def step(p: float, m: float, v: float, g: float) -> tuple[float, float, float]:
            p -= rate * decay * p
            m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
            alpha = rate * math.sqrt(1 - b2**t) / (1 - b1**t)
            return p - alpha * m / (math.sqrt(v) + 1e-7), m, v

        attrs = {"beta_1": b1, "beta_2": b2, "epsilon": 1e-7, "weight_decay": decay}
        p, m, v = run_primitive(ops.adam_update, p, m, v, g, np.asarray(rate), np.asarray(t - 1, "int32"), **attrs)
        q, a, b = _each(step, q, a, b, g)
        for actual, expected in ((p, q), (m, a), (v, b)):
            assert_close(actual, expected, 100 * STEPS)


def test_adam_first_step_is_the_rate_whatever_the_gradient() -> None:
    """Bias correction: the first step has length rate; in float32 too, where 1 - beta_2 loses four digits."""
    g = np.asarray([1e-2, -3.0, 50.0], "float32")
    zero, rate = np.zeros(3, "float32"), np.asarray(0.5, "float32")
    attrs = {"beta_1": 0.9, "beta_2": 0.9999, "epsilon": 0.0}
    p, _, _ = run_primitive(ops.adam_update, zero, zero, zero, g, rate, np.asarray(0, "int32"), **attrs)
    np.testing.assert_allclose(p, -0.5 * np.sign(g), rtol=1e-6)


@given(seed=seeds, rate=st.floats(1e-3, 1), momentum=st.sampled_from([0.0, 0.9]), centered=st.booleans(), decay=decays)
def test_rmsprop(seed: int, rate: float, momentum: float, centered: bool, decay: float) -> None:
    rho, epsilon = 0.9, 1e-3

    def step(p: float, v: float, a: float, u: float, g: float) -> tuple[float, float, float, float]:
        p -= rate * decay * p
        v = rho * v + (1 - rho) * g * g
        a = rho * a + (1 - rho) * g if centered else a
        u = momentum * u + rate * g / math.sqrt(v - (a * a if centered else 0) + epsilon)
        return p - u, v, a, u

    found = expected = [normal((2, 3), seed), np.zeros((2, 3)), np.zeros((2, 3)), np.zeros((2, 3))]
    attrs = {"rho": rho, "momentum": momentum, "epsilon": epsilon, "centered": centered, "weight_decay": decay}
    for g in _gradients(seed):
        found = run_primitive(ops.rmsprop_update, *found, g, np.asarray(rate), **attrs)
        expected = _each(step, *expected, g)
        for actual, wanted in zip(found, expected, strict=True):
            assert_close(actual, wanted, 100 * STEPS)


def test_centred_rmsprop_survives_a_constant_gradient() -> None:
    """The variance of a constant is 0, which float32 rounds to either side of it."""
    p = v = a = u = np.zeros(50, "float32")
    g, rate = np.linspace(1, 50, 50).astype("float32"), np.asarray(1e-3, "float32")
    attrs = {"rho": 0.5, "momentum": 0.0, "epsilon": 1e-7, "centered": True}
    for _ in range(60):
        p, v, a, u = run_primitive(ops.rmsprop_update, p, v, a, u, g, rate, **attrs)
    assert np.isfinite(p).all()


def test_errors() -> None:
    program = Program()
    p, rate = program.input("p", (2, 3)), program.input("rate", ())
    with pytest.raises(ValueError, match=r"sgd_update takes a parameter, its gradient and state of one shape"):
        ops.sgd_update(p, program.input("g", (3,)), rate)
    with pytest.raises(ValueError, match=r"then scalars"):
        ops.sgd_update(p, p, p)
    with pytest.raises(TypeError, match="sgd_update takes arrays of one dtype"):
        ops.sgd_update(p, p, ops.cast(rate, dtype="float64"))
    with pytest.raises(TypeError, match=r"adam_update takes 6 arrays \(p, m, v, g, rate, step\)\. Received: 2"):
        ops.adam_update(p, p, beta_1=0.9, beta_2=0.9, epsilon=0.1)
