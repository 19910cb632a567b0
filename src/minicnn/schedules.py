"""Learning-rate schedules: the rate as a function of the step, computed on the host."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, cast

MOST = 3.4e38  # of float32, which rates become


class Schedule:
    """A learning rate that depends on the number of steps taken."""

    def __call__(self, step: int) -> float:
        """Learning rate of the step with this number, counted from 0."""
        raise NotImplementedError


@dataclass(frozen=True)
class StepDecay(Schedule):
    """The rate falls to `factor` of itself every `every` steps.

    Args:
        initial: First learning rate.
        every: Steps between two falls.
        factor: What is left of the rate after a fall.
    """

    initial: float
    every: int
    factor: float = 0.1

    def __post_init__(self) -> None:
        _positive("every", self.every)
        _rates(initial=self.initial, factor=self.factor)

    def __call__(self, step: int) -> float:
        """See `Schedule`."""
        return self.initial * float(self.factor) ** (step // self.every)


@dataclass(frozen=True)
class PiecewiseConstant(Schedule):
    """Rates[i] until step boundaries[i], the last rate from then on.

    Args:
        boundaries: Increasing step numbers.
        rates: Learning rates, one more than boundaries.
    """

    boundaries: Sequence[int]
    rates: Sequence[float]

    def __post_init__(self) -> None:
        if len(self.rates) != len(self.boundaries) + 1 or list(self.boundaries) != sorted(set(self.boundaries)):
            message = (
                "PiecewiseConstant takes increasing boundaries and one rate more. "
                f"Received: boundaries={list(self.boundaries)}, rates={list(self.rates)}."
            )
            raise ValueError(message)
        _rates(**{f"rates[{i}]": rate for i, rate in enumerate(self.rates)})

    def __call__(self, step: int) -> float:
        """See `Schedule`."""
        return float(self.rates[sum(step >= b for b in self.boundaries)])


@dataclass(frozen=True)
class ExponentialDecay(Schedule):
    """The rate falls smoothly by `factor` every `steps` steps.

    Args:
        initial: First learning rate.
        steps: Steps in which the rate falls by the factor.
        factor: What is left of the rate after that many steps.
    """

    initial: float
    steps: int
    factor: float

    def __post_init__(self) -> None:
        _positive("steps", self.steps)
        _rates(initial=self.initial, factor=self.factor)

    def __call__(self, step: int) -> float:
        """See `Schedule`."""
        return self.initial * float(self.factor) ** (step / self.steps)


@dataclass(frozen=True)
class CosineDecay(Schedule):
    """Linear warm-up to the peak, then half a cosine down to the final rate (arXiv:1608.03983).

    Args:
        peak: Highest learning rate.
        steps: Steps in all, warm-up included; the final rate holds from then on.
        warmup: Steps of the warm-up.
        final: Last learning rate.
    """

    peak: float
    steps: int
    warmup: int = 0
    final: float = 0.0

    def __post_init__(self) -> None:
        _positive("steps", self.steps)
        _rates(peak=self.peak, final=self.final)
        if not 0 <= self.warmup < self.steps:
            message = f"warmup is at least 0 and below steps. Received: warmup={self.warmup}, steps={self.steps}."
            raise ValueError(message)

    def __call__(self, step: int) -> float:
        """See `Schedule`."""
        if step < self.warmup:
            return self.peak * (step + 1) / self.warmup
        done = min((step - self.warmup) / (self.steps - self.warmup), 1.0)
        return self.final + (self.peak - self.final) * 0.5 * (1.0 + math.cos(math.pi * done))


@dataclass(frozen=True)
class OneCycle(Schedule):
    """From initial up to the peak and down to final, both by half a cosine (arXiv:1708.07120).

    Args:
        peak: Highest learning rate.
        steps: Steps of the cycle; the final rate holds from then on.
        rise: Share of the steps in which the rate rises.
        initial_divisor: The first rate is peak / initial_divisor.
        final_divisor: The last rate is peak / (initial_divisor * final_divisor).
    """

    peak: float
    steps: int
    rise: float = 0.3
    initial_divisor: float = 25.0
    final_divisor: float = 1e4

    def __post_init__(self) -> None:
        _positive("steps", self.steps)
        _rates(peak=self.peak)
        if not 0 < self.rise < 1:
            message = f"rise is a share between 0 and 1. Received: rise={self.rise}."
            raise ValueError(message)
        if not (self.initial_divisor >= 1 and self.final_divisor >= 1):
            message = (
                "OneCycle starts at or below its peak and ends at or below its start, so divisors are at least 1. "
                f"Received: initial_divisor={self.initial_divisor}, final_divisor={self.final_divisor}."
            )
            raise ValueError(message)

    def __call__(self, step: int) -> float:
        """See `Schedule`."""
        initial = self.peak / self.initial_divisor
        turn = self.rise * self.steps
        if step < turn:
            return _cosine(initial, self.peak, step / turn)
        return _cosine(self.peak, initial / self.final_divisor, min((step - turn) / (self.steps - turn), 1.0))


def _cosine(start: float, stop: float, done: float) -> float:
    return stop + (start - stop) * 0.5 * (1.0 + math.cos(math.pi * done))


def _rates(**given: float) -> None:
    for name, value in given.items():
        if not is_rate(value):
            message = f"Rates and factors are finite numbers of at least 0. Received: {name}={value!r:.60}."
            raise ValueError(message)


def is_rate(value: Any) -> bool:
    """Whether a value is a number of at least 0 that float32 can hold."""
    return isinstance(value, Real) and 0 <= cast(float, value) <= MOST


def _positive(name: str, value: int) -> None:
    if value < 1:
        message = f"{name} is a number of steps, at least 1. Received: {name}={value}."
        raise ValueError(message)
