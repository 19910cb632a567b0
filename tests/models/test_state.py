"""No state leaks: weights in and out are copies, seeds decide alone, and donated buffers never bite."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minicnn import Model, Sequential
from minicnn.layers import BatchNormalization, Dense, Dropout, Input
from minicnn.losses import SparseCategoricalCrossentropy
from minicnn.optimizers import SGD, Adam
from support.model_cases import FAST, Watch, assert_same_weights, blobs, linear, to_library, two_layers
from support.strategies import seeds
from support.tolerances import ELEMENT, SUM

Array = np.ndarray[Any, Any]
X, Y = blobs(12, 3, 2)


network = partial(
    two_layers, features=3, units=2, between=(BatchNormalization, partial(Dropout, 0.2)), optimizer=partial(Adam, 0.01)
)


# Weights ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("used", [False, True])
def test_get_weights_gives_copies(backend: str, used: bool) -> None:
    model = network(backend)
    if used:
        model.fit(X, Y, 6, 1, 0)
    before = {path: w.copy() for path, w in model.get_weights().items()}
    for w in model.get_weights().values():
        w += 1.0
    assert_same_weights(model.get_weights(), before)


@pytest.mark.parametrize(
    ("library", "backend"),
    [("numpy", "numpy"), ("numpy", "torch"), ("numpy", "jax"), ("torch", "torch"), ("torch", "numpy"), ("jax", "jax")],
)
def test_set_weights_takes_copies(backend: str, library: str) -> None:
    model = network(backend)
    new = {path: np.full_like(w, 0.5) for path, w in model.get_weights().items()}
    arrays = {path: to_library(w, library) for path, w in new.items()}
    model.set_weights(arrays)
    if library != "jax":  # whose arrays cannot be changed
        for array in arrays.values():
            array += 1.0
    for path, w in model.get_weights().items():
        np.testing.assert_array_equal(w, np.full_like(w, 0.5), err_msg=path)
    model.fit(X, Y, 6, 1, 0)
    for path, array in arrays.items():  # training on them is another matter
        np.testing.assert_array_equal(np.asarray(array), 0.5 + (library != "jax"), err_msg=path)


@pytest.mark.parametrize("backend", FAST)
def test_what_is_set_is_what_computes(backend: str) -> None:
    model = linear(backend)
    model.set_weights({"dense/bias": [1, 2]})
    model.set_weights({"dense/kernel": np.zeros((3, 2), "int64")})
    np.testing.assert_array_equal(model.predict(X), np.tile([1.0, 2.0], (12, 1)))
    assert {w.dtype.name for w in model.get_weights().values()} == {"float32"}
    model.fit(X, X[:, :2], verbose=0)
    model.set_weights({"dense/kernel": np.zeros((3, 2)), "dense/bias": np.ones(2)})
    np.testing.assert_array_equal(model.predict(X), np.ones((12, 2)))


@pytest.mark.parametrize(
    ("weights", "error", "message"),
    [
        ({"dense/kernel": np.ones((2, 3))}, ValueError, r"'dense/kernel' with shape \(2, 3\); the model has \(3, 2\)"),
        (
            {"kernel": np.ones(3)},
            ValueError,
            r"'kernel' with shape \(3,\); the model has no weight of that name\. Paths:",
        ),
        ({"dense/bias": ["a", "b"]}, TypeError, r"Weights are integers or floating-point numbers"),
        ({"dense/bias": np.ones(2, complex)}, TypeError, r"Weights are .*complex128"),
    ],
)
def test_weights_that_do_not_fit_change_nothing(weights: Any, error: Any, message: str) -> None:
    model = linear()
    before = model.get_weights()
    with pytest.raises(error, match=message):
        model.set_weights({"dense/bias": np.ones(2), **weights})
    assert_same_weights(model.get_weights(), before)


def test_counts_and_types() -> None:
    model = network()
    assert {w.dtype.name for w in model.get_weights().values()} == {"float32"}
    assert model.count_params() == 3 * 6 + 6 + 4 * 6 + 6 * 2 + 2
    assert model.count_params(trainable=False) == 2 * 6
    assert model.count_params(trainable=True) == model.count_params() - 12


def test_arrays_of_bfloat16() -> None:
    torch = pytest.importorskip("torch")
    model = linear("torch")
    model.predict(X)
    model.set_weights({"dense/bias": torch.ones(2, dtype=torch.bfloat16)})
    np.testing.assert_array_equal(model.get_weights()["dense/bias"], [1, 1])
    assert model.get_weights()["dense/bias"].dtype == "float32"


# Seeds ------------------------------------------------------------------------------------------


@given(seed=st.integers(0, 2**64 - 1), others=st.integers(0, 3))
@settings(max_examples=20)
def test_the_seed_alone_decides_on_the_first_weights(seed: int, others: int) -> None:
    expected = network(seed=seed).get_weights()
    np.random.seed(seed % 2**32)  # noqa: NPY002
    for other in range(others):
        network(seed=other).fit(X, Y, 6, 1, 0)
    assert_same_weights(network(seed=seed).get_weights(), expected)


def test_layers_draw_from_streams_of_their_own() -> None:
    short = Sequential([Input((3,)), Dense(4, name="a"), Dense(4, name="b")])
    long = Sequential([Input((3,)), Dense(9, name="x"), Dense(3, name="y"), Dense(4, name="a"), Dense(4, name="b")])
    one, two = short.get_weights(), long.get_weights()
    for path in one:
        np.testing.assert_array_equal(two[path], one[path])
    assert np.any(one["a/kernel"][:3] != one["b/kernel"][:3])
    assert np.any(network(seed=1).get_weights()["dense/kernel"] != network(seed=2).get_weights()["dense/kernel"])


@pytest.mark.parametrize("backend", FAST)
def test_first_weights_are_the_same_everywhere(backend: str) -> None:
    expected = network().get_weights()
    model = network(backend)
    model.predict(X)
    assert_same_weights(model.get_weights(), expected)


def test_waiting_for_the_input_makes_no_difference() -> None:
    model = Sequential([Dense(6, activation="relu"), BatchNormalization(), Dropout(0.2), Dense(2)], backend="numpy")
    model.compile(Adam(0.01), SparseCategoricalCrossentropy(from_logits=True), ["accuracy"])
    twin = network()
    assert model.fit(X, Y, 6, 2, 0).history == twin.fit(X, Y, 6, 2, 0).history
    assert_same_weights(model.get_weights(), twin.get_weights())


# Inputs are left alone --------------------------------------------------------------------------

_MODELS: dict[str, Sequential] = {}


@given(batch=st.sampled_from([5, 12]), seed=seeds, dtype=st.sampled_from(["float32", "uint8"]))
@settings(max_examples=15)  # of few shapes: JAX compiles for each
@pytest.mark.parametrize("library", FAST)
def test_the_user_s_arrays_are_neither_changed_nor_donated(library: str, batch: int, seed: int, dtype: str) -> None:
    n, rng = 12, np.random.default_rng(seed)
    given_x, given_y = (rng.random((n, 3)) * 9).astype(dtype), rng.random((n, 2)).astype("float32")
    weight = rng.random(n).astype("float32")
    x, y, w = (to_library(a.copy(), library) for a in (given_x, given_y, weight))
    model = _MODELS.setdefault(library, linear(library, optimizer=SGD(1e-3)))  # its compiled steps are used again
    model.fit(x, y, batch, 2, 0, sample_weight=w, validation_data=(x, y, w))
    model.train_on_batch(x, y, w)
    model.evaluate(x, y, batch, sample_weight=w)
    found = model.predict(x, batch)
    for array, original in ((x, given_x), (y, given_y), (w, weight)):
        np.testing.assert_array_equal(np.asarray(array), original)
    again = model.predict(x, batch)
    np.testing.assert_array_equal(np.asarray(again), np.asarray(found))


# Donated buffers --------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", FAST)
def test_everything_may_be_read_at_any_time(backend: str) -> None:
    model = network(backend)
    kept: list[Any] = []
    at_once: list[dict[str, Any]] = []
    weights: list[dict[str, Array]] = []

    def keep(batch: int, logs: Any) -> None:
        kept.append(logs)  # looked at long after the step
        weights.append(model.get_weights())

    def look(batch: int, logs: Any) -> None:
        at_once.append(dict(logs))
        twin.evaluate(X, Y, 5)
        twin.predict(X, 5)

    model.fit(X, Y, 4, 2, 0, [Watch(keep)])
    twin = network(backend)
    twin.fit(X, Y, 4, 2, 0, [Watch(look)])
    assert [dict(logs) for logs in kept] == at_once
    assert len({tuple(w["dense/kernel"].ravel()) for w in weights}) == 6
    assert_same_weights(model.get_weights(), twin.get_weights())
    assert model.evaluate(X, Y) == twin.evaluate(X, Y)
    model.fit(X, Y, 4, 1, 0)
    twin.fit(X, Y, 4, 1, 0)
    assert model.evaluate(X, Y) == twin.evaluate(X, Y)


def test_logs_behave_as_a_mapping() -> None:
    seen: list[Any] = []
    model = network()
    model.fit(X, Y, 12, 1, 0, [Watch(lambda _, logs: seen.append(logs))])
    (logs,) = seen
    assert list(logs) == ["loss", "accuracy"]
    assert len(logs) == 2
    assert logs["loss"] == dict(logs)["loss"]
    assert repr(logs) == repr(dict(logs))
    with pytest.raises(KeyError):
        logs["val_loss"]


@pytest.mark.parametrize("backend", FAST)
def test_nobody_looking_means_nothing_is_read(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between steps nothing waits for the device, unless a callback asks."""
    model = network(backend)
    model.fit(X, Y, 4, 1, 0)
    reads: list[Any] = []
    to_numpy = model.backend.to_numpy
    monkeypatch.setattr(model.backend, "to_numpy", lambda array: [reads.append(array), to_numpy(array)][1])
    counts: list[int] = []
    model.fit(X, Y, 4, 1, 0, [Watch(lambda batch, _: counts.append(len(reads)))])
    at_the_end = len(reads)
    assert at_the_end > 0
    assert counts == [counts[0]] * 3  # what fit reads before and after is another matter


@pytest.mark.parametrize("backend", ["numpy", "jax"])
def test_steps_inside_a_callback(backend: str) -> None:
    """A callback that trains on its own continues the same training."""
    model, twin = network(backend), network(backend)
    model.fit(X, Y, 12, 2, 0, [Watch(lambda batch, logs: model.train_on_batch(X, Y))], shuffle=False)
    for _ in range(4):
        twin.train_on_batch(X, Y)
    for path, w in twin.get_weights().items():
        np.testing.assert_allclose(model.get_weights()[path], w, rtol=SUM, atol=ELEMENT)


def test_a_metric_s_layer_may_be_called_metric() -> None:
    """Names of weights and of metric totals do not get mixed up."""
    x = Input((3,))
    model = Model(x, Dense(2, name="metric")(x), backend="numpy")
    model.compile(SGD(0.1), "mse", ["mae"])
    history = model.fit(X, X[:, :2], verbose=0).history
    assert list(history) == ["loss", "mae"]
    assert list(model.evaluate(X, X[:, :2], return_dict=True)) == ["loss", "mae"]
