"""normalize: batch, layer and group normalisation in one."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicnn import ops
from minicnn.program import Program, Value
from support import oracles
from support.gradcheck import check_gradients, run_checked, run_primitive
from support.numerics import assert_close
from support.strategies import distinct_values, normal, seeds
from support.tolerances import ELEMENT

EPSILON = 1e-3


@st.composite
def cases(draw: st.DrawFn) -> tuple[Any, Any, Any, tuple[int, ...], int]:
    """X, scale and offset that broadcast to it, the axes of the statistics, and a seed."""
    shape = tuple(draw(st.lists(st.integers(2, 4), min_size=1, max_size=4)))
    axes = draw(st.lists(st.integers(0, len(shape) - 1), unique=True, min_size=1).map(tuple))
    kept = shape[draw(st.integers(0, len(shape))) :]
    scale = tuple(1 if draw(st.booleans()) else n for n in kept)
    seed = draw(seeds)
    return distinct_values(shape, seed), normal(scale, seed, 1) + 1, normal(scale, seed, 2), axes, seed


def test_by_hand() -> None:
    x = np.asarray([[1.0, 10.0], [3.0, 30.0]])
    y, mean, variance = run_primitive(ops.normalize, x, np.asarray([2.0, 1.0]), np.asarray([0.0, 5.0]),
                                      axes=(0,), epsilon=3.0)  # fmt: skip
    np.testing.assert_array_equal(mean, [[2, 20]])
    np.testing.assert_array_equal(variance, [[1, 100]])  # divided by N, not by N - 1
    np.testing.assert_allclose(y, [[-1, 5 - 10 / math.sqrt(103)], [1, 5 + 10 / math.sqrt(103)]])


@given(case=cases())
def test_matches_naive_loops(case: Any) -> None:
    x, scale, offset, axes, _ = case
    found = run_primitive(ops.normalize, x, scale, offset, axes=axes, epsilon=EPSILON)
    for actual, expected in zip(found, oracles.normalize(x, scale, offset, axes, EPSILON), strict=True):
        assert_close(actual, expected, x.size)
    from_the_end = tuple(a - x.ndim for a in axes)
    again = run_primitive(ops.normalize, x, scale, offset, axes=from_the_end, epsilon=EPSILON)
    np.testing.assert_array_equal(again[0], found[0])


@given(case=cases())
def test_gradients(case: Any) -> None:
    x, scale, offset, axes, seed = case

    def y(*values: Value) -> Value:
        result: Value = ops.normalize(*values, axes=axes, epsilon=EPSILON)[0]
        return result

    check_gradients(y, x, scale, offset, seed=seed, rtol=ELEMENT, step=3e-6)


def test_large_mean_keeps_its_variance() -> None:
    """The variance is taken around the mean; E[x^2] - E[x]^2 would give 0 here."""
    x = (1e4 + np.asarray([[-1.0], [1.0]])).astype("float32")
    one = np.ones(1, "float32")
    _, _, variance = run_primitive(ops.normalize, x, one, one * 0, axes=(0,), epsilon=EPSILON)
    assert variance[0, 0] == 1


def test_constant_input_gives_the_offset() -> None:
    y, _, variance = run_primitive(
        ops.normalize, np.full((4, 3), 2.0), np.ones(3), np.arange(3.0), axes=(0,), epsilon=0.1
    )
    np.testing.assert_array_equal(variance, [[0, 0, 0]])
    np.testing.assert_array_equal(y, np.broadcast_to(np.arange(3.0), (4, 3)))


@pytest.mark.parametrize("unit", [1.0, 4.0])
def test_mean_and_variance_are_differentiable_as_well(unit: float) -> None:
    def made(x: Value, scale: Value, offset: Value) -> Value:
        y, mean, variance = ops.normalize(x, scale, offset, axes=(0,), epsilon=0.1, unit=unit)
        total: Value = ops.sum(ops.square(y)) + ops.sum(mean * mean) + ops.sum(variance * mean)
        return total

    check_gradients(made, normal((4, 3), 0), normal((3,), 1), normal((3,), 2), step=3e-6, rtol=ELEMENT)
    check_gradients(
        lambda x: ops.sum(ops.normalize(x, 1.0, 0.0, axes=(0,), epsilon=0.1, unit=unit)[1] ** 2.0), normal((4, 3), 0)
    )


def test_gradient_sums_over_broadcast_axes_only() -> None:
    x, dy, full = normal((2, 3), 0), normal((2, 3), 1), np.ones((2, 3))
    mean, variance = x.mean(0, keepdims=True), x.var(0, keepdims=True)
    attrs = {"axes": (0,), "epsilon": EPSILON}
    _, _, whole = run_primitive(ops.normalize_gradient, dy, x, full, mean, variance, **attrs)
    np.testing.assert_array_equal(whole, dy)
    _, _, column = run_primitive(ops.normalize_gradient, dy, x, full[:, :1], mean, variance, **attrs)
    np.testing.assert_allclose(column, dy.sum(1, keepdims=True))
    _, _, scalar = run_primitive(ops.normalize_gradient, dy, x, np.ones(()), mean, variance, **attrs)
    np.testing.assert_allclose(scalar, dy.sum())


def test_errors() -> None:
    program = Program()
    x, s = program.input("x", (4, 3)), program.input("s", (3,))
    attrs: dict[str, Any] = {"axes": (0,), "epsilon": EPSILON}
    with pytest.raises(ValueError, match="scale and offset of one shape that broadcasts to x"):
        ops.normalize(x, s, program.input("o", (1, 3)), **attrs)
    wide = program.input("wide", (2, 4, 3))
    with pytest.raises(ValueError, match="scale and offset of one shape that broadcasts to x"):
        ops.normalize(x, wide, wide, **attrs)
    with pytest.raises(ValueError, match=r"normalize takes distinct axes.*\(0, 0\)"):
        ops.normalize(x, s, s, axes=(0, 0), epsilon=EPSILON)
    with pytest.raises(TypeError, match="normalize takes arrays of one dtype"):
        ops.normalize(x, ops.cast(s, dtype="float64"), s, **attrs)
    with pytest.raises(ValueError, match="normalize_gradient takes dy of the shape of x"):
        ops.normalize_gradient(s, x, s, s, s, **attrs)


def test_runs_without_its_gradient_nodes_when_nothing_needs_them() -> None:
    program = Program()
    x, s = program.input("x", (4, 3), "float64"), program.input("s", (3,), "float64")
    program.outputs["y"] = ops.normalize(x, s, s, axes=(0,), epsilon=EPSILON)[0]
    assert run_checked(program, {"x": normal((4, 3), 0), "s": np.ones(3)})["y"].shape == (4, 3)
