"""Maximum and average pooling and their gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicnn import ops
from minicnn.backends import get_backend
from minicnn.program import Program
from support import oracles
from support.gradcheck import check_gradients, run_primitive
from support.numerics import assert_close
from support.strategies import DATA_FORMATS, WindowCase, from_format, normal, pool_cases, to_format

IMAGE = np.asarray([[1.0, 5.0, 2.0], [7.0, 3.0, 8.0], [4.0, 9.0, 6.0]]).reshape(1, 3, 3, 1)
SMALL: dict[str, Any] = {"kernel": (2, 2), "strides": (1, 1)}


def test_max_by_hand() -> None:
    y = run_primitive(ops.max_pool2d, IMAGE, **SMALL)
    np.testing.assert_array_equal(y[0, ..., 0], [[7, 8], [9, 9]])
    padded = run_primitive(ops.max_pool2d, -IMAGE, kernel=(2, 2), strides=(2, 2), padding=((1, 0), (1, 0)))
    # Padding never wins, even against negative numbers.
    np.testing.assert_array_equal(padded[0, ..., 0], [[-1, -2], [-4, -3]])


def test_average_by_hand() -> None:
    y = run_primitive(ops.average_pool2d, IMAGE, **SMALL)
    np.testing.assert_array_equal(y[0, ..., 0], [[4, 4.5], [5.75, 6.5]])
    corner: dict[str, Any] = {"kernel": (2, 2), "strides": (2, 2), "padding": ((1, 0), (1, 0))}
    y = run_primitive(ops.average_pool2d, IMAGE, **corner)
    np.testing.assert_array_equal(y[0, ..., 0], [[1, 3.5], [5.5, 6.5]])
    y = run_primitive(ops.average_pool2d, IMAGE, **corner, count_padding=True)
    np.testing.assert_array_equal(y[0, ..., 0], [[0.25, 1.75], [2.75, 6.5]])


@given(case=pool_cases())
def test_max_matches_naive_loops(case: WindowCase) -> None:
    geometry = (case.kernel, case.strides, case.padding)
    x = to_format(case.x, case.data_format)
    y = run_primitive(ops.max_pool2d, x, **case.pooling)
    dy = normal(y.shape, case.seed, 3)
    expected, dx = oracles.max_pool2d(case.x, from_format(dy, case.data_format), *geometry)
    np.testing.assert_array_equal(from_format(y, case.data_format), expected)
    found = run_primitive(ops.max_pool2d_gradient, dy, x, y, **case.pooling)
    assert_close(from_format(found, case.data_format), dx, case.terms)


@given(case=pool_cases(), levels=st.integers(1, 3))
def test_the_first_of_equal_maxima_takes_the_gradient(case: WindowCase, levels: int) -> None:
    x = np.round(case.x * levels / 4)  # few different values: ties in most windows
    y, dx = oracles.max_pool2d(x, None, case.kernel, case.strides, case.padding)
    found = run_primitive(
        ops.max_pool2d_gradient,
        *(to_format(a, case.data_format) for a in (np.ones(y.shape), x, y)), **case.pooling,
    )  # fmt: skip
    np.testing.assert_array_equal(from_format(found, case.data_format), dx)


@pytest.mark.parametrize("name", ["numpy", "array_api_strict", "torch", "jax"])
def test_ties_on_every_library(name: str) -> None:
    pytest.importorskip(name)
    backend = get_backend(name)
    x = np.zeros((1, 4, 4, 1), "float32")
    arrays = [backend.asarray(a) for a in (np.ones((1, 2, 2, 1), "float32"), x, x[:, :2, :2])]
    dx = ops.max_pool2d_gradient.reference(*arrays, kernel=(2, 2), strides=(2, 2), xp=backend.xp)
    expected = np.zeros((4, 4))
    expected[::2, ::2] = 1
    np.testing.assert_array_equal(backend.to_numpy(dx)[0, ..., 0], expected)


def test_nan_is_passed_on_and_keeps_its_gradient() -> None:
    x = np.where(IMAGE == 3, np.nan, IMAGE)
    y = run_primitive(ops.max_pool2d, x, **SMALL)
    assert np.isnan(y).all()
    dx = run_primitive(ops.max_pool2d_gradient, np.ones((1, 2, 2, 1)), x, y, **SMALL)
    assert dx.sum() == 4


@given(case=pool_cases(), count_padding=st.booleans())
def test_average_matches_naive_loops(case: WindowCase, count_padding: bool) -> None:
    expected = oracles.average_pool2d(case.x, case.kernel, case.strides, case.padding, count_padding)
    x = to_format(case.x, case.data_format)
    y = run_primitive(ops.average_pool2d, x, count_padding=count_padding, **case.pooling)
    assert_close(from_format(y, case.data_format), expected, case.terms)


@given(case=pool_cases())
def test_max_gradient(case: WindowCase) -> None:
    check_gradients(ops.max_pool2d, to_format(case.x, case.data_format), seed=case.seed, **case.pooling)


@given(case=pool_cases(), count_padding=st.booleans())
def test_average_gradients(case: WindowCase, count_padding: bool) -> None:
    attrs = case.pooling | {"count_padding": count_padding}
    check_gradients(ops.average_pool2d, to_format(case.x, case.data_format), seed=case.seed, **attrs)
    dy = to_format(normal((case.n, *case.output, case.channels), case.seed), case.data_format)
    check_gradients(ops.average_pool2d_gradient, dy, seed=case.seed, image=case.image, **attrs)


@pytest.mark.parametrize("data_format", DATA_FORMATS)
def test_window_of_one_is_a_copy(data_format: str) -> None:
    x = to_format(IMAGE, data_format)
    one: dict[str, Any] = {"kernel": (1, 1), "strides": (1, 1), "data_format": data_format}
    for op in (ops.max_pool2d, ops.average_pool2d):
        np.testing.assert_array_equal(run_primitive(op, x, **one), x)


def test_cost() -> None:
    program = Program()
    x = program.input("x", (2, 6, 6, 3))
    y = ops.max_pool2d(x, kernel=(3, 2), strides=(2, 2))
    assert y.node.cost.flops == (2 * 2 * 3 * 3) * 6
    dx = ops.average_pool2d_gradient(y, image=(6, 6), kernel=(3, 2), strides=(2, 2))
    assert dx.node.cost.flops == (2 * 2 * 3 * 3) * 6


@pytest.mark.parametrize("op", [ops.max_pool2d, ops.average_pool2d], ids=str)
def test_errors(op: Any) -> None:
    program = Program()
    x = program.input("x", (2, 5, 5, 3))
    with pytest.raises(ValueError, match=rf"{op.name} takes padding smaller than the window.*window \(2, 2\)"):
        op(x, **SMALL, padding=((2, 0), (0, 0)))
    with pytest.raises(ValueError, match=f"{op.name} needs an image at least as large"):
        op(x, kernel=(6, 1), strides=(1, 1))
    with pytest.raises(ValueError, match=f"{op.name} takes an image with 4 axes"):
        op(program.input("flat", (2, 75)), **SMALL)
    with pytest.raises(TypeError, match=f"{op.name} takes floating-point arrays"):
        op(program.input("bytes", (2, 5, 5, 3), "uint8"), **SMALL)


def test_gradient_shape_errors() -> None:
    program = Program()
    x, y = program.input("x", (2, 5, 5, 3)), program.input("y", (2, 4, 4, 3))
    wrong = program.input("wrong", (2, 3, 4, 3))
    with pytest.raises(ValueError, match=r"dy and y of shape \(2, 4, 4, 3\)"):
        ops.max_pool2d_gradient(wrong, x, y, **SMALL)
    with pytest.raises(ValueError, match=r"dy of shape \(2, 4, 4, 3\) for image \(5, 5\)"):
        ops.average_pool2d_gradient(wrong, image=(5, 5), **SMALL)
    with pytest.raises(ValueError, match="with 4 axes"):
        ops.average_pool2d_gradient(program.input("flat", (2, 75)), image=(5, 5), **SMALL)
