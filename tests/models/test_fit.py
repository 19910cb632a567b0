"""Training: against a hand-written loop, the batches of an epoch, kinds of arrays, loaders, weights, validation."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minicnn import Sequential
from minicnn.callbacks import Callback
from minicnn.data import Loader
from minicnn.losses import SparseCategoricalCrossentropy
from minicnn.optimizers import SGD
from support.model_cases import (
    FAST,
    Batches,
    Seen,
    StepLosses,
    Watch,
    assert_same_weights,
    blobs,
    linear,
    to_library,
    two_layers,
)
from support.tolerances import DOUBLE, ELEMENT, STEP, SUM

Array = np.ndarray[Any, Any]
FEATURES, UNITS, CLASSES = 5, 7, 3
X, Y = blobs(23, FEATURES, CLASSES)


network = partial(
    two_layers, features=FEATURES, hidden=UNITS, units=CLASSES, optimizer=partial(SGD, 0.05, momentum=0.9)
)


def shuffled(n: int, seed: int, epoch: int) -> Array:
    """The order that fit promises: a Philox permutation that seed and epoch determine."""
    key = np.array([seed, epoch], np.uint64)  # of a list with a large number NumPy 2.0 makes floats
    return np.random.Generator(np.random.Philox(key=key)).permutation(n)


class HandWritten:
    """The same network, trained by NumPy written out."""

    def __init__(self, weights: dict[str, Array]) -> None:
        self.weights = {path: w.astype("float64") for path, w in weights.items()}
        self.velocity = {path: np.zeros_like(w) for path, w in self.weights.items()}

    def forward(self, x: Array) -> tuple[Array, Array]:
        w = self.weights
        hidden = np.maximum(x @ w["dense/kernel"] + w["dense/bias"], 0)
        logits = hidden @ w["dense_1/kernel"] + w["dense_1/bias"]
        return hidden, logits - logits.max(axis=1, keepdims=True)  # which no result depends on

    def losses(self, x: Array, y: Array) -> Array:
        _, logits = self.forward(x)
        return np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(y)), y]

    def step(self, x: Array, y: Array, weight: Array) -> None:
        hidden, logits = self.forward(x)
        p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        d = (p - np.eye(CLASSES)[y]) * weight[:, None] / len(y)
        dh = d @ self.weights["dense_1/kernel"].T * (hidden > 0)
        gradients = {
            "dense/kernel": x.T @ dh, "dense/bias": dh.sum(axis=0), "dense_1/kernel": hidden.T @ d,
            "dense_1/bias": d.sum(axis=0),
        }  # fmt: skip
        for path, g in gradients.items():
            self.velocity[path] = 0.9 * self.velocity[path] - 0.05 * g
            self.weights[path] = self.weights[path] + self.velocity[path]

    def fit(
        self, x: Array, y: Array, batch_size: int, epochs: int, *, seed: int = 0, shuffle: bool = True,
        last_batch: str = "keep", weight: Array | None = None,
    ) -> dict[str, list[float]]:  # fmt: skip
        weight = np.ones(len(x)) if weight is None else weight
        history: dict[str, list[float]] = {"loss": [], "accuracy": []}
        for epoch in range(epochs):
            order = list(shuffled(len(x), seed, epoch)) if shuffle else list(range(len(x)))
            if last_batch == "drop":
                order = order[: len(x) // batch_size * batch_size]
            if last_batch == "pad":
                order += order[: -len(order) % batch_size]
            loss, hits = 0.0, 0.0
            for i in range(0, len(order), batch_size):
                rows = order[i : i + batch_size]
                loss += np.sum(weight[rows] * self.losses(x[rows], y[rows]))
                hits += np.sum(weight[rows] * (self.forward(x[rows])[1].argmax(axis=1) == y[rows]))
                self.step(x[rows], y[rows], weight[rows])
            history["loss"].append(loss / len(order))
            history["accuracy"].append(hits / np.sum(weight[order]))
        return history


@given(
    batch=st.integers(1, 24),
    last_batch=st.sampled_from(["keep", "drop", "pad"]),
    shuffle=st.booleans(),
    seed=st.integers(0, 2**64 - 1),
    weighted=st.booleans(),
)
@settings(max_examples=40)
def test_as_a_loop_written_by_hand(batch: int, last_batch: Any, shuffle: bool, seed: int, weighted: bool) -> None:
    batch = min(batch, len(X)) if last_batch == "drop" else batch
    weight = np.linspace(0.0, 2.0, len(X)) if weighted else None
    model = network(precision="float64", seed=seed)
    hand = HandWritten(model.get_weights())
    expected = hand.fit(
        X.astype("float64"), Y, batch, 2, seed=seed, shuffle=shuffle, last_batch=last_batch, weight=weight
    )
    history = model.fit(X, Y, batch, 2, 0, shuffle=shuffle, last_batch=last_batch, sample_weight=weight)
    assert history.epoch == [0, 1]
    assert list(history.history) == ["loss", "accuracy"]
    for name, values in expected.items():
        np.testing.assert_allclose(history.history[name], values, rtol=1e-9)  # steps magnify rounding
    for path, w in model.get_weights().items():
        np.testing.assert_allclose(w, hand.weights[path], rtol=1e-9, atol=DOUBLE, err_msg=path)


@pytest.mark.parametrize("backend", [*FAST, "array_api_strict"])
def test_every_backend_follows_the_loop(backend: str) -> None:
    model = network(backend)
    hand = HandWritten(model.get_weights())
    expected = hand.fit(X, Y, 8, 3)
    history = model.fit(X, Y, 8, 3, 0)
    np.testing.assert_allclose(history.history["loss"], expected["loss"], rtol=SUM)
    np.testing.assert_allclose(history.history["accuracy"], expected["accuracy"], rtol=ELEMENT)
    for path, w in model.get_weights().items():
        np.testing.assert_allclose(w, hand.weights[path], rtol=STEP, atol=SUM, err_msg=path)


# Batches ----------------------------------------------------------------------------------------


def batches(samples: int, size: int, epochs: int = 1, *, seed: int = 0, fit_seed: Any = None, **options: Any) -> Any:
    """Which samples were in each batch of each epoch."""
    seen = Batches()
    model = linear(features=2, units=samples, metrics=[Seen()], seed=seed)
    model.fit(np.ones((samples, 2)), np.eye(samples), size, epochs, 0, [seen], seed=fit_seed, **options)
    return seen.batches


@given(n=st.integers(1, 12), size=st.integers(1, 14), epochs=st.integers(1, 3), seed=st.integers(0, 100))
@settings(max_examples=40)
def test_the_batches_of_shuffled_epochs(n: int, size: int, epochs: int, seed: int) -> None:
    orders = [shuffled(n, seed, epoch).tolist() for epoch in range(epochs)]
    kept = [[sorted(o[i : i + size]) for i in range(0, n, size)] for o in orders]
    assert batches(n, size, epochs, seed=seed) == kept
    assert batches(n, size, epochs, fit_seed=seed) == kept
    if size <= n:
        assert batches(n, size, epochs, seed=seed, last_batch="drop") == [e[: n // size] for e in kept]
    full = [(o * (size // n + 2))[: -(-n // size) * size] for o in orders]
    padded = [[sorted(o[i : i + size]) for i in range(0, len(o), size)] for o in full]
    assert batches(n, size, epochs, seed=seed, last_batch="pad") == padded


def test_without_shuffling_samples_come_in_their_order() -> None:
    assert batches(7, 3, 2, shuffle=False) == [[[0, 1, 2], [3, 4, 5], [6]]] * 2
    assert batches(5, 3, shuffle=False, last_batch="pad") == [[[0, 1, 2], [0, 3, 4]]]
    assert batches(5, 3, shuffle=False, last_batch="drop") == [[[0, 1, 2]]]


def test_an_epoch_s_order_does_not_depend_on_those_before() -> None:
    three = batches(9, 4, 3)
    assert three[0] != three[1]
    assert batches(9, 4, 3, initial_epoch=2) == three[2:]
    assert batches(9, 4, 3, fit_seed=1) != three


def test_initial_epoch() -> None:
    history = network().fit(X, Y, 8, 5, 0, initial_epoch=3)
    assert history.epoch == [3, 4]
    assert len(history.history["loss"]) == 2
    model = network()
    before = model.get_weights()
    history = model.fit(X, Y, 8, 2, 0, initial_epoch=2)
    assert history.epoch == []
    assert history.history == {}
    assert_same_weights(model.get_weights(), before)


def test_two_fits_of_one_epoch_are_one_of_two() -> None:
    once, twice = network(), network()
    once.fit(X, Y, 8, 2, 0)
    twice.fit(X, Y, 8, 1, 0)
    twice.fit(X, Y, 8, 2, 0, initial_epoch=1)
    assert_same_weights(twice.get_weights(), once.get_weights())


# Kinds of arrays --------------------------------------------------------------------------------

IMAGES = np.random.default_rng(0).integers(0, 256, (11, FEATURES)).astype("uint8")
LABELS = (IMAGES.sum(axis=1) % CLASSES).astype("int32")


@cache
def untrained(backend: str) -> tuple[Sequential, dict[str, Any]]:
    """A model and its first state: put back, the model need not be compiled again."""
    model = network(backend)
    return model, model.get_state()


def trained(x: Any, y: Any, backend: str = "numpy", **options: Any) -> dict[str, Array]:
    model, state = untrained(backend)
    model.set_state(state)
    model.fit(x, y, 4, 1, 0, **options)
    return model.get_weights()


def read_only(x: Array) -> Array:
    x = x.copy()
    x.flags.writeable = False
    return x


LIBRARIES = ["numpy", "list", "torch", "jax", "array_api_strict"]


@pytest.mark.parametrize(
    ("library", "backend"),
    [*((library, "numpy") for library in LIBRARIES), ("torch", "torch"), ("jax", "torch"), ("jax", "jax")],
)
def test_arrays_of_every_library(backend: str, library: str) -> None:
    x = IMAGES.astype("float32")
    weight = np.linspace(0, 1, 11).astype("float32")
    expected = trained(x, LABELS, backend, sample_weight=weight)
    arrays = [to_library(a, library) for a in (x, LABELS, weight)]
    assert_same_weights(trained(arrays[0], arrays[1], backend, sample_weight=arrays[2]), expected)


DTYPES = ["float64", "float16", "int64", "int16", "uint16", "uint8", ">f4", ">i8"]


@pytest.mark.parametrize(
    ("backend", "dtype"),
    [*(("numpy", d) for d in DTYPES), ("torch", "uint16"), ("torch", ">f4"), ("jax", "uint8"), ("jax", ">f8")],
)
def test_inputs_of_every_dtype(backend: str, dtype: str) -> None:
    assert_same_weights(
        trained(IMAGES.astype(dtype), LABELS, backend), trained(IMAGES.astype("float32"), LABELS, backend)
    )


def test_booleans_are_numbers() -> None:
    x = IMAGES > 100
    assert_same_weights(trained(x, LABELS), trained(x.astype("float32"), LABELS))


@pytest.mark.parametrize("dtype", ["int64", "uint8", "int8", "bool", ">i4"])
def test_labels_of_every_integer_dtype(dtype: str) -> None:
    labels = LABELS > 0
    assert_same_weights(trained(IMAGES, labels.astype(dtype)), trained(IMAGES, labels.astype("int32")))


CHANGES = [read_only, np.asfortranarray, lambda x: np.repeat(x, 2, axis=0)[::2], lambda x: x[::-1].copy()[::-1]]


@pytest.mark.parametrize(
    ("backend", "change"), [*((b, c) for b in ("numpy", "torch") for c in CHANGES), ("jax", CHANGES[-1])]
)
def test_layout_in_memory_makes_no_difference(backend: str, change: Any) -> None:
    assert_same_weights(trained(change(IMAGES), change(LABELS), backend), trained(IMAGES, LABELS, backend))


def test_a_column_of_labels_and_a_list_of_numpy_numbers() -> None:
    expected = trained(IMAGES, LABELS)
    assert_same_weights(trained(IMAGES, LABELS[:, None]), expected)
    assert_same_weights(trained(IMAGES, list(LABELS)), expected)
    assert_same_weights(trained([IMAGES], [LABELS]), expected)


def test_targets_of_a_single_unit_need_no_axis() -> None:
    y = np.arange(11.0)
    one, two = linear(features=FEATURES, units=1), linear(features=FEATURES, units=1)
    one.fit(IMAGES / 255, y, 4, 1, 0)
    two.fit(IMAGES / 255, y[:, None], 4, 1, 0)
    assert_same_weights(one.get_weights(), two.get_weights())


def test_data_frames() -> None:
    class Frame:
        """What pandas has: a shape and a conversion to NumPy, but no DLPack."""

        def __init__(self, array: Array) -> None:
            self._array = array
            self.shape, self.dtype = array.shape, array.dtype

        def __array__(self, dtype: Any = None, copy: Any = None) -> Array:
            return self._array

        def __iter__(self) -> Iterator[Any]:
            return iter("columns")

    expected = trained(IMAGES, LABELS)
    assert_same_weights(trained(Frame(IMAGES), Frame(LABELS)), expected)
    model = network()
    np.testing.assert_array_equal(model.predict(Frame(IMAGES)), model.predict(IMAGES))
    model.fit(Frame(IMAGES), Frame(LABELS), 4, 1, 0, validation_split=0.3)


# Loaders ----------------------------------------------------------------------------------------


class Stream:
    """A loader that has nothing but what it must have."""

    def __init__(self, *batches: Any) -> None:
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._batches)


@pytest.mark.parametrize("last_batch", ["keep", "drop", "pad"])
def test_a_loader_gives_what_arrays_give(last_batch: Any) -> None:
    expected = network()
    expected.fit(X, Y, 5, 2, 0, last_batch=last_batch, seed=3)
    model = network()
    history = model.fit(Loader(X, Y, batch_size=5, seed=3, last_batch=last_batch), epochs=2, verbose=0)
    assert_same_weights(model.get_weights(), expected.get_weights())
    assert history.epoch == [0, 1]


@pytest.mark.parametrize("make", [lambda b: Stream(*b), list, lambda b: Stream(*map(list, b))])
def test_iterables_as_loaders(make: Any) -> None:
    expected = network()
    expected.fit(X, Y, 8, 2, 0, shuffle=False)
    cut = [(X[i : i + 8], Y[i : i + 8]) for i in range(0, len(X), 8)]
    model = network()
    model.fit(make(cut), epochs=2, verbose=0)
    assert_same_weights(model.get_weights(), expected.get_weights())
    assert model.evaluate(make(cut)) == expected.evaluate(X, Y, 8)


def test_a_loader_with_sample_weights() -> None:
    weight = np.linspace(0, 1, len(X))
    expected = network()
    expected.fit(X, Y, 8, 1, 0, shuffle=False, sample_weight=weight)
    model = network()
    model.fit([(X[i : i + 8], Y[i : i + 8], weight[i : i + 8]) for i in range(0, len(X), 8)], verbose=0)
    assert_same_weights(model.get_weights(), expected.get_weights())


@pytest.mark.parametrize("backend", FAST)
def test_a_torch_data_loader(backend: str) -> None:
    torch = pytest.importorskip("torch")
    data = torch.utils.data.TensorDataset(torch.tensor(X), torch.tensor(Y))
    model, expected = network(backend), network(backend)
    model.fit(torch.utils.data.DataLoader(data, batch_size=8), epochs=1, verbose=0)
    expected.fit(X, Y, 8, 1, 0, shuffle=False)
    for path, w in expected.get_weights().items():  # not gathered from a whole: JAX may fuse another way
        np.testing.assert_allclose(model.get_weights()[path], w, rtol=SUM, atol=ELEMENT)


def test_a_loader_is_told_the_epoch() -> None:
    class Told(Stream):
        epochs: list[int] = []  # noqa: RUF012

        def set_epoch(self, epoch: int) -> None:
            self.epochs.append(epoch)

    loader = Told((X, Y))
    network().fit(loader, epochs=4, initial_epoch=2, verbose=0)
    assert loader.epochs == [2, 3]


# Weights and validation -------------------------------------------------------------------------


def test_class_weights_are_sample_weights() -> None:
    table = {0: 0.5, 2: 3.0}
    weight = np.asarray([0.5, 1.0, 3.0])[Y]
    assert_same_weights(fitted(class_weight=table), fitted(sample_weight=weight))
    own = np.linspace(0, 1, len(Y))
    assert_same_weights(
        fitted(class_weight=table, sample_weight=own), fitted(sample_weight=(weight * own.astype("float32")))
    )
    loader = [(X[i : i + 8], Y[i : i + 8]) for i in range(0, len(X), 8)]
    model = network()
    model.fit(loader, verbose=0, class_weight=table)
    assert_same_weights(model.get_weights(), fitted(sample_weight=weight, shuffle=False))


@pytest.mark.parametrize("kind", [int, float, np.int64, np.uint8, np.float32, np.bool_, bool])
def test_class_weights_by_numbers_of_any_kind(kind: Any) -> None:
    """As pandas and NumPy give them; True is class 1."""
    table = {0: 0.5, 1: 3.0}
    assert_same_weights(fitted(class_weight={kind(k): v for k, v in table.items()}), fitted(class_weight=table))


def fitted(**options: Any) -> dict[str, Array]:
    model = network()
    model.fit(X, Y, 8, 1, 0, **options)
    return model.get_weights()


@pytest.mark.parametrize(
    ("backend", "case"), [("numpy", 0), ("numpy", 1), ("numpy", 2), ("torch", 0), ("torch", 2), ("jax", 1)]
)
def test_class_weights_of_one_hot_and_binary_labels(backend: str, case: int) -> None:
    table = {0: 0.5, 1: 2.0}
    y = (Y > 0).astype("float32")
    weight = np.asarray([0.5, 2.0], "float32")[y.astype(int)]
    units, targets = [(2, np.eye(2, dtype="float32")[y.astype(int)]), (1, y), (1, y[:, None])][case]
    one, two = (linear(backend, features=FEATURES, units=units) for _ in range(2))
    one.fit(X, to_library(targets, backend), 8, 1, 0, class_weight=table)
    two.fit(X, targets, 8, 1, 0, sample_weight=weight)
    assert_same_weights(one.get_weights(), two.get_weights())


def test_class_weights_are_not_for_validation() -> None:
    table = {0: 100.0, 1: 100.0, 2: 100.0}
    histories = []
    for options in ({}, {"class_weight": table}):
        model = network()
        model.compile(SGD(0.0), SparseCategoricalCrossentropy(from_logits=True))
        histories.append(model.fit(X, Y, 8, 1, 0, validation_split=0.3, **options).history)
    plain, weighted = histories
    assert weighted["loss"][0] == pytest.approx(100 * plain["loss"][0], rel=SUM)
    assert weighted["val_loss"] == plain["val_loss"]


@pytest.mark.parametrize("library", LIBRARIES)
def test_validation_split_takes_the_last_samples(library: str) -> None:
    weight = np.linspace(0, 1, len(X)).astype("float32")
    model, expected = network(), network()
    x, y, w = (to_library(a, library) for a in (X, Y, weight))
    history = model.fit(x, y, 8, 2, 0, validation_split=0.3, sample_weight=w).history
    validation = (X[16:], Y[16:], weight[16:])
    same = expected.fit(X[:16], Y[:16], 8, 2, 0, sample_weight=weight[:16], validation_data=validation).history
    assert list(history) == ["loss", "accuracy", "val_loss", "val_accuracy"]
    assert history == same
    assert_same_weights(model.get_weights(), expected.get_weights())
    assert (
        history["val_loss"][-1]
        == expected.evaluate(*validation[:2], 8, sample_weight=validation[2], return_dict=True)["loss"]
    )


@pytest.mark.parametrize(("fraction", "kept"), [(0.1, 9), (0.9, 1), (0.5, 5), (0.25, 7)])
def test_size_of_the_split(fraction: float, kept: int) -> None:
    seen = Batches()
    model = linear(features=2, units=10, metrics=[Seen()])
    model.fit(np.ones((10, 2)), np.eye(10), 10, 1, 0, [seen], validation_split=fraction)
    assert seen.batches == [[list(range(kept))]]


@pytest.mark.parametrize(
    "make",
    [lambda x, y: Loader(x, y, batch_size=3), lambda x, y: [(x[:4], y[:4]), (x[4:], y[4:])], lambda x, y: [x, y]],
)
def test_validation_data(make: Any) -> None:
    model = network()
    history = model.fit(X[:16], Y[:16], 8, 1, 0, validation_data=make(X[16:], Y[16:])).history
    expected = model.evaluate(X[16:], Y[16:], return_dict=True)
    assert history["val_loss"] == [pytest.approx(expected["loss"])]
    assert history["val_accuracy"] == [pytest.approx(expected["accuracy"])]


def test_validation_does_not_change_training() -> None:
    assert_same_weights(fitted(validation_data=(X[:4], Y[:4])), fitted())


# Course of training -----------------------------------------------------------------------------


def test_stopping_within_an_epoch() -> None:
    def stop(batch: int, logs: Any) -> None:
        model.stop_training = batch == 1

    model = network()
    history = model.fit(X, Y, 8, 5, 0, [Watch(stop)], validation_data=(X, Y))
    assert history.epoch == [0]
    assert set(history.history) == {"loss", "accuracy", "val_loss", "val_accuracy"}
    assert model.program("train")  # the model is as usable as before
    assert model.fit(X, Y, 8, 1, 0).epoch == [0]


def test_logs_during_an_epoch_are_averages_so_far() -> None:
    losses = StepLosses()
    model = network()
    history = model.fit(X, Y, 8, 1, 0, [losses], shuffle=False, last_batch="drop")
    assert len(losses.losses) == 2
    assert history.history["loss"] == [pytest.approx(np.mean(losses.losses))]
    hand = HandWritten(network().get_weights())
    assert losses.losses[0] == pytest.approx(hand.losses(X[:8], Y[:8]).mean(), rel=SUM)


def test_train_on_batch_is_a_step_of_fit() -> None:
    weight = np.linspace(0, 1, 8)
    stepwise, fit = network(), network()
    logs = stepwise.train_on_batch(X[:8], Y[:8], weight, return_dict=True)
    history = fit.fit(X[:8], Y[:8], 8, 1, 0, sample_weight=weight, shuffle=False)
    assert logs == {name: values[0] for name, values in history.history.items()}
    assert_same_weights(stepwise.get_weights(), fit.get_weights())


class Failing(Callback):
    def __init__(self, after: int) -> None:
        self.after = after
        self.weights: dict[str, Array] = {}

    def on_train_batch_end(self, batch: int, logs: Any) -> None:
        self.weights = self.model.get_weights()
        if batch == self.after:
            raise KeyboardInterrupt("stop here")


@pytest.mark.parametrize("backend", FAST)
def test_an_interrupted_fit_keeps_the_last_full_step(backend: str) -> None:
    model, failing = network(backend), Failing(after=1)
    with pytest.raises(KeyboardInterrupt, match="stop here"):
        model.fit(X, Y, 8, 2, 0, [failing])
    assert_same_weights(model.get_weights(), failing.weights)
    expected = network(backend)
    expected.fit(X, Y, 8, 2, 0, [Watch(lambda batch, _: setattr(expected, "stop_training", batch == 1))])
    assert_same_weights(model.get_weights(), expected.get_weights())
    model.fit(X, Y, 8, 1, 0)
    expected.fit(X, Y, 8, 1, 0)
    assert_same_weights(model.get_weights(), expected.get_weights())


def test_data_that_are_no_number_are_no_error() -> None:
    x = X.copy()
    x[3, 0] = np.nan
    model = network()
    with pytest.warns(UserWarning, match=r"Inputs are finite numbers.*Received: NaN, or infinity as float32"):
        history = model.fit(x, Y, 8, 1, 0).history
    assert np.isnan(history["loss"][0])
