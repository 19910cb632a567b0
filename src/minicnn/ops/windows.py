"""Sliding windows over images: geometry, taps, unfolding and its transpose, in three layouts.

A tap (i, j) of a window is the strided slice of an image that meets weight (i, j) at every output
position. All references of convolution and pooling are written as a loop over taps, so they need
nothing but slices, joins, products and sums.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from minicnn.names import known_name
from minicnn.ops.arrays import add_at, extend, zeros
from minicnn.ops.primitive import Array, Namespace
from minicnn.program.graph import Spec

Pair = tuple[int, int]
Padding = tuple[Pair, Pair]

DATA_FORMATS = ("NHWC", "NCHW", "HWCN")


@dataclass(frozen=True)
class Axes:
    """Positions of the batch, height, width and channel axes."""

    n: int
    h: int
    w: int
    c: int

    @classmethod
    def of(cls, data_format: str) -> Axes:
        """Axes of "NHWC" (channels last), "NCHW" (channels first) or "HWCN" (batch last)."""
        known_name("data_format", data_format, DATA_FORMATS)
        return cls(*(data_format.index(a) for a in "NHWC"))

    def shape(self, n: int, h: int, w: int, c: int) -> tuple[int, int, int, int]:
        """The four lengths in this layout's order."""
        result = [0, 0, 0, 0]
        result[self.n], result[self.h], result[self.w], result[self.c] = n, h, w, c
        return (result[0], result[1], result[2], result[3])


@dataclass(frozen=True)
class Window:
    """Window that slides along the two image axes.

    Attributes:
        kernel: Taps (KH, KW).
        strides: Steps (SH, SW) between output positions.
        padding: ((top, bottom), (left, right)) elements around the image.
        dilation: Distance (DH, DW) between neighbouring taps.
    """

    kernel: Pair
    strides: Pair = (1, 1)
    padding: Padding = ((0, 0), (0, 0))
    dilation: Pair = (1, 1)

    def output_size(self, name: str, height: int, width: int) -> Pair:
        """Output positions (OH, OW): floor((size + padding - dilation * (kernel - 1) - 1) / stride) + 1."""
        if min(*self.kernel, *self.strides, *self.dilation) < 1:
            raise ValueError(
                f"{name} takes kernel size, strides and dilation of at least 1. Received: kernel {self.kernel}, "
                f"strides {self.strides}, dilation {self.dilation}."
            )
        if min(*self.padding[0], *self.padding[1]) < 0:
            raise ValueError(
                f"{name} takes padding of at least 0. Received: {self.padding}. Crop with ops.slice_ instead."
            )
        result = []
        for size, k, s, p, d in zip(
            (height, width), self.kernel, self.strides, self.padding, self.dilation, strict=True
        ):
            # Places that the window can be moved by; what the stride does not reach is left out, as everywhere.
            free = size + sum(p) - d * (k - 1) - 1
            if free < 0:
                raise ValueError(
                    f"{name} needs an image at least as large as its (dilated) kernel. Received: image "
                    f"{height}x{width}, kernel {self.kernel}, dilation {self.dilation}, padding {self.padding}. "
                    "Use a larger image, a smaller kernel or padding='same'."
                )
            result.append(free // s + 1)
        return (result[0], result[1])

    def taps(self, x: Array, axes: Axes, size: Pair) -> list[Array]:
        """Views of the padded image x, one a tap in row-major order, each with `size` positions."""
        result = []
        for i in range(self.kernel[0]):
            for j in range(self.kernel[1]):
                index = [slice(None)] * 4
                for axis, k, s, d, n in zip((axes.h, axes.w), (i, j), self.strides, self.dilation, size, strict=True):
                    index[axis] = slice(k * d, k * d + (n - 1) * s + 1, s)
                result.append(x[tuple(index)])
        return result


def padding_behind(size: int, kernel: int, stride: int, before: int, after: int) -> int:
    """Padding behind an axis for which the last window that begins within it is whole, as in PyTorch's ceil_mode."""
    windows = -(-(size + before + after - kernel) // stride) + 1
    windows -= (windows - 1) * stride >= size + before
    return max(after, (windows - 1) * stride + kernel - size - before)


def pad_image(x: Array, padding: Padding, axes: Axes, xp: Namespace, value: float = 0.0) -> Array:
    """Array x with a frame of a constant value around its image axes; x itself where there is none."""
    for axis, (before, after) in ((axes.h, padding[0]), (axes.w, padding[1])):
        x = extend(x, axis, before, after, xp, value)
    return x


def unfold(x: Array, window: Window, axes: Axes, size: Pair, xp: Namespace) -> Array:
    """The taps of x joined along the channel axis, in the order (KH, KW, C)."""
    taps = window.taps(pad_image(x, window.padding, axes, xp), axes, size)
    return taps[0] if len(taps) == 1 else xp.concat(taps, axis=axes.c)


def fold(parts: Iterable[Array], window: Window, axes: Axes, image: Pair, xp: Namespace) -> Array:
    """Transpose of padding and `Window.taps`: parts, one a tap, summed where they were read from.

    Args:
        parts: One array for each tap in row-major order, each with the output positions on its image axes.
        window: Geometry.
        axes: Layout of the parts.
        image: (H, W) of the result.
    """
    y: Array = None
    tap = -1  # counted by hand, since enumerate and a loop variable keep a part while the next is made
    for part in parts:
        tap += 1
        shape = list(part.shape)
        size = (shape[axes.h], shape[axes.w])
        if y is None:
            shape[axes.h], shape[axes.w] = image
            y = zeros(tuple(shape), part, xp)
        target, source = [slice(None)] * y.ndim, [slice(None)] * y.ndim
        for axis, k, s, (before, _), d, n, length in zip(
            (axes.h, axes.w), divmod(tap, window.kernel[1]), window.strides, window.padding, window.dilation,
            size, image, strict=True,
        ):  # fmt: skip
            # Position q reads element q * s + offset; those in the padding are left out.
            offset = k * d - before
            first = max(0, -(offset // s))
            last = min(n - 1, (length - 1 - offset) // s)
            source[axis] = slice(first, last + 1)
            target[axis] = slice(first * s + offset, last * s + offset + 1, s)
            if last < first:
                break
        else:
            y = add_at(y, tuple(target), part[tuple(source)], xp)
        del part
    return y


def image_size(x: Spec, axes: Axes) -> Pair:
    """Height and width of an image spec."""
    return x.shape[axes.h], x.shape[axes.w]
