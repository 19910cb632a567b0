"""Convolution over all channels."""

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
from minicnn.regularizers import Limits


class Conv2D(Layer):
    """Two-dimensional convolution.

    Args:
        filters: Number of output channels.
        kernel_size: Height and width of the kernel, or one integer for both.
        strides: Steps between output positions.
        padding: "valid" (none), "same" (as much as gives ceil(size / stride) positions), or explicit
            integers: n, (height, width) or ((top, bottom), (left, right)).
        data_format: "channels_last" (N, H, W, C) or "channels_first" (N, C, H, W).
        dilation_rate: Distance between neighbouring taps.
        groups: Parts of the channels that are convolved apart.
        activation: Name or function, applied last.
        use_bias: Whether a number is added for each filter.
        kernel_initializer: First values of the kernel (KH, KW, C / groups, filters).
        bias_initializer: First values of the bias (filters,).
        name: Name in the model.
        trainable: See `Layer`.
        limits: See `Layer`: kernel_regularizer, kernel_constraint, bias_regularizer, bias_constraint.

    Input shape:
        (N, H, W, C), or (N, C, H, W) for "channels_first".

    Output shape:
        (N, OH, OW, filters), or (N, filters, OH, OW).

    Raises:
        ValueError: If an argument is out of range, or groups divide channels or filters unevenly.

    Example:
        >>> Conv2D(8, 3, activation="relu")
        <Conv2D None>
    """

    limited = (("kernel", "kernel"), ("bias", "bias"))

    def __init__(
        self,
        filters: int,
        kernel_size: int | tuple[int, int],
        strides: int | tuple[int, int] = (1, 1),
        padding: PaddingArgument = "valid",
        data_format: str = "channels_last",
        dilation_rate: int | tuple[int, int] = (1, 1),
        groups: int = 1,
        activation: ActivationArgument = None,
        use_bias: bool = True,
        kernel_initializer: str | Initializer = "glorot_uniform",
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
        self.groups = positive("groups", groups)
        self.activation = activation
        self.use_bias = use_bias
        self.kernel_initializer = kernel_initializer
        self.bias_initializer = bias_initializer
        layout(data_format)
        get_activation(activation)
        get_initializer(kernel_initializer)
        get_initializer(bias_initializer)

    def build(self, input_shape: Any) -> None:
        """Declare kernel (KH, KW, C / groups, filters) and bias (filters,)."""
        channels = input_shape[image_axes("Conv2D", self.data_format, input_shape).c]
        if channels % self.groups or self.filters % self.groups:
            raise ValueError(
                "groups divides the channels and the filters. Received: "
                f"groups={self.groups}, {channels} channels, filters={self.filters}."
            )
        self.kernel = self.add_weight(
            "kernel", (*self.kernel_size, channels // self.groups, self.filters), self.kernel_initializer
        )
        self.bias = self.add_weight("bias", (self.filters,), self.bias_initializer) if self.use_bias else None

    def call(self, inputs: Any) -> Any:
        """Convolve, add the bias, activate."""
        axes = image_axes("Conv2D", self.data_format, inputs.shape)
        image = (inputs.shape[axes.h], inputs.shape[axes.w])
        y = ops.conv2d(
            inputs,
            self.kernel,
            strides=self.strides,
            padding=resolve_padding(self.padding, image, self.kernel_size, self.strides, self.dilation_rate),
            dilation=self.dilation_rate,
            groups=self.groups,
            data_format=layout(self.data_format),
        )
        return finish(y, self.bias, self.activation, axis=axes.c)
