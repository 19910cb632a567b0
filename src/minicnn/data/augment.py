"""Random changes to batches of images, for the `transform` of a Loader.

Each function here returns a transform: it takes a batch of images of shape (N, H, W, C) and a NumPy
Generator, and returns a new batch of the same dtype, every image changed on its own. So it can also make some rows of
a batch from these alone, by its method `part`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from minicnn.arguments import plain_arguments

Batch = npt.NDArray[Any]  # (N, H, W, C)
Transform = Callable[[Batch, np.random.Generator], Batch]


class PartTransform(Protocol):
    """A transform that can make a part of a batch; one of your own may have this method, too."""

    def part(self, x: Batch, rng: np.random.Generator, rows: slice, samples: int) -> Batch:
        """Some rows of what the transform makes of a batch, with the same bits.

        Args:
            x: These rows of the batch alone.
            rng: The generator of the whole batch, of which as much is drawn as for all of it.
            rows: Where they are in the batch.
            samples: Samples of the batch.
        """
        ...


def _of_parts(part: Callable[[Batch, np.random.Generator, slice, int], Batch]) -> Transform:
    """The transform whose method `part` is the function."""

    def transform(x: Batch, rng: np.random.Generator) -> Batch:
        return part(x, rng, slice(None), len(x))

    transform.part = part  # type: ignore[attr-defined]
    return transform


def _each_image(draw: Callable[..., Sequence[npt.NDArray[Any]]], change: Callable[..., Batch]) -> Transform:
    """A transform that draws numbers for each image, and then changes it by them.

    Args:
        draw: From a generator, the number of images and the shape of one, arrays with a row for each.
        change: From images and their rows of these arrays, new images.
    """

    def part(x: Batch, rng: np.random.Generator, rows: slice, samples: int) -> Batch:
        _check(x)
        # Numbers are drawn for the whole batch, whatever part of it is made: bits do not depend on the number of ranks.
        return change(x, *(numbers[rows] for numbers in draw(rng, samples, x.shape[1:])))

    return _of_parts(part)


def compose(*transforms: Transform) -> Transform:
    """One transform after another; it can make a part of a batch if all of them can.

    Example:
        >>> transform = compose(random_flip(), random_crop((24, 24)))
        >>> transform(np.zeros((8, 28, 28, 1), np.uint8), np.random.default_rng(0)).shape
        (8, 24, 24, 1)
    """

    def transform(x: Batch, rng: np.random.Generator) -> Batch:
        for step in transforms:
            x = step(x, rng)
        return x

    def part(x: Batch, rng: np.random.Generator, rows: slice, samples: int) -> Batch:
        for step in transforms:
            x = cast("PartTransform", step).part(x, rng, rows, samples)
        return x

    # One step that cannot make parts makes the whole chain one that cannot.
    return _of_parts(part) if all(hasattr(step, "part") for step in transforms) else transform


@plain_arguments
def random_flip(probability: float = 0.5) -> Transform:
    """Mirror images left to right.

    Args:
        probability: Probability for each image, from 0 to 1.

    Raises:
        ValueError: If the probability is out of its range.
    """
    if not 0 <= probability <= 1:
        raise ValueError(f"random_flip takes a probability from 0 to 1. Received: {probability}.")

    def draw(rng: np.random.Generator, samples: int, image: tuple[int, ...]) -> list[npt.NDArray[Any]]:
        return [rng.random(samples) < probability]

    def change(x: Batch, flipped: npt.NDArray[Any]) -> Batch:
        return np.where(flipped[:, None, None, None], np.flip(x, 2), x)

    return _each_image(draw, change)


@plain_arguments
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
    return _crop(size, padding)


def _crop(size: tuple[int, int] | None, padding: int) -> Transform:
    """A window of a size, or one as large as the image."""

    def draw(rng: np.random.Generator, samples: int, image: tuple[int, ...]) -> list[npt.NDArray[Any]]:
        H, W = image[0] + 2 * padding, image[1] + 2 * padding
        KH, KW = size or image[:2]
        if KH > H or KW > W:
            raise ValueError(
                f"random_crop needs images at least as large as its window {size}. Received: {H}x{W} with "
                "the padding. Use a smaller size or more padding."
            )
        return [rng.integers(0, H - KH + 1, samples), rng.integers(0, W - KW + 1, samples)]

    def change(x: Batch, top: npt.NDArray[Any], left: npt.NDArray[Any]) -> Batch:
        KH, KW = size or x.shape[1:3]
        x = np.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
        rows, columns = top[:, None] + np.arange(KH), left[:, None] + np.arange(KW)  # (N, KH), (N, KW)
        windows: Batch = x[np.arange(len(x))[:, None, None], rows[:, :, None], columns[:, None, :]]
        return windows

    return _each_image(draw, change)


@plain_arguments
def random_shift(pixels: int) -> Transform:
    """Shift images by up to `pixels` pixels each way, filling with zeros.

    Raises:
        ValueError: If `pixels` is negative.
    """
    if pixels < 0:
        raise ValueError(f"random_shift takes a number of pixels from 0. Received: {pixels}.")

    return _crop(None, pixels)


def _check(x: Batch) -> None:
    if x.ndim != 4:
        raise ValueError(f"Augmentation takes images of shape (N, H, W, C). Received: shape {x.shape}.")
