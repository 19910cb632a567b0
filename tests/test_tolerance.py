"""The one tolerance table."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicnn.tolerance import EPSILON, tolerance
from support.strategies import seeds


def test_by_hand() -> None:
    assert tolerance("float64") == (16 * 2.0**-52, 16 * 2.0**-52)
    assert tolerance("float32", 25) == (80 * 2.0**-23, 80 * 2.0**-23)
    assert tolerance("float32", 0) == tolerance("float32", 1)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_epsilon_is_numpys(dtype: str) -> None:
    assert EPSILON[dtype] == float(np.finfo(dtype).eps)


def test_integers_have_no_tolerance() -> None:
    with pytest.raises(ValueError, match=r"Tolerances are for .*Received: 'int32'\. Compare integers exactly"):
        tolerance("int32")


@given(n=st.integers(1, 2000), seed=seeds, positive=st.booleans())
def test_holds_for_the_worst_order_of_a_sum(n: int, seed: int, positive: bool) -> None:
    """One addition after the other in float32 stays within the table, which is no wider than ten such errors."""
    terms = np.random.default_rng(seed).standard_normal(n).astype("float32")
    terms = np.abs(terms) if positive else terms
    total = np.float32(0)
    for term in terms:
        total += term
    exact = float(np.sum(terms.astype("float64")))
    rtol, atol = tolerance("float32", n)
    assert abs(float(total) - exact) <= rtol * abs(exact) + atol * max(1.0, n**0.5)
