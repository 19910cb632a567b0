"""What models and layers say of themselves, and how models are changed: add, pop, get_layer, names, weights, clones."""

from __future__ import annotations

import copy
import pickle
from functools import partial
from typing import Any

import numpy as np
import pytest

from minicnn import Layer, Model, Sequential, layers, regularizers
from minicnn.layers import Add, BatchNormalization, Conv2D, Dense, Flatten, Input
from minicnn.models import clone_model
from support.model_cases import FAST, assert_same_weights, blobs, two_layers
from support.tolerances import ELEMENT

X, Y = blobs(16, 4, 3)


network = partial(two_layers, between=(BatchNormalization,), optimizer="adam", loss="mse", metrics=())


def targets(units: int) -> Any:
    return np.ones((16, units), "float32")


# Names ----------------------------------------------------------------------------------------------


def test_names_before_and_after_a_model_is_made() -> None:
    layers = [Dense(2), Dense(2), Dense(2, name="own"), Conv2D(2, 1)]
    assert [layer.name for layer in layers] == ["dense", "dense", "own", "conv2d"]
    model = Sequential([Input((4,)), *layers[:3]])
    assert [layer.name for layer in model.layers] == ["dense", "dense_1", "own"]
    assert model.name == "model"
    assert Sequential(name="mine").name == "mine"
    assert layers[0].get_config()["name"] is None  # what was not given is not fixed
    x = Input((2,))
    assert list(Model(x, layers[1](x)).get_weights()) == ["dense/kernel", "dense/bias"]
    assert layers[1].name == "dense_1"  # as in the first model


def test_get_layer() -> None:
    model = network()
    assert model.get_layer("dense_1") is model.get_layer(index=2) is model.get_layer(index=-1) is model.layers[2]
    for wrong in ({"name": "dense_2"}, {"index": 3}, {}):
        with pytest.raises(ValueError, match=r"name of a layer, or its index from 0 to 2\. .*Names: dense, batch_norm"):
            model.get_layer(**wrong)  # type: ignore[arg-type]


def test_short_names() -> None:
    for axes in ("1D", "2D"):
        for short, long in (("MaxPool", "MaxPooling"), ("AvgPool", "AveragePooling")):
            for kind in ("", "Global"):
                assert getattr(layers, kind + short + axes) is getattr(layers, kind + long + axes)
        assert getattr(layers, f"Convolution{axes}") is getattr(layers, f"Conv{axes}")
    assert layers.Convolution2DTranspose is layers.Conv2DTranspose
    assert layers.SeparableConvolution2D is layers.SeparableConv2D
    assert regularizers.l2(0.1) == regularizers.L2(0.1)


# Calls ----------------------------------------------------------------------------------------------


def test_inputs_and_outputs() -> None:
    x = Input((4,))
    hidden = Dense(6)(x)
    model = Model(x, [hidden, Dense(3)(hidden)], backend="numpy")
    assert model.inputs == [x]
    assert model.input is x
    assert [t.shape for t in model.output] == [t.shape for t in model.outputs] == [(None, 6), (None, 3)]
    assert network().output.shape == (None, 3)


def test_features_by_the_name_of_a_layer() -> None:
    model = network()
    model.fit(X, targets(3), verbose=0)
    features = Model(model.inputs, model.get_layer("batch_normalization").output, backend="numpy")
    rest = Model(model.get_layer("dense_1").input, model.output, backend="numpy")
    np.testing.assert_allclose(rest.predict(features.predict(X)), model.predict(X), rtol=ELEMENT)
    for again in (copy.deepcopy(rest), pickle.loads(pickle.dumps(rest))):
        np.testing.assert_array_equal(again.predict(features.predict(X)), rest.predict(features.predict(X)))
    twin = copy.deepcopy(model)
    part = Model(twin.inputs, twin.layers[0].output, backend="numpy")
    assert part.layers == [twin.layers[0]]


def test_output_of_a_layer_that_was_called_otherwise_than_once() -> None:
    layer, x = Dense(2), Input((2,))
    for times in (0, 2):
        with pytest.raises(AttributeError, match=rf"one call of a layer .*Received: {times} calls of 'dense'\. Keep"):
            layer.output  # noqa: B018
        kept = [layer(x), layer(x)]
    del kept
    only = layer(x)
    assert layer.output.source is only.source
    assert layer.input is x


