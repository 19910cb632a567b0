"""Whether two trainings have computed the same: what passes, what does not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from minicnn.cli import agreement
from minicnn.cli.agreement import Check
from minicnn.cli.candidates import Result
from minicnn.tolerance import tolerance


def result(name: str = "numpy", losses: tuple[float, ...] = (2.0, 1.0), accuracy: float = 0.9, **first: Any) -> Result:
    weights: dict[str, np.ndarray[Any, Any]] = {}
    for path, (start, after) in {"a": (1.0, 1.1), "b": (0.5, 0.5 + 1e-7), **first}.items():
        weights[f"start/{path}"] = np.full(4, start, np.float32)
        weights[f"first/{path}"] = np.full(4, after, np.float32)
        weights[f"final/{path}"] = np.full(4, after, np.float32)
    history = [{"loss": loss} for loss in losses]
    return Result(name, {"history": history, "test": {"accuracy": accuracy}}, weights)


def checks(
    one: Result,
    other: Result,
    *,
    precision: str = "float32",
    reduction: int = 100,
    steps: int = 25,
    tests: int = 10_000,
) -> dict[str, Check]:
    made = agreement.compare(one, other, precision=precision, reduction=reduction, steps=steps, tests=tests)
    return {check.what: check for check in made}


def test_equal_trainings_do_not_differ() -> None:
    found = checks(result("torch"), result())
    assert all(c.passed and c.difference == 0 for c in found.values())
    assert found["final weights"].allowed is None


@pytest.mark.parametrize(("precision", "dtype"), [("float32", "float32"), ("float64", "float64")])
def test_what_is_allowed_follows_from_the_table(precision: str, dtype: str) -> None:
    found = checks(result(), result(), precision=precision)
    assert found["first update"].allowed == tolerance(dtype, 100)[0]
    assert found["loss"].allowed == tolerance(dtype, 2500)[0]


def test_products_of_short_floats_are_allowed_their_rounding() -> None:
    found = checks(result(), result(), precision="mixed_bfloat16")
    assert found["first update"].allowed == tolerance("bfloat16")[0]


def test_a_wrong_update_is_found_also_where_it_is_small() -> None:
    assert not checks(result(a=(1.0, 1.1001)), result())["first update"].passed
    # A thousandth of the largest update is looked at in full ...
    small = {"b": (0.0, 1e-4)}
    assert not checks(result(b=(0.0, 1.01e-4)), result(**small))["first update"].passed
    # ... but not what is zero but for rounding.
    assert checks(result(b=(0.0, 2e-9)), result(b=(0.0, 1e-9)))["first update"].passed


def test_the_rounding_of_the_weights_is_not_held_against_the_update() -> None:
    large = {"a": (1000.0, 1000.1), "b": (0.5, 0.5)}
    other = {"a": (1000.0, float(np.nextafter(np.float32(1000.1), np.float32(2000)))), "b": (0.5, 0.5)}
    assert checks(result(**other), result(**large))["first update"].passed


def test_updates_that_are_all_zero_agree() -> None:
    still = {"a": (1.0, 1.0), "b": (0.5, 0.5)}
    assert checks(result(**still), result(**still))["first update"].difference == 0


def test_the_largest_relative_difference_of_the_losses_counts() -> None:
    check = checks(result(losses=(2.0, 1.1)), result(losses=(2.2, 1.0)))["loss"]
    assert check.difference == pytest.approx(0.1)
    assert not check.passed
    assert "at most" in str(check)


def test_numbers_that_are_none_do_not_pass() -> None:
    assert not checks(result(losses=(1.0, float("nan"))), result())["loss"].passed
    assert not checks(result(a=(1.0, float("nan"))), result())["first update"].passed


def test_few_test_samples_allow_a_few_of_them() -> None:
    assert checks(result(accuracy=0.9029), result())["test accuracy"].passed
    assert not checks(result(accuracy=0.9031), result())["test accuracy"].passed
    assert checks(result(accuracy=0.92), result(), tests=100)["test accuracy"].passed


def test_final_weights_are_reported_relative_to_their_norm() -> None:
    twice = result()
    for key in twice.weights:
        if key.startswith("final/"):
            twice.weights[key] = twice.weights[key] * 2
    check = checks(twice, result())["final weights"]
    assert check.difference == pytest.approx(1.0)
    assert check.passed
    assert str(check) == "final weights 1.0e+00"
