"""Images read at other places than their pixels: at those that an affine map gives."""

from __future__ import annotations

import math
from collections.abc import Iterator

from minicnn.ops.arrays import arange, full, materialized, rounded, zeros
from minicnn.ops.checks import one_of, require_float, require_ndim
from minicnn.ops.manipulation import take_gradient
from minicnn.ops.primitive import Array, Namespace, primitive
from minicnn.program.graph import Node, Spec, Value

FILL_MODES = ("reflect", "wrap", "constant", "nearest")
INTERPOLATIONS = ("nearest", "bilinear")


@primitive
def affine_transform(
    x: Array, matrix: Array, *, size: tuple[int, int], interpolation: str = "bilinear", fill_mode: str = "reflect",
    fill_value: float = 0.0, xp: Namespace,
) -> Array:  # fmt: skip
    """Images read at places that an affine map gives, one for each image, as Keras's function of this name does.

    Pixel (i, j) of image n comes from column a j + b i + c and row d j + e i + f, where matrix[n] is (a, b, c, d, e,
    f). Places get no gradient.

    Args:
        x: Images (N, H, W, C).
        matrix: float32 or float64 (N, 6).
        size: Rows and columns of the results, which are (N, rows, columns, C).
        interpolation: "nearest" pixel, or "bilinear" between four, which takes floating point.
        fill_mode: What is beyond the borders: the image mirrored ("reflect": d c b a | a b c d | d c b a), again
            ("wrap"), its edge ("nearest"), or `fill_value` ("constant").
        fill_value: See there.
    """
    n, h, w, c = x.shape
    pixels, y = xp.reshape(x, (n * h * w, c)), None
    for index, weight, inside in _corners(matrix, (h, w), size, interpolation, fill_mode, xp):
        part = xp.reshape(xp.take(pixels, index, axis=0), (n, *size, c))
        if fill_mode == "constant":
            part = xp.where(inside, part, full((1,) * 4, fill_value, x, xp))
        if weight is not None:
            part = part * xp.astype(weight, x.dtype)
        y = part if y is None else y + part
    return y


def _corners(
    matrix: Array, image: tuple[int, int], size: tuple[int, int], interpolation: str, fill_mode: str, xp: Namespace
) -> Iterator[tuple[Array, Array, Array]]:
    """Pixels that a result is made of: places in (N * H * W,), their weights and whether they lie in the image."""
    (h, w), n = image, matrix.shape[0]
    # A pixel and its weight may be computed by separate kernels: the place must have the same bits in both, or its
    # floor can be that of one side of a whole number and its remainder that of the other.
    matrix = materialized(matrix, xp)
    a, b, c, d, e, f = (xp.reshape(matrix[:, k], (n, 1, 1)) for k in range(6))
    i, j = xp.reshape(arange(size[0], matrix, xp), (1, -1, 1)), xp.reshape(arange(size[1], matrix, xp), (1, 1, -1))
    rows = _folded(rounded(d * j, xp) + (rounded(e * i, xp) + f), h, fill_mode, xp)
    columns = _folded(rounded(a * j, xp) + (rounded(b * i, xp) + c), w, fill_mode, xp)
    first = xp.reshape(arange(n, matrix, xp, dtype=xp.int32), (n, 1, 1)) * (h * w)
    if interpolation == "nearest":
        corners = [(xp.floor(rows + 0.5), xp.floor(columns + 0.5), None)]
    else:
        top, left = xp.floor(rows), xp.floor(columns)
        vertical, horizontal = (1 - (rows - top), rows - top), (1 - (columns - left), columns - left)
        corners = [(top + u, left + v, vertical[u] * horizontal[v]) for u in (0, 1) for v in (0, 1)]
    for row, column, weight in corners:
        y, x = _within(row, h, fill_mode, xp), _within(column, w, fill_mode, xp)
        index = xp.astype(y, xp.int32) * w + xp.astype(x, xp.int32) + first
        inside = xp.expand_dims((y == row) & (x == column), axis=-1)
        yield xp.reshape(index, (-1,)), None if weight is None else xp.expand_dims(weight, axis=-1), inside


