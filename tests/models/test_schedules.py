"""Learning-rate schedules: values by hand, bounds, and arguments that are refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicnn.schedules import (
    CosineDecay,
    CosineDecayRestarts,
    ExponentialDecay,
    InverseTimeDecay,
    OneCycle,
    PiecewiseConstantDecay,
    PolynomialDecay,
    Schedule,
)
from support.tolerances import DOUBLE


@pytest.mark.parametrize(
    ("schedule", "values"),
    [
        (ExponentialDecay(0.8, 3, 0.5, True), {0: 0.8, 2: 0.8, 3: 0.4, 5: 0.4, 6: 0.2, 30: 0.8 / 1024}),
        (PiecewiseConstantDecay([2, 5], [1.0, 0.5, 0.1]), {0: 1.0, 2: 1.0, 3: 0.5, 5: 0.5, 6: 0.1, 99: 0.1}),
        (PiecewiseConstantDecay([], [0.3]), {0: 0.3, 7: 0.3}),
        (ExponentialDecay(0.4, 2, 0.25), {0: 0.4, 1: 0.2, 2: 0.1, 3: 0.05}),
        (InverseTimeDecay(0.4, 2, 1.0), {0: 0.4, 1: 0.4 / 1.5, 2: 0.2, 6: 0.1}),
        (InverseTimeDecay(0.4, 2, 1.0, True), {0: 0.4, 1: 0.4, 2: 0.2, 3: 0.2}),
        (PolynomialDecay(1.0, 4, 0.2), {0: 1.0, 1: 0.8, 4: 0.2, 9: 0.2}),
        (PolynomialDecay(1.0, 4, 0.0, 2.0, True), {0: 1.0, 2: 0.25, 4: 0.0, 6: 1 / 16, 8: 0.0}),
        (CosineDecay(1.0, 8), {0: 1.0, 2: 0.5 + math.sqrt(0.5) / 2, 4: 0.5, 8: 0.0, 9: 0.0, 99: 0.0}),
        (CosineDecay(0.2, 4, 0.2, 1.0, 4), {0: 0.2, 1: 0.4, 3: 0.8, 4: 1.0, 6: 0.6, 8: 0.2, 50: 0.2}),
        (CosineDecay(0.2, 4, warmup_steps=4), {0: 0.2, 2: 0.1, 4: 0.0}),
        (CosineDecayRestarts(1.0, 2), {0: 1.0, 1: 0.5, 2: 1.0, 4: 0.5, 6: 1.0, 10: 0.5}),
        (CosineDecayRestarts(1.0, 2, 1.0, 0.5, 0.2), {0: 1.0, 1: 0.6, 2: 0.6, 3: 0.4, 4: 0.4, 1000: 0.2}),
        (OneCycle(1.0, 20, 0.2, 10.0, 100.0), {0: 0.1, 2: 0.55, 4: 1.0, 12: (1 + 0.001) / 2, 20: 0.001, 50: 0.001}),
    ],
)
def test_by_hand(schedule: Schedule, values: dict[int, float]) -> None:
    for step, rate in values.items():
        assert schedule(step) == pytest.approx(rate, rel=DOUBLE, abs=DOUBLE), step


steps = st.integers(0, 300)
rates = st.floats(1e-6, 10.0)
counts = st.integers(1, 100)


@given(initial=rates, steps=counts, factor=st.floats(0.0, 1.0), step=steps, stairs=st.booleans())
def test_decays_never_rise(initial: float, steps: int, factor: float, step: int, stairs: bool) -> None:
    for schedule in (
        ExponentialDecay(initial, steps, factor, stairs), InverseTimeDecay(initial, steps, factor, stairs),
        PolynomialDecay(initial, steps, 0.5 * initial, 1 + factor), CosineDecay(initial, steps, factor),
    ):  # fmt: skip
        assert 0.0 <= schedule(step + 1) <= schedule(step) * (1 + 1e-12)
        assert schedule(0) == pytest.approx(initial)


@given(peak=rates, count=counts, rise=st.floats(0.01, 0.99), step=steps)
def test_one_cycle_rises_then_falls(peak: float, count: int, rise: float, step: int) -> None:
    schedule = OneCycle(peak, count, rise)
    assert schedule(0) == pytest.approx(peak / 25)
    assert schedule(count) == schedule(count + step) == pytest.approx(peak / 25e4)
    here, there = schedule(step), schedule(step + 1)
    assert 0 < here <= peak * (1 + 1e-12)
    if step + 1 <= rise * count:
        assert here <= there * (1 + 1e-12)
    elif step >= rise * count:
        assert there <= here * (1 + 1e-12)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: ExponentialDecay(0.1, 0, 0.5),
            r"is a number of steps, at least 1\. Received: decay_steps=0",
        ),
        (lambda: ExponentialDecay(math.nan, 1, 0.5), r"finite numbers .*initial_learning_rate=nan"),
        (lambda: ExponentialDecay(0.1, 2, -1.0), r"at least 0\. Received: decay_rate=-1.0"),
        (
            lambda: PiecewiseConstantDecay([1], [0.1]),
            r"increasing boundaries and one value more\. Received: boundaries=\[1\]",
        ),
        (lambda: PiecewiseConstantDecay([3, 1], [1, 2, 3]), r"increasing boundaries"),
        (lambda: PiecewiseConstantDecay([3, 3], [1, 2, 3]), r"increasing boundaries"),
        (lambda: PiecewiseConstantDecay([3], [1, -2]), r"Received: values\[1\]=-2"),
        (lambda: CosineDecay(0.1, 0), r"steps is a number of steps"),
        (lambda: CosineDecay(0.1, 5, warmup_steps=-1), r"warmup_steps=-1"),
        (lambda: CosineDecay(0.1, 5, alpha=-1.0), r"alpha=-1.0"),
        (lambda: CosineDecayRestarts(0.1, 5, 0.5), r"t_mul is a number of at least 1"),
        (lambda: PolynomialDecay(0.1, 0), r"decay_steps is a number of steps"),
        (lambda: OneCycle(0.1, 0), r"steps is a number of steps"),
        (lambda: OneCycle(0.1, 5, rise=1.0), r"rise is a share between 0 and 1\. Received: rise=1.0"),
        (lambda: OneCycle(0.1, 5, rise=0.0), r"rise is a share"),
        (lambda: OneCycle(math.inf, 5), r"peak=inf"),
        (lambda: OneCycle(0.1, 5, initial_divisor=0), r"divisors are at least 1\. Received: initial_divisor=0"),
        (lambda: OneCycle(0.1, 5, final_divisor=0.5), r"final_divisor=0.5"),
    ],
)
def test_arguments_out_of_range(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
