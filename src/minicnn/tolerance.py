"""Tolerances of two correct computations of the same numbers: one table, for tests and benchmarks alike."""

from __future__ import annotations

import math

# Distance from 1 to the next number of each type.
EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}

SAFETY = 16


def tolerance(dtype: str, reduction_length: int = 1) -> tuple[float, float]:
    """Relative and absolute tolerance between two results of the same computation.

    Each of n additions rounds its partial sum by at most half a unit in the last place, up or down as if by chance.
    Partial sums of n terms with random signs grow as sqrt(k), so the errors add up to about eps * n / 4, relative to
    a sum of about sqrt(n): eps * sqrt(n) / 4. Partial sums of positive terms grow as k, so the errors add up to about
    eps * n^1.5 / 4, relative to a sum of about n: eps * sqrt(n) / 4 again. (N. Higham, T. Mary, A new approach to
    probabilistic rounding error analysis, doi:10.1137/18M1226312.) Both sides of a comparison err, elementary functions
    do by a few units, and the largest of many elements lies some standard deviations out, hence

        rtol = 16 * eps(dtype) * sqrt(reduction_length).

    The absolute tolerance is for results that nearly cancel: it is rtol times their usual size, taken to be 1. For
    results of another size multiply it by the largest expected magnitude.

    Args:
        dtype: Name of the floating-point type in which the less precise side computes.
        reduction_length: How many terms one result sums, e.g. KH * KW * C for a convolution.

    Returns:
        (rtol, atol), as in |a - b| <= atol + rtol * |b|.

    Raises:
        ValueError: If the dtype is not a floating-point type of the table.

    Example:
        >>> rtol, atol = tolerance("float32", reduction_length=4)
        >>> round(rtol / 2**-23)
        32
    """
    if dtype not in EPSILON:
        raise ValueError(f"Tolerances are for {', '.join(EPSILON)}. Received: {dtype!r}. Compare integers exactly.")
    rtol = SAFETY * EPSILON[dtype] * math.sqrt(max(reduction_length, 1))
    return rtol, rtol
