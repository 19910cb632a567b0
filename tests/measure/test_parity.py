"""The check that candidates compute the same."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from minicnn.jobs.settings import Settings
from minicnn.measure.parity import (
    Check,
    Probe,
    checks,
    largest_difference,
    loss_parity,
    parity,
    smallest_share,
)
from minicnn.measure.trainers import gradient_tolerance, settings_of
from minicnn.tolerance import tolerance

A = {"big": np.array([10.0, -20.0]), "small": np.array([1e-9, 0.0])}


def changed(path: str, by: float) -> dict[str, np.ndarray[Any, Any]]:
    return {**A, path: A[path] + np.array([by, 0.0])}


@pytest.mark.parametrize(
    ("theirs", "rounding", "expected"),
    [
        (A, {}, (0.0, "big")),
        (changed("big", 0.2), {}, (0.01, "big")),
        (changed("big", 0.2), {"big": 0.1}, (0.005, "big")),
        (changed("small", 0.02), {}, (1.0, "small")),  # relative to a thousandth of the largest of all
        (changed("small", 1e-9), {}, (5e-8, "small")),
        ({"big": A["big"]}, {}, (math.inf, "small")),
        ({**A, "big": np.zeros(3)}, {}, (math.inf, "big")),
    ],
)
def test_the_largest_difference(theirs: Any, rounding: dict[str, float], expected: tuple[float, str]) -> None:
    found, where = largest_difference(theirs, A, rounding)
    assert found == pytest.approx(expected[0])
    assert where == expected[1]


def test_no_number_is_never_near() -> None:
    found, where = largest_difference(changed("small", math.nan), A, {"small": 1.0})
    assert math.isnan(found)
    assert where == "small"
    assert parity({"a": Probe(1.0, A, {}), "b": Probe(math.nan, A, {})}, "a", 1.0).keys() == {"b"}


@pytest.mark.parametrize(
    ("theirs", "expected"),
    [(A, 0.0), (changed("big", 0.2), 0.5), ({**changed("big", 0.2), "small": A["small"] + 1}, 0.5),
     (changed("big", math.nan), 0.5), ({"small": A["small"]}, 1.0)],
)  # fmt: skip
def test_the_smallest_share_is_of_the_arrays_that_differ(theirs: Any, expected: float) -> None:
    assert smallest_share(theirs, A, {}, 1e-3) == expected


def test_equal_candidates_are_not_refused() -> None:
    assert parity({"a": Probe(1.0, A, {}), "b": Probe(1.0 + 1e-7, changed("big", 1e-6), {})}, "a", 1e-6) == {}


def compared(losses: tuple[float, ...] = (2.0, 1.0), accuracy: float = 0.9, tests: int = 10_000) -> dict[str, Check]:
    """A training beside one whose losses are 2 and 1, and whose accuracy is 0.9."""
    rows, right = ([{"loss": loss} for loss in some] for some in (losses, (2.0, 1.0)))
    return {c.what: c for c in checks(rows, right, (accuracy, 0.9), drift=1e-3, tests=tests)}


def test_equal_trainings_do_not_differ() -> None:
    assert all(c.passed and c.difference == 0 for c in compared().values())


def test_the_largest_relative_difference_of_the_losses_counts() -> None:
    check = compared((1.9, 1.1))["loss"]
    assert check.difference == pytest.approx(0.1)
    assert not check.passed
    assert str(check) == "loss 1.0e-01 (at most 1.0e-03)"
    assert not compared((2.0, math.nan))["loss"].passed


def test_few_test_samples_allow_a_few_of_them() -> None:
    assert compared(accuracy=0.9029)["test accuracy"].passed
    assert not compared(accuracy=0.9031)["test accuracy"].passed
    assert compared(accuracy=0.92, tests=100)["test accuracy"].passed


def test_losses_are_those_of_the_reference_each_within_its_bound() -> None:
    losses = {"a": [6.0, 3.5], "right": [6.0, 3.4], "coarse": [6.05, 3.4], "nan": [6.0, math.nan]}
    found = loss_parity(losses, (1e-4, 2e-2), "right", {"coarse": (1e-2, 2e-2)})
    assert list(found) == ["a", "nan"]
    assert found["a"] == (
        "its losses differ from right's by 0.0e+00 (relative; at most 1e-04) and 2.9e-02 (relative; at most 2e-02)"
    )
    assert list(loss_parity(losses, (1e-4, 2e-2))) == ["right", "coarse", "nan"], "the first is right if none is named"
    assert loss_parity({}, (1e-4,)) == {}


def small(precision: str) -> Settings:
    return settings_of("mlp", "synthetic_digits", samples=20, hold_out=0, batch_size=10, precision=precision)


def test_what_is_allowed_follows_from_the_table() -> None:
    longest = 784  # inputs of a hidden unit
    for dtype in ("float32", "float64"):
        assert gradient_tolerance(small(dtype)) == tolerance(dtype, longest)[0]
        assert gradient_tolerance(small(dtype), steps=25) == tolerance(dtype, 25 * longest)[0]
    assert gradient_tolerance(small("mixed_bfloat16")) == tolerance("bfloat16")[0]
    assert gradient_tolerance(small("mixed_bfloat16"), steps=4) == tolerance("bfloat16", 4)[0]
