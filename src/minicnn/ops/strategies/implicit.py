"""Implicit matrix product: the columns of `unrolled`, gathered a tile at a time into memory that stays in a cache.

(S. Chetlur et al., cuDNN: efficient primitives for deep learning, arXiv:1410.0759, section 3.)
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from minicnn.ops.arrays import add_at, zeros
from minicnn.ops.convolution import contract, outer, split
from minicnn.ops.primitive import Array, Namespace
from minicnn.ops.strategies.accounts import outer_scratch, padded
from minicnn.ops.strategies.strategy import Direction, Problem, Strategy, sizes
from minicnn.ops.windows import Axes, Pair, Window, pad_image

TILE_ELEMENTS = 2**18  # of the columns of a tile: 1 MiB in float32
# Of tiles times taps: more would be more calls, more to compile where loops are unrolled, and too little at a time for
# a GPU. Of large kernels, still so many tiles that their columns take a quarter of those of `unrolled`.
MOST_PIECES, LEAST_TILES = 128, 4

Box = tuple[slice, slice]  # images and output rows


class Implicit(Strategy):
    """Blocks of output rows of some images, each as a matrix product of its own."""

    name = "implicit"
    title = "implicit product (columns by tiles)"

    def forward(self, x: Array, w: Array, window: Window, axes: Axes, xp: Namespace) -> Array:
        kh, kw, c, f = w.shape
        size = window.output_size("conv2d", *sizes(x, axes))
        kernel = xp.reshape(w, (kh * kw * c, f))
        image = pad_image(x, window.padding, axes, xp)
        y = zeros(axes.shape(x.shape[axes.n], *size, f), x, xp)
        for box in _tiles(x.shape[axes.n], size, window.kernel, c, axes):
            # Nested, so that no tile outlives its turn.
            y = add_at(
                y, _index(axes, *box), contract(_columns(image, window, axes, size, box, xp), kernel, axes, xp), xp
            )
        return y

    def input_gradient(self, dy: Array, w: Array, window: Window, image: Pair, axes: Axes, xp: Namespace) -> Array:
        kh, kw, c, f = w.shape
        n, size = dy.shape[axes.n], sizes(dy, axes)
        transposed = xp.permute_dims(xp.reshape(w, (kh * kw * c, f)), (1, 0))
        (top, bottom), (left, right) = window.padding
        whole = (image[0] + top + bottom, image[1] + left + right)
        dx = zeros(axes.shape(n, *whole, c), dy, xp)
        for box in _tiles(n, size, window.kernel, c, axes):
            dx = _scatter(dx, contract(dy[_index(axes, *box)], transposed, axes, xp), window, axes, size, box, xp)
        if whole == image:
            return dx
        inside = [slice(None)] * 4
        inside[axes.h], inside[axes.w] = slice(top, top + image[0]), slice(left, left + image[1])
        return xp.asarray(dx[tuple(inside)], copy=True)

    def weight_gradient(self, dy: Array, x: Array, window: Window, axes: Axes, xp: Namespace) -> Array:
        size, c, f = sizes(dy, axes), x.shape[axes.c], dy.shape[axes.c]
        k = window.kernel[0] * window.kernel[1] * c
        image = pad_image(x, window.padding, axes, xp)
        dw = zeros((k, f), dy, xp)
        for box in _tiles(x.shape[axes.n], size, window.kernel, c, axes):
            part = dy[_index(axes, *box)]
            everywhere = (slice(None), slice(None))
            dw = add_at(dw, everywhere, outer(_columns(image, window, axes, size, box, xp), part, axes, xp), xp)
        return xp.reshape(dw, (*window.kernel, c, f))

    def peak(self, problem: Problem, direction: Direction) -> int:
        """See `Strategy.peak`: the padded image, the columns of the largest tile, and its product."""
        k, result = math.prod(problem.w_shape[:3]), problem.result_bytes(direction)
        image, making = padded(problem)
        # The first tile is the largest.
        images, rows = next(_tiles(problem.batch, problem.output, problem.kernel, problem.channels, problem.axes))
        batch, positions = images.stop, rows.stop * problem.output[1]
        whole = problem.kernel == (1, 1) and problem.strides == (1, 1)  # then the image is its own columns
        columns = 0 if whole and direction != "input gradient" else problem.nbytes(batch * positions * k)
        if direction == "forward":
            return max(making, image + result + columns + problem.nbytes(batch * positions * problem.filters))
        if direction == "input gradient":  # into a padded image, of which the inside is then copied
            return max(image + columns, image + result) if image else result + columns
        products = outer_scratch(problem, k, batch, positions)
        return max(making, image + columns + products + 2 * result)


def _tiles(n: int, size: Pair, kernel: Pair, channels: int, axes: Axes) -> Iterator[Box]:
    """Boxes of images and output rows whose columns fit into a tile, in order."""
    taps = kernel[0] * kernel[1]
    most = max(MOST_PIECES // taps, LEAST_TILES)
    # Rows of one image in a tile.
    units = max(TILE_ELEMENTS // (size[1] * taps * channels), -(-n * size[0] // most), 1)
    if axes.n == 3:  # with the batch last, long stretches are rows of all images
        images = min(n, units)
        rows = min(size[0], max(units // images, 1))
    else:
        rows = min(size[0], units)
        images = min(n, max(units // rows, 1))
    for first in range(0, n, images):
        for top in range(0, size[0], rows):
            yield slice(first, min(first + images, n)), slice(top, min(top + rows, size[0]))


def _index(axes: Axes, images: slice, rows: slice) -> tuple[slice, ...]:
    index = [slice(None)] * 4
    index[axes.n], index[axes.h] = images, rows
    return tuple(index)


def _tap(window: Window, axes: Axes, size: Pair, images: slice, rows: slice, at: Pair) -> tuple[slice, ...]:
    """Slices of the padded images under tap `at` of some output rows."""
    (sh, sw), (dh, dw) = window.strides, window.dilation
    top, left = at[0] * dh, at[1] * dw
    index = [slice(None)] * 4
    index[axes.n] = images
    index[axes.h] = slice(top + rows.start * sh, top + (rows.stop - 1) * sh + 1, sh)
    index[axes.w] = slice(left, left + (size[1] - 1) * sw + 1, sw)
    return tuple(index)


def _columns(image: Array, window: Window, axes: Axes, size: Pair, box: Box, xp: Namespace) -> Array:
    """The taps of a box of output positions of a padded image side by side, in the order (KH, KW, C)."""
    kh, kw = window.kernel
    taps = [image[_tap(window, axes, size, *box, divmod(tap, kw))] for tap in range(kh * kw)]
    return taps[0] if len(taps) == 1 else xp.concat(taps, axis=axes.c)


def _scatter(dx: Array, columns: Array, window: Window, axes: Axes, size: Pair, box: Box, xp: Namespace) -> Array:
    """Transpose of `_columns`: dx with the columns added where they were read from."""
    kh, kw = window.kernel
    for tap, part in enumerate(split(columns, kh * kw, axes.c)):
        dx = add_at(dx, _tap(window, axes, size, *box, divmod(tap, kw)), part, xp)
    return dx
