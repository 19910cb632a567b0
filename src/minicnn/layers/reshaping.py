"""Layers that move elements but hold no weights: other shapes, frames, cuts and larger images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Unpack

import numpy as np

from minicnn import ops
from minicnn.layers.arguments import PaddingArgument, frame, layout, pair
from minicnn.layers.image import ImageLayer
from minicnn.layers.layer import Layer
from minicnn.layers.options import LayerOptions
from minicnn.ops.checks import one_of, positive
from minicnn.ops.transforms import INTERPOLATIONS
from minicnn.ops.windows import Pair
from minicnn.program.graph import Value

_MOST_ELEMENTS = 1 << 23  # of a matrix that interpolates along one axis: 2,048 pixels to 4,096


class Flatten(Layer):
    """All axes but the batch joined into one.

    Args:
        data_format: With "channels_first" the channels are moved last before flattening, so that both
            formats give the same order of features (as in Keras).

    Output shape:
        (N, product of the others).
    """

    def __init__(self, data_format: str = "channels_last", **options: Unpack[LayerOptions]) -> None:
        super().__init__(**options)
        self.data_format = data_format
        layout(data_format)

    def call(self, inputs: Any) -> Any:
        x = inputs
        if self.data_format == "channels_first" and x.ndim > 2:
            x = ops.permute(x, axes=(0, *range(2, x.ndim), 1))
        return ops.reshape(x, shape=(x.shape[0], math.prod(x.shape[1:])))


class Reshape(Layer):
    """Each sample in another shape.

    Args:
        target_shape: Shape of one sample; one length may be -1 and follows from the others.

    Output shape:
        (N, *target_shape).

    Raises:
        ValueError: If a length is neither positive nor -1, or a sample has another number of elements.
    """

    def __init__(self, target_shape: Sequence[int], **options: Unpack[LayerOptions]) -> None:
        super().__init__(**options)
        lengths = tuple(target_shape)
        if lengths.count(-1) > 1:
            raise ValueError(f"target_shape has at most one -1. Received: target_shape={lengths}.")
        self.target_shape = tuple(n if n == -1 else positive("Each length of target_shape", n) for n in lengths)

    def call(self, inputs: Any) -> Any:
        size = math.prod(inputs.shape[1:])
        known = math.prod(n for n in self.target_shape if n != -1)
        shape = tuple(size // known if n == -1 else n for n in self.target_shape)
        if math.prod(shape) != size:
            raise ValueError(
                f"Reshape keeps the elements of a sample. Received: {size} elements (shape "
                f"{inputs.shape[1:]}) for target_shape={self.target_shape}."
            )
        return ops.reshape(inputs, shape=(inputs.shape[0], *shape))


class Permute(Layer):
    """Axes of each sample reordered.

    Args:
        dims: For each axis of the result, the axis of the sample that it is, counted from 1.

    Output shape:
        (N, ...): (2, 1) turns (N, 10, 64) into (N, 64, 10).

    Raises:
        ValueError: If dims does not name each axis once.
    """

    def __init__(self, dims: Sequence[int], **options: Unpack[LayerOptions]) -> None:
        super().__init__(**options)
        self.dims = tuple(positive("Each axis of dims", d) for d in dims)
        if sorted(self.dims) != list(range(1, len(self.dims) + 1)):
            raise ValueError(f"dims has each axis from 1 to {len(self.dims)} once. Received: dims={self.dims}.")

    def call(self, inputs: Any) -> Any:
        if inputs.ndim != len(self.dims) + 1:
            raise ValueError(
                f"Permute takes samples with as many axes as dims names. Received: {inputs.ndim - 1} axes "
                f"(shape {inputs.shape[1:]}) for dims={self.dims}."
            )
        return ops.permute(inputs, axes=(0, *self.dims))


class ZeroPadding2D(ImageLayer):
    """A frame of zeros around each image.

    Args:
        padding: Rows and columns on each side: n, (height, width) or ((top, bottom), (left, right)).

    Output shape:
        (N, top + H + bottom, left + W + right, C), or with the channels first.

    Raises:
        ValueError: If padding is negative or has another form.
    """

    def __init__(
        self, padding: PaddingArgument = (1, 1), data_format: str = "channels_last", **options: Unpack[LayerOptions]
    ) -> None:
        super().__init__(data_format, **options)
        self.padding = frame("padding", padding)

    def call(self, inputs: Any) -> Any:
        axes = self._axes(inputs.shape)
        widths: list[Pair] = [(0, 0)] * 4
        widths[axes.h], widths[axes.w] = self.padding
        return ops.pad(inputs, widths=tuple(widths))


class Cropping2D(ImageLayer):
    """Rows and columns cut off at the edges of each image.

    Args:
        cropping: How many on each side: n, (height, width) or ((top, bottom), (left, right)).

    Output shape:
        (N, H - top - bottom, W - left - right, C), or with the channels first.

    Raises:
        ValueError: If cropping is negative, has another form or leaves nothing.
    """

    def __init__(
        self,
        cropping: PaddingArgument = ((0, 0), (0, 0)),
        data_format: str = "channels_last",
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__(data_format, **options)
        self.cropping = frame("cropping", cropping)

    def call(self, inputs: Any) -> Any:
        axes = self._axes(inputs.shape)
        bounds = [(0, n) for n in inputs.shape]
        for axis, (before, after) in zip((axes.h, axes.w), self.cropping, strict=True):
            bounds[axis] = (before, inputs.shape[axis] - after)
            if before + after >= inputs.shape[axis]:
                raise ValueError(
                    f"Cropping2D leaves at least one row and column. Received: image {inputs.shape[axes.h]}x"
                    f"{inputs.shape[axes.w]}, cropping={self.cropping}. Cut less."
                )
        return ops.slice_(inputs, bounds=tuple(bounds))


class UpSampling2D(ImageLayer):
    """Images enlarged by whole factors.

    Args:
        size: Factors of height and width, or one integer for both.
        interpolation: "nearest" repeats rows and columns; "bilinear" weighs the two nearest along each axis,
            pixels being squares with their values at the centres (align_corners=False in PyTorch). Keras
            has "bicubic", "lanczos3" and "lanczos5" as well.

    Output shape:
        (N, H * size[0], W * size[1], C), or with the channels first.

    Example:
        >>> UpSampling2D(size=4, interpolation="bilinear")
        UpSampling2D(size=4, interpolation='bilinear')
    """

    def __init__(
        self,
        size: int | tuple[int, int] = (2, 2),
        data_format: str = "channels_last",
        interpolation: str = "nearest",
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__(data_format, **options)
        self.size = pair("size", size)
        self.interpolation = one_of("interpolation", interpolation, INTERPOLATIONS)

    def call(self, inputs: Any) -> Any:
        axes = self._axes(inputs.shape)
        if self.interpolation == "nearest":
            x = inputs
            for axis, factor in zip((axes.h, axes.w), self.size, strict=True):
                x = ops.repeat(x, repeats=factor, axis=axis) if factor > 1 else x
            return x
        x = inputs if axes.c == 1 else ops.permute(inputs, axes=(0, 3, 1, 2))  # (N, C, H, W)
        y = resize(x, x.shape[2] * self.size[0], x.shape[3] * self.size[1])
        return y if axes.c == 1 else ops.permute(y, axes=(0, 2, 3, 1))


def resize_last(x: Value, size: int, interpolation: str = "bilinear") -> Value:
    """The last axis in another length, (..., n) -> (..., size), by one matrix product; pixels are squares."""
    n = x.shape[-1]
    if n * size > _MOST_ELEMENTS:
        raise ValueError(
            f"Resizing multiplies by a matrix of at most {_MOST_ELEMENTS:,} elements. Received: {n} x {size}. Resize "
            "in steps, or upsample with interpolation='nearest'."
        )
    new = np.arange(size)
    # Centre of each new pixel in units of the old ones; the edge pixels reach out to the border.
    at = np.clip((new + 0.5) * n / size - 0.5, 0, n - 1)
    matrix = np.zeros((n, size))
    if interpolation == "nearest":
        matrix[np.floor((new + 0.5) * n / size).astype(int), new] = 1
    else:
        low = np.minimum(np.floor(at).astype(int), max(n - 2, 0))
        matrix[low, new] = 1 - (at - low)
        if n > 1:
            matrix[low + 1, new] = at - low
    rows = ops.reshape(x, shape=(math.prod(x.shape[:-1]), n))
    return ops.reshape(ops.matmul(rows, matrix.astype(x.dtype)), shape=(*x.shape[:-1], size))


def resize(x: Value, height: int, width: int, interpolation: str = "bilinear") -> Value:
    """Images (N, C, H, W) in another size."""
    x = resize_last(x, width, interpolation)  # (N, C, H, OW)
    x = resize_last(ops.permute(x, axes=(0, 1, 3, 2)), height, interpolation)  # (N, C, OW, OH)
    return ops.permute(x, axes=(0, 1, 3, 2))
