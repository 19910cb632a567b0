"""Images read at other places than their pixels: along an axis by a matrix product, anywhere by gathering pixels."""

from __future__ import annotations

import math

import numpy as np

from minicnn import ops
from minicnn.program.graph import Value

_MOST_ELEMENTS = 1 << 23  # of a matrix that interpolates along one axis: 2,048 pixels to 4,096

FILL_MODES = ("reflect", "wrap", "constant", "nearest")
INTERPOLATIONS = ("nearest", "bilinear")


def resize_last(x: Value, size: int, interpolation: str = "bilinear") -> Value:
    """The last axis in another length, (..., n) -> (..., size), by one matrix product; pixels are squares."""
    n = x.shape[-1]
    if n * size > _MOST_ELEMENTS:
        message = (
            f"Resizing multiplies by a matrix of at most {_MOST_ELEMENTS:,} elements. Received: {n} x {size}. Resize "
            "in steps, or upsample with interpolation='nearest'."
        )
        raise ValueError(message)
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
    y: Value = ops.reshape(ops.matmul(rows, matrix.astype(x.dtype)), shape=(*x.shape[:-1], size))
    return y


def resize(x: Value, height: int, width: int, interpolation: str = "bilinear") -> Value:
    """Images (N, C, H, W) in another size."""
    x = resize_last(x, width, interpolation)  # (N, C, H, OW)
    x = resize_last(ops.permute(x, axes=(0, 1, 3, 2)), height, interpolation)  # (N, C, OW, OH)
    y: Value = ops.permute(x, axes=(0, 1, 3, 2))
    return y


def pixels(x: Value, rows: Value, columns: Value) -> Value:
    """Pixels of images (N, H, W, C) at whole numbers within them, which broadcast to (N, OH, OW)."""
    n, h, w, c = x.shape
    first = np.arange(n, dtype="int32").reshape(n, 1, 1) * (h * w)
    index = (ops.cast(rows, dtype="int32") * w + first) + ops.cast(columns, dtype="int32")
    found = ops.take(ops.reshape(x, shape=(n * h * w, c)), ops.reshape(index, shape=(index.size,)))
    y: Value = ops.reshape(found, shape=(*index.shape, c))
    return y


def sample(x: Value, rows: Value, columns: Value, interpolation: str, fill_mode: str, fill_value: float) -> Value:
    """Images (N, H, W, C) at any places, which broadcast to (N, OH, OW).

    Args:
        x: Images.
        rows: Floating-point row numbers.
        columns: Floating-point column numbers.
        interpolation: "nearest" pixel, or "bilinear" between four.
        fill_mode: What is beyond the borders: the image mirrored ("reflect": d c b a | a b c d | d c b a), again
            ("wrap"), its edge ("nearest"), or `fill_value` ("constant").
        fill_value: See there.
    """
    if interpolation == "nearest":
        return _beyond(x, floor(rows + 0.5), floor(columns + 0.5), fill_mode, fill_value)
    top, left = floor(rows), floor(columns)
    down, right = rows - top, columns - left
    parts = []
    for below, vertical in ((0.0, 1.0 - down), (1.0, down)):
        for beside, horizontal in ((0.0, 1.0 - right), (1.0, right)):
            weight = vertical * horizontal
            corner = _beyond(x, top + below, left + beside, fill_mode, fill_value)
            parts.append(corner * ops.reshape(weight, shape=(*weight.shape, 1)))
    return (parts[0] + parts[1]) + (parts[2] + parts[3])


def floor(x: Value) -> Value:
    """The largest whole number that is at most x, as floating point."""
    whole = ops.cast(ops.cast(x, dtype="int32"), dtype=x.dtype)  # towards 0
    return whole - ops.cast(ops.less(x, whole), dtype=x.dtype)


def _beyond(x: Value, rows: Value, columns: Value, fill_mode: str, fill_value: float) -> Value:
    inside_rows, rows = _inside(rows, x.shape[1], fill_mode)
    inside_columns, columns = _inside(columns, x.shape[2], fill_mode)
    found = pixels(x, rows, columns)
    if fill_mode != "constant":
        return found
    inside = ops.greater(inside_rows * inside_columns, 0.5)
    y: Value = ops.where(ops.reshape(inside, shape=(*inside.shape, 1)), found, fill_value)
    return y


def _inside(at: Value, n: int, fill_mode: str) -> tuple[Value, Value]:
    """Whether whole numbers are from 0 to n - 1, as 1 or 0; and those that stand for them there."""
    clipped = ops.maximum(ops.minimum(at, float(n - 1)), 0.0)
    if fill_mode == "wrap":
        return at, at - floor(at * (1.0 / n)) * float(n)
    if fill_mode == "reflect":
        around = at - floor(at * (0.5 / n)) * float(2 * n)
        return at, ops.minimum(around, float(2 * n - 1) - around)
    return ops.cast(ops.equal(at, clipped), dtype=at.dtype), clipped