def _folded(at: Array, n: int, fill_mode: str, xp: Namespace) -> Array:
    """Places that stand for those beyond n pixels, no more than half a pixel outside, or a whole one to wrap."""
    if fill_mode == "wrap":
        return at - xp.floor(at * (1 / n)) * n
    if fill_mode == "reflect":
        rest = at + 0.5 - xp.floor((at + 0.5) * (0.5 / n)) * (2 * n)
        return xp.where(rest < n, rest, 2 * n - rest) - 0.5
    return at


def _within(at: Array, n: int, fill_mode: str, xp: Namespace) -> Array:
    """Pixels that stand for those at whole numbers."""
    if fill_mode == "wrap":
        at = xp.where(at < n, at, at - n)
    return xp.where(at > 0, xp.where(at < n - 1, at, full((), n - 1, at, xp)), zeros((), at, xp))


@affine_transform.shape
def _(x: Spec, matrix: Spec, *, size: tuple[int, int], interpolation: str, fill_mode: str, fill_value: float) -> Spec:
    require_ndim("affine_transform", "images", x, 4, "N, H, W, C")
    if matrix.shape != (x.shape[0], 6) or matrix.dtype not in ("float32", "float64"):
        raise ValueError(f"affine_transform takes a matrix (N, 6) of float32 or float64 for {x}. Received: {matrix}.")
    one_of("interpolation", interpolation, INTERPOLATIONS)
    one_of("fill_mode", fill_mode, FILL_MODES)
    if interpolation == "bilinear":
        require_float("affine_transform", x)
    return Spec((x.shape[0], *size, x.shape[3]), x.dtype)


@affine_transform.cost
def _(node: Node) -> int:
    return _cost(node, node.outputs[0])


@affine_transform.gradient
def _(node: Node, dy: Value) -> list[Value | None]:
    x, matrix = node.inputs
    how = {key: node.attrs[key] for key in ("interpolation", "fill_mode")}
    return [affine_transform_gradient(dy, matrix, image=x.shape[1:3], **how), None]


@primitive
def affine_transform_gradient(
    dy: Array, matrix: Array, *, image: tuple[int, int], interpolation: str, fill_mode: str, xp: Namespace
) -> Array:
    """Gradient of `affine_transform` for images (N, H, W, C) of a size (H, W): each pixel sums what was made of it."""
    (n, *size, c), dx = dy.shape, None
    rows = n * math.prod(image)
    for index, weight, inside in _corners(matrix, image, (size[0], size[1]), interpolation, fill_mode, xp):
        part = dy if weight is None else dy * xp.astype(weight, dy.dtype)
        if fill_mode == "constant":
            part = xp.where(inside, part, zeros((1,) * 4, dy, xp))
        part = take_gradient.reference(xp.reshape(part, (-1, c)), index, rows=rows, xp=xp)
        dx = part if dx is None else dx + part
    return xp.reshape(dx, (n, *image, c))


@affine_transform_gradient.shape
def _(dy: Spec, matrix: Spec, *, image: tuple[int, int], interpolation: str, fill_mode: str) -> Spec:
    return Spec((dy.shape[0], *image, dy.shape[3]), dy.dtype)


@affine_transform_gradient.cost
def _(node: Node) -> int:
    return _cost(node, node.inputs[0])


@affine_transform_gradient.gradient
def _(node: Node, dx: Value) -> list[Value | None]:
    dy, matrix = node.inputs
    how = {key: node.attrs[key] for key in ("interpolation", "fill_mode")}
    return [affine_transform(dx, matrix, size=dy.shape[1:3], fill_value=0.0, **how), None]


def _cost(node: Node, y: Value) -> int:
    """Places and weights of each pixel of y, products and sums of each element."""
    pixels = y.size // max(y.shape[3], 1)
    return 8 * pixels if node.attrs["interpolation"] == "nearest" else 16 * pixels + 7 * y.size
