"""Convolutions that treat each channel apart: depthwise, and separable (depthwise, then 1x1)."""

from __future__ import annotations

from typing import Any, Unpack

from minicnn import ops
from minicnn.initializers import Initializer, get_initializer
from minicnn.layers.activations import ActivationArgument, finish, get_activation
from minicnn.layers.arguments import (
    PaddingArgument,
    image_axes,
    layout,
    pair,
    positive,
    resolve_padding,
    standard_padding,
)
from minicnn.layers.layer import Layer
from minicnn.program.graph import Value
from minicnn.regularizers import Limits


def _depthwise(layer: DepthwiseConv2D | SeparableConv2D, x: Value, kernel: Value) -> Value:
    axes = image_axes(type(layer).__name__, layer.data_format, x.shape)
    image = (x.shape[axes.h], x.shape[axes.w])
    y: Value = ops.depthwise_conv2d(
        x,
        kernel,
        strides=layer.strides,
        padding=resolve_padding(layer.padding, image, layer.kernel_size, layer.strides, layer.dilation_rate),
        dilation=layer.dilation_rate,
        data_format=layout(layer.data_format),
    )
    return y


class DepthwiseConv2D(Layer):
    """Convolution in which every channel has kernels of its own.

    Output channel c * depth_multiplier + m is kernel m of input channel c.

    Args:
        kernel_size: Height and width of the kernels, or one integer for both.
        strides: Steps between output positions.
        padding: "valid", "same" or explicit integers, as in `Conv2D`.
        depth_multiplier: Kernels of each channel.
        data_format: "channels_last" or "channels_first".
        dilation_rate: Distance between neighbouring taps.
        activation: Name or function, applied last.
        use_bias: Whether a number is added for each output channel.
        depthwise_initializer: First values of the kernel (KH, KW, C, depth_multiplier).
        bias_initializer: First values of the bias (C * depth_multiplier,).
        name: Name in the model.
        trainable: See `Layer`.
        limits: See `Layer`: depthwise_regularizer, depthwise_constraint, bias_regularizer, bias_constraint.

    Input shape:
        (N, H, W, C), or (N, C, H, W) for "channels_first".

    Output shape:
        (N, OH, OW, C * depth_multiplier), or (N, C * depth_multiplier, OH, OW).

    Raises:
        ValueError: If an argument is out of range.

    Example:
        >>> DepthwiseConv2D(3, padding="same")
        <DepthwiseConv2D None>
    """

    limited = (("kernel", "depthwise"), ("bias", "bias"))

    def __init__(
        self,
        kernel_size: int | tuple[int, int],
        strides: int | tuple[int, int] = (1, 1),
        padding: PaddingArgument = "valid",
        depth_multiplier: int = 1,
        data_format: str = "channels_last",
        dilation_rate: int | tuple[int, int] = (1, 1),
        activation: ActivationArgument = None,
        use_bias: bool = True,
        depthwise_initializer: str | Initializer = "glorot_uniform",
        bias_initializer: str | Initializer = "zeros",
        *,
        name: str | None = None,
        trainable: bool = True,
        **limits: Unpack[Limits],
    ) -> None:
        super().__init__(name=name, trainable=trainable, **limits)
        self.kernel_size = pair("kernel_size", kernel_size)
        self.strides = pair("strides", strides)
        self.padding = standard_padding(padding)
        self.depth_multiplier = positive("depth_multiplier", depth_multiplier)
        self.data_format = data_format
        self.dilation_rate = pair("dilation_rate", dilation_rate)
        self.activation = activation
        self.use_bias = use_bias
        self.depthwise_initializer = depthwise_initializer
        self.bias_initializer = bias_initializer
        layout(data_format)
        get_activation(activation)
        get_initializer(depthwise_initializer)
        get_initializer(bias_initializer)

    def build(self, input_shape: Any) -> None:
        """Declare kernel (KH, KW, C, depth_multiplier) and bias (C * depth_multiplier,)."""
        channels = input_shape[image_axes("DepthwiseConv2D", self.data_format, input_shape).c]
        self.kernel = self.add_weight(
            "kernel", (*self.kernel_size, channels, self.depth_multiplier), self.depthwise_initializer
        )
        outputs = channels * self.depth_multiplier
        self.bias = self.add_weight("bias", (outputs,), self.bias_initializer) if self.use_bias else None

    def call(self, inputs: Any) -> Any:
        """Convolve each channel, add the bias, activate."""
        y = _depthwise(self, inputs, self.kernel)
        axes = image_axes("DepthwiseConv2D", self.data_format, y.shape)
        return finish(y, self.bias, self.activation, axis=axes.c)


