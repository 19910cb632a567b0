"""The data set: images, labels, the names of the classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Images = npt.NDArray[np.uint8]  # (N, H, W, C)
Labels = npt.NDArray[np.int32]  # (N,)


class DataError(ValueError):
    """A file or a folder does not hold what its format promises."""


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Labelled images, split into a training and a test set.

    Attributes:
        name: Name of the data set.
        x_train: Training images, uint8, shape (N, H, W, C).
        y_train: Training labels, int32, shape (N,), each in [0, number of classes).
        x_test: Test images, uint8, shape (N, H, W, C).
        y_test: Test labels, int32, shape (N,).
        class_names: Name of each class; label k is `class_names[k]`.

    Raises:
        DataError: If the arrays break one of these rules.
    """

    name: str
    x_train: Images
    y_train: Labels
    x_test: Images
    y_test: Labels
    class_names: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.class_names:
            self._fail("class_names holds at least one name", "none")
        for split in ("train", "test"):
            x, y = getattr(self, f"x_{split}"), getattr(self, f"y_{split}")
            if not isinstance(x, np.ndarray) or x.dtype != np.uint8 or x.ndim != 4 or 0 in x.shape[1:]:
                self._fail(f"x_{split} is a uint8 array of shape (N, H, W, C), none of H, W, C zero", _describe(x))
            if not isinstance(y, np.ndarray) or y.dtype != np.int32 or y.ndim != 1:
                self._fail(f"y_{split} is an int32 array of shape (N,)", _describe(y))
            if len(x) != len(y):
                self._fail(f"every image of the {split} set has one label", f"{len(x)} images, {len(y)} labels")
            if len(y) and not 0 <= y.min() <= y.max() < self.num_classes:
                rule = f"y_{split} is from 0 to {self.num_classes - 1}, as there are {self.num_classes} classes"
                self._fail(rule, f"labels from {y.min()} to {y.max()}")
        if len(self.x_train) == 0:
            self._fail("there is at least one training image", "none")
        if self.x_train.shape[1:] != self.x_test.shape[1:]:
            self._fail(
                "training and test images have the same shape (H, W, C)",
                f"{self.x_train.shape[1:]} and {self.x_test.shape[1:]}",
            )

    def _fail(self, rule: str, received: str) -> None:
        raise DataError(f"In a Dataset {rule}. Received in {self.name!r}: {received}.")

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """Shape (H, W, C) of one image."""
        _, H, W, C = self.x_train.shape
        return H, W, C

    def __repr__(self) -> str:
        H, W, C = self.input_shape
        return (
            f"Dataset({self.name!r}: {len(self.x_train):,} training and {len(self.x_test):,} test images "
            f"of {H}x{W}x{C}, {self.num_classes} classes)"
        )


def _describe(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"a {value.dtype} array of shape {value.shape}"
    return f"a {type(value).__name__}"
