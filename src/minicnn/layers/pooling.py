"""Pooling: the maximum or the mean over windows or over whole images."""

from __future__ import annotations

from typing import Any

from minicnn import ops
from minicnn.layers.arguments import (
    PaddingArgument,
    image_axes,
    layout,
    pair,
    resolve_padding,
    standard_padding,
)
from minicnn.layers.layer import Layer


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
        trainable: bool = True,
    ) -> None:
        super().__init__(name=name, trainable=trainable)
        self.pool_size = pair("pool_size", pool_size)
        self.strides = self.pool_size if strides is None else pair("strides", strides)
        self.padding = standard_padding(padding)
        self.data_format = data_format
        layout(data_format)

    def _geometry(self, inputs: Any) -> dict[str, Any]:
        axes = image_axes(type(self).__name__, self.data_format, inputs.shape)
        image = (inputs.shape[axes.h], inputs.shape[axes.w])
        return {
            "kernel": self.pool_size,
            "strides": self.strides,
            "padding": resolve_padding(self.padding, image, self.pool_size, self.strides),
            "data_format": layout(self.data_format),
        }


class MaxPooling2D(_Pooling2D):
    """Largest element of each window.

    Args:
        pool_size: Height and width of the window, or one integer for both.
        strides: Steps between windows; the window's size if None.
        padding: "valid", "same" or explicit integers; padding never wins.
        data_format: "channels_last" or "channels_first".
        name: Name in the model.
        trainable: See `Layer`.

    Input shape:
        (N, H, W, C), or (N, C, H, W) for "channels_first".

    Output shape:
        (N, OH, OW, C), or (N, C, OH, OW).

    Raises:
        ValueError: If an argument is out of range.
    """

    def call(self, inputs: Any) -> Any:
        return ops.max_pool2d(inputs, **self._geometry(inputs))


class AveragePooling2D(_Pooling2D):
    """Mean of each window.

    Args:
        pool_size: Height and width of the window, or one integer for both.
        strides: Steps between windows; the window's size if None.
        padding: "valid", "same" or explicit integers; padding is not counted (PyTorch counts its zeros).
        data_format: "channels_last" or "channels_first".
        name: Name in the model.
        trainable: See `Layer`.

    Input shape:
        (N, H, W, C), or (N, C, H, W) for "channels_first".

    Output shape:
        (N, OH, OW, C), or (N, C, OH, OW).

    Raises:
        ValueError: If an argument is out of range.
    """

    def call(self, inputs: Any) -> Any:
        return ops.average_pool2d(inputs, **self._geometry(inputs))


class _GlobalPooling2D(Layer):
    """Arguments that both kinds of global pooling share."""

    def __init__(
        self,
        data_format: str = "channels_last",
        keepdims: bool = False,
        *,
        name: str | None = None,
        trainable: bool = True,
    ) -> None:
        super().__init__(name=name, trainable=trainable)
        self.data_format = data_format
        self.keepdims = keepdims
        layout(data_format)

    def _image(self, inputs: Any) -> dict[str, Any]:
        axes = image_axes(type(self).__name__, self.data_format, inputs.shape)
        return {"axes": (axes.h, axes.w), "keepdims": self.keepdims}


class GlobalMaxPooling2D(_GlobalPooling2D):
    """Largest element of each channel; the gradient goes to the first of equal ones, in Keras it is shared.

    Args:
        data_format: "channels_last" or "channels_first".
        keepdims: Whether height and width stay, with length 1.
        name: Name in the model.
        trainable: See `Layer`.

    Input shape:
        (N, H, W, C), or (N, C, H, W) for "channels_first".

    Output shape:
        (N, C); with keepdims (N, 1, 1, C), or (N, C, 1, 1).
    """

    def call(self, inputs: Any) -> Any:
        return ops.max(inputs, **self._image(inputs))


class GlobalAveragePooling2D(_GlobalPooling2D):
    """Mean of each channel.

    Args:
        data_format: "channels_last" or "channels_first".
        keepdims: Whether height and width stay, with length 1.
        name: Name in the model.
        trainable: See `Layer`.

    Input shape:
        (N, H, W, C), or (N, C, H, W) for "channels_first".

    Output shape:
        (N, C); with keepdims (N, 1, 1, C), or (N, C, 1, 1).
    """

    def call(self, inputs: Any) -> Any:
        return ops.mean(inputs, **self._image(inputs))
