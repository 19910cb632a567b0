"""Frozen layers: no gradients, no updates, no optimizer state, and normalisation by the moving statistics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minicnn import Layer, Model, Sequential
from minicnn.layers import BatchNormalization, Conv2D, Dense, Dropout, GlobalAveragePooling2D, Input
from minicnn.losses import SparseCategoricalCrossentropy
from support.model_cases import UNCOMPILED, assert_same_weights, blobs
from support.tolerances import ELEMENT, SUM

X, Y = blobs(16, 4, 3)


def network(*, backend: Any = "numpy", **freeze: bool) -> Sequential:
    layers = [
        Input((4,)), Dense(6, activation="relu", name="first", trainable=not freeze.get("first", False)),
        BatchNormalization(name="norm", trainable=not freeze.get("norm", False)), Dense(3, name="head"),
    ]  # fmt: skip
    model = Sequential(layers, backend=backend)
    model.compile("adam", SparseCategoricalCrossentropy(from_logits=True), ["accuracy"])
    return model


def changed(model: Model) -> set[str]:
    """Paths of the weights that training changes."""
    before = model.get_weights()
    model.fit(X, Y, 8, 2, 0)
    return {path for path, w in model.get_weights().items() if np.any(w != before[path])}


@pytest.mark.parametrize("backend", ["numpy", "jax"])
def test_frozen_weights_stay(backend: str) -> None:
    assert changed(network(backend=backend, first=True, norm=True)) == {"head/kernel", "head/bias"}
    assert changed(network(backend=backend, norm=True)) == {"first/kernel", "first/bias", "head/kernel", "head/bias"}


def test_nothing_is_computed_for_them() -> None:
    whole, frozen = network().program("train"), network(first=True, norm=True).program("train")
    assert {n.scope for n in frozen.nodes if n.phase == "backward"} == {"loss", "head"}
    assert {n.scope for n in whole.nodes if n.phase == "backward"} == {"loss", "head", "norm", "first"}
    assert frozen.flops < whole.flops
    assert set(frozen.updates) & set(network().get_weights()) == {"head/kernel", "head/bias"}
    assert {v.name for v in frozen.inputs if v.kind == "optimizer"} == {
        f"adam/{slot}/head/{weight}" for slot in ("m", "v") for weight in ("kernel", "bias")
    }
    # Gradients go through a frozen layer to one before it.
    middle = network(norm=True).program("train")
    assert {"norm", "first"} <= {n.scope for n in middle.nodes if n.phase == "backward"}
    assert not {path for path in middle.updates if path.startswith("norm/")}


def test_frozen_normalisation_is_that_of_inference() -> None:
    model = Sequential([Input((4,)), BatchNormalization(trainable=False), Dense(2)], backend="numpy")
    model.compile("sgd", "mse")
    target = np.ones((16, 2))
    assert model.train_on_batch(X, target, return_dict=True)["loss"] == pytest.approx(
        np.mean((first(model) - target) ** 2), rel=SUM
    )


def first(model: Model) -> Any:
    """Predictions before training: with the same first weights."""
    again = Model.from_config(model.get_config())
    return again.predict(X)


def test_frozen_dropout_still_drops() -> None:
    layer = Dropout(0.5, trainable=False)
    model = Sequential([Input((4,)), layer, Dense(2)], backend="numpy")
    model.compile("sgd", "mse")
    assert "random_uniform" in [n.op.name for n in model.program("train").nodes]


def test_a_model_freezes_what_is_in_it() -> None:
    model = network()
    model.trainable = False
    assert [layer.trainable for layer in model.layers] == [False] * 3
    model.compile("sgd", SparseCategoricalCrossentropy(from_logits=True))
    with pytest.raises(ValueError, match=r"at least one trainable weight.*set trainable=True"):
        model.fit(X, Y, verbose=0)
    outer = Sequential([model, Dense(3, name="more")], backend="numpy")
    outer.build((None, 4))
    outer.compile("sgd", SparseCategoricalCrossentropy(from_logits=True))
    assert changed(outer) == {"more/kernel", "more/bias"}
    model.trainable = True
    assert all(layer.trainable for layer in model.layers)


def test_sublayers_of_a_layer_of_one_s_own() -> None:
    class Block(Layer):
        def __init__(self, *, name: str | None = None) -> None:
            super().__init__(name=name)
            self.parts = {"a": [Dense(4)], "b": BatchNormalization()}

        def call(self, inputs: Any) -> Any:
            return self.parts["b"](self.parts["a"][0](inputs))  # type: ignore[operator,index]

    block = Block(name="block")
    block.trainable = False
    assert not block.parts["a"][0].trainable  # type: ignore[index]
    model = Sequential([Input((4,)), block, Dense(3, name="head")], backend="numpy")
    model.compile("sgd", SparseCategoricalCrossentropy(from_logits=True))
    assert changed(model) == {"head/kernel", "head/bias"}


def test_counts_and_summary() -> None:
    model = network(first=True)
    assert model.count_params(trainable=True) == 2 * 6 + 6 * 3 + 3
    assert model.count_params(trainable=False) == 4 * 6 + 6 + 2 * 6
    text = model.summary(None)
    assert "first (Dense, frozen)" in text
    assert "head (Dense) " in text
    assert "75 weights, 33 of them trainable" in text


def test_a_change_is_taken_up_by_compile() -> None:
    model = network()
    model.fit(X, Y, verbose=0)
    model.layers[0].trainable = False
    with pytest.warns(
        UserWarning, match=r"when the model was compiled\. Received: .*'first'\. Call compile\(\)"
    ) as seen:
        assert "first/kernel" in changed(model)
    assert [warning.filename for warning in seen] == [__file__]
    model.train_on_batch(X, Y)  # it has been said
    model.compile("adam", SparseCategoricalCrossentropy(from_logits=True))
    assert "first/kernel" not in changed(model)
    model.layers[0].trainable = True
    with pytest.warns(UserWarning, match="trainable set since then"):
        model.train_on_batch(X, Y)


@pytest.mark.parametrize("backend", UNCOMPILED)
def test_two_compiled_models_of_a_gan_train_their_own_parts(backend: str) -> None:
    """The discriminator is compiled, then frozen within the model that trains the generator."""
    pytest.importorskip(backend)
    rng = np.random.default_rng(0)
    noise, real = rng.normal(size=(8, 3)), rng.normal(size=(8, 4))
    z, x = Input((3,)), Input((4,))
    generator = Model(z, Dense(4, name="out")(BatchNormalization()(Dense(5, "relu")(z))), name="generator")
    hidden = BatchNormalization()(Dense(5, "relu")(x))
    judge = Model(x, Dense(1, "sigmoid", name="verdict")(hidden), name="judge", backend=backend)
    judge.compile("adam", "binary_crossentropy")
    judge.trainable = False
    gan = Model(z, judge(generator(z)), backend=backend)
    gan.compile("adam", "binary_crossentropy")
    weights = gan.get_weights()
    ours = {path for path in weights if path.startswith("generator/")}
    theirs = {path for path in weights if path.startswith("judge/")}

    def moved(train: Any) -> set[str]:
        before = gan.get_weights()
        train()
        return {path for path, array in gan.get_weights().items() if np.any(array != before[path])}

    assert ours | theirs == set(weights)
    with pytest.warns(UserWarning, match="trainable set since then"):
        assert moved(lambda: judge.train_on_batch(real, np.ones((8, 1)))) == theirs
    # Without a word from the second step on.
    assert moved(lambda: gan.train_on_batch(noise, np.ones((8, 1)))) == ours
    assert moved(lambda: judge.fit(real, np.ones((8, 1)), verbose=0)) == theirs
    assert moved(lambda: gan.fit(noise, np.ones((8, 1)), verbose=0)) == ours


def test_what_was_trainable_is_saved_beside_what_is(tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    model = network(norm=True)
    model.fit(X, Y, verbose=0)
    model.layers[0].trainable, model.layers[1].trainable = False, True
    model.save(tmp_path / "model.safetensors")
    again = Model.load(tmp_path / "model.safetensors", backend="numpy")
    assert [layer.trainable for layer in again.layers] == [False, True, True]
    for m in (model, again):
        with pytest.warns(UserWarning, match="trainable set since then"):
            assert changed(m) == {"first/kernel", "first/bias", "head/kernel", "head/bias"}
    assert_same_weights(again.get_weights(), model.get_weights())


def test_frozen_layers_are_saved(tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    model = network(first=True, norm=True)
    model.fit(X, Y, verbose=0)
    model.save(tmp_path / "model.safetensors")
    again = Model.load(tmp_path / "model.safetensors", backend="numpy")
    assert [layer.trainable for layer in again.layers] == [False, False, True]
    for m in (model, again):
        m.fit(X, Y, verbose=0)
    assert_same_weights(again.get_weights(), model.get_weights())
    inner = Sequential([Input((4,)), Dense(3)])
    inner.trainable = False
    inner.layers[0].trainable = True  # which a frozen model around it overrules
    x = Input((4,))
    outer = Model(x, Dense(2, name="head")(inner(x)), backend="numpy")
    outer.save(tmp_path / "outer.safetensors")
    loaded = Model.load(tmp_path / "outer.safetensors", backend="numpy")
    assert loaded.count_params(trainable=True) == outer.count_params(trainable=True) == 3 * 2 + 2
    assert loaded.layers[0].layers[0].trainable  # type: ignore[attr-defined]


@pytest.mark.parametrize("value", [0, None, "no"])
def test_trainable_is_a_bool(value: Any) -> None:
    with pytest.raises(ValueError, match=r"trainable is True or False\. Received: trainable="):
        Dense(2, trainable=value)
    layer = Dense(2)
    with pytest.raises(ValueError, match="trainable is True or False"):
        layer.trainable = value


def test_what_is_left_is_trained_as_before() -> None:
    """The gradients of what is left are those of the whole network."""
    rng = np.random.default_rng(0)
    x, y = rng.random((5, 6, 6, 1)).astype("float32"), rng.integers(0, 3, 5)
    steps = []
    for frozen in (False, True):
        layers = [Input((6, 6, 1)), Conv2D(4, 3, trainable=not frozen), GlobalAveragePooling2D()]
        layers.append(Dense(3, activation="softmax"))
        model = Sequential(layers, backend="numpy")
        model.compile("sgd", "sparse_categorical_crossentropy")
        model.train_on_batch(x, y)
        steps.append(model.get_weights())
    np.testing.assert_allclose(steps[1]["dense/kernel"], steps[0]["dense/kernel"], rtol=ELEMENT)
    assert np.any(steps[1]["conv2d/kernel"] != steps[0]["conv2d/kernel"])
