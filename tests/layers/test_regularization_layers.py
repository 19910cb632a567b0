"""Dropout: what it drops, when, and that the same seed drops the same."""

from __future__ import annotations

import statistics
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicnn.layers import Dropout, GaussianNoise, Input, SpatialDropout2D
from minicnn.layers.functional import Functional
from minicnn.ops.draws import normal as normal_of
from support.layer_check import assert_formats_agree, run, run_layer, run_layer_check
from support.model_cases import run as run_ops
from support.strategies import normal, seeds
from support.tolerances import DOUBLE, ELEMENT


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (Dropout(0.5), (4, 5)),
        (Dropout(0.25, noise_shape=(None, 1, None), seed=3), (4, 5)),
        (Dropout(0), (3,)),
        (SpatialDropout2D(0.5), (3, 3, 4)),
        (GaussianNoise(0.5, seed=2), (3, 4)),
        (SpatialDropout2D(0.25, "channels_first", seed=1), (4, 3, 3)),
    ],
)
def test_dropout(layer: Any, shape: Any, training: bool) -> None:
    run_layer_check(layer, shape, output=shape, training=training)


@given(rate=st.floats(0, 0.99), seed=seeds)
def test_what_is_kept_is_divided_by_the_share_kept(rate: float, seed: int) -> None:
    x = normal((20, 30), seed)
    y = run_layer(Dropout(rate), x, training=True, seed=seed)
    kept = y != 0
    np.testing.assert_allclose(y[kept], x[kept] / (1 - rate), rtol=DOUBLE)
    deviation = np.sqrt(rate * (1 - rate) / x.size)
    assert abs(kept.mean() - (1 - rate)) <= 6 * deviation


def test_inference_changes_nothing_and_emits_nothing() -> None:
    for layer in (Dropout(0.5), SpatialDropout2D(0.5), GaussianNoise(0.5)):
        result = run(layer, x := normal((2, 3, 3, 4), 0))
        np.testing.assert_array_equal(result.y, x)
        assert result.program.nodes == []
    assert run(Dropout(0.0), x, training=True).program.nodes == []


def test_masks_change_with_step_seed_and_place_only() -> None:
    x = np.ones((8, 8))
    first = run_layer(Dropout(0.5), x, training=True)
    np.testing.assert_array_equal(run_layer(Dropout(0.5), x, training=True), first)
    assert (run_layer(Dropout(0.5), x, training=True, step=1) != first).any()
    assert (run_layer(Dropout(0.5), x, training=True, seed=1) != first).any()
    assert (run_layer(Dropout(0.5, name="other"), x, training=True) != first).any()
    # Its own seed takes the place of the model's.
    own = [run_layer(Dropout(0.5, seed=1), x, training=True, seed=s) for s in (0, 1, 2)]
    np.testing.assert_array_equal(own[0], own[1])
    np.testing.assert_array_equal(own[0], own[2])
    assert (own[0] != first).any()


def test_masks_are_the_same_in_both_precisions() -> None:
    masks = [run_layer(Dropout(0.3), np.ones((50, 50), d), training=True) != 0 for d in ("float32", "float64")]
    np.testing.assert_array_equal(masks[0], masks[1])


def test_two_calls_of_one_dropout_have_different_masks() -> None:
    layer = Dropout(0.5)
    x = Input((64,))
    y = run(Functional(x, [layer(x), layer(x)]), np.ones((2, 64)), training=True).y
    assert (y[0] != y[1]).any()


def test_noise_shape_drops_whole_rows() -> None:
    y = run_layer(Dropout(0.5, (None, 1)), np.ones((64, 3)), training=True)
    assert set(y.sum(1)) == {0.0, 6.0}


@given(seed=seeds)
def test_spatial_dropout_drops_whole_channels(seed: int) -> None:
    x = np.ones((4, 3, 2, 5))
    y = run_layer(SpatialDropout2D(0.5), x, training=True, seed=seed)
    assert set(y.sum((1, 2)).ravel()) <= {0.0, 12.0}
    # As many uniform numbers are drawn for both formats, in the same order.
    assert_formats_agree(SpatialDropout2D, x, rate=0.5, training=True)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Dropout(1.0), "rate is at least 0 and below 1. Received: rate=1.0"),
        (lambda: Dropout(-0.1), "rate is at least 0 and below 1"),
        (lambda: Dropout("half"), "rate is a number. Received: rate='half'"),  # type: ignore[arg-type]
        (lambda: Dropout(0.5, (0, None)), "Each length of noise_shape is an integer of at least 1"),
        (lambda: SpatialDropout2D(1), "rate is at least 0 and below 1"),
        (lambda: SpatialDropout2D(0.5, "last"), "data_format is"),
        (lambda: SpatialDropout2D(0.5)(Input((4,))), "SpatialDropout2D takes images"),
    ],
)
def test_wrong_arguments(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("noise_shape", [(None,), (None, 2), (None, 1, 1)])
def test_noise_shape_that_does_not_fit(noise_shape: Any) -> None:
    with pytest.raises(ValueError, match="noise_shape has one entry for each axis of the input"):
        run_layer(Dropout(0.5, noise_shape), np.ones((2, 3)), training=True)


def test_noise_is_normal() -> None:
    x = np.zeros((100, 1000))
    noise = np.sort(run_layer(GaussianNoise(2.0), x, training=True).ravel()) / 2
    inner = [statistics.NormalDist().cdf(z) for z in noise[:: len(noise) // 200]]
    np.testing.assert_allclose(inner, np.linspace(0, 1, len(inner)), atol=0.01)  # Kolmogorov and Smirnov's distance
    assert (run_layer(GaussianNoise(2.0), x, training=True, step=1) != run_layer(GaussianNoise(2.0), x)).any()


def test_normal_is_the_inverse_of_the_distribution_at_both_ends() -> None:
    u = np.asarray([0.0, 2.0**-24, 1e-3, 0.07, 0.08, 0.3, 0.5, 0.92, 0.93, 1 - 2.0**-24])
    found = run_ops(normal_of, u)
    expected = [statistics.NormalDist().inv_cdf(max(p, 2.0**-25)) for p in u]
    np.testing.assert_allclose(found, expected, rtol=ELEMENT, atol=ELEMENT)


@pytest.mark.parametrize("stddev", [-1.0, "a", None])
def test_wrong_stddev(stddev: Any) -> None:
    with pytest.raises(ValueError, match="stddev is a number"):
        GaussianNoise(stddev)
