"""Kernels at shapes that are drawn: around the 16 lanes, odd, of length 1, in every layout; arrays with gaps.

Each geometry of a convolution may be machine code of its own, so by day they are run as Python: those that are compiled
are in `test_numba_images.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minicnn import ops
from support.numba_check import Array, both, check
from support.strategies import (
    WindowCase,
    axes_of,
    broadcastable,
    conv_cases,
    normal,
    pool_cases,
    seeds,
    shapes,
    to_format,
)

pytest.importorskip("numba")

BATCHES = st.sampled_from([1, 2, 15, 16, 17, 31, 33])
# The fixture that switches the JIT off holds for all examples.
FIXED = {
    "suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow], "deadline": None,
}  # fmt: skip
drawn: Callable[..., Any] = settings(max_examples=15, **FIXED)


def small(array: Array) -> Array:
    return array.astype("float32")


@pytest.mark.usefixtures("either_at_night")
@pytest.mark.parametrize("name", ["conv2d", "depthwise_conv2d"])
@drawn
@given(conv_cases(), BATCHES)
def test_convolutions(name: str, case: WindowCase, n: int) -> None:
    case = replace(case, n=n)
    w, attrs = (case.w, case.convolution) if name == "conv2d" else (case.depthwise_w, case.sliding)
    x, w, terms = small(to_format(case.x, case.data_format)), small(w), case.n * case.terms
    convolve, input_gradient, weight_gradient = (
        getattr(ops, name + of) for of in ("", "_input_gradient", "_weight_gradient")
    )
    made, expected = both(convolve, (x, w), attrs, (1,), threads=1)
    check(made, expected, terms)
    dy = small(normal(expected[0].shape, case.seed))
    check(*both(input_gradient, (dy, w), attrs | {"image": case.image}, (1,), threads=1), terms)
    check(*both(weight_gradient, (dy, x), attrs | {"kernel": case.kernel}, threads=1), terms)


@pytest.mark.usefixtures("either_at_night")
@drawn
@given(pool_cases(), BATCHES)
def test_poolings(case: WindowCase, n: int) -> None:
    case = replace(case, n=n)
    x = small(to_format(case.x, case.data_format))
    (y,), (expected,) = both(ops.max_pool2d, (x,), case.pooling, threads=1)
    np.testing.assert_array_equal(y, expected)
    dy = small(normal(expected.shape, case.seed))
    check(*both(ops.max_pool2d_gradient, (dy, x, expected), case.pooling, threads=1), 9)
    check(*both(ops.average_pool2d, (x,), case.pooling, threads=1), 9)
    check(*both(ops.average_pool2d_gradient, (dy,), case.pooling | {"image": case.image}, threads=1), 9)


SIDES = st.sampled_from([1, 5, 15, 16, 17, 31, 33, 70])


@pytest.mark.usefixtures("either_at_night")
@settings(max_examples=12, **FIXED)
@given(SIDES, SIDES, SIDES, st.booleans(), st.booleans(), seeds)
def test_matrix_products(m: int, k: int, n: int, left: bool, right: bool, seed: int) -> None:
    a = small(normal((k, m) if left else (m, k), seed))
    b = small(normal((n, k) if right else (k, n), seed, 1))
    check(*both(ops.matmul, (a, b), {"transpose_a": left, "transpose_b": right}, threads=1), 4 * k)


@pytest.mark.usefixtures("either_at_night")
@drawn
@given(broadcastable(3), st.sampled_from([None, 17, 33]), seeds)
def test_operands_that_are_broadcast(given_shapes: list[tuple[int, ...]], n: int | None, seed: int) -> None:
    full = np.broadcast_shapes(*given_shapes)
    if n is not None and full:  # longer than the lanes
        longest = tuple(n if i == len(full) - 1 else k for i, k in enumerate(full))
        given_shapes = [(*s[:-1], n) if s and s[-1] == full[-1] else s for s in given_shapes] + [longest]
    a, b, c, *_ = (small(normal(s, seed, i)) for i, s in enumerate([*given_shapes, full]))
    check(*both(ops.multiply, (a, b), {}, threads=1))
    check(*both(ops.where, (a > 0, b, c), {}, threads=1))
    check(*both(ops.power, (np.abs(a) + 0.1, c), {}, threads=1), 9)


@pytest.mark.usefixtures("either")
@drawn
@given(st.data(), shapes(1, 4), BATCHES, st.sampled_from(["sum", "mean", "max"]), st.booleans(), seeds)
def test_reductions(data: st.DataObject, shape: tuple[int, ...], n: int, kind: str, keepdims: bool, seed: int) -> None:
    shape = (n, *shape[1:])
    axes = data.draw(axes_of(len(shape)))
    x = small(normal(shape, seed))
    for weights in ((), (0,)):  # with a batch axis and without
        attrs = {"axes": axes, "keepdims": keepdims}
        check(*both(getattr(ops, kind), (x,), attrs, weights, threads=1), x.size)


@pytest.mark.usefixtures("either")
@drawn
@given(st.data(), shapes(2, 4), BATCHES, seeds)
def test_softmax_and_places_of_maxima(data: st.DataObject, shape: tuple[int, ...], n: int, seed: int) -> None:
    shape = (n, *shape[1:])
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    x = small(normal(shape, seed) * 3)
    for op in (ops.softmax, ops.log_softmax, ops.argmax):
        check(*both(op, (x,), {"axis": axis}, threads=1), 9)


@pytest.mark.usefixtures("either")
@drawn
@given(st.data(), shapes(1, 4), BATCHES, st.sampled_from(["float32", "int32", "uint8", "bool"]), seeds)
def test_what_moves_elements(data: st.DataObject, shape: tuple[int, ...], n: int, dtype: str, seed: int) -> None:
    shape = (n, *shape[1:])
    x = (normal((2 * n, *shape[1:]), seed) * 50 + 100).clip(0, 255).astype(dtype)[::2][..., ::-1]  # with gaps
    order = data.draw(st.permutations(range(len(shape))))
    axis = data.draw(st.integers(0, len(shape) - 1))
    widths = [(data.draw(st.integers(0, 2)), data.draw(st.integers(0, 2))) for _ in shape]
    bounds = [(min(a, n - 1), n - min(b, n - 1 - min(a, n - 1))) for (a, b), n in zip(widths, shape, strict=True)]
    for op, arrays, attrs in (
        (ops.permute, (x,), {"axes": tuple(order)}),
        (ops.repeat, (x,), {"repeats": 3, "axis": axis}),
        (ops.concat, (x, x, x), {"axis": axis}),
        (ops.pad, (x,), {"widths": tuple(widths), "value": 1}),
        (ops.slice_, (x,), {"bounds": tuple(bounds)}),
    ):
        made, expected = both(op, arrays, attrs, threads=1)
        np.testing.assert_array_equal(made[0], expected[0])
        assert made[0].dtype == expected[0].dtype
