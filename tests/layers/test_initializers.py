"""First values of weights: distributions, fans, reproducibility, errors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicnn.initializers import (
    INITIALIZERS,
    Constant,
    Initializer,
    RandomNormal,
    RandomUniform,
    VarianceScaling,
    fans,
    generator,
    get_initializer,
    truncated_normal,
)

SHAPE = (3, 3, 40, 60)
FAN_IN, FAN_OUT = 9 * 40, 9 * 60


def draw(initializer: str | Initializer, shape: Any = SHAPE, seed: int = 0) -> Any:
    values = get_initializer(initializer)(shape, generator(seed, "w"))
    assert (values.shape, values.dtype.name) == (tuple(shape), "float64")
    return values


@pytest.mark.parametrize(
    ("name", "fan", "scale"),
    [
        ("glorot", (FAN_IN + FAN_OUT) / 2, 1),
        ("he", FAN_IN, 2),
        ("lecun", FAN_IN, 1),
    ],
)
def test_variance_of_the_named_ones(name: str, fan: float, scale: float) -> None:
    stddev = math.sqrt(scale / fan)
    uniform, normal = draw(f"{name}_uniform"), draw(f"{name}_normal")
    for values in (uniform, normal):
        assert abs(values.mean()) < 5 * stddev / math.sqrt(values.size)
        assert abs(values.std() / stddev - 1) < 0.02
    assert np.abs(uniform).max() <= math.sqrt(3) * stddev
    # Cut off at two standard deviations of the normal distribution before the cut.
    limit = 2 * stddev / 0.87962566103423978
    assert 0.95 * limit < np.abs(normal).max() <= limit


def test_untruncated_normal() -> None:
    values = draw(VarianceScaling(2.0, "fan_out", "untruncated_normal"))
    stddev = math.sqrt(2 / FAN_OUT)
    assert abs(values.std() / stddev - 1) < 0.02
    assert np.abs(values).max() > 3 * stddev


def test_constants() -> None:
    assert set(draw("zeros").ravel()) == {0.0}
    assert set(draw("ones").ravel()) == {1.0}
    assert set(draw("constant").ravel()) == {0.0}
    assert set(draw(Constant(2)).ravel()) == {2.0}


def test_plain_distributions() -> None:
    normal = draw("random_normal")
    assert abs(normal.std() - 0.05) < 0.001
    assert abs(draw(RandomNormal(3.0, 0.1)).mean() - 3) < 0.01
    uniform = draw("random_uniform")
    assert -0.05 <= uniform.min() < -0.0499
    assert 0.0499 < uniform.max() <= 0.05
    assert draw(RandomUniform(1.0, 2.0)).min() >= 1


@given(
    shape=st.lists(st.integers(1, 5), max_size=5), name=st.sampled_from(list(INITIALIZERS)), seed=st.integers(0, 2**70)
)
def test_every_shape_and_seed(shape: list[int], name: str, seed: int) -> None:
    first = draw(name, shape, seed)
    np.testing.assert_array_equal(draw(name, shape, seed), first)
    assert np.isfinite(first).all()


def test_weights_do_not_depend_on_each_other() -> None:
    a, b = (get_initializer("he_normal")((4, 4), generator(0, n)) for n in ("a", "b"))
    assert (a != b).all()
    assert (draw("he_normal", seed=1) != draw("he_normal")).all()


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((), (1, 1)), ((7,), (7, 7)), ((3, 4), (3, 4)), ((5, 3, 4), (15, 20)), ((2, 3, 4, 5), (24, 30))],
)
def test_fans(shape: Any, expected: Any) -> None:
    assert fans(shape) == expected


def test_truncated_normal_is_within_two() -> None:
    values = truncated_normal((1000, 100), np.random.default_rng(0))
    assert 1.99 < np.abs(values).max() <= 2
    assert abs(values.std() - 0.87962566103423978) < 0.005


@pytest.mark.parametrize(
    "make",
    [
        lambda: VarianceScaling(0.0),
        lambda: VarianceScaling(mode="fan"),  # type: ignore[arg-type]
        lambda: VarianceScaling(distribution="normal"),  # type: ignore[arg-type]
    ],
)
def test_wrong_variance_scaling(make: Any) -> None:
    with pytest.raises(ValueError, match=r"VarianceScaling takes scale > 0, mode in .* Received: VarianceScaling\("):
        make()


def test_the_base_class_is_abstract() -> None:
    with pytest.raises(NotImplementedError):
        Initializer()((2,), np.random.default_rng(0))
