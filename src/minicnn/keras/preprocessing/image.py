"""Images from files, and changed at random on the host: `ImageDataGenerator`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from minicnn import ops
from minicnn.data.images import _classes
from minicnn.keras.utils import array_to_img as array_to_img
from minicnn.keras.utils import img_to_array as img_to_array
from minicnn.keras.utils import load_img as load_img
from minicnn.keras.utils import save_img as save_img
from minicnn.keras.utils import to_categorical
from minicnn.utils import PyDataset

Array = np.ndarray[Any, Any]


class Flow(PyDataset):
    """Batches of a generator, each changed anew whenever it is asked for.

    Attributes:
        n: Number of samples; `samples` is the same.
        batch_size: Samples in a batch.
        class_indices: Number of each class by its name, where samples come from folders.
        classes: Class number of each sample, likewise.
        filenames: File of each, likewise.
    """

    class_indices: dict[str, int]
    classes: Array
    filenames: list[str]

    def __init__(
        self, generator: ImageDataGenerator, count: int, read: Callable[[int], Array], y: Any, batch_size: int,
        shuffle: bool, seed: int | None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.generator, self.n, self.samples, self.batch_size = generator, count, count, batch_size
        self._read, self._y, self._shuffle = read, y, shuffle
        self._rng, self._order, self._next = np.random.default_rng(seed), np.arange(count), 0
        self.on_epoch_end()

    def __len__(self) -> int:
        """Number of batches."""
        return -(-self.n // self.batch_size)

    def __getitem__(self, index: int) -> Any:
        """A batch (x, y), (x, y, sample_weight), or x alone."""
        rows = self._order[index * self.batch_size : (index + 1) * self.batch_size]
        change = self.generator
        x = np.stack([change.standardize(change.random_transform(self._read(row), rng=self._rng)) for row in rows])
        return x if self._y is None else (x, *(np.asarray(part)[rows] for part in self._y))

    def on_epoch_end(self) -> None:
        """Put the samples in another order."""
        if self._shuffle:
            self._rng.shuffle(self._order)

    def __next__(self) -> Any:
        """The next batch, without end."""
        self._next += 1
        return self[(self._next - 1) % len(self)]

    next = __next__

    def reset(self) -> None:
        """Begin with the first batch again."""
        self._next = 0


class ImageDataGenerator:
    """Images (H, W, C) changed at random, then standardized, on the host; in a model the Random layers do it faster.

    Args:
        featurewise_center: Subtract the mean of the data: see `fit`.
        samplewise_center: Subtract each image's mean.
        featurewise_std_normalization: Divide by the deviation of the data.
        samplewise_std_normalization: Divide by each image's deviation.
        rotation_range: Degrees, from minus that many.
        width_shift_range: Share of the width, or pixels if at least 1.
        height_shift_range: Likewise.
        brightness_range: Bounds of a factor.
        shear_range: Degrees.
        zoom_range: Bounds of a factor, or how far it is from 1.
        channel_shift_range: What is added to each channel, from minus that number.
        fill_mode: What comes in: "nearest", "reflect", "wrap" or "constant".
        cval: For "constant".
        horizontal_flip: Whether each second image is mirrored.
        vertical_flip: Likewise, upside down.
        rescale: Factor after all.
        preprocessing_function: Of an image, before the factor.
        validation_split: Share of the samples, the first ones, that is the subset "validation".

    Raises:
        TypeError: If an argument is another one of Keras's, such as zca_whitening.
    """

    def __init__(
        self, featurewise_center: bool = False, samplewise_center: bool = False,
        featurewise_std_normalization: bool = False, samplewise_std_normalization: bool = False, *,
        rotation_range: float = 0, width_shift_range: float = 0.0, height_shift_range: float = 0.0,
        brightness_range: Any = None, shear_range: float = 0.0, zoom_range: Any = 0.0, channel_shift_range: float = 0.0,
        fill_mode: str = "nearest", cval: float = 0.0, horizontal_flip: bool = False, vertical_flip: bool = False,
        rescale: float | None = None, preprocessing_function: Callable[[Array], Any] | None = None,
        validation_split: float = 0.0, zca_whitening: bool = False, zca_epsilon: float = 1e-6,
        data_format: str | None = None,
    ) -> None:  # fmt: skip
        if zca_whitening or data_format == "channels_first":
            raise TypeError("ImageDataGenerator whitens no images, and has channels last. Received: one of the two.")
        self.featurewise_center, self.samplewise_center = featurewise_center, samplewise_center
        self.featurewise_std_normalization = featurewise_std_normalization
        self.samplewise_std_normalization = samplewise_std_normalization
        self.rotation_range, self.shear_range, self.channel_shift_range = (
            rotation_range,
            shear_range,
            channel_shift_range,
        )
        self.width_shift_range, self.height_shift_range = width_shift_range, height_shift_range
        self.zoom_range = zoom_range if isinstance(zoom_range, Sequence) else (1 - zoom_range, 1 + zoom_range)
        self.brightness_range, self.fill_mode, self.cval = brightness_range, fill_mode, cval
        self.horizontal_flip, self.vertical_flip = horizontal_flip, vertical_flip
        self.rescale, self.preprocessing_function = rescale, preprocessing_function
        self.validation_split = validation_split
        self.mean: Any = None
        self.std: Any = None

    def fit(self, x: Any, augment: bool = False, rounds: int = 1, seed: int | None = None) -> None:
        """Take the mean and the deviation of each channel from data (N, H, W, C)."""
        x = np.asarray(x, "float32")
        self.mean, self.std = x.mean(axis=(0, 1, 2)), x.std(axis=(0, 1, 2))

    def standardize(self, x: Array) -> Array:
        """One image, as the generator's arguments say."""
        x = x if self.preprocessing_function is None else np.asarray(self.preprocessing_function(x), "float32")
        x = x if self.rescale is None else x * np.float32(self.rescale)
        if self.samplewise_center:
            x = x - x.mean()
        if self.samplewise_std_normalization:
            x = x / (x.std() + np.float32(1e-6))
        if (self.featurewise_center or self.featurewise_std_normalization) and self.mean is None:
            raise RuntimeError("The mean of the data comes from fit(x). Received: no call of it. Call it before flow.")
        x = x - self.mean if self.featurewise_center else x
        return x / (self.std + np.float32(1e-6)) if self.featurewise_std_normalization else x

    def random_transform(self, x: Any, seed: int | None = None, rng: np.random.Generator | None = None) -> Array:
        """One image moved and coloured at random."""
        rng = rng or np.random.default_rng(seed)
        x = np.asarray(x, "float32")
        h, w, _ = x.shape
        turn, shear = (math.radians(rng.uniform(-a, a)) if a else 0.0 for a in (self.rotation_range, self.shear_range))
        down, right = (
            rng.uniform(-a, a) * (n if a < 1 else 1) if a else 0.0
            for a, n in ((self.height_shift_range, h), (self.width_shift_range, w))
        )
        wide, high = (
            (1.0, 1.0) if tuple(self.zoom_range) == (1, 1) else rng.uniform(self.zoom_range[0], self.zoom_range[1], 2)
        )
        flips = [asked and rng.random() < 0.5 for asked in (self.horizontal_flip, self.vertical_flip)]
        if turn or shear or down or right or wide != 1 or high != 1:
            # Where each pixel comes from, (column, row), about the middle: turned, moved, sheared, zoomed.
            cos, sin = math.cos(turn), math.sin(turn)
            m = (
                np.asarray([[cos, sin], [-sin, cos]])
                @ [[math.cos(shear), 0], [-math.sin(shear), 1]]
                @ np.diag([wide, high])
            )
            middle = np.asarray([(w - 1) / 2, (h - 1) / 2])
            start = middle - m @ middle + np.asarray([[cos, sin], [-sin, cos]]) @ [right, down]
            matrix = np.asarray([[*m[0], start[0], *m[1], start[1]]], "float32")
            x = ops.affine_transform.reference(
                x[None], matrix, size=(h, w), interpolation="bilinear", fill_mode=self.fill_mode, fill_value=self.cval,
                xp=np,
            )[0]  # fmt: skip
        if self.channel_shift_range:
            x = np.clip(x + rng.uniform(-self.channel_shift_range, self.channel_shift_range), x.min(), x.max())
        x = x[:, ::-1] if flips[0] else x
        x = x[::-1] if flips[1] else x
        return x if self.brightness_range is None else np.clip(x * rng.uniform(*self.brightness_range), 0, 255)

    def _rows(self, numbers: Array, subset: str | None) -> Array:
        held = int(len(numbers) * self.validation_split)
        return numbers if subset is None else numbers[:held] if subset == "validation" else numbers[held:]

    def flow(
        self, x: Any, y: Any = None, batch_size: int = 32, shuffle: bool = True, sample_weight: Any = None,
        seed: int | None = None, subset: str | None = None,
    ) -> Flow:  # fmt: skip
        """Batches of arrays (N, H, W, C), and of what belongs to them."""
        rows = self._rows(np.arange(len(x)), subset)
        images = np.asarray(x, "float32")[rows]
        parts = [np.asarray(part)[rows] for part in (y, sample_weight) if part is not None]
        return Flow(self, len(rows), lambda row: images[row], parts or None, batch_size, shuffle, seed)

    def flow_from_directory(
        self, directory: Any, target_size: Any = (256, 256), color_mode: str = "rgb", classes: Any = None,
        class_mode: str | None = "categorical", batch_size: int = 32, shuffle: bool = True, seed: int | None = None,
        subset: str | None = None, interpolation: str = "nearest",
    ) -> Flow:  # fmt: skip
        """Batches of the images in a folder that has one folder a class, with labels by `class_mode`: one-hot rows
        ("categorical"), numbers ("binary", "sparse"), or None.
        """  # noqa: D205
        folders = _classes(Path(directory))
        names = list(classes or folders)
        files = [(p, k) for k, name in enumerate(names) for p in np.asarray(folders.get(name, []), object)]
        rows = np.concatenate(
            [self._rows(np.flatnonzero([c == k for _, c in files]), subset) for k in range(len(names))]
        )
        chosen = [files[row] for row in rows.astype(int)]
        numbers = np.asarray([k for _, k in chosen], "int32")

        def read(row: int) -> Array:
            return img_to_array(load_img(chosen[row][0], color_mode, target_size, interpolation))

        labels = {"binary": numbers.astype("float32"), "sparse": numbers.astype("float32")}.get(class_mode or "")
        if class_mode == "categorical":
            labels = to_categorical(numbers, len(names))
        flow = Flow(self, len(chosen), read, None if labels is None else [labels], batch_size, shuffle, seed)
        flow.class_indices, flow.classes = {name: k for k, name in enumerate(names)}, numbers
        flow.filenames = [str(p.relative_to(directory)) for p, _ in chosen]
        print(f"Found {len(chosen)} images belonging to {len(names)} classes.")
        return flow