# Weights of a layer ---------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", FAST)
def test_weights_of_a_layer(backend: str) -> None:
    model = network(backend)
    dense, norm, _ = model.layers
    assert [w.name for w in norm.weights] == ["gamma", "beta", "moving_mean", "moving_variance"]
    assert [w.name for w in norm.trainable_weights] == ["gamma", "beta"]
    assert [w.name for w in norm.non_trainable_weights] == ["moving_mean", "moving_variance"]
    assert norm.count_params() == 24
    model.fit(X, targets(3), verbose=0)
    kernel, bias = dense.get_weights()
    np.testing.assert_array_equal(kernel, model.get_weights()["dense/kernel"])
    kernel[:] = 1.0  # a copy
    assert not np.any(model.get_weights()["dense/kernel"] == 1.0)
    dense.set_weights([kernel, bias.tolist()])
    np.testing.assert_array_equal(model.get_weights()["dense/kernel"], kernel)
    np.testing.assert_allclose(dense.weights[1].numpy(), bias)
    model.fit(X, targets(3), verbose=0)
    norm.trainable = False
    assert norm.trainable_weights == []
    assert len(model.weights) == 8
    assert len(model.trainable_weights) == 4


def test_weights_of_layers_within() -> None:
    class Block(Layer):
        def __init__(self) -> None:
            super().__init__()
            self.parts = {"a": [Dense(2)], "b": Dense(3)}

        def build(self, input_shape: Any) -> None:
            self.mean = self.add_weight("mean", (1,), trainable=False)
            self.gain = self.add_weight("gain", (1,), "ones")

        def call(self, inputs: Any) -> Any:
            return self.parts["b"](self.parts["a"][0](inputs * self.gain))  # type: ignore[operator,index]

    block = Block()
    assert block.weights == []
    model = Sequential([Input((4,)), block], backend="numpy")
    assert [w.name for w in block.weights] == ["gain", "mean", "kernel", "bias", "kernel", "bias"]
    block.parts["b"].trainable = False  # type: ignore[union-attr]
    assert [w.shape for w in model.trainable_weights] == [(1,), (4, 2), (2,)]
    inner = Sequential([Input((4,)), Dense(2)])
    outer = Sequential([inner, inner.layers[0].__class__(5)], backend="numpy")
    assert [a.shape for a in inner.layers[0].get_weights()] == [(4, 2), (2,)]
    assert outer.count_params() == 10 + 15


def test_first_weights_are_float32_whoever_asks_first() -> None:
    model = network()
    of_model = model.get_weights()
    for weight, path in zip(model.layers[0].get_weights(), of_model, strict=False):
        assert weight.dtype == np.float32
        np.testing.assert_array_equal(weight, of_model[path])


def test_a_float64_weight_stays_one() -> None:
    model = Sequential([Input((4,)), Dense(1)], backend="numpy")
    model.compile("sgd", "mse", precision="float64")
    exact = np.full((4, 1), 1 / 3)
    model.layers[0].set_weights([exact, [0.1]])
    np.testing.assert_array_equal(model.layers[0].get_weights()[0], exact)
    np.testing.assert_array_equal(model.get_weights()["dense/kernel"], exact)


def test_wrong_weights_of_a_layer() -> None:
    model = network()
    layer = model.layers[0]
    before = model.get_weights()
    with pytest.raises(ValueError, match=r"shape: kernel \(4, 6\), bias \(6,\)\. Received: \(4, 6\)\."):
        layer.set_weights([np.ones((4, 6))])
    with pytest.raises(ValueError, match=r"Received: \(4, 6\), \(5,\)"):
        layer.set_weights([np.ones((4, 6)), np.ones(5)])
    with pytest.raises(TypeError, match=r"a list of arrays, in the order of its weights\. Received: dict\. A model"):
        layer.set_weights({"kernel": np.ones((4, 6))})
    with pytest.raises(TypeError, match=r"a dictionary of arrays by path.*Received: list\. dict\(zip"):
        model.set_weights(list(before.values()))  # type: ignore[arg-type]
    assert_same_weights(model.get_weights(), before)
    alone = Dense(3)
    alone(Input((4,)))
    with pytest.raises(
        RuntimeError, match=r"once a model is made of its layer\. Received: 'kernel' of a layer in none"
    ):
        alone.get_weights()


# Sequential -----------------------------------------------------------------------------------------


def test_add_makes_what_the_list_makes() -> None:
    added = Sequential(backend="numpy", seed=3)
    parts = [Input((4, 4, 1)), Conv2D(2, 3), Conv2D(3, 2), Flatten(), Dense(2)]
    for number, part in enumerate(parts):
        added.add(part)
        assert len(added.layers) == number
    listed = Sequential([Input((4, 4, 1)), Conv2D(2, 3), Conv2D(3, 2), Flatten(), Dense(2)], backend="numpy", seed=3)
    assert_same_weights(added.get_weights(), listed.get_weights())
    assert added.summary(None) == listed.summary(None)
    later = Sequential(backend="numpy", seed=3)
    for part in (Conv2D(2, 3), Conv2D(3, 2), Flatten(), Dense(2)):
        later.add(part)
    assert [layer.name for layer in later.layers] == ["conv2d", "conv2d", "flatten", "dense"]
    x = np.random.default_rng(0).random((3, 4, 4, 1))
    np.testing.assert_array_equal(later.predict(x), listed.predict(x))


