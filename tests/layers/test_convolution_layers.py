"""Conv2D, DepthwiseConv2D and SeparableConv2D: known values, geometry, layouts, errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicnn import layers
from minicnn.initializers import Constant, VarianceScaling
from minicnn.layers import Conv2D, DepthwiseConv2D, SeparableConv2D
from support.layer_check import assert_formats_agree, run_layer, run_layer_check
from support.numerics import assert_close
from support.strategies import normal, seeds

COUNT = np.arange(9.0).reshape(1, 3, 3, 1)  # rows 0 1 2, 3 4 5, 6 7 8


def test_conv2d_by_hand() -> None:
    y = run_layer(Conv2D(1, 2), COUNT, weights={"kernel": [[[[1]], [[0]]], [[[0]], [[2]]]], "bias": [10]})
    # x[i, j] + 2 x[i + 1, j + 1] + 10
    assert y[0, :, :, 0].tolist() == [[18, 21], [27, 30]]


def test_conv2d_activation_comes_after_the_bias() -> None:
    y = run_layer(Conv2D(1, 1, activation="relu"), COUNT, weights={"kernel": [[[[1]]]], "bias": [-4]})
    assert y.ravel().tolist() == [0, 0, 0, 0, 0, 1, 2, 3, 4]


def test_same_padding_puts_the_odd_element_below_and_right() -> None:
    ones = np.ones((1, 4, 4, 1))
    y = run_layer(Conv2D(1, 2, padding="same", use_bias=False), ones, weights={"kernel": np.ones((2, 2, 1, 1))})
    assert y[0, :, :, 0].tolist() == [[4, 4, 4, 2], [4, 4, 4, 2], [4, 4, 4, 2], [2, 2, 2, 1]]


def test_depthwise_output_channels_are_input_channel_major() -> None:
    x = np.asarray([1.0, 10.0]).reshape(1, 1, 1, 2)
    kernel = np.asarray([[1, 2, 3], [4, 5, 6]]).reshape(1, 1, 2, 3)
    y = run_layer(DepthwiseConv2D(1, depth_multiplier=3, use_bias=False), x, weights={"kernel": kernel})
    assert y.ravel().tolist() == [1, 2, 3, 40, 50, 60]


@pytest.mark.parametrize(
    ("layer", "shape", "output", "weights"),
    [
        (Conv2D(4, 3), (6, 5, 2), (4, 3, 4), {"kernel": (3, 3, 2, 4), "bias": (4,)}),
        (Conv2D(4, (3, 2), strides=2, padding="SAME"), (5, 6, 3), (3, 3, 4), {"kernel": (3, 2, 3, 4), "bias": (4,)}),
        (Conv2D(6, 3, groups=3, use_bias=False), (4, 4, 3), (2, 2, 6), {"kernel": (3, 3, 1, 6)}),
        (Conv2D(2, 2, dilation_rate=(2, 1), padding=((1, 0), (0, 2)), activation="tanh"), (4, 3, 2), (3, 4, 2),
         {"kernel": (2, 2, 2, 2), "bias": (2,)}),
        (Conv2D(3, 2, padding=1, data_format="channels_first", activation="silu"), (2, 3, 4), (3, 4, 5),
         {"kernel": (2, 2, 2, 3), "bias": (3,)}),
        (Conv2D(2, 1, kernel_initializer=VarianceScaling(2.0, "fan_out"), bias_initializer=Constant(1.0), name="named"),
         (2, 2, 1), (2, 2, 2), {"kernel": (1, 1, 1, 2), "bias": (2,)}),
        (DepthwiseConv2D(3), (5, 4, 2), (3, 2, 2), {"kernel": (3, 3, 2, 1), "bias": (2,)}),
        (DepthwiseConv2D((2, 3), strides=(2, 1), padding="same", depth_multiplier=2, activation="elu"), (5, 4, 2),
         (3, 4, 4), {"kernel": (2, 3, 2, 2), "bias": (4,)}),
        (DepthwiseConv2D(2, dilation_rate=2, use_bias=False, data_format="channels_first"), (3, 4, 5), (3, 2, 3),
         {"kernel": (2, 2, 3, 1)}),
        (SeparableConv2D(5, 3), (4, 4, 2), (2, 2, 5),
         {"depthwise_kernel": (3, 3, 2, 1), "pointwise_kernel": (1, 1, 2, 5), "bias": (5,)}),
        (SeparableConv2D(3, 2, strides=2, padding="same", depth_multiplier=2, use_bias=False, activation="sigmoid"),
         (5, 3, 2), (3, 2, 3), {"depthwise_kernel": (2, 2, 2, 2), "pointwise_kernel": (1, 1, 4, 3)}),
        (SeparableConv2D(3, 2, dilation_rate=2, padding=1, data_format="channels_first"), (2, 3, 3), (3, 3, 3),
         {"depthwise_kernel": (2, 2, 2, 1), "pointwise_kernel": (1, 1, 2, 3), "bias": (3,)}),
    ],
)  # fmt: skip
def test_convolutions(layer: Any, shape: Any, output: Any, weights: Any) -> None:
    run_layer_check(layer, shape, output=output, weights=weights)


pairs = st.tuples(st.integers(1, 3), st.integers(1, 3))
paddings = st.sampled_from(["valid", "same", 1, (1, 0), ((0, 2), (1, 0))])


@given(
    which=st.sampled_from([Conv2D, DepthwiseConv2D, SeparableConv2D]),
    kernel=pairs,
    strides=pairs,
    padding=paddings,
    dilation=st.integers(1, 2),
    channels=st.integers(1, 3),
    multiplier=st.integers(1, 2),
    use_bias=st.booleans(),
    seed=seeds,
)
def test_channels_first_is_channels_last_transposed(
    which: Any, kernel: Any, strides: Any, padding: Any, dilation: int, channels: int, multiplier: int,
    use_bias: bool, seed: int,
) -> None:  # fmt: skip
    arguments = {"kernel_size": kernel, "strides": strides, "padding": padding, "dilation_rate": dilation}
    if which is Conv2D:
        arguments |= {"filters": 2 * channels, "groups": channels}
    else:
        arguments |= {"depth_multiplier": multiplier}
    if which is SeparableConv2D:
        arguments |= {"filters": 2}
    assert_formats_agree(which, normal((2, 6, 7, channels), seed), use_bias=use_bias, **arguments)


@given(channels=st.integers(1, 3), multiplier=st.integers(1, 3), strides=pairs, padding=paddings, seed=seeds)
def test_depthwise_is_a_convolution_with_a_group_a_channel(
    channels: int, multiplier: int, strides: Any, padding: Any, seed: int
) -> None:
    x = normal((2, 5, 6, channels), seed)
    kernel = normal((3, 2, channels, multiplier), seed, 1)
    apart = DepthwiseConv2D((3, 2), strides, padding, multiplier, use_bias=False)
    grouped = Conv2D(channels * multiplier, (3, 2), strides, padding, groups=channels, use_bias=False)
    expected = run_layer(grouped, x, weights={"kernel": kernel.reshape(3, 2, 1, channels * multiplier)})
    assert_close(run_layer(apart, x, weights={"kernel": kernel}), expected, terms=6)


def test_separable_is_depthwise_then_pointwise() -> None:
    x = normal((2, 5, 5, 3), 0)
    depthwise, pointwise, bias = normal((3, 3, 3, 2), 1), normal((1, 1, 6, 4), 2), normal((4,), 3)
    weights = {"depthwise_kernel": depthwise, "pointwise_kernel": pointwise, "bias": bias}
    y = run_layer(DepthwiseConv2D(3, depth_multiplier=2, use_bias=False), x, weights={"kernel": depthwise})
    y = run_layer(Conv2D(4, 1), y, weights={"kernel": pointwise, "bias": bias})
    assert_close(run_layer(SeparableConv2D(4, 3, depth_multiplier=2), x, weights=weights), y, terms=27)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Conv2D(0, 3), r"filters is an integer of at least 1. Received: filters=0\."),
        (lambda: Conv2D(True, 3), "filters is an integer of at least 1. Received: filters=True"),
        (lambda: Conv2D(2.0, 3), r"filters is an integer of at least 1. Received: filters=2\.0"),  # type: ignore[arg-type]
        (lambda: Conv2D(2, (3, 3, 3)), "kernel_size is an integer or a pair of integers of at least 1"),  # type: ignore[arg-type]
        (lambda: Conv2D(2, 3, strides=0), "strides is an integer or a pair .* Received: strides=0"),
        (lambda: Conv2D(2, 3, dilation_rate=(1, 0)), "dilation_rate is an integer or a pair"),
        (lambda: Conv2D(2, 3, padding="full"), "padding is 'valid', 'same' or integers. Received: padding='full'"),
        (lambda: Conv2D(2, 3, padding=-1), r"padding is an integer of at least 0, .*\(top, bottom\).* padding=-1"),
        (lambda: Conv2D(2, 3, padding=((1, 1), (1,))), "padding is an integer of at least 0"),  # type: ignore[arg-type]
        (lambda: Conv2D(2, 3, data_format="NHWC"), "data_format is one of 'channels_last', 'channels_first'.*'NHWC'"),
        (lambda: Conv2D(2, 3, groups=0), "groups is an integer of at least 1"),
        (lambda: Conv2D(2, 3, activation="relux"), "An activation is one of linear, relu, .* Received: 'relux'"),
        (lambda: Conv2D(2, 3, kernel_initializer="glorot"), "An initializer is one of zeros, .* Received: 'glorot'"),
        (lambda: DepthwiseConv2D(3, depth_multiplier=0), "depth_multiplier is an integer of at least 1"),
        (lambda: DepthwiseConv2D(3, depthwise_initializer="x"), "An initializer is one of"),
        (lambda: SeparableConv2D(2, 3, pointwise_initializer="x"), "An initializer is one of"),
    ],
)
def test_wrong_arguments(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("layer", [Conv2D(2, 3), DepthwiseConv2D(3), SeparableConv2D(2, 3)])
def test_images_have_four_axes(layer: Any) -> None:
    with pytest.raises(ValueError, match=r"takes images: .* Received: input shape \(None, 28, 28\)\. Add the missing"):
        layer(layers.Input((28, 28)))


def test_groups_divide_channels_and_filters() -> None:
    with pytest.raises(ValueError, match=r"groups divides .* groups=2, 3 channels, filters=4"):
        Conv2D(4, 1, groups=2)(layers.Input((4, 4, 3)))
    with pytest.raises(ValueError, match=r"groups divides .* groups=2, 4 channels, filters=3"):
        Conv2D(3, 1, groups=2)(layers.Input((4, 4, 4)))


def test_the_error_names_the_layer() -> None:
    with pytest.raises(ValueError, match="at least as large as its") as caught:
        Conv2D(2, 5, name="stem")(layers.Input((4, 4, 1)))
    assert caught.value.__notes__ == ["In layer 'stem' (Conv2D)."]


def test_numpy_integers_are_integers() -> None:
    layer = Conv2D(np.int64(2), np.asarray([3, 3])[0], strides=(np.int32(2), 1))
    assert (type(layer.filters), layer.kernel_size, layer.strides) == (int, (3, 3), (2, 1))
