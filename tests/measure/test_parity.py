"""The check that candidates compute the same."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from minicnn.measure.parity import Probe, largest_difference, parity, smallest_share

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
