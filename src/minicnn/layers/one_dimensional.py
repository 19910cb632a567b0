"""Layers of sequences: convolution and pooling of images with one row."""

from __future__ import annotations

from typing import Any, Unpack

from minicnn import ops
from minicnn.initializers import Initializer, known_initializer
from minicnn.layers.activations import ActivationArgument, finish, known_activation
from minicnn.layers.arguments import layout, resolve_padding
from minicnn.layers.convolutional import check_groups
from minicnn.layers.layer import Layer
from minicnn.layers.options import LayerOptions, LimitedOptions
from minicnn.layers.pooling import AveragePooling2D, MaxPooling2D
from minicnn.ops.checks import one_of, positive
from minicnn.ops.windows import Padding
from minicnn.program.graph import Value


class SequenceLayer(Layer):
    """Base class of layers of sequences.

    Args:
        data_format: "channels_last" (N, L, C) or "channels_first" (N, C, L).

    Input shape:
        (N, L, C), or (N, C, L) for "channels_first".
    """

    def __init__(self, data_format: str, **options: Unpack[LimitedOptions]) -> None:
        super().__init__(**options)
        self.data_format = data_format
        layout(data_format)

    def _channel_axis(self, shape: Any) -> int:
        if len(shape) != 3:
            raise ValueError(
                f"{type(self).__name__} takes sequences: batch, steps and channels. Received: input shape "
                f"{(None, *shape[1:])}. Add the missing axis to the data, e.g. x[..., None]."
            )
        return 2 if layout(self.data_format) == "NHWC" else 1


def _image(x: Value, channels: int) -> Value:
    """(N, L, C) as (N, 1, L, C), or (N, C, L) as (N, C, 1, L)."""
    n, a, b = x.shape
    return ops.reshape(x, shape=(n, 1, a, b) if channels == 2 else (n, a, 1, b))


def _sequence(y: Value, channels: int) -> Value:
    n, a, b, c = y.shape
    return ops.reshape(y, shape=(n, b, c) if channels == 2 else (n, a, c))


class Conv1D(SequenceLayer):
    """Convolution along sequences.

    Args:
        filters: Number of output channels.
        kernel_size: Length of the kernel.
        strides: Steps between output positions.
        padding: "valid" (none), "same" (as much as gives ceil(steps / strides) positions), or "causal": before the
            first step, so that no position sees later ones.
        dilation_rate: Distance between neighbouring taps.
        groups: Parts of the channels that are convolved apart.
        activation: Name or function, applied last.
        use_bias: Whether a number is added for each filter.
        kernel_initializer: First values of the kernel (K, C / groups, filters).
        bias_initializer: First values of the bias (filters,).

    Output shape:
        (N, OL, filters), or (N, filters, OL).

    Raises:
        ValueError: If an argument is out of range, or groups divide channels or filters unevenly.
    """

    _limited = (("kernel", "kernel"), ("bias", "bias"))

    def __init__(
        self,
        filters: int,
        kernel_size: int,
        strides: int = 1,
        padding: str = "valid",
        data_format: str = "channels_last",
        dilation_rate: int = 1,
        groups: int = 1,
        activation: ActivationArgument = None,
        use_bias: bool = True,
        kernel_initializer: str | Initializer = "glorot_uniform",
        bias_initializer: str | Initializer = "zeros",
        **options: Unpack[LimitedOptions],
    ) -> None:
        super().__init__(data_format, **options)
        self.filters, self.kernel_size = positive("filters", filters), positive("kernel_size", kernel_size)
        self.strides, self.dilation_rate = positive("strides", strides), positive("dilation_rate", dilation_rate)
        self.padding = one_of("padding", padding.lower(), ("valid", "same", "causal"))
        self.groups = positive("groups", groups)
        self.activation = known_activation(activation)
        self.use_bias = use_bias
        self.kernel_initializer = known_initializer(kernel_initializer)
        self.bias_initializer = known_initializer(bias_initializer)

    def build(self, input_shape: Any) -> None:
        """Declare kernel (K, C / groups, filters) and bias (filters,)."""
        channels = check_groups(self.groups, input_shape[self._channel_axis(input_shape)], self.filters)
        shape = (self.kernel_size, channels, self.filters)
        self.kernel = self.add_weight("kernel", shape, self.kernel_initializer)
        self.bias = self.add_weight("bias", (self.filters,), self.bias_initializer) if self.use_bias else None

    def call(self, inputs: Any) -> Any:
        axis = self._channel_axis(inputs.shape)
        window, strides, dilation = (1, self.kernel_size), (1, self.strides), (1, self.dilation_rate)
        image = (1, inputs.shape[3 - axis])
        before = (self.kernel_size - 1) * self.dilation_rate
        causal: Padding = ((0, 0), (before, 0))
        padding = (
            causal if self.padding == "causal" else resolve_padding(self.padding, image, window, strides, dilation)
        )
        kernel = ops.reshape(self.kernel, shape=(1, *self.kernel.shape))
        y = ops.conv2d(
            _image(inputs, axis), kernel, strides=strides, padding=padding, dilation=dilation, groups=self.groups,
            data_format=layout(self.data_format),
        )  # fmt: skip
        return finish(_sequence(y, axis), self.bias, self.activation, axis=axis)


class Pooling1D(SequenceLayer):
    """Base class of pooling over windows: that of images with one row.

    Args:
        pool_size: Length of the window.
        strides: Steps between windows; the window's length if None.

    Output shape:
        (N, OL, C), or (N, C, OL).
    """

    _pooling: type[MaxPooling2D | AveragePooling2D]

    def __init__(
        self,
        pool_size: int = 2,
        strides: int | None = None,
        padding: str = "valid",
        data_format: str = "channels_last",
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__(data_format, **options)
        self.pool_size = positive("pool_size", pool_size)
        self.strides = self.pool_size if strides is None else positive("strides", strides)
        self.padding = padding
        self._pool = self._pooling((1, self.pool_size), (1, self.strides), padding, data_format)

    def call(self, inputs: Any) -> Any:
        axis = self._channel_axis(inputs.shape)
        return _sequence(self._pool(_image(inputs, axis)), axis)


class MaxPooling1D(Pooling1D):
    """Largest element of each window of a sequence.

    Args:
        padding: "valid" or "same"; padding never wins.
    """

    _pooling = MaxPooling2D


class AveragePooling1D(Pooling1D):
    """Mean of each window of a sequence.

    Args:
        padding: "valid" or "same"; padding is not counted.
    """

    _pooling = AveragePooling2D


class GlobalPooling1D(SequenceLayer):
    """Base class of pooling over whole sequences.

    Args:
        keepdims: Whether the steps stay, with length 1.

    Output shape:
        (N, C); with keepdims (N, 1, C), or (N, C, 1).
    """

    def __init__(
        self, data_format: str = "channels_last", keepdims: bool = False, **options: Unpack[LayerOptions]
    ) -> None:
        super().__init__(data_format, **options)
        self.keepdims = keepdims

    def _steps(self, inputs: Any) -> dict[str, Any]:
        return {"axes": 3 - self._channel_axis(inputs.shape), "keepdims": self.keepdims}


class GlobalMaxPooling1D(GlobalPooling1D):
    """Largest element of each channel of a sequence."""

    def call(self, inputs: Any) -> Any:
        return ops.max(inputs, **self._steps(inputs))


class GlobalAveragePooling1D(GlobalPooling1D):
    """Mean of each channel of a sequence."""

    def call(self, inputs: Any) -> Any:
        return ops.mean(inputs, **self._steps(inputs))
