"""Reductions over axes, and broadcasting, their inverse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicnn import ops
from minicnn.program import Program, gradients
from support.gradcheck import check_gradients, run_checked, run_primitive
from support.numerics import assert_close
from support.strategies import axes_of, broadcastable, distinct_values, normal, seeds, shapes


@pytest.mark.parametrize("name", ["sum", "mean", "max"])
@given(shape=shapes(), seed=seeds, keepdims=st.booleans(), data=st.data())
def test_reduction(name: str, shape: tuple[int, ...], seed: int, keepdims: bool, data: st.DataObject) -> None:
    axes: Any = data.draw(st.one_of(st.none(), axes_of(len(shape))))
    if axes and len(axes) == 1 and data.draw(st.booleans()):
        axes = axes[0]
    x = distinct_values(shape, seed)
    expected = getattr(np, name)(x, axis=axes, keepdims=keepdims)
    assert_close(run_primitive(ops.REGISTRY[name], x, axes=axes, keepdims=keepdims), expected, x.size)
    check_gradients(ops.REGISTRY[name], x, seed=seed, axes=axes, keepdims=keepdims)


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axes", [1, (1, 2), (0, 2), None, ()])
def test_the_first_of_equal_maxima_takes_the_gradient(axes: Any, keepdims: bool) -> None:
    x = np.round(normal((3, 4, 5), 1))
    program = Program()
    given = program.input("x", x.shape, "float64")
    (dx,) = gradients(program, ops.sum(ops.max(given, axes=axes, keepdims=keepdims)), [given])
    program.outputs["dx"] = dx
    reduced = tuple(range(3)) if axes is None else (axes,) if isinstance(axes, int) else axes
    kept = tuple(a for a in range(3) if a not in reduced)
    rows = np.transpose(x, kept + reduced).reshape(*(x.shape[a] for a in kept), -1)
    hits = np.arange(rows.shape[-1]) == rows.argmax(axis=-1)[..., None]
    order = np.argsort(kept + reduced)
    expected = np.transpose(hits.reshape([x.shape[a] for a in kept + reduced]), order)
    np.testing.assert_array_equal(run_checked(program, {"x": x})["dx"], expected)


@given(shape=shapes(min_dims=1), seed=seeds, data=st.data())
def test_argmax_is_the_first(shape: tuple[int, ...], seed: int, data: st.DataObject) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    x = np.round(normal(shape, seed))
    index = run_primitive(ops.argmax, x, axis=axis)
    assert index.dtype == "int32"
    np.testing.assert_array_equal(index, np.argmax(x, axis=axis))


@given(pair=broadcastable(), seed=seeds)
def test_broadcast_and_sum_to_shape_are_transposes(pair: list[tuple[int, ...]], seed: int) -> None:
    full = np.broadcast_shapes(*pair)
    x, y = normal(pair[0], seed), normal(full, seed, 1)
    spread = run_primitive(ops.broadcast_to, x, shape=full)
    np.testing.assert_array_equal(spread, np.broadcast_to(x, full))
    check_gradients(ops.broadcast_to, x, seed=seed, shape=full)

    program = Program()
    program.outputs["r"] = ops.sum_to_shape(program.input("y", full, "float64"), pair[0])
    gathered = run_checked(program, {"y": y})["r"]
    assert np.sum(spread * y) == pytest.approx(np.sum(x * gathered))


def test_cost_is_one_operation_an_input_element() -> None:
    program = Program()
    assert ops.sum(program.input("x", (4, 5)), axes=0).node.cost.flops == 20


def test_errors() -> None:
    program = Program()
    x, n = program.input("x", (2, 3)), program.input("n", (2, 3), "int32")
    with pytest.raises(ValueError, match=r"sum takes distinct axes from -2 to 1\. Received: \(0, 2\)"):
        ops.sum(x, axes=(0, 2))
    with pytest.raises(ValueError, match=r"mean takes distinct axes .*Received: \(1, -1\)"):
        ops.mean(x, axes=(1, -1))
    with pytest.raises(TypeError, match="max takes floating-point arrays"):
        ops.max(n)
    with pytest.raises(ValueError, match=r"argmax takes one axis from -2 to 1\. Received: None"):
        ops.argmax(x, axis=None)
    with pytest.raises(ValueError, match=r"broadcast_to takes a shape that x broadcasts to.*\(3,\)"):
        ops.broadcast_to(x, shape=(3,))
    with pytest.raises(ValueError, match="broadcast_to takes shapes that broadcast"):
        ops.broadcast_to(x, shape=(2, 4))
