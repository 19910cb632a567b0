"""Layers called on arrays, and on several arguments."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minicnn import Model, Sequential, saving
from minicnn.layers import Add, CategoryEncoding, Dense, Dropout, Input, Layer, RandomFlip, Rescaling
from minicnn.layers.graph import Graph
from minicnn.layers.serialization import graph_from_config, graph_to_config
from support.tolerances import ELEMENT

X = np.random.default_rng(0).random((4, 5), "float32")


class Two(Layer):
    """(a * weight + b) * scale, and a mask added."""

    def build(self, input_shape: Any) -> None:
        self.kernel = self.add_weight("kernel", input_shape[-1:], "ones")

    def call(self, a: Any, b: Any, scale: float = 1.0, mask: Any = None) -> Any:
        y = (a * self.kernel + b) * scale
        return y if mask is None else y + mask


# Arrays ---------------------------------------------------------------------------------------------


def test_a_layer_on_arrays_keeps_its_weights_which_models_share() -> None:
    dense = Dense(3)
    first = dense(X)
    np.testing.assert_array_equal(dense(X), first)
    model = Sequential([Input((5,)), dense], backend="numpy")
    np.testing.assert_array_equal(model.predict(X), first)
    model.compile("sgd", "mse")
    model.fit(X, np.ones((4, 3)), verbose=0)
    np.testing.assert_array_equal(dense(X), model.predict(X))
    assert (dense(X) != first).any()
    assert dense.output.shape == (None, 3)  # of its one call on tensors


@pytest.mark.parametrize("library", ["torch", "jax.numpy"])
def test_results_are_arrays_of_the_kind_that_inputs_are(library: str) -> None:
    xp = pytest.importorskip(library)
    y = Rescaling(2.0)(xp.asarray(X))
    assert type(y) is type(xp.asarray(X))
    np.testing.assert_allclose(np.asarray(y), X * 2)


def test_integers_and_lists_of_arrays() -> None:
    np.testing.assert_array_equal(Rescaling(1 / 255)(np.full((1, 2, 2, 1), 255, "uint8")), np.ones((1, 2, 2, 1)))
    np.testing.assert_array_equal(Add()([X, X]), X + X)
    np.testing.assert_array_equal(CategoryEncoding(3, "one_hot")(np.asarray([[1], [2]])), np.eye(3)[1:])


def test_random_layers_draw_anew_and_dropout_needs_training() -> None:
    images = np.random.default_rng(0).random((8, 4, 4, 1), "float32")
    flip = RandomFlip()
    draws = [flip(images) for _ in range(4)]
    assert any((draw != draws[0]).any() for draw in draws)
    np.testing.assert_array_equal(flip(images, training=False), images)
    dropout = Dropout(0.5)
    np.testing.assert_array_equal(dropout(X), X)
    assert (dropout(X, training=True) == 0).any()


# Several arguments ------------------------------------------------------------------------------------


def test_arguments_by_place_and_by_name() -> None:
    np.testing.assert_allclose(Two()(X, X, scale=2.0), 4 * X, rtol=ELEMENT)
    a, b = Input((5,)), Input((5,))
    for output in (Two()(a, b, scale=3.0, mask=b), Two()(a, mask=b, scale=3.0, b=b)):
        model = Model([a, b], output, backend="numpy")
        for one in (model, copy.deepcopy(model)):
            np.testing.assert_allclose(one.predict([X, X]), 7 * X, rtol=ELEMENT)


def test_arguments_within_a_layer() -> None:
    class Outer(Layer):
        def __init__(self) -> None:
            super().__init__()
            self.two = Two()

        def call(self, inputs: Any) -> Any:
            return self.two(inputs, inputs * 2.0, mask=None)

    np.testing.assert_allclose(Outer()(X), 3 * X, rtol=ELEMENT)


def test_a_call_of_several_arguments_is_saved(tmp_path: Path) -> None:
    a, b = Input((5,)), Input((5,))
    model = Model([a, b], Two()(a, b, scale=3.0, mask=b), backend="numpy")
    model.save(tmp_path / "model.safetensors")
    again = saving.load_model(tmp_path / "model.safetensors", custom_objects={"Two": Two})
    np.testing.assert_array_equal(again.predict([X, X]), model.predict([X, X]))


@pytest.mark.parametrize("names", [None, [None], [None, None, 3], "abc"])
def test_a_description_names_each_argument(names: Any) -> None:
    a, b = Input((5,)), Input((5,))
    config = graph_to_config(Graph([a, b], Two()(a, b, mask=b)))
    config["calls"][0]["names"] = names
    with pytest.raises(ValueError, match=r"has a name or None for each tensor. Received: "):
        graph_from_config(config, {"Two": Two})


def test_arguments_by_place_are_tensors() -> None:
    for wrong in (3, [X, X]):
        with pytest.raises(TypeError, match=r"those by their place are tensors or arrays, one each. Received: "):
            Two()(X, wrong)
    with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
        Two()(X, X, colour=1)
