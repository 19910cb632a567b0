"""A layer with weights that is called again, on inputs of other shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from minicnn import Model, Sequential
from minicnn import layers as nn
from minicnn.layers import Input, Layer

MESSAGE = (
    r"called again only on inputs for which its weights have the same shapes\. Received: inputs \(None, .*\) for "
    r"weights \(.*\) of inputs \(None, .*\); they take weights \(.*\)\. Give them a layer of their own\."
)

IMAGES: dict[str, Callable[[], Layer]] = {
    "BatchNormalization": nn.BatchNormalization,
    "BatchNormalization, channels first": lambda: nn.BatchNormalization(axis=1),
    "BatchNormalization without gain": lambda: nn.BatchNormalization(scale=False),
    "LayerNormalization": nn.LayerNormalization,
    "LayerNormalization of images": lambda: nn.LayerNormalization(axis=(1, 2, 3)),
    "GroupNormalization": lambda: nn.GroupNormalization(-1),
    "Normalization": nn.Normalization,
    "PReLU": nn.PReLU,
    "PReLU, one a channel": lambda: nn.PReLU(shared_axes=(1, 2)),
    "Dense": lambda: nn.Dense(3),
    "Conv2D": lambda: nn.Conv2D(3, 1),
    "DepthwiseConv2D": lambda: nn.DepthwiseConv2D(1),
    "SeparableConv2D": lambda: nn.SeparableConv2D(3, 1),
    "Conv2DTranspose": lambda: nn.Conv2DTranspose(3, 1),
}


@pytest.mark.parametrize("channels", [(1, 2), (2, 1), (2, 4), (4, 2)])
@pytest.mark.parametrize("kind", IMAGES)
def test_other_channels_are_refused(kind: str, channels: tuple[int, int]) -> None:
    layer = IMAGES[kind]()
    first, second = ((n, 3, 3) if "first" in kind else (3, 3, n) for n in channels)
    layer(Input(first))
    shapes = [weight.shape for weight in layer.weights]
    with pytest.raises(ValueError, match=MESSAGE) as caught:
        layer(Input(second))
    assert f"({type(layer).__name__})" in caught.value.__notes__[0]
    assert [weight.shape for weight in layer.weights] == shapes
    layer(Input(first))  # as before


def test_conv1d_too() -> None:
    layer = nn.Conv1D(3, 1)
    layer(Input((5, 2)))
    with pytest.raises(ValueError, match=MESSAGE):
        layer(Input((5, 1)))


@pytest.mark.parametrize("kind", [k for k in IMAGES if not k.startswith(("PReLU", "LayerNormalization of"))])
def test_images_of_another_size_go_through_the_same_weights(kind: str) -> None:
    layer = IMAGES[kind]()
    a, b = Input((2, 4, 4) if "first" in kind else (4, 4, 2)), Input((2, 6, 8) if "first" in kind else (6, 8, 2))
    model = Model([a, b], [layer(a), layer(b)], backend="numpy")
    assert len(model.weights) == len(layer.weights)
    x, y = (np.ones((2, *tensor.sample_shape), "float32") for tensor in (a, b))
    assert [r.shape[0] for r in model.predict([x, y])] == [2, 2]


def test_a_size_on_which_weights_depend_is_refused() -> None:
    for layer in (nn.PReLU(), nn.LayerNormalization(axis=(1, 2, 3))):
        layer(Input((4, 4, 2)))
        with pytest.raises(ValueError, match=MESSAGE):
            layer(Input((1, 1, 2)))


def test_adapted_statistics_are_not_spread_over_other_channels() -> None:
    layer = nn.Normalization()
    layer.adapt(np.arange(6.0).reshape(6, 1))
    with pytest.raises(ValueError, match=MESSAGE):
        layer(Input((2,)))
    with pytest.raises(ValueError, match=MESSAGE):
        layer.adapt(np.ones((4, 3)))


class Blocks(Layer):
    """Weights in a list that the constructor made, and a layer that `build` builds."""

    def __init__(self) -> None:
        super().__init__()
        self.gains: list[Any] = []
        self.inner = nn.BatchNormalization()
        self.builds: list[Any] = []

    def build(self, input_shape: Any) -> None:
        self.builds.append(input_shape)
        self.gains.append(self.add_weight("gain", input_shape[-1:], "ones"))
        self.inner.build(input_shape)

    def call(self, inputs: Any) -> Any:
        return self.inner(inputs * self.gains[0])


def test_the_comparison_changes_nothing_of_a_layer_of_ones_own() -> None:
    layer = Blocks()
    layer(Input((4, 4, 2)))
    gamma = layer.inner.gamma
    layer(Input((6, 6, 2)))
    with pytest.raises(ValueError, match=MESSAGE):
        layer(Input((6, 6, 1)))
    assert (len(layer.gains), len(layer.builds), layer.inner.gamma) == (1, 1, gamma)


def test_one_within_another_is_refused_as_well() -> None:
    class Within(Layer):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.PReLU(shared_axes=(1, 2))

        def call(self, inputs: Any) -> Any:
            return self.inner(inputs)

    layer = Within()
    layer(Input((3, 3, 2)))
    with pytest.raises(ValueError, match=MESSAGE):
        layer(Input((3, 3, 1)))


def test_a_length_that_is_not_known() -> None:
    with pytest.raises(ValueError, match=r"Where a length of the input is not known no weight depends on it"):
        nn.PReLU()(Input((None, None, 3)))
    model = Sequential([Input((None, None, 3)), nn.BatchNormalization(), nn.Conv2D(2, 3)], backend="numpy")
    for size in (5, 7):
        assert model.predict(np.ones((2, size, size, 3))).shape == (2, size - 2, size - 2, 2)
