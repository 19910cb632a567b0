"""Images in another size, by a matrix product along each axis."""

from __future__ import annotations

import math

import numpy as np

from minicnn import ops
from minicnn.program.graph import Value

_MOST_ELEMENTS = 1 << 23  # of a matrix that interpolates along one axis: 2,048 pixels to 4,096


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
