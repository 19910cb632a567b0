"""Functions of images (N, H, W, C)."""

from __future__ import annotations

from typing import Any

import numpy as np

from minicnn import ops as p
from minicnn.keras.dispatch import function
from minicnn.keras.ops.conversion import as_float
from minicnn.keras.ops.networks import conv
from minicnn.layers.arguments import pair
from minicnn.layers.reshaping import resize as _resize


@function
def resize(images: Any, size: Any, interpolation: str = "bilinear") -> Any:
    """Images, or one without the first axis, in another size."""
    x = as_float(images) if images.ndim == 4 else p.reshape(as_float(images), shape=(1, *images.shape))
    y = p.permute(_resize(p.permute(x, axes=(0, 3, 1, 2)), *pair("size", size), interpolation), axes=(0, 2, 3, 1))
    return y if images.ndim == 4 else p.reshape(y, shape=y.shape[1:])


@function
def extract_patches(images: Any, size: Any, strides: Any = None, dilation_rate: Any = 1, padding: str = "valid") -> Any:
    """Windows, each with its pixels along the last axis: (N, OH, OW, KH KW C)."""
    h, w = pair("size", size)
    pixels = h * w * images.shape[-1]
    kernel = np.eye(pixels, dtype=images.dtype).reshape(h, w, images.shape[-1], pixels)
    return conv(images, kernel, (h, w) if strides is None else strides, padding, dilation_rate)
