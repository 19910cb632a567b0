"""Random numbers that layers and Lambdas draw by shape: what they are, and that they are the same everywhere."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicnn import Sequential, ops
from minicnn.layers import Dense, Input, Lambda, Layer
from minicnn.tolerance import tolerance
from support.campaign import EVERY_CASE
from support.layer_check import run_layer
from support.model_cases import blobs

Array = np.ndarray[Any, Any]
KINDS: dict[str, Any] = {
    "uniform": lambda shape, seed: ops.random_uniform(shape, -1.0, 2.0, seed=seed),
    "normal": lambda shape, seed: ops.random_normal(shape, 0.5, 3.0, seed=seed),
    "bernoulli": lambda shape, seed: ops.random_bernoulli(shape, 0.3, seed=seed),
}
SHAPE = (4000, 5)


def assert_close(found: Mapping[str, Array], expected: Mapping[str, Array]) -> None:
    """Assert that weights agree but for the rounding of sums over a batch."""
    rtol, atol = tolerance("float32", 100)
    assert list(found) == list(expected)
    for path, array in expected.items():
        np.testing.assert_allclose(found[path], array, rtol, atol, err_msg=path)


def numbers(kind: str, shape: tuple[int, ...] = SHAPE, *, seed: int | None = None, step: int = 0) -> Array:
    """What a Lambda draws for a batch of that shape."""
    return run_layer(Lambda(lambda x: x * 0.0 + KINDS[kind](x.shape, seed)), np.zeros(shape), step=step)


def test_distributions() -> None:
    uniform, normal, coins = (np.sort(numbers(kind).ravel()) for kind in KINDS)
    places = np.linspace(0, 1, uniform.size)
    np.testing.assert_allclose((uniform + 1) / 3, places, atol=0.015)  # Kolmogorov and Smirnov's distance
    probabilities = [statistics.NormalDist(0.5, 3.0).cdf(z) for z in normal[::100]]
    np.testing.assert_allclose(probabilities, places[::100], atol=0.015)
    assert set(coins) == {0.0, 1.0}
    assert coins.mean() == pytest.approx(0.3, abs=0.015)


@pytest.mark.parametrize("kind", KINDS)
def test_other_seeds_and_steps_and_calls_have_other_numbers(kind: str) -> None:
    first = numbers(kind)
    assert (first == numbers(kind)).all()
    assert (first != numbers(kind, seed=5)).any()
    assert (first != numbers(kind, step=1)).any()
    twice = run_layer(Lambda(lambda x: KINDS[kind](x.shape, 0) - KINDS[kind](x.shape, 0) + x), np.zeros(SHAPE))
    assert (twice != 0).any()


class Sampling(Layer):
    """What a variational autoencoder samples."""

    def call(self, inputs: Any) -> Any:
        half = inputs.shape[1] // 2
        mean, log_variance = inputs[:, :half], inputs[:, half:]
        return ops.random_normal(mean.shape, mean, ops.exp(log_variance * 0.5))


def drawing(kind: str) -> Layer:
    return Sampling() if kind == "sampling" else Lambda(lambda v: v + KINDS[kind](v.shape, None))


def trained(kind: str, samples: int, parts: int = 1, seed: int = 0) -> dict[str, Array]:
    """Weights after two steps of a model that draws."""
    x, y = blobs(samples, seed=seed)
    kinds = list(KINDS) if kind == "all" else [kind] if kind in KINDS else []
    drawing = [Lambda(lambda v, draw=KINDS[k]: v + draw(v.shape, None)) for k in kinds]
    sampling = [Sampling()] if kind in ("all", "sampling") else []
    model = Sequential(
        [Input((5,)), Dense(4), *drawing, *sampling, Dense(3, activation="softmax")], backend="numpy", seed=seed
    )
    model.compile("sgd", accumulate=parts)
    for _ in range(2):
        model.train_on_batch(x, y)
    found: dict[str, Array] = model.get_weights()
    return found


@pytest.mark.parametrize("backend", ["array_api_strict", "numba", "torch", "jax"])
def test_every_backend_draws_the_same(backend: str) -> None:
    x = np.random.default_rng(0).random((6, 4), "float32")
    found = []
    kinds = list(KINDS) if EVERY_CASE or backend != "jax" else list(KINDS)[-2:]  # XLA takes seconds for each
    for name in ("numpy", backend):
        model = Sequential([Input((4,)), *map(drawing, kinds), Sampling()], backend=name)
        found.append(model.predict(x, batch_size=4))
    np.testing.assert_allclose(*found, *tolerance("float32"))


@given(st.sampled_from([*KINDS, "sampling"]), st.integers(2, 30), st.integers(1, 7), st.integers(0, 2**64 - 1))
def test_parts_of_a_batch_draw_what_the_whole_draws(kind: str, samples: int, parts: int, seed: int) -> None:
    parts = min(parts, samples)
    expected = trained(kind, samples, seed=seed)
    assert_close(trained(kind, samples, parts, seed), expected)


def test_numbers_that_all_samples_share() -> None:
    """A shape that does not begin with the batch is drawn alike by each part of it."""

    def shifted(v: Any) -> Any:
        return v + ops.random_normal((1, v.shape[1]))

    found = [
        Sequential([Input((5,)), Lambda(shifted), Dense(3, activation="softmax")], backend="numpy") for _ in range(2)
    ]
    for model, parts in zip(found, (1, 4), strict=True):
        model.compile("sgd", accumulate=parts)
        model.train_on_batch(*blobs(12))
    assert_close(*(model.get_weights() for model in found))


def test_batches_of_a_prediction_draw_anew() -> None:
    model = Sequential([Input((5,)), Lambda(lambda v: v + ops.random_uniform(v.shape))], backend="numpy")
    y = model.predict(np.zeros((8, 5), "float32"), batch_size=4)
    assert len(np.unique(y)) == y.size
    assert (model.predict(np.zeros((8, 5), "float32"), batch_size=4) != y).all()


def test_numbers_are_drawn_within_a_layer() -> None:
    for draw in KINDS.values():
        with pytest.raises(RuntimeError, match=r"within a layer's call or a Lambda. Received: shape \(2, 3\) outside"):
            draw((2, 3), None)


def test_a_probability_is_one() -> None:
    with pytest.raises(ValueError, match=r"A probability is from 0 to 1. Received: probability=1.5"):
        ops.random_bernoulli((2,), 1.5)
