"""Random changes to batches of images, for the `transform` of a Loader.

Each function here returns a transform: it takes a batch of images of shape (N, H, W, C) and a NumPy
Generator, and returns a new batch of the same dtype, every image changed on its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Batch = npt.NDArray[Any]  # (N, H, W, C)
Transform = Callable[[Batch, np.random.Generator], Batch]


def compose(*transforms: Transform) -> Transform:
    """One transform after another.

    Example:
        >>> transform = compose(random_flip(), random_crop((24, 24)))
        >>> transform(np.zeros((8, 28, 28, 1), np.uint8), np.random.default_rng(0)).shape
        (8, 24, 24, 1)
    """

    def transform(x: Batch, rng: np.random.Generator) -> Batch:
        for step in transforms:
            x = step(x, rng)
        return x

    return transform


def random_flip(probability: float = 0.5) -> Transform:
    """Mirror images left to right.

    Args:
        probability: Probability for each image, from 0 to 1.

    Raises:
        ValueError: If the probability is out of its range.
    """
    if not 0 <= probability <= 1:
        raise ValueError(f"random_flip takes a probability from 0 to 1. Received: {probability}.")

    def transform(x: Batch, rng: np.random.Generator) -> Batch:
        _check(x)
        flipped = rng.random(len(x)) < probability
        return np.where(flipped[:, None, None, None], np.flip(x, 2), x)

    return transform


def random_crop(size: tuple[int, int], padding: int = 0) -> Transform:
    """Cut a window out of each image, at a random place.

    Args:
        size: Height and width of the window.
        padding: Zeros put around the image first, on every side.

    Raises:
        ValueError: If an argument is out of its range; by the transform, if the window is larger than the
            padded image.
    """
    if min(size) < 1 or padding < 0:
        raise ValueError(
            f"random_crop takes a size from 1 and a padding from 0. Received: size={size}, padding={padding}."
        )
    KH, KW = size

    def transform(x: Batch, rng: np.random.Generator) -> Batch:
        _check(x)
        x = np.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
        N, H, W, _ = x.shape
        if KH > H or KW > W:
            raise ValueError(
                f"random_crop needs images at least as large as its window {size}. Received: {H}x{W} with "
                "the padding. Use a smaller size or more padding."
            )
        rows = rng.integers(0, H - KH + 1, N)[:, None] + np.arange(KH)  # (N, KH)
        columns = rng.integers(0, W - KW + 1, N)[:, None] + np.arange(KW)  # (N, KW)
        windows: Batch = x[np.arange(N)[:, None, None], rows[:, :, None], columns[:, None, :]]
        return windows

    return transform


def random_shift(pixels: int) -> Transform:
    """Shift images by up to `pixels` pixels each way, filling with zeros.

    Raises:
        ValueError: If `pixels` is negative.
    """
    if pixels < 0:
        raise ValueError(f"random_shift takes a number of pixels from 0. Received: {pixels}.")

    def transform(x: Batch, rng: np.random.Generator) -> Batch:
        _check(x)
        return random_crop((x.shape[1], x.shape[2]), padding=pixels)(x, rng)

    return transform


def _check(x: Batch) -> None:
    if x.ndim != 4:
        raise ValueError(f"Augmentation takes images of shape (N, H, W, C). Received: shape {x.shape}.")
