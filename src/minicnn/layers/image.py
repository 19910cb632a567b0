"""Common part of layers of images: the order of their axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from minicnn.layers.arguments import image_axes, layout
from minicnn.layers.layer import Layer
from minicnn.layers.options import LimitedOptions
from minicnn.ops.windows import Axes, Pair


class ImageLayer(Layer):
    """Base class of layers of images.

    Args:
        data_format: "channels_last" (N, H, W, C) or "channels_first" (N, C, H, W).

    Input shape:
        (N, H, W, C), or (N, C, H, W) for "channels_first".
    """

    def __init__(self, data_format: str, **options: Unpack[LimitedOptions]) -> None:
        super().__init__(**options)
        self.data_format = data_format
        layout(data_format)

    @property
    def _layout(self) -> str:
        return layout(self.data_format)

    def _axes(self, shape: Sequence[int | None]) -> Axes:
        """Positions of the axes of images of that shape."""
        return image_axes(type(self).__name__, self.data_format, shape)

    def _size(self, shape: Sequence[int]) -> Pair:
        """Height and width of images of that shape."""
        axes = self._axes(shape)
        return (shape[axes.h], shape[axes.w])
