"""Learning-rate schedules: values by hand, bounds, and arguments that are refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicnn.schedules import CosineDecay, ExponentialDecay, OneCycle, PiecewiseConstant, Schedule, StepDecay


@pytest.mark.parametrize(
    ("schedule", "values"),
    [
        (StepDecay(0.8, 3, 0.5), {0: 0.8, 2: 0.8, 3: 0.4, 5: 0.4, 6: 0.2, 30: 0.8 / 1024}),
        (StepDecay(1.0, 1), {0: 1.0, 1: 0.1, 2: 0.01}),
        (PiecewiseConstant([2, 5], [1.0, 0.5, 0.1]), {0: 1.0, 1: 1.0, 2: 0.5, 4: 0.5, 5: 0.1, 99: 0.1}),
        (PiecewiseConstant([], [0.3]), {0: 0.3, 7: 0.3}),
        (ExponentialDecay(0.4, 2, 0.25), {0: 0.4, 1: 0.2, 2: 0.1, 3: 0.05}),
        (CosineDecay(1.0, 8), {0: 1.0, 2: 0.5 + math.sqrt(0.5) / 2, 4: 0.5, 8: 0.0, 9: 0.0, 99: 0.0}),
        (CosineDecay(1.0, 8, warmup=4, final=0.2), {0: 0.25, 1: 0.5, 3: 1.0, 4: 1.0, 6: 0.6, 8: 0.2, 50: 0.2}),
        (OneCycle(1.0, 20, 0.2, 10.0, 100.0), {0: 0.1, 2: 0.55, 4: 1.0, 12: (1 + 0.001) / 2, 20: 0.001, 50: 0.001}),
    ],
)
def test_by_hand(schedule: Schedule, values: dict[int, float]) -> None:
    for step, rate in values.items():
        assert schedule(step) == pytest.approx(rate, abs=1e-15), step


steps = st.integers(0, 300)
rates = st.floats(1e-6, 10.0)
counts = st.integers(1, 100)


@given(initial=rates, every=counts, factor=st.floats(0.0, 1.0), step=steps)
def test_decays_never_rise(initial: float, every: int, factor: float, step: int) -> None:
    for schedule in (StepDecay(initial, every, factor), ExponentialDecay(initial, every, factor)):
        assert 0.0 <= schedule(step + 1) <= schedule(step) <= schedule(0) == initial


@given(peak=rates, count=counts, warmup=st.integers(0, 99), share=st.floats(0.0, 1.0), step=steps)
def test_cosine_stays_between_its_ends(peak: float, count: int, warmup: int, share: float, step: int) -> None:
    warmup %= count
    schedule = CosineDecay(peak, count, warmup, final=share * peak)
    rate = schedule(step)
    least = min(share * peak, peak / (warmup + 1))
    assert least * (1 - 1e-9) <= rate <= peak * (1 + 1e-9)
    if step < warmup:
        assert rate == pytest.approx(peak * (step + 1) / warmup)
    elif step >= count:
        assert rate == pytest.approx(share * peak)
    else:
        assert schedule(step + 1) <= rate * (1 + 1e-12)
    assert schedule(warmup) == pytest.approx(peak)


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
        (lambda: StepDecay(0.1, 0), r"every is a number of steps, at least 1\. Received: every=0"),
        (lambda: StepDecay(-0.1, 2), r"at least 0\. Received: initial=-0.1"),
        (lambda: StepDecay(0.1, 2, -1.0), r"at least 0\. Received: factor=-1.0"),
        (lambda: ExponentialDecay(0.1, 0, 0.5), r"steps is a number of steps"),
        (lambda: ExponentialDecay(math.nan, 1, 0.5), r"finite numbers .*initial=nan"),
        (
            lambda: PiecewiseConstant([1], [0.1]),
            r"increasing boundaries and one rate more\. Received: boundaries=\[1\]",
        ),
        (lambda: PiecewiseConstant([3, 1], [1, 2, 3]), r"increasing boundaries"),
        (lambda: PiecewiseConstant([3, 3], [1, 2, 3]), r"increasing boundaries"),
        (lambda: PiecewiseConstant([3], [1, -2]), r"Received: rates\[1\]=-2"),
        (lambda: CosineDecay(0.1, 0), r"steps is a number of steps"),
        (lambda: CosineDecay(0.1, 5, warmup=5), r"warmup is at least 0 and below steps\. Received: warmup=5, steps=5"),
        (lambda: CosineDecay(0.1, 5, warmup=-1), r"warmup is at least 0"),
        (lambda: CosineDecay(0.1, 5, final=-1.0), r"final=-1.0"),
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
