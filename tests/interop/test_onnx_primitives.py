"""Every primitive as operators of ONNX, run by ONNX Runtime, against its reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from array_api_compat import numpy as xp
from hypothesis import given, settings
from hypothesis import strategies as st

from minicnn import ops
from minicnn.conformance.cases import CASES, COLLECTIVES, Case
from minicnn.interop.onnx.primitives import RULES
from minicnn.ops.primitive import REGISTRY
from support.numerics import assert_close
from support.onnx_runtime import call
from support.strategies import WindowCase, conv_cases, normal, pool_cases, to_format
from support.tolerances import SUM

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

Array = np.ndarray[Any, Any]

EXPORTED = [case for case in CASES if case.op.name not in COLLECTIVES]


def single(array: Array) -> Array:
    return np.asarray(array, "float32" if array.dtype.kind == "f" else None)


def check(op: Any, *arrays: Array, terms: int = 1, **attrs: Any) -> None:
    arrays = tuple(map(single, arrays))
    expected = op.reference(*arrays, xp=xp, **attrs)
    expected = expected if isinstance(expected, tuple) else (expected,)
    for found, right in zip(call(op, *arrays, **attrs), expected, strict=True):
        assert found.dtype == right.dtype
        assert_close(found, right, terms)


@pytest.mark.parametrize("case", EXPORTED, ids=str)
def test_results(case: Case) -> None:
    check(case.op, *case.arrays, terms=case.terms, **case.attrs)


def test_rules_are_of_primitives() -> None:
    assert set(RULES) <= set(REGISTRY)


@given(case=conv_cases())
@settings(max_examples=15)
def test_convolutions(case: WindowCase) -> None:
    x, terms, geometry = to_format(case.x, case.data_format), case.terms, case.convolution
    check(ops.conv2d, x, case.w, terms=terms, **geometry)
    dy = to_format(normal((case.n, *case.output, case.filters), case.seed, 3), case.data_format)
    check(ops.conv2d_input_gradient, dy, case.w, terms=terms, image=case.image, **geometry)
    check(
        ops.conv2d_weight_gradient,
        dy,
        x,
        terms=case.n * case.output[0] * case.output[1],
        kernel=case.kernel,
        **geometry,
    )


@given(case=pool_cases(), ties=st.booleans())
@settings(max_examples=15)
def test_poolings(case: WindowCase, ties: bool) -> None:
    x = to_format(np.round(case.x) if ties else case.x, case.data_format)
    y = ops.max_pool2d.reference(single(x), xp=np, **case.pooling)
    dy = normal(y.shape, case.seed, 3)
    check(ops.max_pool2d, x, **case.pooling)
    check(ops.max_pool2d_gradient, dy, x, y, terms=9, **case.pooling)
    check(ops.average_pool2d, x, terms=9, **case.pooling)
    check(ops.average_pool2d_gradient, dy, terms=9, image=case.image, **case.pooling)


NUMBERS = np.asarray([0.0, 1e-30, 1e-7, 1e-3, 0.3, 0.99, 1.0, 1.01, 5.0, 20.0, 87.0], "float32")


@pytest.mark.parametrize("op", [ops.expm1, ops.log1p, ops.erfc, ops.softplus], ids=lambda op: op.name)
def test_small_results_have_their_digits(op: Any) -> None:
    """Where a result is small, its error is small as well: nothing is the difference of two numbers near 1."""
    x = np.concatenate([NUMBERS, -NUMBERS]) if op is not ops.log1p else np.concatenate([NUMBERS, -NUMBERS[:6]])
    if op is ops.erfc:  # a relative error of x becomes one that is 2 x^2 times as large
        x = x[np.abs(x) < 6]
    (found,) = call(op, x)
    right = op.reference(x.astype("float64"), xp=np)
    np.testing.assert_allclose(found, right, rtol=SUM, atol=1e-37)


@pytest.mark.parametrize("size", [(4, 6), (5, 7)])
@pytest.mark.parametrize("k", [2, 3])
def test_pooling_windows_side_by_side(size: tuple[int, int], k: int) -> None:
    """Where the image does not end with a window its last rows get no gradient."""
    x, how = np.round(normal((2, 3, *size), 0)), {"kernel": (k, k), "strides": (k, k), "data_format": "NCHW"}
    y = ops.max_pool2d.reference(x, xp=np, **how)
    check(ops.max_pool2d_gradient, normal(y.shape, 1), x, y, **how)
