"""Convolution: over all channels, of each channel apart (depthwise), both after each other (separable), transposed."""

from __future__ import annotations

from typing import Any, Unpack

from minicnn import ops
from minicnn.initializers import Initializer, known_initializer
from minicnn.layers.activations import ActivationArgument, finish, known_activation
from minicnn.layers.arguments import PaddingArgument, pair, resolve_padding, standard_padding
from minicnn.layers.image import ImageLayer
from minicnn.layers.options import LimitedOptions
from minicnn.ops.checks import positive
from minicnn.ops.windows import Pair
from minicnn.program.graph import Value


class Convolution(ImageLayer):
    """Base class of two-dimensional convolutions.

    Args:
        filters: Number of output channels.
        kernel_size: Height and width of the kernel, or one integer for both.
        strides: Steps between output positions.
        padding: "valid" (none), "same" (as much as gives ceil(size / stride) positions), or explicit
            integers: n, (height, width) or ((top, bottom), (left, right)).
        dilation_rate: Distance between neighbouring taps.
        activation: Name or function, applied last.
        use_bias: Whether a number is added for each output channel.
        bias_initializer: First values of the bias (filters,).

    Output shape:
        (N, OH, OW, filters), or (N, filters, OH, OW).
    """

    _limited: tuple[tuple[str, str], ...] = (("kernel", "kernel"), ("bias", "bias"))

    def __init__(
        self,
        kernel_size: int | tuple[int, int],
        strides: int | tuple[int, int],
        padding: PaddingArgument,
        data_format: str,
        dilation_rate: int | tuple[int, int],
        activation: ActivationArgument,
        use_bias: bool,
        bias_initializer: str | Initializer,
        **options: Unpack[LimitedOptions],
    ) -> None:
        super().__init__(data_format, **options)
        self.kernel_size = pair("kernel_size", kernel_size)
        self.strides = pair("strides", strides)
        self.padding = standard_padding(padding)
        self.dilation_rate = pair("dilation_rate", dilation_rate)
        self.activation = known_activation(activation)
        self.use_bias = use_bias
        self.bias_initializer = known_initializer(bias_initializer)

    def _declare_bias(self, filters: int) -> None:
        self.bias = self.add_weight("bias", (filters,), self.bias_initializer) if self.use_bias else None

    def _windows(self, x: Value) -> dict[str, Any]:
        """Arguments of the primitives: where windows are in images."""
        image = self._size(x.shape)
        return {
            "strides": self.strides,
            "padding": resolve_padding(self.padding, image, self.kernel_size, self.strides, self.dilation_rate),
            "dilation": self.dilation_rate,
            "data_format": self._layout,
        }


class Conv2D(Convolution):
    """Two-dimensional convolution.

    Args:
        groups: Parts of the channels that are convolved apart.
        kernel_initializer: First values of the kernel (KH, KW, C / groups, filters).

    Raises:
        ValueError: If an argument is out of range, or groups divide channels or filters unevenly.

    Example:
        >>> Conv2D(8, 3, activation="relu")
        Conv2D(8, 3, activation='relu')
    """

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
        **options: Unpack[LimitedOptions],
    ) -> None:
        super().__init__(
            kernel_size, strides, padding, data_format, dilation_rate, activation, use_bias, bias_initializer, **options
        )
        self.filters = positive("filters", filters)
        self.groups = positive("groups", groups)
        self.kernel_initializer = known_initializer(kernel_initializer)

    def build(self, input_shape: Any) -> None:
        """Declare kernel (KH, KW, C / groups, filters) and bias (filters,)."""
        channels = check_groups(self.groups, input_shape[self._axes(input_shape).c], self.filters)
        shape = (*self.kernel_size, channels, self.filters)
        self.kernel = self.add_weight("kernel", shape, self.kernel_initializer)
        self._declare_bias(self.filters)

    def call(self, inputs: Any) -> Any:
        """Convolve, add the bias, activate."""
        y = ops.conv2d(inputs, self.kernel, groups=self.groups, **self._windows(inputs))
        return finish(y, self.bias, self.activation, axis=self._axes(y.shape).c)


