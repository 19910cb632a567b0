"""Winograd's minimal filtering: fewer multiplications for 3x3 kernels, by tiles of m x m results.

    y = A^T [(G w G^T) * (B^T x B)] A    for each tile x of (m + 2) x (m + 2) pixels,

where * multiplies element by element and sums over the channels: one matrix product for each of the (m + 2)^2 places
of a tile. F(2x2, 3x3) takes 16 multiplications for 4 results instead of 36, F(4x4, 3x3) 36 for 16 instead of 144
(A. Lavin, S. Gray, Fast algorithms for convolutional neural networks, arXiv:1509.09308). The map is linear in w, so
its transpose gives the weight gradient; the input gradient is a convolution with the kernel turned around. The larger
the tile, the larger the entries of the matrices and with them the rounding error.
"""

from __future__ import annotations

import numpy as np

from minicnn.ops.arrays import extend, place
from minicnn.ops.primitive import Array, Namespace
from minicnn.ops.strategies.accounts import framed
from minicnn.ops.strategies.strategy import Direction, Problem, Strategy, sizes
from minicnn.ops.windows import Axes, Pair, Window
from minicnn.ops.winograd_matrices import keeps_zeros, matrices

ERRORS = {2: 1.0, 4: 8.0}  # see `Strategy.error`: large numbers are made and cancel


