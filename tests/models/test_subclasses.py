"""Models whose `call` their author has written: built, trained, copied, saved, and layers of other models."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minicnn import Input, Layer, Model, Sequential, gradients, ops
from minicnn.layers import BatchNormalization, Dense, Dropout
from minicnn.losses import SparseCategoricalCrossentropy
from minicnn.models import load_model
from minicnn.optimizers import Adam
from minicnn.saving import SavedModelError
from support.written_steps import LABELS, SAMPLES, Adversaries, adversaries, fitted

LOSS = SparseCategoricalCrossentropy(from_logits=True)


class Block(Layer):
    """A dense layer and a dropout that is there in training alone."""

    def __init__(self, units: int, **options: Any) -> None:
        super().__init__(**options)
        self.units, self.dense, self.dropout = units, Dense(units), Dropout(0.5)

    def call(self, inputs: Any, training: bool = False) -> Any:
        x = self.dense(inputs)
        return ops.relu(self.dropout(x, training=True) if training else x)


class Network(Model):
    """Blocks in a list, whose number is a Python number."""

    def __init__(self, units: int = 8, **options: Any) -> None:
        super().__init__(**options)
        self.units = units
        self.blocks, self.norm, self.head = [Block(units), Block(units)], BatchNormalization(), Dense(3)

    def call(self, inputs: Any, training: bool = False) -> Any:
        for block in self.blocks:
            inputs = block(inputs, training=training)
        return self.head(self.norm(inputs))


class Pair(Model):
    """Two inputs, two outputs, and a step of its own on models that it is given."""

    def __init__(self, left: Any, right: Any, **options: Any) -> None:
        super().__init__(**options)
        self.left, self.right = left, right

    def call(self, inputs: Any) -> Any:
        a, b = inputs
        return [self.left(a), self.right(b)]

    def train_step(self, data: Any) -> Any:
        loss = sum(ops.mean(ops.square(part)) for part in self(data))
        weights = self.trainable_weights
        self.optimizer.apply(gradients(loss, weights), weights)  # type: ignore[union-attr,arg-type,call-arg]
        return {"loss": loss}


def network() -> Network:
    model = Network(backend="numpy")
    model.compile("adam", LOSS, ["accuracy"])
    return model


def test_it_is_built_by_the_first_data_and_trains() -> None:
    model = network()
    assert "not built yet" in repr(model)
    logs, weights = fitted(model, SAMPLES, LABELS, epochs=12, validation_data=(SAMPLES, LABELS))
    assert logs["val_loss"][-1] < logs["val_loss"][0]
    assert "blocks_1/dense/kernel" in weights
    assert np.any(weights["norm/moving_mean"])
    assert model.predict(SAMPLES[:2]).shape == (2, 3)
    np.testing.assert_allclose(model(SAMPLES[:2]), model.predict(SAMPLES[:2]))
    assert np.any(model(SAMPLES[:2], training=True) != model.predict(SAMPLES[:2]))
    assert model.count_params() == model.count_params(trainable=True) + 16
    assert model.output_shape == (None, 3)


def test_build_takes_a_shape_and_summary_shows_the_layers_that_are_attributes() -> None:
    model = Network(5)
    model.build((None, 6))
    text = model.summary(print_fn=None) or ""
    assert "blocks_0 (Block)" in text
    assert "head (Dense)" in text
    assert "(None, 3)" in text
    assert [layer.name for layer in model.layers] == ["blocks_0", "blocks_1", "norm", "head"]
    assert len(model.trainable_variables) == 8


def test_copies_and_pickles_go_on_alike() -> None:
    model = network()
    fitted(model, SAMPLES, LABELS)
    others = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    expected, _ = fitted(model, SAMPLES, LABELS)
    for other in others:
        assert fitted(other, SAMPLES, LABELS)[0] == expected


def test_a_file_holds_arguments_and_weights_and_what_it_was_compiled_for(tmp_path: Path) -> None:
    model = network()
    fitted(model, SAMPLES, LABELS)
    model.save(tmp_path / "model.safetensors")
    read = load_model(tmp_path / "model.safetensors", custom_objects={"Network": Network})
    np.testing.assert_array_equal(read.predict(SAMPLES), model.predict(SAMPLES))
    assert fitted(read, SAMPLES, LABELS)[0] == fitted(model, SAMPLES, LABELS)[0]
    with pytest.raises(SavedModelError, match=r"Pass the class as custom_objects=\{'Network': Network\}"):
        load_model(tmp_path / "model.safetensors")


def test_a_file_of_a_model_with_a_step_holds_the_models_that_it_was_given(tmp_path: Path) -> None:
    model = Pair(Sequential([Input((6,)), Dense(2)]), Sequential([Input((3,)), Dense(4)]), backend="numpy")
    model.compile("sgd")
    data = [SAMPLES, SAMPLES[:, :3]]
    logs, _ = fitted(model, data)
    assert logs["loss"][1] < logs["loss"][0]
    model.save(tmp_path / "pair.safetensors")
    read = load_model(tmp_path / "pair.safetensors", custom_objects={"Pair": Pair})
    for a, b in zip(read.predict(data), model.predict(data), strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(read.left.predict(SAMPLES), model.left.predict(SAMPLES))  # type: ignore[attr-defined]


def test_a_file_of_adversaries_holds_what_their_step_carries(tmp_path: Path) -> None:
    model = adversaries()
    fitted(model, SAMPLES)
    model.g_optimizer.learning_rate = 0.5
    model.save(tmp_path / "model.safetensors")
    read = load_model(tmp_path / "model.safetensors", "numpy", custom_objects={"Adversaries": Adversaries})
    assert isinstance(read, Adversaries)
    assert read.g_optimizer.learning_rate == 0.5
    (logs, weights), (expected, wanted) = (fitted(each, SAMPLES) for each in (read, model))
    assert logs == expected
    for path, array in wanted.items():
        np.testing.assert_array_equal(weights[path], array, err_msg=path)


class Told(Network):
    """A model whose compile takes something else."""

    def compile(self, rate: float) -> None:  # type: ignore[override]
        """Train as fast as that."""
        super().compile(Adam(rate), LOSS)


def test_a_file_leaves_out_what_a_compile_of_one_s_own_was_told(tmp_path: Path) -> None:
    model = Told(backend="numpy")
    model.compile(0.01)
    fitted(model, SAMPLES, LABELS)
    model.save(tmp_path / "model.safetensors")
    read = load_model(tmp_path / "model.safetensors", "numpy", custom_objects={"Told": Told})
    np.testing.assert_array_equal(read.predict(SAMPLES), model.predict(SAMPLES))
    with pytest.raises(RuntimeError, match=r"after compile\(\)\. Received: a model without"):
        read.evaluate(SAMPLES, LABELS)


def test_what_cannot_be_saved_is_refused_by_name(tmp_path: Path) -> None:
    class Forgetful(Network):
        def __init__(self, units: int) -> None:
            super().__init__()

    model = Forgetful(4)
    del model.units
    model.build((None, 6))
    with pytest.raises(TypeError, match=r"Received: Forgetful without 'units'\. Set self\.units"):
        model.save(tmp_path / "model.safetensors")


def test_it_is_a_layer_of_other_models() -> None:
    outer = Sequential([Input((6,)), Network(5), Dense(2)], backend="numpy")
    outer.compile("adam", "mse")
    fitted(outer, SAMPLES, np.zeros((48, 2)))
    assert "network/blocks_0/dense/kernel" in outer.get_weights()
    x = Input((6,))
    assert Model(x, Dense(2)(Network(5)(x)), backend="numpy").predict(SAMPLES[:3]).shape == (3, 2)


def test_a_model_is_made_of_something() -> None:
    with pytest.raises(TypeError, match=r"A Model is made of symbolic tensors, or is a subclass with a call or a step"):
        Model()
    with pytest.raises(RuntimeError, match=r"knows its shapes once it is built"):
        Network().get_weights()
