"""The checks that the other tests lean on fail when they should."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from minicnn import ops
from minicnn.ops import primitive
from minicnn.program import Spec, Value
from support.gradcheck import check_gradients, run_primitive
from support.numerics import assert_close

X = np.asarray([[0.3, -1.2], [2.0, 0.7]])


@pytest.fixture
def cube(registry: None) -> Any:
    """A primitive with a rule that forgets a factor where its attribute says so."""

    @primitive
    def cube(x: Any, *, factor: float = 3.0, xp: Any) -> Any:
        return x * x * x

    cube.shape(lambda x, **_: x)
    cube.gradient(lambda node, dy: dy * ops.square(node.inputs[0]) * node.attrs["factor"])
    return cube


def test_accepts_a_right_gradient_and_returns_it(cube: Any) -> None:
    (dx,) = check_gradients(lambda x: ops.sum(cube(x)), X)
    # The upstream gradient of the one result is a number drawn at random.
    np.testing.assert_allclose(dx / X**2, dx[0, 0] / X[0, 0] ** 2)


def test_rejects_a_wrong_gradient(cube: Any) -> None:
    with pytest.raises(AssertionError, match="gradient of input 0"):
        check_gradients(cube, X, factor=3.001)


def test_rejects_a_gradient_that_ignores_the_upstream_one(registry: None) -> None:
    @primitive
    def shifted(x: Any, *, xp: Any) -> Any:
        return x + 1

    shifted.shape(lambda x: x)
    shifted.gradient(lambda node, dy: dy * 0.0 + 1.0)
    with pytest.raises(AssertionError, match="gradient of input 0"):
        check_gradients(shifted, X)


def test_rejects_a_view(registry: None) -> None:
    @primitive
    def first_row(x: Any, *, xp: Any) -> Any:
        return x[:1, :]

    first_row.shape(lambda x: Spec((1, x.shape[1]), x.dtype))
    with pytest.raises(AssertionError, match="returns a view"):
        run_primitive(first_row, X)


def test_rejects_results_that_share_memory(registry: None) -> None:
    @primitive
    def twice(x: Any, *, xp: Any) -> Any:
        y = x + 1
        return y, y

    twice.shape(lambda x: (x, x))
    with pytest.raises(AssertionError, match="returns a view"):
        run_primitive(twice, X)


def test_rejects_a_changed_input(registry: None) -> None:
    @primitive
    def doubled(x: Any, *, xp: Any) -> Any:
        x *= 2
        return x + 0

    doubled.shape(lambda x: x)
    with pytest.raises(ValueError, match="read-only"):
        run_primitive(doubled, X)


@pytest.mark.parametrize("result", [Spec((2, 1), "float64"), Spec((2, 2), "float32")])
def test_rejects_a_wrong_shape_rule(registry: None, result: Spec) -> None:
    @primitive
    def same(x: Any, *, xp: Any) -> Any:
        return x + 0

    same.shape(lambda x: result)
    with pytest.raises(AssertionError):
        run_primitive(same, X)


def test_compositions_and_several_results() -> None:
    def function(x: Value) -> tuple[Value, Value]:
        return ops.exp(x), ops.sum(x * x, axes=0)

    check_gradients(function, X)


def test_assert_close_follows_the_table() -> None:
    one = np.ones(3, "float32")
    assert_close(one * np.float32(1 + 2.0**-20), one.astype("float64"))
    with pytest.raises(AssertionError):
        assert_close(one * np.float32(1 + 2.0**-17), one.astype("float64"))
    assert_close(one * np.float32(1 + 2.0**-17), one.astype("float64"), terms=100)
    with pytest.raises(AssertionError):
        assert_close(one, np.ones((1, 3)))
    with pytest.raises(AssertionError):
        assert_close(np.asarray([1, 2]), np.asarray([1, 3]))
