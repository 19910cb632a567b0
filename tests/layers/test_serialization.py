"""Layers and graphs as JSON, and back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from minicnn import layers, ops
from minicnn.configured import CLASSES, Configured, decode, encode
from minicnn.constraints import CONSTRAINTS
from minicnn.initializers import Constant, Initializer, VarianceScaling
from minicnn.layers import (
    Activation,
    Add,
    BatchNormalization,
    Concatenate,
    Conv2D,
    Dense,
    Dropout,
    Flatten,
    Input,
    Layer,
    MaxPooling2D,
)
from minicnn.layers.functional import Functional
from minicnn.layers.graph import Graph
from minicnn.layers.serialization import graph_from_config, graph_to_config
from minicnn.regularizers import REGULARIZERS
from support.layer_check import run
from support.strategies import normal


class Split(Layer):
    """Two results, of a size that is an argument."""

    def __init__(self, at: int, *, name: str | None = None) -> None:
        super().__init__(name=name)
        self.at = at

    def call(self, inputs: Any) -> Any:
        return inputs[:, : self.at], inputs[:, self.at :]


@dataclass(frozen=True)
class Ramp(Initializer):
    """0, 1, 2 ..."""

    step: float = 1.0

    def __call__(self, shape: Sequence[int], rng: np.random.Generator) -> Any:
        return np.arange(np.prod(shape)).reshape(shape) * self.step


def rebuilt(graph: Functional, **objects: Any) -> Functional:
    """A copy by way of JSON, which must be the same graph with the same results."""
    config = graph_to_config(graph._graph)
    copy = Functional(*graph_from_config(json.loads(json.dumps(config)), objects))
    assert graph_to_config(copy._graph) == config
    assert [copy.layer_name(v) for v in copy.layers] == [graph.layer_name(v) for v in graph.layers]
    x: Any = [normal((3, *t.sample_shape), i) for i, t in enumerate(graph.inputs)]
    x = x if len(x) > 1 else x[0]
    for training in (False, True):
        first, second = run(graph, x, training=training), run(copy, x, training=training)
        assert list(first.weights) == list(second.weights)
        pairs = zip(first.y, second.y, strict=True) if isinstance(first.y, list) else [(first.y, second.y)]
        for a, b in pairs:
            np.testing.assert_array_equal(a, b)
    return copy


def test_every_layer_can_be_named_in_a_file() -> None:
    public = {c.__name__ for c in map(layers.__dict__.get, layers.__all__) if isinstance(c, type) and c is not Layer}
    limits = {kind.__name__ for kind in (*REGULARIZERS.values(), *CONSTRAINTS.values())}
    others = {"Graph", "Operation", "Constant", "VarianceScaling", "RandomNormal", "RandomUniform"}
    compiled = {name for name, c in CLASSES.items() if issubclass(c, Configured)}  # entered where models are saved
    assert public | others | limits | compiled == set(CLASSES)


def test_a_config_is_plain_and_complete() -> None:
    layer = Conv2D(2, 3, padding=1, kernel_initializer=VarianceScaling(2.0, "fan_out"), name="c")
    assert layer.get_config() == {
        "filters": 2,
        "kernel_size": [3, 3],
        "strides": [1, 1],
        "padding": [[1, 1], [1, 1]],
        "data_format": "channels_last",
        "dilation_rate": [1, 1],
        "groups": 1,
        "activation": None,
        "use_bias": True,
        "kernel_initializer": {
            "class": "VarianceScaling",
            "config": {"scale": 2.0, "mode": "fan_out", "distribution": "truncated_normal"},
        },
        "bias_initializer": "zeros",
        "name": "c",
    }
    copy = Conv2D.from_config(json.loads(json.dumps(layer.get_config())))
    assert copy.kernel_initializer == layer.kernel_initializer
    assert copy.padding == ((1, 1), (1, 1))


@pytest.mark.parametrize(
    ("layer", "text"),
    [
        (Conv2D(8, 3), "Conv2D(8, 3)"),
        (Conv2D(8, (3, 5), 2, "same", activation="relu", name="c"),
         "Conv2D(8, (3, 5), strides=2, padding='same', activation='relu', name='c')"),
        (Dense(2, kernel_regularizer="l2", trainable=False), "Dense(2, trainable=False, kernel_regularizer='l2')"),
        (Dense(2, kernel_initializer=Constant(0.5)), "Dense(2, kernel_initializer=Constant(value=0.5))"),
        (Flatten(), "Flatten()"),
        (Dense(2, Activation("relu")), "Dense(2, activation=Activation('relu'))"),
    ],
)  # fmt: skip
def test_a_layer_is_shown_as_the_call_that_makes_it(layer: Layer, text: str) -> None:
    assert repr(layer) == text
    assert encode(eval(text, {**vars(layers), "Constant": Constant})) == encode(layer)


def test_built_in_functions_have_names() -> None:
    assert Dense(2, ops.relu).get_config()["activation"] == "relu"
    assert Activation(ops.silu).get_config()["activation"] == "silu"


def test_functions_cannot_be_saved() -> None:
    for layer in (Dense(2, lambda x: x * 2.0), Activation(lambda x: x), Dense(2, ops.square)):
        with pytest.raises(TypeError, match=r"Functions cannot be saved, .* as activation of .*custom_objects"):
            encode(layer)


@pytest.mark.parametrize("value", [object(), {1: 2}, np.zeros(3), b"x"])
def test_other_things_cannot_be_saved(value: Any) -> None:
    with pytest.raises(TypeError, match=r"What is saved is plain data, layers and initializers. Received: .* as alpha"):
        encode(value, "alpha")


def test_plain_data_stays() -> None:
    data = {"a": [1, 2.5, None, True, "s"], "b": {"c": []}}
    assert encode(data) == data
    assert decode(data) == data
    assert encode((np.float32(0.5), np.int64(3))) == [0.5, 3]
    assert type(encode(np.int64(3))) is int


def test_unknown_classes() -> None:
    with pytest.raises(ValueError, match=r"Received: 'Split'. Pass the class as custom_objects=\{'Split': Split\}"):
        decode(encode(Split(2)))
    # No importing by name, and nothing that is not a class.
    for name in ("os.system", "Layer", "Input"):
        with pytest.raises(ValueError, match="The classes in a saved model are minicnn's own or given by the caller"):
            decode({"class": name, "config": {}})
    with pytest.raises(ValueError, match="The classes in a saved model"):
        decode(encode(Split(2)), {"Split": Split(2)})


def test_wrong_arguments_in_a_file() -> None:
    with pytest.raises(
        ValueError,
        match=r"Saved arguments are those that the class takes. Received for Dense: .*unit=2\. Did you",
    ):
        decode({"class": "Dense", "config": {"unit": 2}})
    with pytest.raises(ValueError, match=r"Saved arguments .* Received for Constant"):
        decode(
            {"class": "Dense", "config": {"units": 2, "kernel_initializer": {"class": "Constant", "config": {"v": 1}}}}
        )


def test_initializers_of_the_user() -> None:
    config = json.loads(json.dumps(encode(Dense(2, kernel_initializer=Ramp(0.5), bias_initializer=Constant(1)))))
    with pytest.raises(ValueError, match=r"custom_objects={'Ramp': Ramp}"):
        decode(config)
    copy: Any = decode(config, {"Ramp": Ramp})
    assert (copy.kernel_initializer, copy.bias_initializer) == (Ramp(0.5), Constant(1))


def test_a_class_of_the_user_takes_precedence() -> None:
    class Dense2(layers.Dense):
        pass

    assert type(decode(encode(Dense(2)), {"Dense": Dense2})) is Dense2


# Graphs -----------------------------------------------------------------------------------------


class Scaled(Dense):
    """Hands on what it does not know, as is usual in Keras; its names are those of its bases."""

    def __init__(self, units: int, scale: float = 2.0, **kwargs: Any) -> None:
        super().__init__(units, **kwargs)
        self.scale = scale

    def call(self, inputs: Any) -> Any:
        return super().call(inputs) * self.scale


class Window(MaxPooling2D):
    """Fixes one argument of its base, which is none of its own."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(pool_size=2, **kwargs)


