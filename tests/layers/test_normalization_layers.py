"""Batch, layer, group and local response normalisation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicnn.layers import (
    BatchNormalization,
    GroupNormalization,
    Input,
    LayerNormalization,
    LocalResponseNormalization,
)
from minicnn.layers.functional import Functional
from support.layer_check import assert_formats_agree, run, run_layer, run_layer_check
from support.numerics import assert_close
from support.strategies import normal, seeds
from support.tolerances import ELEMENT

STATISTICS = ("moving_mean", "moving_variance")
BATCH = {"gamma": (2,), "beta": (2,), "moving_mean": (2,), "moving_variance": (2,)}


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(
    ("layer", "shape", "names"),
    [
        (BatchNormalization(), (3, 4, 2), ("gamma", "beta")),
        (BatchNormalization(axis=1), (2, 3, 4), ("gamma", "beta")),
        (BatchNormalization(axis=2, momentum=0.5, epsilon=0.1), (3, 2, 4), ("gamma", "beta")),
        (BatchNormalization(center=False), (2,), ("gamma",)),
        (BatchNormalization(scale=False), (4, 2), ("beta",)),
        (BatchNormalization(center=False, scale=False, axis=1, gamma_initializer="zeros"), (2, 3, 3), ()),
    ],
)
def test_batch_normalization(layer: Any, shape: Any, names: Any, training: bool) -> None:
    weights = dict.fromkeys((*names, *STATISTICS), (2,))
    run_layer_check(layer, shape, output=shape, weights=weights, statistics=STATISTICS, training=training, rtol=ELEMENT)


@given(
    shape=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    data=st.data(),
    momentum=st.floats(0, 1),
    epsilon=st.floats(1e-5, 1e-1),
    seed=seeds,
)
def test_batch_statistics(shape: list[int], data: Any, momentum: float, epsilon: float, seed: int) -> None:
    axis = data.draw(st.integers(1, len(shape)))
    x = normal((4, *shape), seed) * 2 + 1
    others = tuple(a for a in range(x.ndim) if a != axis)

    def per_channel(v: Any) -> Any:
        return np.expand_dims(v, others)

    result = run(BatchNormalization(axis, momentum, epsilon), x, training=True)
    w, mean, variance = result.weights, x.mean(others), x.var(others)
    expected = (x - per_channel(mean)) / per_channel(np.sqrt(variance + epsilon)) * per_channel(w["gamma"])
    assert_close(result.y, expected + per_channel(w["beta"]), terms=1000)
    assert_close(result.updates["moving_mean"], w["moving_mean"] * momentum + mean * (1 - momentum), terms=36)
    assert_close(
        result.updates["moving_variance"], w["moving_variance"] * momentum + variance * (1 - momentum), terms=36
    )

    result = run(BatchNormalization(axis, momentum, epsilon), x)
    expected = (x - per_channel(w["moving_mean"])) / per_channel(np.sqrt(w["moving_variance"] + epsilon))
    assert_close(result.y, expected * per_channel(w["gamma"]) + per_channel(w["beta"]), terms=4)
    assert result.updates == {}


def test_inference_is_one_multiply_and_one_add_of_the_whole_input() -> None:
    x = normal((2, 5, 6, 3), 0)
    program = run(BatchNormalization(), x).program
    assert [n.op.name for n in program.nodes if n.outputs[0].size == x.size] == ["multiply", "add"]


def test_the_first_statistics_are_kerass() -> None:
    # With mean 0 and variance 1 inference changes almost nothing.
    layer = BatchNormalization(epsilon=0.0)
    graph = Functional(x := Input((3,)), layer(x))
    names = {"moving_mean": 0.0, "moving_variance": 1.0, "gamma": 1.0, "beta": 0.0}
    for attribute, value in names.items():
        weight = getattr(layer, attribute)
        assert weight.initializer((2,), np.random.default_rng(0)).tolist() == [value, value]
        assert weight.trainable == (attribute in ("gamma", "beta"))
    assert graph.layers == [layer]


@pytest.mark.parametrize(
    ("layer", "shape", "weights"),
    [
        (LayerNormalization(), (3, 4), {"gamma": (4,), "beta": (4,)}),
        (LayerNormalization(axis=1), (3, 4), {"gamma": (3,), "beta": (3,)}),
        (LayerNormalization(axis=(1, 2, 3), center=False), (2, 3, 2), {"gamma": (2, 3, 2)}),
        (LayerNormalization(axis=[-1, 1], scale=False, epsilon=1e-2), (2, 3, 4), {"beta": (2, 4)}),
        (LayerNormalization(center=False, scale=False), (5,), {}),
        (GroupNormalization(2), (3, 4, 4), {"gamma": (4,), "beta": (4,)}),
        (GroupNormalization(1, axis=1, center=False), (4, 2, 3), {"gamma": (4,)}),
        (GroupNormalization(-1, scale=False), (3, 3, 2), {"beta": (2,)}),
        (GroupNormalization(3, axis=2, center=False, scale=False), (2, 6, 2), {}),
        (GroupNormalization(2), (6,), {"gamma": (6,), "beta": (6,)}),
        (LocalResponseNormalization(), (2, 3, 4), {}),
        (LocalResponseNormalization(2, alpha=0.5, beta=0.6, k=2.0), (2, 2, 3), {}),
        (LocalResponseNormalization(3, 1.0, 2.0, 0.5, "channels_first"), (4, 2, 3), {}),
    ],
)
def test_other_normalizations(layer: Any, shape: Any, weights: Any) -> None:
    run_layer_check(layer, shape, output=shape, weights=weights, rtol=ELEMENT)


@given(seed=seeds, axes=st.sampled_from([(-1,), (1,), (2,), (1, 2), (3, 1), (-3, -2, -1)]))
def test_layer_normalization_by_numpy(seed: int, axes: tuple[int, ...]) -> None:
    x = normal((3, 2, 3, 4), seed)
    result = run(LayerNormalization(axes), x)
    at = tuple(sorted(a % 4 for a in axes))
    shape = [n if a in at else 1 for a, n in enumerate(x.shape)]
    u = (x - x.mean(at, keepdims=True)) / np.sqrt(x.var(at, keepdims=True) + 1e-3)
    gamma, beta = (result.weights[name].reshape(shape) for name in ("gamma", "beta"))
    assert_close(result.y, u * gamma + beta, terms=1000)


@given(seed=seeds, groups=st.sampled_from([1, 2, 3, 6, -1]))
def test_group_normalization_by_numpy(seed: int, groups: int) -> None:
    x = normal((2, 3, 2, 6), seed)
    result = run(GroupNormalization(groups), x)
    count = 6 if groups == -1 else groups
    parts = x.reshape(2, 3, 2, count, -1)
    u = (parts - parts.mean((1, 2, 4), keepdims=True)) / np.sqrt(parts.var((1, 2, 4), keepdims=True) + 1e-3)
    assert_close(result.y, u.reshape(x.shape) * result.weights["gamma"] + result.weights["beta"], terms=1000)


def test_local_response_by_hand() -> None:
    x = np.asarray([1.0, 2.0, 3.0]).reshape(1, 1, 1, 3)
    y = run_layer(LocalResponseNormalization(size=2, alpha=2.0, beta=1.0, k=1.0), x)
    # The window of size 2 holds the channel before and the channel itself.
    assert_close(y.ravel(), np.asarray([1 / (1 + 1), 2 / (1 + 5), 3 / (1 + 13)]))


@given(seed=seeds, training=st.booleans())
def test_batch_normalization_channels_first(seed: int, training: bool) -> None:
    assert_formats_agree(BatchNormalization, normal((2, 3, 4, 5), seed), axis=True, training=training)


@given(seed=seeds, groups=st.sampled_from([1, 2, -1]))
def test_group_normalization_channels_first(seed: int, groups: int) -> None:
    assert_formats_agree(GroupNormalization, normal((2, 3, 4, 6), seed), axis=True, groups=groups)


@given(seed=seeds, size=st.integers(1, 7), alpha=st.floats(0, 2))
def test_local_response_channels_first(seed: int, size: int, alpha: float) -> None:
    assert_formats_agree(LocalResponseNormalization, normal((2, 3, 4, 5), seed), size=size, alpha=alpha)


def test_a_shared_batch_normalization_averages_both_batches() -> None:
    layer = BatchNormalization(momentum=0.5, epsilon=0.0)
    x = Input((2,))
    once = layer(x)
    graph = Functional(x, layer(once))  # the second call sees normalised numbers: mean beta, variance gamma ** 2
    data = normal((8, 2), 0)
    result = run(graph, data, training=True)
    w = {k.rpartition("/")[2]: v for k, v in result.weights.items()}
    new = {k.rpartition("/")[2]: v for k, v in result.updates.items()}
    after_first = w["moving_mean"] * 0.5 + data.mean(0) * 0.5
    assert_close(new["moving_mean"], after_first * 0.5 + w["beta"] * 0.5, terms=100)
    after_first = w["moving_variance"] * 0.5 + data.var(0) * 0.5
    assert_close(new["moving_variance"], after_first * 0.5 + w["gamma"] ** 2 * 0.5, terms=1000)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BatchNormalization(momentum=1.5), "momentum is from 0 to 1. Received: momentum=1.5"),
        (lambda: BatchNormalization(momentum=-0.1), "momentum is a number of at least 0"),
        (lambda: BatchNormalization(epsilon="small"), "epsilon is a number. Received: epsilon='small'"),  # type: ignore[arg-type]
        (lambda: BatchNormalization(moving_mean_initializer="x"), "An initializer is one of"),
        (
            lambda: BatchNormalization(0)(Input((2,))),
            "takes an axis from 1 to 1 .* axis 0 is the batch. Received: axis=0",
        ),
        (lambda: BatchNormalization(2)(Input((2,))), "BatchNormalization takes an axis from 1 to 1"),
        (lambda: LayerNormalization(0)(Input((2,))), "LayerNormalization takes an axis"),
        (lambda: LayerNormalization((1, -1))(Input((2,))), r"distinct axes, at least one. Received: axis=\(1, -1\)"),
        (lambda: LayerNormalization(())(Input((2,))), "distinct axes, at least one"),
        (lambda: LayerNormalization(epsilon=float("nan")), "epsilon is a number of at least 0"),
        (lambda: GroupNormalization(0), "groups is an integer of at least 1, or -1"),
        (
            lambda: GroupNormalization()(Input((4, 4, 8))),
            "groups divides the channels. Received: groups=32, 8 channels",
        ),
        (lambda: GroupNormalization(2, axis=0)(Input((4, 4, 8))), "GroupNormalization takes an axis"),
        (lambda: LocalResponseNormalization(0), "size is an integer of at least 1"),
        (lambda: LocalResponseNormalization(k=-1), "k is a number of at least 0"),
        (lambda: LocalResponseNormalization()(Input((4,))), "LocalResponseNormalization takes images"),
    ],
)
def test_wrong_arguments(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
