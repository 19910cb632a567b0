"""Arrays of the namespace beside NumPy's: drawn, laid out in memory in some way, and compared."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

pytest.importorskip("numba_cuda")

from minicnn.backends.numba_cuda import namespace as xp
from minicnn.backends.numba_cuda.arrays import Array
from minicnn.tolerance import tolerance

DTYPES = ["float32", "float64", "int32", "int64", "uint8", "bool"]
FAMILY = {"f": "f", "i": "i", "u": "i", "b": "b"}
Host = np.ndarray[Any, Any]


def drawn(shape: tuple[int, ...], dtype: str, seed: int, low: float = 0.2, high: float = 0.9) -> Host:
    """Numbers in the domain of every function, none of them zero."""
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype("bool")
    if np.dtype(dtype).kind == "f":
        return rng.uniform(low, high, shape).astype(dtype)
    return rng.integers(1, 7, shape).astype(dtype)


def same(found: Any, expected: Any, terms: int = 1) -> None:
    """Assert equal shape and type, and equal elements within the table of tolerances."""
    assert isinstance(found, Array)
    expected = np.asarray(expected)
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    if expected.dtype.kind == "f":
        rtol, atol = tolerance(expected.dtype.name, terms)
        np.testing.assert_allclose(found.numpy(), expected, rtol=rtol, atol=atol)
    else:
        np.testing.assert_array_equal(found.numpy(), expected)


@st.composite
def views(draw: st.DrawFn, dtype: str, shape: tuple[int, ...], seed: int) -> tuple[Array, Host]:
    """An array of a shape that lies in memory in some order, with gaps or backwards; and the same in NumPy."""
    order = draw(st.permutations(range(len(shape))))
    steps = [draw(st.sampled_from([1, 1, 2, -1])) for _ in shape]
    base = drawn(tuple(shape[a] * abs(steps[a]) for a in order), dtype, seed)
    key = tuple(slice(None, None, steps[a]) for a in order)
    back = [order.index(a) for a in range(len(shape))]
    device = xp.permute_dims(xp.asarray(base)[key], back)
    return device, np.transpose(base[key], back)