class SeparableConv2D(Layer):
    """Depthwise convolution followed by a 1x1 convolution that mixes the channels (arXiv:1610.02357).

    Args:
        filters: Number of output channels.
        kernel_size: Height and width of the depthwise kernels, or one integer for both.
        strides: Steps between output positions.
        padding: "valid", "same" or explicit integers, as in `Conv2D`.
        data_format: "channels_last" or "channels_first".
        dilation_rate: Distance between neighbouring taps.
        depth_multiplier: Depthwise kernels of each channel.
        activation: Name or function, applied last; there is none between the two convolutions.
        use_bias: Whether a number is added for each filter.
        depthwise_initializer: First values of depthwise_kernel (KH, KW, C, depth_multiplier).
        pointwise_initializer: First values of pointwise_kernel (1, 1, C * depth_multiplier, filters).
        bias_initializer: First values of the bias (filters,).
        name: Name in the model.
        trainable: See `Layer`.
        limits: See `Layer`: regularizers and constraints that begin with ``depthwise_``, ``pointwise_`` and ``bias_``.

    Input shape:
        (N, H, W, C), or (N, C, H, W) for "channels_first".

    Output shape:
        (N, OH, OW, filters), or (N, filters, OH, OW).

    Raises:
        ValueError: If an argument is out of range.
    """

    limited = (("depthwise_kernel", "depthwise"), ("pointwise_kernel", "pointwise"), ("bias", "bias"))

    def __init__(
        self,
        filters: int,
        kernel_size: int | tuple[int, int],
        strides: int | tuple[int, int] = (1, 1),
        padding: PaddingArgument = "valid",
        data_format: str = "channels_last",
        dilation_rate: int | tuple[int, int] = (1, 1),
        depth_multiplier: int = 1,
        activation: ActivationArgument = None,
        use_bias: bool = True,
        depthwise_initializer: str | Initializer = "glorot_uniform",
        pointwise_initializer: str | Initializer = "glorot_uniform",
        bias_initializer: str | Initializer = "zeros",
        *,
        name: str | None = None,
        trainable: bool = True,
        **limits: Unpack[Limits],
    ) -> None:
        super().__init__(name=name, trainable=trainable, **limits)
        self.filters = positive("filters", filters)
        self.kernel_size = pair("kernel_size", kernel_size)
        self.strides = pair("strides", strides)
        self.padding = standard_padding(padding)
        self.data_format = data_format
        self.dilation_rate = pair("dilation_rate", dilation_rate)
        self.depth_multiplier = positive("depth_multiplier", depth_multiplier)
        self.activation = activation
        self.use_bias = use_bias
        self.depthwise_initializer = depthwise_initializer
        self.pointwise_initializer = pointwise_initializer
        self.bias_initializer = bias_initializer
        layout(data_format)
        get_activation(activation)
        get_initializer(depthwise_initializer)
        get_initializer(pointwise_initializer)
        get_initializer(bias_initializer)

    def build(self, input_shape: Any) -> None:
        """Declare depthwise_kernel, pointwise_kernel and bias."""
        channels = input_shape[image_axes("SeparableConv2D", self.data_format, input_shape).c]
        self.depthwise_kernel = self.add_weight(
            "depthwise_kernel",
            (*self.kernel_size, channels, self.depth_multiplier),
            self.depthwise_initializer,
        )
        self.pointwise_kernel = self.add_weight(
            "pointwise_kernel",
            (1, 1, channels * self.depth_multiplier, self.filters),
            self.pointwise_initializer,
        )
        self.bias = self.add_weight("bias", (self.filters,), self.bias_initializer) if self.use_bias else None

    def call(self, inputs: Any) -> Any:
        """Convolve each channel, mix the channels, add the bias, activate."""
        y = _depthwise(self, inputs, self.depthwise_kernel)
        y = ops.conv2d(y, self.pointwise_kernel, data_format=layout(self.data_format))
        axes = image_axes("SeparableConv2D", self.data_format, y.shape)
        return finish(y, self.bias, self.activation, axis=axes.c)
