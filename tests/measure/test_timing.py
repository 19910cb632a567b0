"""Times: their order, medians and spread."""

from __future__ import annotations

import time
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicnn.backends.numpy import NumpyBackend
from minicnn.measure import Column, Spread, awaken, interleaved, stopwatch, timing
from minicnn.measure.spread import disturbed


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=30), st.sampled_from([1.0, 1e3]))
def test_a_spread_is_median_and_quartiles(samples: list[float], factor: float) -> None:
    spread = Spread.of(samples, factor)
    assert spread.count == len(samples)
    assert spread.low <= spread.median <= spread.high
    assert spread.median == pytest.approx(factor * float(np.median(samples)))


def test_a_spread_of_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one sample"):
        Spread.of([])


def test_the_first_does_not_count_where_there_are_more() -> None:
    assert Spread.after_first([9.0, 1.0, 2.0, 3.0], 1e3) == Spread(2000.0, 1500.0, 2500.0, 3)
    assert Spread.after_first([9.0]) == Spread(9.0, 9.0, 9.0, 1)


@pytest.mark.parametrize(
    ("times", "median", "outliers"),
    [
        ([3.0, 0.9, 9.6], 0.9, 1),
        ([3.0, 9.6, 0.9], 0.9, 1),
        ([0.9, 9.6], 9.6, 0),
        ([3.0, 1.0, 1.1, 1.2, 30.0, 1.3], 1.15, 1),
        ([3.0, 1.0, 1.9], 1.45, 0),
        ([3.0, *[1.0] * 5, *[9.0] * 5], 1.0, 5),
        ([3.0, *[1.0] * 4, *[9.0] * 5], 9.0, 0),
    ],
)
def test_a_disturbed_epoch_is_marked_and_no_headline(times: list[float], median: float, outliers: int) -> None:
    spread = Spread.after_first(times)
    assert (spread.median, spread.outliers, spread.count) == (
        pytest.approx(median),
        outliers,
        max(len(times) - 1, 1) - outliers,
    )
    rates = Spread.after_first([1 / t for t in times], rate=True)
    assert rates.outliers == outliers
    assert rates.median == pytest.approx(1 / median, rel=0.2)
    text = Column("s", "time (s)", "{:.2f}").text(spread)
    assert ("disturbed" in text) == (outliers > 0)
    said = disturbed(times)
    assert (said is not None) == (outliers > 0)
    assert said is None or f"up to {max(times[1:]):.3g} s, where others take {spread.median:.3g} s" in said


def test_the_headline_of_a_study_leaves_a_disturbed_epoch_out() -> None:
    from minicnn.measure import Page, Setting, StudyRun
    from minicnn.studies import platforms

    def rows(*times: float) -> list[dict[str, float]]:
        more = {"test_accuracy": 0.9, "peak_mb": 1.0, "epoch": 1}
        return [{"time_s": t, "samples_per_s": platforms.pages.EPOCH / t, **more} for t in times]

    history = {"numpy": rows(3.0, 0.9, 9.6), "numba": rows(1.0, 0.45, 0.45)}
    setting = Setting(platforms.PlatformsSizes(), ("numpy", "numba"), {}, ("mnist",))
    machine = {"cores": 2, "devices": {}}
    page = Page()
    platforms.pages.present(page, [StudyRun(setting, {"training-mnist": {"history": history, "out": {}}}, machine)])
    assert page.figures[0].title == "An epoch takes 450 ms with numba, 2 cores, 900 ms with numpy, 2 cores"
    texts = [getattr(block, "text", "") for block in page.blocks]
    assert any("Of numpy, 2 cores one epoch took up to 9.6 s, where others take 0.9 s" in text for text in texts)


def test_candidates_are_interleaved_and_each_begins_a_round() -> None:
    order: list[str] = []

    def run(name: str) -> float:
        order.append(name)
        return float(len(order))

    samples = interleaved({n: partial(run, n) for n in "abc"}, rounds=3, warmup=1)
    assert order == [*"abc", *"abc", *"bca", *"cab"]
    assert samples == {"a": [4.0, 9.0, 11.0], "b": [5.0, 7.0, 12.0], "c": [6.0, 8.0, 10.0]}


def test_a_candidate_does_its_work_at_least_once_before_it_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[float] = []
    awaken(NumpyBackend(), lambda: (calls.append(0), time.sleep(0.02)), 0.01)
    assert len(calls) == 1
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: 0.003 * len(calls)))
    awaken(NumpyBackend(), lambda: calls.append(0), 0.01)
    assert len(calls) == 1 + 4


def test_a_device_computes_for_a_moment_before_it_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Watched(NumpyBackend):
        waits = 0

        def synchronize(self) -> None:
            self.waits += 1

    backend = Watched()
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: 0.006 * backend.waits))
    awaken(backend, least_s=0.02)
    assert backend.waits == 4


def test_a_budget_ends_the_rounds_after_three() -> None:
    samples = interleaved({"a": partial(stopwatch, partial(time.sleep, 0.01))}, rounds=50, budget_s=0.0)
    assert len(samples["a"]) == 3


def test_a_stopwatch_waits_for_the_device_and_repeats_short_calls() -> None:
    events: list[str] = []
    taken = stopwatch(lambda: events.append("call"), lambda: events.append("wait"))
    assert events == ["wait", "call", "wait"]
    assert 0 < taken < 1
    calls = 0

    def short() -> None:
        nonlocal calls
        calls += 1

    assert stopwatch(short, least_s=0.005) < 0.005
    assert calls > 10


def test_a_stopwatch_makes_the_expected_number_of_calls_at_once() -> None:
    events: list[str] = []

    def call() -> None:
        events.append("call")
        time.sleep(0.002)

    stopwatch(call, lambda: events.append("wait"), least_s=0.01, expected_s=0.002)
    assert events == ["wait", *["call"] * 7, "wait"]
