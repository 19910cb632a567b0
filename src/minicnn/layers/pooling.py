"""Pooling layers."""

from __future__ import annotations

from typing import Any

from minicnn import ops
from minicnn.layers.arguments import PaddingArgument, check_padding, layout, pair, resolve_padding
from minicnn.layers.convolutional import image_channels
from minicnn.layers.layer import Layer
from minicnn.ops.windows import Axes


class _Pooling2D(Layer):
    """Arguments and geometry that both kinds of pooling share."""

    def __init__(
        self,
        pool_size: int | tuple[int, int] = (2, 2),
        strides: int | tuple[int, int] | None = None,
        padding: PaddingArgument = "valid",
        data_format: str = "channels_last",
        *,
        name: str | None = None,
    ) -> None:
        super().__init__(name=name)
        self.pool_size = pair("pool_size", pool_size)
        self.strides = self.pool_size if strides is None else pair("strides", strides)
        check_padding(padding)
        self.padding = padding
        self.data_format = data_format
        layout(data_format)

    def _geometry(self, inputs: Any) -> dict[str, Any]:
        order = layout(self.data_format)
        axes = Axes.of(order)
        image_channels(type(self).__name__, inputs.shape, axes)
        image = (inputs.shape[axes.h], inputs.shape[axes.w])
        return {
            "kernel": self.pool_size,
            "strides": self.strides,
            "padding": resolve_padding(self.padding, image, self.pool_size, self.strides),
            "data_format": order,
        }


class MaxPooling2D(_Pooling2D):
    """Largest element of each window.

    Args:
        pool_size: Height and width of the window, or one integer for both.
        strides: Steps between windows; the window's size if None.
        padding: "valid", "same" or explicit integers; padding never wins.
        data_format: "channels_last" or "channels_first".
        name: Name in the model.

    Input shape:
        (N, H, W, C), or (N, C, H, W) for "channels_first".

    Output shape:
        (N, OH, OW, C), or (N, C, OH, OW).
    """

    def call(self, inputs: Any) -> Any:
        """Pool."""
        return ops.max_pool2d(inputs, **self._geometry(inputs))
