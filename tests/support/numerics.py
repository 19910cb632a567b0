"""Comparison of arrays within the one tolerance table."""

from __future__ import annotations

from typing import Any

import numpy as np

from minicnn.tolerance import tolerance


def assert_close(actual: Any, expected: Any, terms: int = 1, *, dtype: str | None = None) -> None:
    """Assert equal shapes, and equal elements: exactly, or for floating point within the table for `dtype`.

    Args:
        actual: NumPy array to judge.
        expected: NumPy array, computed at least as precisely.
        terms: How many terms one element sums.
        dtype: Less precise of the two computations; that of `actual` by default.
    """
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.shape == expected.shape
    if actual.dtype.kind != "f":
        assert actual.dtype == expected.dtype
        np.testing.assert_array_equal(actual, expected)
        return
    rtol, atol = tolerance(dtype or actual.dtype.name, terms)
    scale = max(1.0, float(np.max(np.abs(expected), initial=0.0)))
    np.testing.assert_allclose(actual.astype("float64"), expected, rtol=rtol, atol=atol * scale)
