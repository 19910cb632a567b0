"""Learning-rate schedules: the rate as a function of the step, computed on the host."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, cast

from minicnn.configured import Configured, register

# A larger rate would be infinite where it is used, and the error would come many steps later.
MOST = 3.4e38  # of float32, which rates become


class Schedule(Configured):
    """A learning rate that depends on the number of steps taken."""

    def __call__(self, step: int) -> float:
        """Learning rate of the step with this number, counted from 0."""
        raise NotImplementedError


@dataclass(frozen=True)
class PiecewiseConstantDecay(Schedule):
    """values[i] up to and including step boundaries[i], the last value after the last boundary.

    Args:
        boundaries: Increasing step numbers.
        values: Learning rates, one more than boundaries.
    """

    boundaries: Sequence[float]
    values: Sequence[float]

    def __post_init__(self) -> None:
        if len(self.values) != len(self.boundaries) + 1 or list(self.boundaries) != sorted(set(self.boundaries)):
            raise ValueError(
                "PiecewiseConstantDecay takes increasing boundaries and one value more. "
                f"Received: boundaries={list(self.boundaries)}, values={list(self.values)}."
            )
        _rates(**{f"values[{i}]": rate for i, rate in enumerate(self.values)})

    def __call__(self, step: int) -> float:
        # Inclusive, as in Keras: at a boundary the old value still holds.
        return float(self.values[sum(step > b for b in self.boundaries)])


@dataclass(frozen=True)
class _Falling(Schedule):
    """A rate that falls by what is given, in so many steps, smoothly or at once."""

    initial_learning_rate: float
    decay_steps: float
    decay_rate: float
    staircase: bool = False

    def __post_init__(self) -> None:
        _positive("decay_steps", self.decay_steps)
        _rates(initial_learning_rate=self.initial_learning_rate, decay_rate=self.decay_rate)

    # Whole falls are counted by floor division, so that with `staircase` the rate changes at the step itself, as in
    # Keras.
    def _falls(self, step: int) -> float:
        """Number of falls up to a step."""
        return step // self.decay_steps if self.staircase else step / self.decay_steps


@dataclass(frozen=True)
class ExponentialDecay(_Falling):
    """The rate falls to decay_rate of itself in decay_steps steps, smoothly or at once.

    Args:
        initial_learning_rate: First learning rate.
        decay_steps: Steps in which the rate falls.
        decay_rate: What is left of the rate after that many steps.
        staircase: Whether it falls at once, every decay_steps steps.
    """

    def __call__(self, step: int) -> float:
        return self.initial_learning_rate * float(self.decay_rate) ** self._falls(step)


@dataclass(frozen=True)
class PolynomialDecay(Schedule):
    """The rate falls to a last one like (1 - done)^power, done being the share of the decay_steps taken.

    Args:
        initial_learning_rate: First learning rate.
        decay_steps: Steps in which the rate falls; with `cycle`, the next whole multiple of them.
        end_learning_rate: Last learning rate.
        power: Exponent; 1 is a straight line.
        cycle: Whether the rate rises again when the last one is reached.
    """

    initial_learning_rate: float
    decay_steps: float
    end_learning_rate: float = 0.0001
    power: float = 1.0
    cycle: bool = False

    def __post_init__(self) -> None:
        _positive("decay_steps", self.decay_steps)
        _rates(initial_learning_rate=self.initial_learning_rate, end_learning_rate=self.end_learning_rate)

    def __call__(self, step: int) -> float:
        steps = self.decay_steps * (max(math.ceil(step / self.decay_steps), 1) if self.cycle else 1)
        left = (1.0 - min(step / steps, 1.0)) ** self.power
        return (self.initial_learning_rate - self.end_learning_rate) * left + self.end_learning_rate


@dataclass(frozen=True)
class InverseTimeDecay(_Falling):
    """initial_learning_rate / (1 + decay_rate * step / decay_steps).

    Args:
        initial_learning_rate: First learning rate.
        decay_steps: Steps in which the divisor grows by decay_rate.
        decay_rate: See there.
        staircase: Whether it grows at once, every decay_steps steps.
    """

    def __call__(self, step: int) -> float:
        return self.initial_learning_rate / (1.0 + self.decay_rate * self._falls(step))


@dataclass(frozen=True)
class CosineDecay(Schedule):
    """Half a cosine down to alpha times the rate, after a linear warm-up if asked (arXiv:1608.03983).

    Args:
        initial_learning_rate: First learning rate.
        decay_steps: Steps of the decay, which the warm-up is not part of.
        alpha: What is left of the highest rate; it holds from then on.
        warmup_target: Rate at the end of the warm-up, from which it decays; None for no warm-up.
        warmup_steps: Steps of the warm-up.
    """

    initial_learning_rate: float
    decay_steps: float
    alpha: float = 0.0
    warmup_target: float | None = None
    warmup_steps: float = 0

    def __post_init__(self) -> None:
        _positive("decay_steps", self.decay_steps)
        _rates(initial_learning_rate=self.initial_learning_rate, alpha=self.alpha)
        _rates(warmup_target=self.warmup_target or 0.0, warmup_steps=self.warmup_steps)

    def __call__(self, step: int) -> float:
        first, peak, warmup = self.initial_learning_rate, self.initial_learning_rate, 0.0
        if self.warmup_target is not None:
            peak, warmup = self.warmup_target, self.warmup_steps
        if step < warmup:
            return first + (peak - first) * step / warmup
        # Steps are counted from the end of the warm-up, and the lowest rate holds behind the last.
        return _cosine(peak, self.alpha * peak, min((step - warmup) / self.decay_steps, 1.0))


@dataclass(frozen=True)
class CosineDecayRestarts(Schedule):
    """Half a cosine down to alpha times the rate, again and again (arXiv:1608.03983).

    Args:
        initial_learning_rate: First learning rate.
        first_decay_steps: Steps of the first period.
        t_mul: How much longer each period is than the one before, at least 1.
        m_mul: What is left of the first rate of a period in the next.
        alpha: What is left of the first learning rate at the end of a period, as a share.
    """

    initial_learning_rate: float
    first_decay_steps: float
    t_mul: float = 2.0
    m_mul: float = 1.0
    alpha: float = 0.0

    def __post_init__(self) -> None:
        _positive("first_decay_steps", self.first_decay_steps)
        _rates(initial_learning_rate=self.initial_learning_rate, m_mul=self.m_mul, alpha=self.alpha)
        if not self.t_mul >= 1:
            raise ValueError(f"t_mul is a number of at least 1. Received: t_mul={self.t_mul!r}.")

    def __call__(self, step: int) -> float:
        first, growth = float(self.first_decay_steps), self.t_mul - 1.0
        periods = int(math.log1p(step / first * growth) / math.log1p(growth) if growth else step / first)
        periods = max(periods - 1, 0)  # rounded; the loop takes the rest
        start = first * ((self.t_mul**periods - 1.0) / growth if growth else periods)
        length, peak = first * self.t_mul**periods, float(self.m_mul) ** periods
        while step >= start + length:
            start, length, peak = start + length, length * self.t_mul, peak * self.m_mul
        share = (1.0 - self.alpha) * _cosine(peak, 0.0, (step - start) / length) + self.alpha
        return self.initial_learning_rate * share


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
    steps: float
    rise: float = 0.3
    initial_divisor: float = 25.0
    final_divisor: float = 1e4

    def __post_init__(self) -> None:
        _positive("steps", self.steps)
        _rates(peak=self.peak)
        if not 0 < self.rise < 1:
            raise ValueError(f"rise is a share between 0 and 1. Received: rise={self.rise}.")
        if not (self.initial_divisor >= 1 and self.final_divisor >= 1):
            raise ValueError(
                "OneCycle starts at or below its peak and ends at or below its start, so divisors are at least 1. "
                f"Received: initial_divisor={self.initial_divisor}, final_divisor={self.final_divisor}."
            )

    def __call__(self, step: int) -> float:
        initial = self.peak / self.initial_divisor
        turn = self.rise * self.steps
        if step < turn:
            return _cosine(initial, self.peak, step / turn)
        return _cosine(self.peak, initial / self.final_divisor, min((step - turn) / (self.steps - turn), 1.0))


register(
    CosineDecay, CosineDecayRestarts, ExponentialDecay, InverseTimeDecay, OneCycle, PiecewiseConstantDecay,
    PolynomialDecay,
)  # fmt: skip


def _cosine(start: float, stop: float, done: float) -> float:
    return stop + (start - stop) * 0.5 * (1.0 + math.cos(math.pi * done))


def _rates(**rates: float) -> None:
    for name, value in rates.items():
        if not is_rate(value):
            raise ValueError(f"Rates and factors are finite numbers of at least 0. Received: {name}={value!r:.60}.")


def is_rate(value: Any) -> bool:
    """True if a value is a number of at least 0 that float32 can hold."""
    return isinstance(value, Real) and 0 <= cast(float, value) <= MOST


def _positive(name: str, value: float) -> None:
    if value < 1:
        raise ValueError(f"{name} is a number of steps, at least 1. Received: {name}={value}.")