class Anything(Conv2D):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)


def test_arguments_that_a_constructor_hands_on_are_saved() -> None:
    inputs = Input((9, 9, 3))
    convolution = Anything(filters=2, kernel_size=3, activation="relu", kernel_regularizer="l2")
    window = Window(padding="same", strides=3)
    dense = Scaled(3, scale=3.0, activation="tanh", use_bias=False, name="first", trainable=False)
    graph = Functional(inputs, dense(Flatten()(window(convolution(inputs)))))
    copy = rebuilt(graph, Anything=Anything, Window=Window, Scaled=Scaled)
    assert encode(window) == {"class": "Window", "config": {"padding": "same", "strides": [3, 3]}}
    assert copy.get_layer("first").activation == "tanh"
    assert not copy.get_layer("first").trainable
    assert deepcopy(dense).get_config() == dense.get_config()


def test_arguments_without_a_name_cannot_be_saved() -> None:
    with pytest.raises(
        TypeError, match=r"by name. Received: Anything with 2 in \*args. Give them by name, or override"
    ):
        encode(Anything(2, 3))


def test_an_argument_that_is_handed_on_and_not_kept_cannot_be_saved() -> None:
    class Forgetful(Layer):
        def __init__(self, **kwargs: Any) -> None:
            kwargs.pop("rate")
            super().__init__(**kwargs)

    with pytest.raises(TypeError, match=r"Received: Forgetful without 'rate'\. Set self\.rate, or override"):
        encode(Forgetful(rate=2))


