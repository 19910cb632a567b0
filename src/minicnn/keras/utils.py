"""Helpers of `keras.utils`: images and files of them, labels, seeds, drawings."""

from __future__ import annotations

import copy
import random
from collections import abc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from minicnn.data.images import SUFFIXES, _classes
from minicnn.extras import needing
from minicnn.keras.backend import clear_session as clear_session
from minicnn.keras.saving import register_keras_serializable as register_keras_serializable
from minicnn.utils import PyDataset as PyDataset
from minicnn.utils import plot_model as plot_model
from minicnn.utils import to_categorical as to_categorical

Sequence = PyDataset  # as Keras 2 called it
Array = np.ndarray[Any, Any]
MODES = {"grayscale": "L", "rgb": "RGB", "rgba": "RGBA"}


def set_random_seed(seed: int) -> None:
    """Seed Python's and NumPy's generators; models, loaders and data sets have seeds of their own, 0 by default."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002  which scripts use


def normalize(x: Any, axis: int = -1, order: int = 2) -> Array:
    """Arrays divided by their norm along an axis, where it is not 0."""
    length = np.linalg.norm(np.asarray(x), order, axis, keepdims=True)
    return np.asarray(x) / np.where(length == 0, 1, length)


def load_img(
    path: Any, color_mode: str = "rgb", target_size: Any = None, interpolation: str = "nearest",
    keep_aspect_ratio: bool = False,
) -> Any:  # fmt: skip
    """A file of an image as Pillow has it.

    Args:
        path: File, or what can be read.
        color_mode: "rgb", "grayscale" or "rgba".
        target_size: Height and width, if it is to have another size.
        interpolation: "nearest", "bilinear", "bicubic", "lanczos" or "box".
        keep_aspect_ratio: Whether the middle is cut out that has the proportions of target_size.

    Raises:
        ValueError: If an argument is unknown.
        ImportError: If Pillow is missing.
    """
    with needing("Pictures are read and written with", "Pillow"):
        from PIL import Image, ImageOps
    if color_mode not in MODES:
        raise ValueError(f"color_mode is one of {', '.join(MODES)}. Received: {color_mode!r}.")
    with Image.open(path) as file:
        picture = file.convert(MODES[color_mode])
    if target_size is None:
        return picture
    how = getattr(Image.Resampling, interpolation.upper(), None)
    if how is None:
        raise ValueError(f"interpolation is nearest, bilinear, bicubic, lanczos or box. Received: {interpolation!r}.")
    size = (target_size[1], target_size[0])
    return ImageOps.fit(picture, size, how) if keep_aspect_ratio else picture.resize(size, how)


def img_to_array(img: Any, data_format: str | None = None, dtype: str | None = None) -> Array:
    """A picture of Pillow as an array (H, W, C), of float32 if dtype is None; (C, H, W) for "channels_first"."""
    x = np.asarray(img, dtype or "float32")
    x = x[..., None] if x.ndim == 2 else x
    return np.moveaxis(x, -1, 0) if data_format == "channels_first" else x


def array_to_img(x: Any, data_format: str | None = None, scale: bool = True, dtype: str | None = None) -> Any:
    """A picture of Pillow of an array (H, W, C), whose least number becomes black and whose largest white if scale."""
    with needing("Pictures are read and written with", "Pillow"):
        from PIL import Image
    a = np.asarray(x, "float32")
    a = np.moveaxis(a, 0, -1) if data_format == "channels_first" else a
    if scale:
        a = a - a.min()
        a = a / (a.max() or 1) * 255
    a = a.astype("uint8")
    return Image.fromarray(a[..., 0] if a.shape[-1] == 1 else a)


def save_img(
    path: Any, x: Any, data_format: str | None = None, file_format: str | None = None, scale: bool = True
) -> None:
    """Write an array as a file of an image: see `array_to_img`."""
    array_to_img(x, data_format, scale).save(path, format=file_format)


class ImageFiles(PyDataset):
    """Batches of files of images, read when they are asked for; what is mapped is applied to each.

    Attributes:
        class_names: Name of each class.
        file_paths: The files, in their order.
    """

    def __init__(
        self, paths: abc.Sequence[Path], labels: Array | None, class_names: abc.Sequence[str], batch_size: int,
        read: Callable[[Path], Array], shuffle: np.random.Generator | None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.file_paths, self.class_names = [str(path) for path in paths], list(class_names)
        self._paths, self._labels, self._size, self._read = paths, labels, batch_size, read
        self._shuffle, self._order = shuffle, np.arange(len(paths))
        self._maps: list[Callable[..., Any]] = []

    def __len__(self) -> int:
        """Number of batches."""
        return -(-len(self._order) // self._size)

    def __getitem__(self, index: int) -> Any:
        """A batch (x, y), or x without labels."""
        if not 0 <= index < len(self):
            raise IndexError(f"Batches are counted from 0 to {len(self) - 1}. Received: {index}.")
        rows = self._order[index * self._size : (index + 1) * self._size]
        x = np.stack([self._read(self._paths[row]) for row in rows])
        batch: Any = x if self._labels is None else (x, self._labels[rows])
        for function in self._maps:
            batch = function(*batch) if isinstance(batch, tuple) else function(batch)
        return batch

    def on_epoch_end(self) -> None:
        """Put the samples in another order."""
        if self._shuffle is not None:
            self._shuffle.shuffle(self._order)

    def map(self, function: Callable[..., Any], num_parallel_calls: Any = None) -> ImageFiles:
        """The same batches with a function of (x, y) applied to each."""
        mapped = copy.copy(self)
        mapped._maps = [*self._maps, function]
        return mapped

    def take(self, count: int) -> ImageFiles:
        """The first batches, so many, always in one order."""
        taken = copy.copy(self)
        taken._order, taken._shuffle = self._order[: count * self._size], None
        return taken

    def prefetch(self, buffer_size: Any = None) -> ImageFiles:
        """The same: batches are read ahead by a `Loader`."""
        return self

    cache = shuffle = prefetch


def image_dataset_from_directory(
    directory: Any, labels: Any = "inferred", label_mode: str | None = "int", class_names: Any = None,
    color_mode: str = "rgb", batch_size: int = 32, image_size: Any = (256, 256), shuffle: bool = True,
    seed: int | None = None, validation_split: float | None = None, subset: str | None = None,
    interpolation: str = "bilinear", follow_links: bool = False, crop_to_aspect_ratio: bool = False,
    verbose: bool = True,
) -> Any:  # fmt: skip
    """Batches of the images in a folder that has one folder a class.

    Args:
        directory: The folder.
        labels: "inferred" from the folders, a list of them by the files' order, or None.
        label_mode: "int" for class numbers, "categorical" for one-hot rows, "binary", or None for none.
        class_names: Names of the folders in the order of their numbers; by alphabet if None.
        color_mode: See `load_img`.
        batch_size: Images in a batch.
        image_size: Height and width of all.
        shuffle: Whether their order is drawn.
        seed: Seed of the order.
        validation_split: Share of the images, the last of the order, that is kept for validation.
        subset: "training", "validation", or "both" for the two.
        interpolation: See `load_img`.
        follow_links: Taken, and without effect.
        crop_to_aspect_ratio: See `load_img`.
        verbose: Whether the number of images is printed.

    Returns:
        Batches of (images, float32 from 0 to 255; labels), or a pair of these.

    Raises:
        ValueError: If the folder holds no images, or a subset is asked for without a share.
    """
    classes = _classes(Path(directory))
    names = list(class_names or classes)
    files = [(path, names.index(name)) for name in names for path in classes.get(name, [])]
    if labels != "inferred":
        paths = sorted(path for path in Path(directory).rglob("*") if path.suffix.lower() in SUFFIXES)
        files = [(path, 0) for path in paths]
    if not files:
        raise ValueError(f"A folder of images has one folder for each class. Received: {directory}, without images.")
    if (subset is None) != (not validation_split) or subset not in (None, "training", "validation", "both"):
        raise ValueError(
            "subset is 'training', 'validation' or 'both', and goes with validation_split. Received: "
            f"subset={subset!r}, validation_split={validation_split!r}."
        )
    numbers = np.asarray([k for _, k in files] if labels in ("inferred", None) else labels)
    order = np.random.default_rng(seed).permutation(len(files)) if shuffle else np.arange(len(files))
    held = int(len(files) * (validation_split or 0))
    parts = {"training": order[: len(files) - held], "validation": order[len(files) - held :]}

    def read(path: Path) -> Array:
        return img_to_array(load_img(path, color_mode, image_size, interpolation, crop_to_aspect_ratio))

    def batches(rows: Array) -> ImageFiles:
        y = {"int": numbers.astype("int32"), "binary": numbers[:, None].astype("float32"), None: None}.get(
            label_mode, to_categorical(numbers, len(names)) if label_mode == "categorical" else None
        )
        y = None if y is None or labels is None else y[rows]
        drawn = np.random.default_rng(seed) if shuffle else None
        return ImageFiles([files[row][0] for row in rows], y, names, batch_size, read, drawn)

    if verbose:
        print(f"Found {len(files)} images of {len(names)} classes.")
    if subset == "both":
        return batches(parts["training"]), batches(parts["validation"])
    return batches(order if subset is None else parts[subset])
