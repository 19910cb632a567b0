"""Pooling: the maximum or the mean over windows, over whole images, or to a given size."""

from __future__ import annotations

from typing import Any, Unpack

from minicnn import ops
from minicnn.layers.arguments import PaddingArgument, pair, resolve_padding, standard_padding
from minicnn.layers.image import ImageLayer
from minicnn.layers.options import LayerOptions
from minicnn.program.graph import Value


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
        **options: Unpack[LayerOptions],
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

    def __init__(
        self, data_format: str = "channels_last", keepdims: bool = False, **options: Unpack[LayerOptions]
    ) -> None:
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


class AdaptiveAveragePooling2D(ImageLayer):
    """Mean of windows that are chosen so that the output has a given size.

    Along an axis of n elements, output i of m is the mean of elements floor(i * n / m) to
    ceil((i + 1) * n / m) - 1, as in PyTorch: windows overlap where m does not divide n, and repeat elements
    where m > n. Nothing happens to an image that has the size already.

    Args:
        output_size: Height and width of the output, or one integer for both.

    Output shape:
        (N, OH, OW, C), or (N, C, OH, OW).

    Example:
        >>> AdaptiveAveragePooling2D(7)
        AdaptiveAveragePooling2D(7)
    """

    def __init__(
        self, output_size: int | tuple[int, int], data_format: str = "channels_last", **options: Unpack[LayerOptions]
    ) -> None:
        super().__init__(data_format, **options)
        self.output_size = pair("output_size", output_size)

    def call(self, inputs: Any) -> Any:
        """Pool with one window size where it fits, else one axis after the other."""
        axes = self._axes(inputs.shape)
        (h, w), (oh, ow) = (inputs.shape[axes.h], inputs.shape[axes.w]), self.output_size
        if (h, w) == (oh, ow):
            return inputs
        if h % oh == 0 and w % ow == 0:
            window = (h // oh, w // ow)
            return ops.average_pool2d(inputs, kernel=window, strides=window, data_format=self._layout)
        return _means(_means(inputs, axes.h, oh), axes.w, ow)


def _means(x: Value, axis: int, size: int) -> Value:
    """Means of `size` windows along one axis."""
    n = x.shape[axis]
    means = []
    for i in range(size):
        window = (i * n // size, -(-(i + 1) * n // size))
        bounds = tuple(window if a == axis else (0, length) for a, length in enumerate(x.shape))
        means.append(ops.mean(ops.slice_(x, bounds=bounds), axes=axis, keepdims=True))
    return ops.concat(*means, axis=axis)