def test_a_chain() -> None:
    x = Input((8, 8, 1), dtype="uint8", name="image")
    y = Conv2D(3, 3, activation="relu", kernel_initializer=VarianceScaling())(x)
    y = Dense(4)(Flatten()(MaxPooling2D()(Dropout(0.5)(BatchNormalization()(y)))))
    graph = Functional(x, y)
    copy = rebuilt(graph)
    assert (copy.inputs[0].dtype, copy.inputs[0].name, copy.outputs[0].shape) == ("uint8", "image", (None, 4))


def test_branches_shared_layers_several_inputs_and_outputs() -> None:
    a, b, shared = Input((4,)), Input((4,), name="b"), Dense(4)
    left, right = shared(a), shared(Dense(4)(b))
    merged = Add()([left, right])
    copy = rebuilt(Functional([a, b], [Concatenate()([merged, a]), left, b]))
    assert [type(v).__name__ for v in copy.layers] == ["Dense", "Dense", "Add", "Concatenate"]


def test_several_results_and_lists_of_one() -> None:
    x = Input((5,))
    first, second = Split(2)(x)
    copy = rebuilt(Functional([x], [Dense(3)(second), Add()([first])]), Split=Split)
    assert (copy._graph.one_input, copy._graph.one_output) == (False, False)
    one = rebuilt(Functional(x, [Dense(3)(second)]), Split=Split)
    assert (one._graph.one_input, one._graph.one_output) == (True, False)


def test_training_of_a_call() -> None:
    x = Input((6,))
    copy = rebuilt(Functional(x, Dropout(0.5)(Dropout(0.5)(x, training=False), training=True)))
    assert [c.training for c in copy._graph.calls] == [False, True]


def test_nested_graphs() -> None:
    x = Input((4,))
    encoder = Functional(x, Dense(2, "relu")(x), name="encoder")
    y = Input((2,))
    decoder = Functional(y, Dense(4)(y))
    z = Input((4,))
    copy = rebuilt(Functional(z, [decoder(encoder(z)), encoder(Add()([z, z]))]))
    assert [type(v).__name__ for v in copy.layers] == ["Functional", "Functional", "Add"]


def test_layers_shared_between_nested_graphs() -> None:
    x, shared = Input((3,)), Dense(3)
    one = Functional(x, Dense(3)(shared(x)), name="one")
    y = Input((3,))
    two = Functional(y, shared(one(y)), name="two")
    z = Input((3,))
    graph = Functional(z, [two(z), one(z), shared(z)])
    copy = rebuilt(graph)
    names = [p for p in run(copy, normal((1, 3), 0)).weights if p.endswith("kernel")]
    assert len(names) == 2
    inner: Any = copy.layers[0]
    assert copy.layers[1] is inner.layers[0]
    assert copy.layers[2] in inner.layers[0].layers


def test_a_part_of_a_network_is_saved_from_its_input_on() -> None:
    x = Input((4,))
    middle = Dense(3, name="a")(x)
    copy = rebuilt(Functional(middle, Dense(2, name="b")(middle)))
    assert copy.inputs[0].shape == (None, 3)


def test_a_graph_is_a_layer_as_well() -> None:
    x = Input((3,))
    graph = Functional(x, Dense(2)(x), name="inner")
    config = json.loads(json.dumps(encode(graph)))
    copy = decode(config)
    assert isinstance(copy, Functional)
    assert (copy.name, encode(copy)) == ("inner", config)

    class Wrap(Layer):
        def __init__(self, body: Layer, *, name: str | None = None) -> None:
            super().__init__(name=name)
            self.body = body

        def call(self, inputs: Any) -> Any:
            return self.body(inputs)

    y = Input((3,))
    rebuilt(Functional(y, Wrap(graph)(y)), Wrap=Wrap)


@pytest.mark.parametrize(
    "damage",
    [
        lambda c: c.pop("layers"),
        lambda c: c["calls"][0].pop("inputs"),
        lambda c: c["calls"].pop(),
        lambda c: c["layers"].pop(),
        lambda c: c["layers"].insert(0, {"shared": 0}),
        lambda c: c["layers"].__setitem__(0, {"shared": 7}),
        lambda c: c["outputs"]["tensors"].__setitem__(0, [0, 3]),
    ],
)
def test_damaged_descriptions(damage: Any) -> None:
    x = Input((4,))
    config = graph_to_config(Graph(x, Dense(2)(Dense(3)(x))))
    damage(config)
    with pytest.raises(ValueError, match="The description of a graph names its inputs, layers, calls and outputs"):
        graph_from_config(config)


def test_a_graph_that_names_itself() -> None:
    config = {
        "class": "Graph",
        "config": {"name": None, "inputs": {"tensors": [], "list": True}, "layers": [{"shared": 0}]},
    }
    outer = {
        "inputs": {"tensors": [], "list": True},
        "layers": [config],
        "calls": [],
        "outputs": {"tensors": [], "list": True},
    }
    with pytest.raises(ValueError, match="The description of a graph"):
        graph_from_config(outer)