class Winograd(Strategy):
    """F(m x m, 3 x 3); both steps of a transform are one product with the Kronecker square of its matrix.

    Args:
        m: Size of a tile of results.
    """

    def __init__(self, m: int) -> None:
        self.m = m
        self.name = f"winograd{m}"
        self.title = f"Winograd F({m}x{m}, 3x3)"
        self.error = ERRORS[m]
        one_axis = (np.asarray(matrix, float) for matrix in matrices(m, 3))
        self._a, self._g, self._b = (np.kron(matrix, matrix) for matrix in one_axis)

    def refusal(self, problem: Problem, xp: Namespace) -> str | None:
        if problem.kernel != (3, 3):
            return f"its tiles are for 3x3 kernels, not {problem.kernel[0]}x{problem.kernel[1]}"
        if problem.strides != (1, 1) or problem.dilation != (1, 1):
            return f"its tiles are for strides and dilation of 1, not {problem.strides} and {problem.dilation}"
        if problem.dtype not in ("float32", "float64"):
            return f"its transforms need float32 or float64, not {problem.dtype}"
        return None

    def forward(self, x: Array, w: Array, window: Window, axes: Axes, xp: Namespace) -> Array:
        y = self._convolve(x, w, window.padding, axes, xp)
        return y if keeps_zeros(self.m, 3) else _zeros_kept(y, x, window.padding, axes, xp)

    def input_gradient(self, dy: Array, w: Array, window: Window, image: Pair, axes: Axes, xp: Namespace) -> Array:
        """See `Strategy.input_gradient`: dy, framed by zeros, with the kernel turned around and transposed."""
        turned = xp.permute_dims(xp.flip(w, axis=(0, 1)), (0, 1, 3, 2))
        (top, bottom), (left, right) = window.padding
        frame = ((2 - top, 2 - bottom), (2 - left, 2 - right))
        return self._convolve(dy, turned, frame, axes, xp)

    def weight_gradient(self, dy: Array, x: Array, window: Window, axes: Axes, xp: Namespace) -> Array:
        """See `Strategy.weight_gradient`: dw = G^T [(A dy A^T) * (B^T x B)] G."""
        m, (oh, ow) = self.m, sizes(dy, axes)
        tiles = (-(-oh // m), -(-ow // m))
        f, c = dy.shape[axes.c], x.shape[axes.c]
        beyond = ((0, tiles[0] * m - oh), (0, tiles[1] * m - ow))
        gradient = _tiles(_frame(_channels_first(dy, axes, xp), beyond, xp), tiles, m, m, xp)  # (m^2, F, P)
        product = self._times(self._a.T, gradient, xp)  # ((m + 2)^2, F, P)
        del gradient
        image = self._image(_channels_first(x, axes, xp), window.padding, (oh, ow), tiles, xp)  # ((m + 2)^2, C, P)
        dw = xp.matmul(image, xp.permute_dims(product, (0, 2, 1)))  # ((m + 2)^2, C, F)
        return xp.reshape(self._times(self._g.T, dw, xp), (3, 3, c, f))

    def _convolve(self, x: Array, w: Array, frame: tuple[Pair, Pair], axes: Axes, xp: Namespace) -> Array:
        m, n, f = self.m, x.shape[axes.n], w.shape[3]
        height, width = sizes(x, axes)
        oh, ow = height + sum(frame[0]) - 2, width + sum(frame[1]) - 2
        th, tw = -(-oh // m), -(-ow // m)
        image = self._image(_channels_first(x, axes, xp), frame, (oh, ow), (th, tw), xp)  # ((m + 2)^2, C, P)
        kernel = self._times(self._g, xp.reshape(w, (9, *w.shape[2:])), xp)  # ((m + 2)^2, C, F)
        product = xp.matmul(xp.permute_dims(kernel, (0, 2, 1)), image)  # ((m + 2)^2, F, P)
        del image, kernel
        y = xp.reshape(self._times(self._a, product, xp), (m, m, f, th, tw, n))
        del product
        # (m, m, F, TH, TW, N): tile and place within it become one axis each.
        order = {"N": (5,), "H": (3, 0), "W": (4, 1), "C": (2,)}
        letters = sorted("NHWC", key=lambda a: getattr(axes, a.lower()))
        y = xp.permute_dims(y, tuple(a for letter in letters for a in order[letter]))
        y = xp.reshape(y, axes.shape(n, th * m, tw * m, f))
        if (th * m, tw * m) == (oh, ow):
            return y
        index = [slice(None)] * 4
        index[axes.h], index[axes.w] = slice(0, oh), slice(0, ow)
        return xp.asarray(y[tuple(index)], copy=True)

    def _image(self, x: Array, frame: tuple[Pair, Pair], size: Pair, tiles: Pair, xp: Namespace) -> Array:
        """B^T x B of all tiles of an image (C, H, W, N): ((m + 2)^2, C, TH * TW * N)."""
        beyond = [t * self.m - n for t, n in zip(tiles, size, strict=True)]
        (top, bottom), (left, right) = frame
        frame = ((top, bottom + beyond[0]), (left, right + beyond[1]))
        taps = _tiles(_frame(x, frame, xp), tiles, self.m + 2, self.m, xp)
        return self._times(self._b, taps, xp)

    def _times(self, matrix: np.ndarray, x: Array, xp: Namespace) -> Array:
        """A constant (i, j) times x (j, a, b) along its first axis: (i, a, b)."""
        constant = xp.asarray(matrix.tolist(), dtype=x.dtype, **place(x))
        _, a, b = x.shape
        return xp.reshape(xp.matmul(constant, xp.reshape(x, (x.shape[0], a * b))), (matrix.shape[0], a, b))

    def peak(self, problem: Problem, direction: Direction) -> int:
        """See `Strategy.peak`: the tiles beside what they are made of or made to."""
        m, result = self.m, problem.result_bytes(direction)
        (oh, ow), c, f = problem.output, problem.channels, problem.filters
        size, padding = problem.image, problem.padding
        if direction == "input gradient":
            size, c, f = problem.output, f, c
            oh, ow = problem.image
            padding = ((2 - padding[0][0], 2 - padding[0][1]), (2 - padding[1][0], 2 - padding[1][1]))
        th, tw = -(-oh // m), -(-ow // m)
        beyond = (th * m - oh, tw * m - ow)
        frame = ((padding[0][0], padding[0][1] + beyond[0]), (padding[1][0], padding[1][1] + beyond[1]))
        image, making = framed(problem, size, c, frame)
        places, tiles = (m + 2) ** 2, th * tw * problem.batch
        taps, kernel, product = (problem.nbytes(places * n) for n in (c * tiles, c * f, f * tiles))
        parts = problem.nbytes(m * m * f * tiles)  # results, or gradients, tile by tile
        if direction == "weight gradient":
            gradient, _ = framed(problem, (oh, ow), f, ((0, beyond[0]), (0, beyond[1])))
            first = max(gradient + parts, parts + product)
            return max(first, product + max(making, image + taps, 2 * taps, taps + 2 * kernel))
        return max(making, image + taps, 2 * taps, taps + kernel + product, product + parts, 2 * parts, parts + result)


def _zeros_kept(y: Array, x: Array, padding: tuple[Pair, Pair], axes: Axes, xp: Namespace) -> Array:
    """y, zero where all inputs are: what is beside them cancels but for rounding, and a relu's gradient would pass."""
    inputs = xp.any(x != 0, axis=axes.c, keepdims=True)
    for axis, (before, after) in zip((axes.h, axes.w), padding, strict=True):
        framed_inputs = extend(inputs, axis, before, after, xp)
        size = framed_inputs.shape[axis] - 2
        first, *others = (framed_inputs[(*(slice(None),) * axis, slice(k, k + size), ...)] for k in range(3))
        inputs = first | others[0] | others[1]
    return xp.where(inputs, y, xp.asarray(0, dtype=y.dtype, **place(y)))


def _channels_first(x: Array, axes: Axes, xp: Namespace) -> Array:
    """Images as a view (C, H, W, N)."""
    return xp.permute_dims(x, (axes.c, axes.h, axes.w, axes.n))


def _frame(x: Array, frame: tuple[Pair, Pair], xp: Namespace) -> Array:
    """Zeros around the axes 1 and 2 of x; where their number is negative, so many elements less."""
    for axis, (before, after) in enumerate(frame, start=1):
        cut = slice(max(-before, 0), x.shape[axis] - max(-after, 0))
        x = extend(x[(*(slice(None),) * axis, cut, ...)], axis, max(before, 0), max(after, 0), xp)
    return x


def _tiles(x: Array, tiles: Pair, size: int, step: int, xp: Namespace) -> Array:
    """Tiles of size x size pixels of x (C, H, W, N), `step` from one to the next: (size^2, C, TH * TW * N)."""
    th, tw = tiles
    taps = [
        x[:, i : i + (th - 1) * step + 1 : step, j : j + (tw - 1) * step + 1 : step, :]
        for i in range(size)
        for j in range(size)
    ]
    shape = (size * size, x.shape[0], th * tw * x.shape[3])
    joined = xp.stack(taps)
    del x, taps  # the order of the axes in memory may be such that a reshape copies
    return xp.reshape(joined, shape)
