"""Stragglers: ranks that wait for each other take as long as the slowest of them."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

QUANTILES = 16384  # by which a normal distribution stands in for measured steps


def normal(variation: float) -> list[float]:
    """Step times with mean 1 that are normally distributed.

    Args:
        variation: Standard deviation.

    Raises:
        ValueError: If it is not from 0 to below 1/4.
    """
    if not 0 <= variation < 0.25:
        raise ValueError(
            "The variation of step times is a standard deviation relative to the mean, from 0 to below 0.25. "
            f"Received: {variation!r}."
        )
    if not variation:
        return [1.0]
    of = NormalDist(1.0, variation)
    return [of.inv_cdf((i + 0.5) / QUANTILES) for i in range(QUANTILES)]


def typical(seconds: Sequence[float]) -> float:
    """The lower quartile: what else runs on a machine only adds to times."""
    return float(np.quantile(seconds, 0.25))


def relative(seconds: Sequence[float]) -> list[float]:
    """Measured step times, relative to the typical one; without those that something else made twice as long."""
    usual = typical(seconds)
    return [s / usual for s in seconds if s < 2 * usual]


def expected_maximum(times: Sequence[float], ranks: int) -> float:
    """Mean of the largest of so many independent draws from some values.

    The i-th smallest of n values is the largest drawn with the probability (i / n)^R - ((i - 1) / n)^R.

    Args:
        times: The values.
        ranks: Draws.
    """
    at_most = np.linspace(0.0, 1.0, len(times) + 1) ** ranks
    return float(np.sort(np.asarray(times)) @ np.diff(at_most))