def test_pop_and_another_head() -> None:
    model = network()
    model.fit(X, targets(3), epochs=2, verbose=0)
    learnt = model.get_weights()
    head = model.pop()
    assert isinstance(head, Dense)
    assert model.output_shape == (None, 6)
    model.add(Dense(5, name="head"))
    assert list(model.get_weights())[-2:] == ["head/kernel", "head/bias"]
    assert model.steps_taken == 0
    assert_same_weights({p: w for p, w in model.get_weights().items() if "head" not in p},
                        {p: w for p, w in learnt.items() if "dense_1" not in p})  # fmt: skip
    model.fit(X, targets(5), verbose=0)
    for _ in range(3):
        model.pop()
    np.testing.assert_array_equal(model.predict(X), X)
    with pytest.raises(ValueError, match=r"Received: pop of a Sequential without layers\. Add one first"):
        model.pop()
    model.add(Dense(2))
    assert model.predict(X).shape == (16, 2)


def test_a_name_that_comes_later_takes_precedence() -> None:
    model = Sequential([Input((4,)), Dense(2)], backend="numpy")
    model.add(Dense(3, name="dense"))
    assert list(model.get_weights()) == ["dense_1/kernel", "dense_1/bias", "dense/kernel", "dense/bias"]


def test_what_cannot_be_added() -> None:
    model = network()
    before = model.get_weights()
    with pytest.raises(ValueError, match="image"):
        model.add(Conv2D(2, 3))
    with pytest.raises(TypeError, match=r"add takes a layer, or first of all Input\(\.\.\.\)\. Received: 3"):
        model.add(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="add takes a layer"):
        model.add(Input((4,)))
    assert_same_weights(model.get_weights(), before)
    assert model.predict(X).shape == (16, 3)


def test_a_model_in_the_first_place_says_what_the_shape_is() -> None:
    base = Sequential([Input((4, 4, 1), dtype="uint8"), Conv2D(2, 3), Flatten()])
    model = Sequential([base, Dense(2)], backend="numpy")
    assert model.output_shape == (None, 2)
    assert model.inputs[0].dtype == "uint8"
    model = Sequential(backend="numpy")
    model.add(base)
    assert model.built


# Copies ---------------------------------------------------------------------------------------------


def test_a_clone_has_first_weights_and_layers_of_its_own() -> None:
    model = network()
    first = model.get_weights()
    model.layers[0].trainable = False
    model.compile("adam", "mse")
    model.fit(X, targets(3), epochs=2, verbose=0)
    learnt = model.get_weights()
    clone = clone_model(model)
    assert_same_weights(clone.get_weights(), first)
    assert clone.optimizer is None
    assert not clone.layers[0].trainable
    clone.compile("sgd", "mse")
    clone.fit(X, targets(3), verbose=0)
    assert_same_weights(model.get_weights(), learnt)
    model.fit(X, targets(3), verbose=0)  # with the optimizer that it has


def test_clones_of_any_model() -> None:
    class Shift(Layer):
        def call(self, inputs: Any) -> Any:
            return inputs + 1.0

    x = Input((4,))
    shared = Dense(4, activation=lambda v: v * 2.0)  # which cannot be saved
    branched = Model(x, Add()([shared(x), shared(Shift()(x))]), backend="numpy")
    clone = clone_model(branched)
    np.testing.assert_array_equal(clone.predict(X), branched.predict(X))
    assert len(clone.weights) == 2
    later = Sequential([Dense(2)], backend="numpy", seed=4)
    assert clone_model(later).predict(X).shape == (16, 2)


def test_configurations_give_models_of_every_kind() -> None:
    x = Input((4,))
    inner = Sequential([Input((4,)), Dense(3, activation="relu")])
    branched, chain = Model(x, [Dense(2)(x), inner(x)], name="net", backend="numpy"), network()
    branched.trainable = chain.trainable = False
    for model in (chain, branched):
        again = type(model).from_config(model.get_config())
        assert type(again) is type(model)
        assert (again.name, again.trainable) == (model.name, model.trainable)
        assert again.get_config() == model.get_config()
        assert again.output_shape == model.output_shape
        again.set_weights(model.get_weights())
        for a, b in zip(again([X]), model([X]), strict=True):
            np.testing.assert_array_equal(a, b)
    first = network()
    again = Sequential.from_config(first.get_config())
    assert_same_weights(again.get_weights(), first.get_weights())  # by the same seed
    for layer in model.layers:
        assert type(type(layer).from_config(layer.get_config())) is type(layer)
    with pytest.raises(ValueError, match="a chain"):
        Sequential.from_config(branched.get_config())