def check_groups(groups: int, channels: int, filters: int) -> int:
    """Channels of a group, or a ValueError if groups divide channels or filters unevenly."""
    if channels % groups or filters % groups:
        raise ValueError(
            "groups divides the channels and the filters. Received: "
            f"groups={groups}, {channels} channels, filters={filters}."
        )
    return channels // groups


class DepthwiseConv2D(Convolution):
    """Convolution in which every channel has kernels of its own.

    Output channel c * depth_multiplier + m is kernel m of input channel c.

    Args:
        depth_multiplier: Kernels of each channel.
        depthwise_initializer: First values of the kernel (KH, KW, C, depth_multiplier).
        bias_initializer: First values of the bias (C * depth_multiplier,).

    Output shape:
        (N, OH, OW, C * depth_multiplier), or (N, C * depth_multiplier, OH, OW).

    Example:
        >>> DepthwiseConv2D(3, padding="same")
        DepthwiseConv2D(3, padding='same')
    """

    _limited = (("kernel", "depthwise"), ("bias", "bias"))

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
        **options: Unpack[LimitedOptions],
    ) -> None:
        super().__init__(
            kernel_size, strides, padding, data_format, dilation_rate, activation, use_bias, bias_initializer, **options
        )
        self.depth_multiplier = positive("depth_multiplier", depth_multiplier)
        self.depthwise_initializer = known_initializer(depthwise_initializer)

    def build(self, input_shape: Any) -> None:
        """Declare kernel (KH, KW, C, depth_multiplier) and bias (C * depth_multiplier,)."""
        channels = input_shape[self._axes(input_shape).c]
        shape = (*self.kernel_size, channels, self.depth_multiplier)
        self.kernel = self.add_weight("kernel", shape, self.depthwise_initializer)
        self._declare_bias(channels * self.depth_multiplier)

    def call(self, inputs: Any) -> Any:
        y = ops.depthwise_conv2d(inputs, self.kernel, **self._windows(inputs))
        return finish(y, self.bias, self.activation, axis=self._axes(y.shape).c)


class SeparableConv2D(Convolution):
    """Depthwise convolution followed by a 1x1 convolution that mixes the channels (arXiv:1610.02357).

    Args:
        depth_multiplier: Depthwise kernels of each channel.
        activation: Name or function, applied last; there is none between the two convolutions.
        depthwise_initializer: First values of depthwise_kernel (KH, KW, C, depth_multiplier).
        pointwise_initializer: First values of pointwise_kernel (1, 1, C * depth_multiplier, filters).
    """

    _limited = (("depthwise_kernel", "depthwise"), ("pointwise_kernel", "pointwise"), ("bias", "bias"))

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
        **options: Unpack[LimitedOptions],
    ) -> None:
        super().__init__(
            kernel_size, strides, padding, data_format, dilation_rate, activation, use_bias, bias_initializer, **options
        )
        self.filters = positive("filters", filters)
        self.depth_multiplier = positive("depth_multiplier", depth_multiplier)
        self.depthwise_initializer = known_initializer(depthwise_initializer)
        self.pointwise_initializer = known_initializer(pointwise_initializer)

    def build(self, input_shape: Any) -> None:
        """Declare depthwise_kernel, pointwise_kernel and bias."""
        channels = input_shape[self._axes(input_shape).c]
        depthwise = (*self.kernel_size, channels, self.depth_multiplier)
        pointwise = (1, 1, channels * self.depth_multiplier, self.filters)
        self.depthwise_kernel = self.add_weight("depthwise_kernel", depthwise, self.depthwise_initializer)
        self.pointwise_kernel = self.add_weight("pointwise_kernel", pointwise, self.pointwise_initializer)
        self._declare_bias(self.filters)

    def call(self, inputs: Any) -> Any:
        y = ops.depthwise_conv2d(inputs, self.depthwise_kernel, **self._windows(inputs))
        y = ops.conv2d(y, self.pointwise_kernel, data_format=self._layout)
        return finish(y, self.bias, self.activation, axis=self._axes(y.shape).c)


