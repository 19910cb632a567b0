"""A Sequential whose first layer says itself what it takes, as in Keras before version 3."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from minicnn import Sequential, layers
from minicnn.layers import Layer


class Told(Layer):
    def __init__(self, units: int, **options: Any) -> None:
        super().__init__(**options)
        self.units = units

    def call(self, inputs: Any) -> Any:
        return inputs


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (layers.Conv2D(2, 3, input_shape=(6, 5, 3)), (6, 5, 3)),
        (layers.Dense(2, input_dim=4), (4,)),
        (layers.Flatten(input_shape=[3, 2]), (3, 2)),
        (layers.Dense(2, batch_input_shape=(None, 4)), (4,)),
        (layers.GlobalAveragePooling2D(input_shape=(None, None, 3)), (None, None, 3)),
        (Told(1, input_shape=(2, 3)), (2, 3)),
    ],
    ids=lambda v: type(v).__name__,
)
def test_a_first_layer_may_be_told_its_input(layer: Any, shape: tuple[int, ...]) -> None:
    model, other = Sequential([layer]), Sequential()
    other.add(copy.deepcopy(layer))
    assert model.input_shape == other.input_shape == (None, *shape)
    again = Sequential.from_config(model.get_config(), {"Told": Told})
    assert again.input_shape == model.input_shape
    assert "input_shape" not in str(layer.get_config())


def test_a_first_layer_is_told_its_input_once() -> None:
    with pytest.raises(ValueError, match=r"a first layer takes is given once. Received: input_shape, input_dim"):
        layers.Dense(2, input_shape=(3,), input_dim=3)
    with pytest.raises(ValueError, match="Input takes the shape of one sample as positive integers"):
        Sequential([layers.Dense(2, input_shape=(0,))])
