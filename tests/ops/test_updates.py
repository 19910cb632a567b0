"""Optimizer updates at their edges; over several steps they are compared with formulas as parts of the optimizers."""

from __future__ import annotations

import numpy as np
import pytest

from minicnn import ops
from minicnn.program import Program
from support.gradcheck import run_primitive
from support.tolerances import ELEMENT


def test_adam_first_step_is_the_rate_whatever_the_gradient() -> None:
    """Bias correction: the first step has length rate; in float32 too, where 1 - beta_2 loses four digits."""
    g = np.asarray([1e-2, -3.0, 50.0], "float32")
    zero, rate = np.zeros(3, "float32"), np.asarray(0.5, "float32")
    attrs = {"beta_1": 0.9, "beta_2": 0.9999, "epsilon": 0.0}
    p, _, _ = run_primitive(ops.adam_update, zero, zero, zero, g, rate, np.asarray(0, "int32"), **attrs)
    np.testing.assert_allclose(p, -0.5 * np.sign(g), rtol=ELEMENT)


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