class Conv2DTranspose(Convolution):
    """Transposed convolution: the gradient of `Conv2D` with respect to its input, used as a layer.

    Input position i adds to output positions i * strides + k * dilation_rate for each tap k. Of all these
    positions, (size - 1) * strides + dilated kernel size in number, some are cut off or zeros are added:

    - padding "valid" cuts nothing; output_padding (by default as much as gives size * strides positions
      where the kernel is smaller than the stride) adds zeros below and to the right.
    - padding "same" leaves size * strides positions, or with output_padding
      (size - 1) * strides + dilated kernel size mod 2 + output_padding.
    - explicit padding cuts that many positions and output_padding (0 by default) adds some, as in PyTorch.

    Args:
        strides: Output positions between neighbouring input positions.
        padding: "valid", "same", or explicit integers: n, (height, width) or ((top, bottom), (left, right)).
        output_padding: Height and width, each below the stride; see above.
        kernel_initializer: First values of the kernel (KH, KW, filters, C).

    Raises:
        ValueError: If an argument is out of range, or padding cuts everything.

    Example:
        >>> Conv2DTranspose(8, 4, strides=2, padding="same")
        Conv2DTranspose(8, 4, strides=2, padding='same')
    """

    def __init__(
        self,
        filters: int,
        kernel_size: int | tuple[int, int],
        strides: int | tuple[int, int] = (1, 1),
        padding: PaddingArgument = "valid",
        output_padding: int | tuple[int, int] | None = None,
        data_format: str = "channels_last",
        dilation_rate: int | tuple[int, int] = (1, 1),
        activation: ActivationArgument = None,
        use_bias: bool = True,
        kernel_initializer: str | Initializer = "glorot_uniform",
        bias_initializer: str | Initializer = "zeros",
        **options: Unpack[LimitedOptions],
    ) -> None:
        super().__init__(
            kernel_size, strides, padding, data_format, dilation_rate, activation, use_bias, bias_initializer, **options
        )
        self.filters = positive("filters", filters)
        self.output_padding = None if output_padding is None else pair("output_padding", output_padding, least=0)
        self.kernel_initializer = known_initializer(kernel_initializer)
        if self.output_padding and any(p >= s for p, s in zip(self.output_padding, self.strides, strict=True)):
            raise ValueError(
                "output_padding is below the stride along each axis. Received: "
                f"output_padding={self.output_padding}, strides={self.strides}."
            )

    def build(self, input_shape: Any) -> None:
        """Declare kernel (KH, KW, filters, C) and bias (filters,)."""
        channels = input_shape[self._axes(input_shape).c]
        self.kernel = self.add_weight("kernel", (*self.kernel_size, self.filters, channels), self.kernel_initializer)
        self._declare_bias(self.filters)

    def call(self, inputs: Any) -> Any:
        (height, cut_h), (width, cut_w) = (self._positions(i, n) for i, n in enumerate(self._size(inputs.shape)))
        y = ops.conv2d_input_gradient(
            inputs,
            self.kernel,
            image=(height, width),
            strides=self.strides,
            padding=(cut_h, cut_w),
            dilation=self.dilation_rate,
            data_format=self._layout,
        )
        return finish(y, self.bias, self.activation, axis=self._axes(y.shape).c)

    def _positions(self, axis: int, size: int) -> tuple[int, Pair]:
        """Output positions along one image axis, and how many are cut off before and after them."""
        stride = self.strides[axis]
        kernel = (self.kernel_size[axis] - 1) * self.dilation_rate[axis] + 1
        whole = (size - 1) * stride + kernel
        extra = None if self.output_padding is None else self.output_padding[axis]
        if not isinstance(self.padding, str):
            cut = self.padding[axis]
            length = whole - sum(cut) + (extra or 0)
        elif self.padding == "valid":
            cut = (0, 0)
            length = whole + (max(stride - kernel, 0) if extra is None else extra)
        else:
            length = size * stride if extra is None else (size - 1) * stride + kernel % 2 + extra
            total = max(whole - length, 0)
            cut = (total // 2, total - total // 2)
        if length < 1:
            raise ValueError(
                f"Conv2DTranspose leaves at least one position. Received: {whole} positions of which padding="
                f"{self.padding} cuts all. Use less padding."
            )
        return length, cut
