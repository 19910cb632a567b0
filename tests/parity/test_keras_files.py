"""Files that Keras writes, read by `load_keras`: keras.applications with random weights and statistics."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minicnn import Sequential, load_keras
from minicnn.interop import KerasFileError
from minicnn.layers import BatchNormalization, Conv2D, Dense, Flatten, Input
from support.numerics import assert_close

os.environ.setdefault("KERAS_BACKEND", "jax")
keras = pytest.importorskip("keras")

pytestmark = pytest.mark.filterwarnings("default")
L = keras.layers

# Smallest images that each takes, or that leave several positions to its last layers.
APPLICATIONS: dict[str, tuple[int, dict[str, Any]]] = {
    "MobileNetV2": (32, {"alpha": 0.35, "classes": 5}),
    "MobileNet": (32, {"alpha": 0.25, "classes": 5}),
    "ResNet50V2": (32, {"classes": 5}),
    "VGG16": (32, {"include_top": False, "pooling": "max"}),
    "ResNet50": (32, {"classes": 5}),
    "DenseNet121": (32, {"classes": 5}),
    "Xception": (71, {"classes": 5}),
    "InceptionV3": (75, {"classes": 5}),
}


def randomized(model: Any, seed: int = 0) -> Any:
    """The model with random weights and statistics of sizes that keep activations near 1."""
    rng = np.random.default_rng(seed)
    for variable in model.weights:
        shape = variable.shape
        if len(shape) > 1:
            fan = np.prod(shape[:-1]) if shape[-1] > 1 or "depthwise" not in variable.path else np.prod(shape[:2])
            value = rng.normal(0, (2 / fan) ** 0.5, shape)
        elif variable.name in ("gamma", "moving_variance"):
            value = rng.uniform(0.5, 1.5, shape)
        else:
            value = rng.normal(0, 0.1, shape)
        variable.assign(value.astype("float32"))
    return model


def agree(theirs: Any, ours: Any, shape: tuple[int, ...], terms: int) -> None:
    x = np.random.default_rng(1).random((2, *shape), "float32")
    assert_close(ours.predict(x), np.asarray(theirs(x)), terms, dtype="float32")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", APPLICATIONS)
def test_an_application_computes_the_same(name: str, tmp_path: Path) -> None:
    size, options = APPLICATIONS[name]
    theirs = randomized(getattr(keras.applications, name)(weights=None, input_shape=(size, size, 3), **options))
    theirs.save(tmp_path / "m.keras")
    ours = load_keras(tmp_path / "m.keras", backend="numpy")
    assert ours.count_params() == theirs.count_params()
    assert ours.name == theirs.name
    agree(theirs, ours, (size, size, 3), 100_000)


def small(layers: Any) -> list[Any]:
    """A network in the words that both libraries share."""
    return [
        layers.Input((8, 8, 2)), layers.Conv2D(4, 3, activation="relu", name="first"),
        layers.BatchNormalization(name="norm"), layers.SeparableConv2D(6, 3, padding="same", strides=2),
        layers.Conv2DTranspose(3, 3, strides=2, name="up"), layers.LeakyReLU(negative_slope=0.1), layers.PReLU(),
        layers.LayerNormalization(), layers.ZeroPadding2D(((1, 0), (0, 2))), layers.Dropout(0.4, seed=3),
        layers.MaxPooling2D(2), layers.Flatten(), layers.Dense(3, "softmax", kernel_regularizer="l2"),
    ]  # fmt: skip


def test_a_sequential_with_most_layers(tmp_path: Path) -> None:
    theirs = randomized(keras.Sequential(small(L)))
    theirs.compile("adam", "categorical_crossentropy")
    theirs.save(tmp_path / "m.keras")
    ours = load_keras(tmp_path / "m.keras", backend="numpy")
    assert isinstance(ours, Sequential)
    assert ours.optimizer is None
    assert [type(layer).__name__ for layer in ours.layers] == [type(layer).__name__ for layer in theirs.layers]
    agree(theirs, ours, (8, 8, 2), 1000)


def test_weights_for_a_model_that_there_is(tmp_path: Path) -> None:
    import minicnn.layers

    theirs = randomized(keras.Sequential(small(L)))
    theirs.save_weights(tmp_path / "m.weights.h5")
    ours = Sequential(small(minicnn.layers), backend="numpy")
    assert load_keras(tmp_path / "m.weights.h5", ours) is ours
    agree(theirs, ours, (8, 8, 2), 1000)


def functional() -> Any:
    """Layers that are shared, models in models, several inputs and outputs, frozen layers, lists."""
    shared = L.Dense(4, name="shared")
    inner = keras.Sequential([L.Input((4,)), L.Dense(4, "tanh"), shared], name="inner")
    a, b = L.Input((4,), name="a"), L.Input((4,), name="b")
    inside = L.Input((4,))
    block = keras.Model(inside, [L.Dense(4)(inside), inside], name="block")
    block.trainable = False
    x, y = block(inner(shared(a)))
    z, _ = block(b)
    both = L.Concatenate()([x, y, z])
    return keras.Model({"b": b, "a": a}, [L.Dense(2)(both), shared(L.add([x, z]))])


def test_shared_layers_and_models_in_models(tmp_path: Path) -> None:
    theirs = randomized(functional())
    theirs.save(tmp_path / "m.keras")
    ours = load_keras(tmp_path / "m.keras", backend="numpy")
    assert ours.count_params() == theirs.count_params()
    assert ours.count_params(trainable=False) == 20
    x = {name: np.random.default_rng(i).random((3, 4), "float32") for i, name in enumerate("ab")}
    for mine, other in zip(ours.predict(x), theirs(x), strict=True):
        assert_close(mine, np.asarray(other), 100)


def _lambda(tmp_path: Path) -> Any:
    return keras.Sequential([L.Input((2,)), L.Lambda(lambda x: x * 2, name="code")])


def _several(tmp_path: Path) -> Any:
    x = L.Input((4, 4, 1))
    y = L.Conv2D(2, 3, activity_regularizer="l2", name="noisy")(x)
    return keras.Model(x, L.GRU(2, name="gru")(L.Reshape((4, 2))(y + 1.0)))


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (_lambda, ["Lambda 'code', whose code is not run"]),
        (_several, ["Conv2D 'noisy' with activity", "GRU 'gru'", "Add"]),
    ],
)  # fmt: skip
def test_one_error_names_all_that_has_no_counterpart(
    make: Callable[[Path], Any], names: list[str], tmp_path: Path
) -> None:
    make(tmp_path).save(tmp_path / "m.keras")
    with pytest.raises(KerasFileError, match="it has what minicnn has no layer for: ") as caught:
        load_keras(tmp_path / "m.keras")
    for name in names:
        assert name in str(caught.value)


def test_training_goes_on_as_in_keras(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.random((16, 6, 6, 1), "float32"), rng.integers(0, 3, 16)
    theirs = keras.Sequential(
        [L.Input((6, 6, 1)), L.Conv2D(2, 3), L.BatchNormalization(), L.Flatten(), L.Dense(3, "softmax")]
    )
    theirs.save(tmp_path / "m.keras")
    ours = load_keras(tmp_path / "m.keras", backend="numpy")
    losses = []
    for model in (theirs, ours):
        model.compile("adam", "sparse_categorical_crossentropy")
        history = model.fit(x, y, batch_size=16, epochs=3, shuffle=False, verbose=0)
        losses.append(history.history["loss"])
    assert_close(np.asarray(losses[1], "float32"), np.asarray(losses[0], "float32"), 1000)


def test_a_model_of_ours_has_keras_layers_by_their_order(tmp_path: Path) -> None:
    theirs = randomized(
        keras.Sequential(
            [L.Input((5, 5, 1)), L.Conv2D(2, 3), L.Conv2D(3, 3), L.BatchNormalization(), L.Flatten(), L.Dense(2)]
        )
    )
    theirs.save_weights(tmp_path / "m.weights.h5")
    ours = Sequential(
        [Input((5, 5, 1)), Conv2D(2, 3, name="a"), Conv2D(3, 3, name="b"), BatchNormalization(), Flatten(), Dense(2)],
        backend="numpy",
    )
    load_keras(tmp_path / "m.weights.h5", ours)
    agree(theirs, ours, (5, 5, 1), 100)
