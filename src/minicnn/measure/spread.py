"""Several measurements of one quantity: their median and quartiles, and what was disturbed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

OUTLIER = 2.0  # times as long as usual


@dataclass(frozen=True)
class Spread:
    """Several measurements of one quantity.

    Attributes:
        median: The median.
        low: First quartile.
        high: Third quartile.
        count: How many there are, without outliers.
        outliers: How many more there are, which were disturbed.

    Example:
        >>> Spread.of([5.0, 1.0, 2.0, 3.0, 4.0])
        Spread(median=3.0, low=2.0, high=4.0, count=5, outliers=0)
    """

    median: float
    low: float
    high: float
    count: int
    outliers: int = 0

    @classmethod
    def of(cls, samples: Sequence[float], factor: float = 1.0) -> Spread:
        """Median and quartiles of samples, times a factor that changes their unit.

        Raises:
            ValueError: If there are no samples.
        """
        if not len(samples):
            raise ValueError("A spread is of at least one sample. Received: none. Measure first.")
        ordered = sorted(float(sample) * factor for sample in samples)
        if any(map(math.isnan, ordered)):  # which have no order
            return cls(math.nan, math.nan, math.nan, len(samples))
        low, median, high = (_quantile(ordered, share) for share in (0.25, 0.5, 0.75))
        return cls(median, low, high, len(samples))

    def scaled(self, factor: float) -> Spread:
        """The same in another unit."""
        return replace(self, median=factor * self.median, low=factor * self.low, high=factor * self.high)

    def less(self, amount: float) -> Spread:
        """The same without a part that all samples have."""
        return replace(self, median=self.median - amount, low=self.low - amount, high=self.high - amount)

    @classmethod
    def after_first(cls, samples: Sequence[float], factor: float = 1.0, *, rate: bool = False) -> Spread:
        """The same of all but the first, in which a library may still compile; of that alone if it is the only one.

        Those that took more than `OUTLIER` times as long as the slowest of the faster half are outliers: something else
        kept the machine busy. They are counted, and left out of median and quartiles, as the mean of a disturbed time
        and of one that was not says nothing about either.

        Args:
            samples: Times, or rates, in order.
            factor: Changes their unit.
            rate: Whether they are rates, of which the disturbed ones are the lowest.
        """
        counted = samples[1:] or samples
        typical = sorted(counted, reverse=rate)[(len(counted) - 1) // 2] if len(counted) else 0.0
        kept = [s for s in counted if (s * OUTLIER >= typical if rate else s <= OUTLIER * typical)]
        return replace(cls.of(kept, factor), outliers=len(counted) - len(kept))


def _quantile(ordered: Sequence[float], share: float) -> float:
    """The quantile of ordered samples, between two of them by linear interpolation (definition 7 of Hyndman and Fan).

    NumPy's takes fifty times as long on a few samples, and a page of a study asks for thousands.
    """
    place = share * (len(ordered) - 1)
    below = int(place)
    if below == place:
        return ordered[below]
    return ordered[below] + (place - below) * (ordered[below + 1] - ordered[below])


def disturbed(times: Sequence[float]) -> str | None:
    """Disturbed epochs, in words that follow a name; None if none was.

    Args:
        times: Seconds of each epoch, in order; the first does not count.
    """
    usual = Spread.after_first(times)
    if not usual.outliers:
        return None
    largest = max(times[1:])
    count = f"{usual.outliers} epochs took" if usual.outliers > 1 else "one epoch took"
    return (
        f"{count} up to {largest:.3g} s, where others take {usual.median:.3g} s: the machine was disturbed, "
        "and medians leave them out"
    )
