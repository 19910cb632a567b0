"""Freezing, sharing, methods and the numbers that a script sees, against Keras 3 where it is installed."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

import minicnn
from minicnn import Model, Sequential
from minicnn.optimizers import SGD
from support.tolerances import ELEMENT, LONG_SUM, STEP, TRAINING

os.environ.setdefault("KERAS_BACKEND", "jax")
keras = pytest.importorskip("keras")

pytestmark = pytest.mark.filterwarnings("default")
RNG = np.random.default_rng(0)
X = RNG.random((24, 8, 8, 2)).astype("float32")
Y = RNG.integers(0, 3, 24)


def stack(L: Any) -> list[Any]:
    return [
        L.Conv2D(4, 3, padding="same", activation="relu"), L.BatchNormalization(), L.MaxPooling2D(),
        L.SeparableConv2D(5, 3, padding="same"), L.BatchNormalization(center=False), L.Activation("relu"),
        L.GlobalAveragePooling2D(), L.Dense(6, activation="tanh"), L.Dense(3, activation="softmax"),
    ]  # fmt: skip


def pair(size: int | None = 8) -> tuple[Sequential, Any]:
    """The same network twice, with the same weights."""
    ours = Sequential([minicnn.Input((size, size, 2)), *stack(minicnn.layers)], backend="numpy")
    theirs = keras.Sequential([keras.Input((size, size, 2)), *stack(keras.layers)])
    same(ours, theirs)
    return ours, theirs


def same(ours: Any, theirs: Any) -> None:
    """Give our layers the weights of theirs, in the order that `get_weights` has."""
    for a, b in zip(ours.layers, theirs.layers, strict=True):
        a.set_weights(b.get_weights())


def compiled(ours: Any, theirs: Any) -> None:
    ours.compile(SGD(0.1, momentum=0.9), "sparse_categorical_crossentropy", metrics=["accuracy"])
    theirs.compile(keras.optimizers.SGD(0.1, momentum=0.9), "sparse_categorical_crossentropy", metrics=["accuracy"])


def agree(ours: Any, theirs: Any) -> None:
    for a, b in zip(ours.layers, theirs.layers, strict=True):
        for v, w in zip(a.get_weights(), b.get_weights(), strict=True):
            np.testing.assert_allclose(v, w, rtol=STEP, atol=LONG_SUM, err_msg=a.name)


@pytest.mark.parametrize("seed", range(6))
def test_frozen_layers(seed: int) -> None:
    ours, theirs = pair()
    frozen = np.random.default_rng(seed).random(8) < 0.5
    for layers in (ours.layers, theirs.layers):
        for layer, off in zip(layers, frozen, strict=False):
            layer.trainable = not off
    compiled(ours, theirs)
    for kind in ("weights", "trainable_weights", "non_trainable_weights"):
        assert [w.shape for w in getattr(ours, kind)] == [tuple(w.shape) for w in getattr(theirs, kind)]
    found = ours.fit(X, Y, 6, 2, 0, shuffle=False).history
    expected = theirs.fit(X, Y, 6, 2, 0, shuffle=False).history
    np.testing.assert_allclose(found["loss"], expected["loss"], rtol=STEP)
    agree(ours, theirs)


def test_transfer() -> None:
    """A trained base, frozen, below a new head; then unfrozen but for one layer."""
    made = []
    ours, theirs = pair()
    compiled(ours, theirs)
    for model, library in ((ours, minicnn), (theirs, keras)):
        model.fit(X, Y, 6, 1, 0, shuffle=False)
        build = Model if library is minicnn else keras.Model
        base = build(model.inputs, model.layers[7].output)
        base.trainable = False
        whole = library.Sequential([library.Input((8, 8, 2)), base, library.layers.Dense(2, activation="softmax")])
        made.append((base, whole))
    (base, whole), (keras_base, keras_whole) = made
    whole.layers[-1].set_weights(keras_whole.layers[-1].get_weights())
    for unfrozen in (False, True):
        for b in (base, keras_base):
            b.trainable = unfrozen
            b.layers[-5].trainable = False
        compiled(whole, keras_whole)
        whole.fit(X, Y % 2, 6, 2, 0, shuffle=False)
        keras_whole.fit(X, Y % 2, 6, 2, 0, shuffle=False)
        np.testing.assert_allclose(whole.predict(X), keras_whole.predict(X, verbose=0), rtol=TRAINING, atol=STEP)
        agree(ours, theirs)  # which share the layers


def test_what_evaluate_and_single_batches_give() -> None:
    ours, theirs = pair()
    compiled(ours, theirs)
    weights = np.linspace(0.1, 1, 24)
    for call in (
        lambda m: m.evaluate(X, Y, 7, 0), lambda m: m.evaluate(X, Y, verbose=0, steps=1, batch_size=5),
        lambda m: m.evaluate(X[:8], Y[:8], 8, verbose=0, return_dict=True)["loss"],
        lambda m: m.evaluate(X, Y, 24, 0, weights)[0],
        lambda m: m.predict(X, 7, 0), lambda m: m.predict_on_batch(X), lambda m: np.asarray(m(X)),
        lambda m: np.asarray(m(X, training=False)), lambda m: [w.size for w in m.get_layer(index=3).get_weights()],
        lambda m: m.count_params(), lambda m: m.layers[-1].count_params(),
    ):  # fmt: skip
        np.testing.assert_allclose(call(ours), call(theirs), rtol=STEP, atol=ELEMENT)
    assert isinstance(ours.train_on_batch(X, Y), list) == isinstance(theirs.train_on_batch(X, Y), list)
    assert set(ours.test_on_batch(X, Y, return_dict=True)) == set(theirs.test_on_batch(X, Y, return_dict=True))


def test_validation_now_and_then() -> None:
    ours, theirs = pair()
    compiled(ours, theirs)
    for often in (2, [1, 3]):
        arguments: dict[str, Any] = {
            "batch_size": 6, "epochs": 3, "verbose": 0, "shuffle": False, "validation_data": (X[:9], Y[:9]),
            "validation_batch_size": 4, "validation_freq": often,
        }  # fmt: skip
        found, expected = (m.fit(X, Y, **arguments).history for m in (ours, theirs))
        assert set(found) == set(expected)
        for name, values in expected.items():
            np.testing.assert_allclose(found[name], values, rtol=TRAINING, atol=STEP, err_msg=name)


def test_generators_and_batches_by_number() -> None:
    parts = [(X[i : i + 6], Y[i : i + 6]) for i in range(0, 24, 6)]

    def endless() -> Any:
        while True:
            yield from parts

    class Ours(minicnn.utils.PyDataset):
        def __len__(self) -> int:
            return len(parts)

        def __getitem__(self, index: int) -> Any:
            return parts[index]

    class Theirs(keras.utils.PyDataset):  # type: ignore[misc,name-defined]
        __len__, __getitem__ = Ours.__len__, Ours.__getitem__

    for data in (lambda _: endless(), lambda k: Theirs() if k else Ours(), lambda _: Theirs()):
        ours, theirs = pair()
        compiled(ours, theirs)
        steps = {"steps_per_epoch": 3} if hasattr(data(0), "__next__") else {}
        for number, model in enumerate((ours, theirs)):
            model.fit(data(number), epochs=2, verbose=0, shuffle=False, **steps)
        agree(ours, theirs)


def test_images_of_any_size() -> None:
    ours, theirs = pair(None)
    assert ours.output_shape == theirs.output_shape
    for size in (8, 13):
        x = RNG.random((3, size, size, 2)).astype("float32")
        np.testing.assert_allclose(ours.predict(x), theirs.predict(x, verbose=0), rtol=STEP, atol=ELEMENT)


def test_add_pop_and_clone() -> None:
    ours, theirs = pair()
    for model, library in ((ours, minicnn), (theirs, keras)):
        model.pop()
        model.add(library.layers.Dense(4, name="head"))
    assert ours.layers[-1].name == theirs.layers[-1].name == "head"
    same(ours, theirs)
    np.testing.assert_allclose(ours.predict(X), theirs.predict(X, verbose=0), rtol=STEP, atol=ELEMENT)
    ours_clone, keras_clone = minicnn.models.clone_model(ours), keras.models.clone_model(theirs)
    assert ours_clone.count_params() == keras_clone.count_params()
