"""The images of the study `roofline`: Tiny-ImageNet from a folder, or made ones that a network can learn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from minicnn.data import DataError, epoch_order, load
from minicnn.jobs.job import Samples
from minicnn.jobs.settings import Settings
from minicnn.studies.roofline import counting

ARRAYS = ("x", "y", "x_test", "y_test")
PER_CLASS = 64  # made images of a class, at least


def synthetic(
    count: int, image: Sequence[int], seed: int, classes: int = counting.CLASSES
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Images in the format of Tiny-ImageNet that a network can learn: a coarse pattern a class, and noise.

    Args:
        count: Images.
        image: (H, W, C).
        seed: Seed of labels and noise; the patterns are always the same.
        classes: Classes that there are images of.

    Returns:
        Images uint8 (count, H, W, C), and labels int32 (count,).
    """
    h, w, c = image
    patterns = np.random.default_rng(0).integers(0, 160, (counting.CLASSES, 8, 8, c), np.uint8)
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, count).astype(np.int32)
    rows, columns = np.arange(h) * 8 // h, np.arange(w) * 8 // w
    images = rng.integers(0, 96, (count, h, w, c), np.uint8)
    images += patterns[labels][:, rows[:, None], columns]
    return images, labels


def classes_of(samples: int) -> int:
    """As many classes as leave each some images to learn it from."""
    return max(2, min(counting.CLASSES, samples // PER_CLASS))


def prepare(
    folder: Path, data: str, data_dir: str | None, samples: int, tests: int, image: Sequence[int]
) -> tuple[str, int]:
    """Write samples where workers read them; returns what they are, and of how many classes."""
    note, classes = "", counting.CLASSES
    if data != "synthetic":
        try:
            dataset = load(data, data_dir, download=False)
            order = epoch_order(len(dataset.x_train), shuffle=True, seed=0, epoch=0)[:samples]
            x, y, x_test, y_test = (
                dataset.x_train[order],
                dataset.y_train[order],
                dataset.x_test[:tests],
                dataset.y_test[:tests],
            )
        except DataError:
            if data_dir is not None:
                raise
            data = "synthetic"
    if data == "synthetic":
        classes = classes_of(samples)
        (x, y), (x_test, y_test) = synthetic(samples, image, 1, classes), synthetic(tests, image, 2, classes)
        note = (
            f"synthetic images of {image[0]}x{image[1]} in {classes} classes, because Tiny-ImageNet is not there (name "
            "its folder by `--data-dir`)"
        )
    arrays: tuple[np.ndarray[Any, Any], ...] = (x, y, x_test, y_test)
    for name, array in zip(ARRAYS, arrays, strict=True):
        np.save(folder / f"{name}.npy", array)
    return note or data, classes


def samples(folder: str, _: Settings) -> Samples:
    """Samples that `prepare` has written."""
    x, y, x_test, y_test = (np.load(Path(folder) / f"{name}.npy") for name in ARRAYS)
    test = {f"{axis}_{part}": a for part in ("val", "test") for axis, a in (("x", x_test), ("y", y_test))}
    return Samples({"x_train": x, "y_train": y, **test}, counting.CLASSES)
