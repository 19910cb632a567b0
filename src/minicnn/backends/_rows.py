"""Convolutions on NumPy whose taps are views: images are laid out so that products of matrices read them in place.

With the axes (H, C, W, N) the KH rows under a window are one stretch of memory. Seen as a matrix (KH * C, OW * N) whose
columns begin at tap column j, they are what a product needs for an output row: nothing is unfolded along the height.
Along the width there are two orders:

- summed: a product for each tap column, which are added up. An image is copied once.
- unfolded: tap columns are copied beside each other, KW copies of an image, and one product takes all. It is for few
  channels, which are quickly copied, and whose products are small.

The input gradient is a convolution of dy with the kernel turned around; with strides it is one for each remainder of
rows and columns. The weight gradient multiplies the same views by dy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from minicnn.machine import second_level_cache
from minicnn.ops.strategies.strategy import PRIMITIVES, Direction, Problem
from minicnn.ops.windows import Axes, Padding, Pair, Window
from minicnn.program.graph import Node

Array = np.ndarray[Any, Any]


def rows_of(x: Array, axes: Axes, padding: Padding = ((0, 0), (0, 0)), stride: int = 1) -> Array:
    """Images by rows: (S, H', C, W', N), where entry s has the columns s, s + S, s + 2 S ... of the padded image.

    Args:
        x: Images.
        axes: Their order of axes.
        padding: Zeros around them; where it is negative, what is cut off.
        stride: The stride S along the width.
    """
    image = x.transpose(axes.h, axes.c, axes.w, axes.n)
    (top, bottom), (left, right) = padding
    h, c, w, n = image.shape
    height, width = h + top + bottom, w + left + right
    if stride == 1 and padding == ((0, 0), (0, 0)) and image.flags.c_contiguous:
        return image[np.newaxis]
    rows = np.zeros((stride, height, c, -(-width // stride), n), x.dtype)
    inside, outside = slice(max(-top, 0), h - max(-bottom, 0)), slice(max(top, 0), height - max(bottom, 0))
    for s in range(stride):
        first = max(-(-(left - s) // stride), 0)  # of the columns of entry s, in the image
        at = first * stride + s - left
        part = image[inside, :, at : w - max(-right, 0) : stride]
        rows[s, outside, :, first : first + part.shape[2]] = part
    return rows


@dataclass(frozen=True)
class Taps:
    """Operand of a kernel: the elements under its taps, as views of images by rows.

    Attributes:
        rows: See `rows_of`.
        kernel: (KH, KW).
        step: Rows from one output row to the next.
        size: (OH, OW).
    """

    rows: Array
    kernel: Pair
    step: int
    size: Pair

    def column(self, j: int, first: int, last: int) -> Array:
        """Output rows `first` to `last` under tap column j: (rows, KH * C, OW, N)."""
        at, s = divmod(j, len(self.rows))
        return self._windows(self.rows[s, first * self.step :, :, at : at + self.size[1]], last - first)

    def unfolded(self, first: int, last: int) -> Array:
        """Output rows `first` to `last` under all taps: (rows, KH * KW * C, OW, N), the tap columns copied."""
        (kh, kw), ow = self.kernel, self.size[1]
        height = (last - first - 1) * self.step + kh
        _, _, c, _, n = self.rows.shape
        columns = np.empty((height, kw, c, ow, n), self.rows.dtype)
        for j in range(kw):
            at, s = divmod(j, len(self.rows))
            columns[:, j] = self.rows[s, first * self.step :, :, at : at + ow][:height]
        return self._windows(columns.reshape(height, kw * c, ow, n), last - first)

    def _windows(self, rows: Array, count: int) -> Array:
        """Windows of KH rows (H, C, OW, N): (count, KH * C, OW, N)."""
        _, c, ow, n = rows.shape
        row, _, place, sample = rows.strides  # NumPy gives an axis of length 1, as C may be, any stride
        shape, strides = (count, self.kernel[0] * c, ow, n), (row * self.step, row // c, place, sample)
        return as_strided(rows, shape, strides, writeable=False)

    def blocks(self, row: int) -> Iterator[tuple[int, int]]:
        """First and last output row of each block, if a row has so many elements."""
        # What is written and read again within a block stays in the cache.
        count = max(1, second_level_cache() // max(row * self.rows.itemsize, 1))
        for first in range(0, self.size[0], count):
            yield first, min(first + count, self.size[0])


@dataclass(frozen=True)
class Rows:
    """A convolution of images in one order of axes.

    Attributes:
        axes: The order.
        window: Geometry, without dilation.
        unfolded: Whether tap columns are copied beside each other.
    """

    axes: Axes
    window: Window
    unfolded: bool

    def forward(self, x: Array, w: Array) -> Array:
        """See `conv2d`."""
        size = self.window.output_size("conv2d", x.shape[self.axes.h], x.shape[self.axes.w])
        y = np.empty(self.axes.shape(x.shape[self.axes.n], *size, w.shape[3]), x.dtype)
        self._correlate(x, w, self.window.padding, self.window.strides, y)
        return y

    def input_gradient(self, dy: Array, w: Array, image: Pair) -> Array:
        """See `conv2d_input_gradient`."""
        dx = np.empty(self.axes.shape(dy.shape[self.axes.n], *image, w.shape[2]), dy.dtype)
        sizes = (dy.shape[self.axes.h], dy.shape[self.axes.w])
        sides = [
            list(_remainders(*side))
            for side in zip(image, sizes, w.shape[:2], self.window.strides, self.window.padding, strict=True)
        ]
        index: list[slice] = [slice(None)] * 4
        for (index[self.axes.h], rows, top), (index[self.axes.w], columns, left) in product(*sides):
            taps = w[rows, columns].transpose(0, 1, 3, 2)
            part = dx[tuple(index)]
            if taps.size:
                self._correlate(dy, taps, (top, left), (1, 1), part)
            else:
                part[...] = 0
        return dx

    def weight_gradient(self, dy: Array, x: Array) -> Array:
        """See `conv2d_weight_gradient`."""
        kh, kw = self.window.kernel
        gradient = rows_of(dy, self.axes)[0]
        oh, f, ow, n = gradient.shape
        gradient = gradient.reshape(oh, f, ow * n).transpose(0, 2, 1)
        taps = Taps(rows_of(x, self.axes, self.window.padding, self.window.strides[1]), self.window.kernel,
                    self.window.strides[0], (oh, ow))  # fmt: skip
        c = x.shape[self.axes.c]
        dw = np.zeros((kh, kw, c, f), x.dtype)
        for first, last in taps.blocks(kh * kw * c * f + kw * c * ow * n * self.unfolded):
            for at, columns in self._columns(taps, first, last):
                products = np.matmul(columns.reshape(last - first, -1, ow * n), gradient[first:last])
                dw[:, at] += products.sum(axis=0).reshape(dw[:, at].shape)
        return dw

    def _columns(self, taps: Taps, first: int, last: int) -> Iterator[tuple[int | slice, Array]]:
        """Tap columns, each with what meets it in some output rows; all at once if they are unfolded."""
        if self.unfolded:
            yield slice(None), taps.unfolded(first, last)
        else:
            for j in range(taps.kernel[1]):
                yield j, taps.column(j, first, last)

    def _correlate(self, x: Array, w: Array, padding: Padding, strides: Pair, y: Array) -> None:
        """Write the convolution of x and w into y."""
        kh, kw, c, f = w.shape
        out = y.transpose(self.axes.h, self.axes.w, self.axes.c, self.axes.n)  # (OH, OW, F, N)
        oh, ow, _, n = out.shape
        taps = Taps(rows_of(x, self.axes, padding, strides[1]), (kh, kw), strides[0], (oh, ow))
        in_place = self.axes.n == 3  # with the batch last, products of (K, N) for each pixel are where y has them
        matrices: dict[int | slice, Array] = {}
        for first, last in taps.blocks(max(f, kw * c * self.unfolded) * ow * n):
            total = out[first:last] if in_place else np.empty((last - first, f, ow * n), y.dtype)
            for k, (at, columns) in enumerate(self._columns(taps, first, last)):
                if k not in matrices:
                    matrices[k] = np.ascontiguousarray(w[:, at].reshape(-1, f).T)  # (F, K)
                shape = columns.transpose(0, 2, 1, 3) if in_place else columns.reshape(last - first, -1, ow * n)
                if k:
                    total += np.matmul(matrices[k], shape)
                else:
                    np.matmul(matrices[k], shape, out=total)
            if not in_place:
                out[first:last] = total.reshape(last - first, f, ow, n).transpose(0, 2, 1, 3)


def _remainders(length: int, count: int, taps: int, stride: int, padding: Pair) -> Iterator[tuple[slice, slice, Pair]]:
    """Along one axis, for each remainder of the stride: its elements of x, its taps turned around, dy's padding.

    Element h of x meets tap i at output (h + top - i) / stride, for those i where that is whole.
    """
    for h in range(min(stride, length)):
        first, tap = divmod(h + padding[0], stride)
        met = len(range(tap, taps, stride))
        elements = len(range(h, length, stride))
        turned = slice(tap + (met - 1) * stride, None, -stride)
        yield slice(h, None, stride), turned if met else slice(0, 0), (met - 1 - first, first + elements - count)


def by_rows(node: Node) -> Callable[..., Array] | None:
    """A function that computes a convolution or a gradient of one by rows; None where its reference is as fast."""
    direction = PRIMITIVES.get(node.op.name)
    if direction is None:
        return None
    problem = Problem.of(node)
    if problem.groups > 1 or problem.dilation != (1, 1) or not pays(problem, direction):
        return None
    rows = Rows(problem.axes, problem.window, is_unfolded(problem, direction))
    if direction == "input gradient":
        return partial(conv2d_input_gradient_by_rows, rows, image=problem.image)
    return partial(conv2d_by_rows if direction == "forward" else conv2d_weight_gradient_by_rows, rows)


def pays(problem: Problem, direction: Direction) -> bool:
    """True if rows are faster than an unfolded image: its copies are many, and a row is long enough for a product."""
    (oh, ow), n = problem.output, problem.batch
    if problem.kernel == (1, 1):
        return False
    if direction == "weight gradient":  # a row's product (K, F) is not to be larger than what it is made of
        return ow * n >= problem.filters
    if direction == "input gradient":
        # With strides it is several convolutions, each with some ten calls of NumPy.
        return ow * n >= problem.channels / 4 and (problem.strides == (1, 1) or oh * ow * n >= 256)
    return ow * n >= problem.filters / 4


def is_unfolded(problem: Problem, direction: Direction) -> bool:
    """True if one product of all taps beats one for each tap column.

    Copying an element takes twice as long as adding a result to another: KW * C copies stand against (KW - 1) * F
    additions. A weight gradient adds nothing, but a product of fewer than 16 rows is slow.
    """
    (kh, kw), channels, filters = problem.kernel, problem.channels, problem.filters
    if direction == "weight gradient":
        return kh * channels < 16
    if direction == "input gradient":
        channels, filters = filters, channels
    return 2 * kw * channels < (kw - 1) * filters


# Functions with the names that `explain` shows.


def conv2d_by_rows(rows: Rows, x: Array, w: Array) -> Array:
    """See `conv2d`."""
    return rows.forward(x, w)


def conv2d_input_gradient_by_rows(rows: Rows, dy: Array, w: Array, *, image: Pair) -> Array:
    """See `conv2d_input_gradient`."""
    return rows.input_gradient(dy, w, image)


def conv2d_weight_gradient_by_rows(rows: Rows, dy: Array, x: Array) -> Array:
    """See `conv2d_weight_gradient`."""
    return rows.weight_gradient(dy, x)
