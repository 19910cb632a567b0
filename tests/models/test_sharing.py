"""Models made of the same layers share their weights; copies share nothing."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
from typing import Any

import numpy as np
import pytest

from minicnn import Model, Sequential, get_backend
from minicnn.layers import BatchNormalization, Dense, Dropout, Input
from minicnn.losses import SparseCategoricalCrossentropy
from support.model_cases import FAST, Watch, assert_same_weights, blobs
from support.tolerances import ELEMENT, SUM

X, Y = blobs(16, 4, 3)


def parts(backend: Any = "numpy") -> tuple[Model, Model]:
    """A classifier, and a model of its hidden layer."""
    x = Input((4,))
    hidden = BatchNormalization()(Dense(6, activation="relu")(x))
    model = Model(x, Dense(3, activation="softmax")(hidden), backend=backend)
    model.compile("adam", "sparse_categorical_crossentropy", ["accuracy"])
    return model, Model(x, hidden, backend=backend)


@pytest.mark.parametrize("backend", ["numpy", "jax", "numba"])
def test_a_part_has_what_the_whole_has_learnt(backend: str) -> None:
    model, features = parts(backend)
    before = features.predict(X)
    model.fit(X, Y, 8, 3, 0)
    after = features.predict(X)
    assert np.any(after != before)
    learnt = model.get_weights()
    assert_same_weights(features.get_weights(), {p: learnt[p] for p in features.get_weights()})
    kernel, bias = learnt["dense_1/kernel"], learnt["dense_1/bias"]
    scores = after @ kernel + bias
    expected = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(model.predict(X), expected, rtol=SUM, atol=ELEMENT)
    features.set_weights({"dense/bias": np.full(6, 7.0)})
    np.testing.assert_array_equal(model.get_weights()["dense/bias"], np.full(6, 7.0))


@pytest.mark.parametrize("backend", FAST)
def test_two_models_train_the_same_weights_in_turn(backend: str) -> None:
    """On arrays that are donated, too."""
    model, features = parts(backend)
    features.compile("sgd", "mse")
    for _ in range(2):
        model.fit(X, Y, 8, 1, 0)
        features.fit(X, np.ones((16, 6)), 8, 1, 0)
        for path, w in features.get_weights().items():
            np.testing.assert_array_equal(model.get_weights()[path], w)


@pytest.mark.parametrize("other", FAST)
def test_on_two_backends_and_precisions(other: str) -> None:
    pytest.importorskip(other)
    x = Input((4,))
    layer = Dense(3)
    model, wide = Model(x, layer(x), backend=other), Model(x, layer(x), backend="numpy")
    for m, precision in ((model, "float32"), (wide, "float64")):
        m.compile("sgd", "mse", precision=precision)
    for m in (model, wide, model):
        m.fit(X, X[:, :3], 8, 1, 0)
        np.testing.assert_allclose(
            model.get_weights()["dense/kernel"], wide.get_weights()["dense/kernel"], rtol=ELEMENT
        )
    assert model.get_weights()["dense/kernel"].dtype == "float32"
    assert wide.get_weights()["dense/kernel"].dtype == "float64"


def test_a_nested_model_brings_its_weights_and_gets_them_back() -> None:
    _, base = parts()
    base.compile("adam", "mse")
    base.fit(X, np.ones((16, 6)), verbose=0)
    learnt = base.get_weights()
    whole = Sequential([Input((4,)), base, Dense(2)], backend="numpy", seed=5)
    for path, w in learnt.items():
        np.testing.assert_array_equal(whole.get_weights()[f"model/{path}"], w)
    whole.compile("adam", "mse")
    whole.fit(X, X[:, :2], verbose=0)
    assert np.any(base.get_weights()["dense/kernel"] != learnt["dense/kernel"])


def test_another_head_on_the_same_layers() -> None:
    model, _ = parts()
    model.fit(X, Y, verbose=0)
    learnt = model.get_weights()
    hidden = model.layers[:-1]
    again = Sequential([Input((4,)), *hidden, Dense(2)], backend="numpy")
    del model
    gc.collect()
    found = again.get_weights()
    for path in ("dense/kernel", "batch_normalization/moving_mean"):
        np.testing.assert_array_equal(found[path], learnt[path])
    assert found["dense_1/kernel"].shape == (6, 2)


# Copies -----------------------------------------------------------------------------------------


def trained(backend: Any = "numpy") -> Sequential:
    layers = [Input((4,)), Dense(6, activation="relu"), BatchNormalization(), Dropout(0.2), Dense(3)]
    model = Sequential(layers, backend=backend, seed=3)
    model.compile("adam", SparseCategoricalCrossentropy(from_logits=True), ["accuracy"])
    model.fit(X, Y, 8, 1, 0)
    return model


def pickled(model: Any) -> Any:
    return pickle.loads(pickle.dumps(model))


@pytest.mark.parametrize(
    ("backend", "how"),
    [("numpy", copy.deepcopy), ("numpy", pickled), ("torch", copy.deepcopy), ("jax", pickled), ("numba", pickled)],
)
def test_a_copy_goes_on_by_itself(backend: str, how: Any) -> None:
    model = trained(backend)
    twin, before = how(model), model.get_weights()
    np.testing.assert_array_equal(np.asarray(twin.predict(X)), np.asarray(model.predict(X)))
    twin.fit(X, Y, 8, 1, 0)
    assert_same_weights(model.get_weights(), before)
    model.fit(X, Y, 8, 1, 0)  # optimizer state and the count of steps are copied: both take the same steps
    assert_same_weights(twin.get_weights(), model.get_weights())
    assert twin.steps_taken == model.steps_taken == 4
    assert repr(twin.backend) == repr(model.backend)


def test_a_copy_outlives_its_original() -> None:
    model = trained()
    expected = model.predict(X)
    twin = copy.deepcopy(model)
    del model
    gc.collect()
    np.testing.assert_array_equal(twin.predict(X), expected)
    twin.layers[0].trainable = False
    twin.compile("sgd", SparseCategoricalCrossentropy(from_logits=True))
    twin.fit(X, Y, verbose=0)


def test_a_copy_of_what_is_deep_frozen_or_not_yet_built() -> None:
    deep = Sequential([Input((4,)), *(Dense(4) for _ in range(400))], backend="numpy")
    assert_same_weights(pickle.loads(pickle.dumps(deep)).get_weights(), deep.get_weights())
    model = trained()
    model.layers[0].trainable = False
    model.compile("sgd", SparseCategoricalCrossentropy(from_logits=True))
    twin = copy.deepcopy(model)
    twin.fit(X, Y, verbose=0)
    twin.layers[0].trainable = True
    assert not model.layers[0].trainable
    waiting = copy.deepcopy(Sequential([Dense(3)], backend=get_backend("numpy", strict=False)))
    assert waiting.predict(X).shape == (16, 3)


def test_a_copy_in_a_callback_is_not_in_training() -> None:
    model, copies = trained(), []
    model.fit(X, Y, 8, 1, 0, [Watch(lambda *_: copies.append(copy.deepcopy(model)))])
    copies[0].fit(X, Y, 8, 1, 0)
    assert np.any(copies[1].get_weights()["dense/kernel"] != copies[0].get_weights()["dense/kernel"])


# Threads ----------------------------------------------------------------------------------------


def test_a_model_is_in_one_fit_at_a_time() -> None:
    model, errors = trained(), []

    def again(*_: Any) -> None:
        def fit() -> None:
            try:
                model.fit(X, Y, verbose=0)
            except RuntimeError as error:
                errors.append(str(error))

        thread = threading.Thread(target=fit)
        thread.start()
        thread.join()

    model.fit(X, Y, 16, 1, 0, [Watch(again)])
    assert len(errors) == 1
    assert errors[0].startswith("A model is in one fit at a time. Received: fit of a model in training")
    model.fit(X, Y, verbose=0)


@pytest.mark.parametrize("backend", ["numpy", "jax"])
def test_predictions_from_other_threads_take_turns_with_training(backend: str) -> None:
    """On JAX, training overwrites the arrays that a prediction reads."""
    model, features = parts(backend)
    model.fit(X, Y, 8, 1, 0)
    features.predict(X)
    errors: list[BaseException] = []
    stop = threading.Event()

    def predict(m: Model) -> None:
        try:
            while not stop.is_set():
                m.predict(X)
                m.get_weights()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=predict, args=(m,)) for m in (model, features)]
    for thread in threads:
        thread.start()
    model.fit(X, Y, 2, 20, 0)
    stop.set()
    for thread in threads:
        thread.join()
    assert not errors
