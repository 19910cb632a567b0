"""Average pooling to an output of given size."""

from __future__ import annotations

from typing import Any, Unpack

from minicnn import ops
from minicnn.layers.arguments import pair
from minicnn.layers.image import ImageLayer
from minicnn.layers.layer import Options
from minicnn.program.graph import Value


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
        <AdaptiveAveragePooling2D None>
    """

    def __init__(
        self, output_size: int | tuple[int, int], data_format: str = "channels_last", **options: Unpack[Options]
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
        return _pool(_pool(inputs, axes.h, oh), axes.w, ow)


def _pool(x: Value, axis: int, size: int) -> Value:
    """Means of `size` windows along one axis."""
    n = x.shape[axis]
    means = []
    for i in range(size):
        window = (i * n // size, -(-(i + 1) * n // size))
        bounds = tuple(window if a == axis else (0, length) for a, length in enumerate(x.shape))
        means.append(ops.mean(ops.slice_(x, bounds=bounds), axes=axis, keepdims=True))
    return ops.concat(*means, axis=axis)
