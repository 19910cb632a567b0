"""Pooling: the maximum or the mean over windows or over whole images."""

from __future__ import annotations

from typing import Any, Unpack

from minicnn import ops
from minicnn.layers.arguments import PaddingArgument, pair, resolve_padding, standard_padding
from minicnn.layers.image import ImageLayer
from minicnn.layers.layer import Options


class Pooling2D(ImageLayer):
    """Base class of pooling over windows.

    Args:
        pool_size: Height and width of the window, or one integer for both.
        strides: Steps between windows; the window's size if None.

    Output shape:
        (N, OH, OW, C), or (N, C, OH, OW).
    """

    def __init__(
        self,
        pool_size: int | tuple[int, int] = (2, 2),
        strides: int | tuple[int, int] | None = None,
        padding: PaddingArgument = "valid",
        data_format: str = "channels_last",
        **options: Unpack[Options],
    ) -> None:
        super().__init__(data_format, **options)
        self.pool_size = pair("pool_size", pool_size)
        self.strides = self.pool_size if strides is None else pair("strides", strides)
        self.padding = standard_padding(padding)

    def _windows(self, inputs: Any) -> dict[str, Any]:
        return {
            "kernel": self.pool_size,
            "strides": self.strides,
            "padding": resolve_padding(self.padding, self._size(inputs.shape), self.pool_size, self.strides),
            "data_format": self._layout,
        }


class MaxPooling2D(Pooling2D):
    """Largest element of each window.

    Args:
        padding: "valid", "same" or explicit integers; padding never wins.
    """

    def call(self, inputs: Any) -> Any:
        return ops.max_pool2d(inputs, **self._windows(inputs))


class AveragePooling2D(Pooling2D):
    """Mean of each window.

    Args:
        padding: "valid", "same" or explicit integers; padding is not counted (PyTorch counts its zeros).
    """

    def call(self, inputs: Any) -> Any:
        return ops.average_pool2d(inputs, **self._windows(inputs))


class GlobalPooling2D(ImageLayer):
    """Base class of pooling over whole images.

    Args:
        keepdims: Whether height and width stay, with length 1.

    Output shape:
        (N, C); with keepdims (N, 1, 1, C), or (N, C, 1, 1).
    """

    def __init__(self, data_format: str = "channels_last", keepdims: bool = False, **options: Unpack[Options]) -> None:
        super().__init__(data_format, **options)
        self.keepdims = keepdims

    def _image(self, inputs: Any) -> dict[str, Any]:
        axes = self._axes(inputs.shape)
        return {"axes": (axes.h, axes.w), "keepdims": self.keepdims}


class GlobalMaxPooling2D(GlobalPooling2D):
    """Largest element of each channel; the gradient goes to the first of equal ones, in Keras it is shared."""

    def call(self, inputs: Any) -> Any:
        return ops.max(inputs, **self._image(inputs))


class GlobalAveragePooling2D(GlobalPooling2D):
    """Mean of each channel."""

    def call(self, inputs: Any) -> Any:
        return ops.mean(inputs, **self._image(inputs))
