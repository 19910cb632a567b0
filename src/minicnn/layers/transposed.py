"""Transposed convolution."""

from __future__ import annotations

from typing import Any, Unpack

from minicnn import ops
from minicnn.initializers import Initializer, known_initializer
from minicnn.layers.activations import ActivationArgument
from minicnn.layers.arguments import PaddingArgument, pair
from minicnn.layers.convolutional import Convolution
from minicnn.layers.layer import LimitedOptions
from minicnn.ops.checks import positive
from minicnn.ops.windows import Pair


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
        <Conv2DTranspose None>
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
        return self._finish(y)

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
