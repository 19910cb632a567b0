"""One training: its data, its model, and its results."""

from __future__ import annotations

import csv
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from minicnn import data, zoo
from minicnn.backends import get_backend
from minicnn.backends.base import Backend
from minicnn.callbacks import Callback, Timer
from minicnn.distribution import DataParallel
from minicnn.jobs.settings import Settings
from minicnn.layers import Layer, Normalization, RandomFlip, RandomRotation, RandomTranslation, RandomZoom, Rescaling
from minicnn.losses import SparseCategoricalCrossentropy
from minicnn.models import Model
from minicnn.optimizers import OPTIMIZERS, SGD, Optimizer

# Of an epoch: losses in nats, accuracies as shares, times in seconds.
COLUMNS = ("epoch", "loss", "accuracy", "val_loss", "val_accuracy", "time_s", "samples_per_s")

# What may be done to training images at random, each time that they are seen.
AUGMENTATIONS: dict[str, Callable[[], Layer]] = {
    "flip": lambda: RandomFlip("horizontal"),
    "shift": lambda: RandomTranslation(0.1, 0.1, fill_mode="constant"),
    "rotate": lambda: RandomRotation(0.03, fill_mode="constant"),
    "zoom": lambda: RandomZoom(0.1, fill_mode="constant"),
}

Arrays = dict[str, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Samples:
    """The samples of a training: images (N, H, W, C), uint8 or scaled, and int32 labels (N,).

    Attributes:
        arrays: "x_train", "y_train", "x_val", "y_val", "x_test" and "y_test".
        num_classes: Number of classes.
        class_names: Their names, where they are known.
    """

    arrays: Arrays
    num_classes: int
    class_names: tuple[str, ...] | None = None

    def __getitem__(self, name: str) -> np.ndarray[Any, Any]:
        return self.arrays[name]

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape (H, W, C) of an image."""
        return self["x_train"].shape[1:]

    def scaled(self) -> Samples:
        """The same with images as float32 from 0 to 1."""
        return self._with_images(lambda a: a.astype(np.float32) / np.float32(255))

    def in_rows(self) -> Samples:
        """The same with images as rows of numbers (N, H * W * C)."""
        return self._with_images(lambda a: a.reshape(len(a), -1))

    def _with_images(self, change: Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]) -> Samples:
        images = {id(a): change(a) for n, a in self.arrays.items() if n.startswith("x_")}
        return replace(self, arrays={n: images.get(id(a), a) for n, a in self.arrays.items()})

    @property
    def held_out(self) -> bool:
        """True if the validation samples are others than the test samples."""
        return self["x_val"] is not self["x_test"]

    def __str__(self) -> str:
        parts = [f"{len(self['x_train']):,} training"]
        parts += [f"{len(self['x_val']):,} validation"] if self.held_out else []
        shape = "x".join(map(str, self.input_shape))
        return f"{', '.join(parts)} and {len(self['x_test']):,} test images of {shape}"


def load_samples(settings: Settings) -> Samples:
    """The data set that is asked for, less what is held out, cut to the number of samples.

    Raises:
        ValueError: If nothing is left to train on, or the data cannot be had.
        ImportError: If a library is missing that its files need.
    """
    options: dict[str, Any] = {}
    if settings.size is not None:
        if settings.data not in ("image_folder", "tiny_imagenet"):
            raise ValueError(
                f"--size is for images in files of their own. Received: it with {settings.data}. Leave it out."
            )
        options = {"size": settings.size}
    if settings.data == "synthetic_digits" and settings.samples is not None:
        wanted = settings.samples + settings.hold_out
        options = {"n_train": min(60_000, wanted), "n_test": min(10_000, settings.samples)}
    samples = data.load(settings.data, settings.data_dir, **options)
    total = len(samples.x_train)
    if settings.hold_out >= total:
        raise ValueError(
            f"--hold-out leaves samples to train on. Received: {settings.hold_out} of the {total} training samples "
            f"of {settings.data}. Hold out fewer."
        )
    held = drawn(total, settings.hold_out, settings.seed)
    rest = np.setdiff1d(np.arange(total), held) if len(held) else slice(None)
    arrays: Arrays = {}
    for axis in "xy":
        train, test = getattr(samples, f"{axis}_train"), getattr(samples, f"{axis}_test")
        arrays[f"{axis}_train"] = _at_most(train[rest], settings)
        arrays[f"{axis}_test"] = _at_most(test, settings)
        arrays[f"{axis}_val"] = _at_most(train[held], settings) if len(held) else arrays[f"{axis}_test"]
    if not len(arrays["x_val"]):
        raise ValueError(
            f"There are samples to validate on. Received: {settings.data} without test images. Give --hold-out."
        )
    return Samples(arrays, samples.num_classes, samples.class_names)


def batches(settings: Settings, count: int, epoch: int = 0) -> list[np.ndarray[Any, Any]]:
    """Indices of the samples of each batch of an epoch, of so many in all, as `Model.fit` takes them."""
    batch = settings.batch_size or count
    order = data.epoch_order(count, shuffle=batch < count, seed=settings.seed, epoch=epoch)
    return data.batch_indices(order, batch, settings.last_batch)


def probed(settings: Settings, count: int, epoch: int = 0) -> np.ndarray[Any, Any]:
    """Indices of a batch by which candidates are compared: the first of an epoch.

    Where a batch is the whole training set, those of later epochs are one half of it and the other, as nothing else
    would be new.
    """
    first = batches(settings, count, epoch)[0]
    return first if not epoch or (settings.batch_size or count) < count else first[epoch % 2 :: 2]


def drawn(total: int, count: int, seed: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """`count` of `total` indices, drawn at random and in order.

    Every n-th would do neither where samples are sorted by class nor where their places alternate: in MNIST's training
    set those at even places are harder than those at odd ones.
    """
    return np.sort(np.random.default_rng(seed).permutation(total)[:count])


def _at_most(array: np.ndarray[Any, Any], settings: Settings) -> np.ndarray[Any, Any]:
    count = settings.samples
    return array if count is None or count >= len(array) else array[drawn(len(array), count, settings.seed)]


def open_backend(name: str | None, precision: str) -> Backend:
    """The backend by name, able to compute in a precision.

    Raises:
        ImportError: If its library is missing.
        ValueError: If it cannot carry out the precision policy.
        RuntimeError: If it does not see the device.
    """
    backend = get_backend(name)
    if precision not in backend.precisions:
        raise ValueError(
            f"The {backend.name} backend computes in {' or '.join(backend.precisions)}. Received: {precision}."
        )
    backend.enable(precision)
    return backend


def make_model(
    settings: Settings, samples: Samples, backend: Backend, metrics: Sequence[str] = ("accuracy",),
    distribution: DataParallel | None = None, *, normalised: bool = False, frozen: str = "",
    build: Callable[..., Model] = zoo.get_model, **options: Any,
) -> Model:  # fmt: skip
    """The network, compiled for the mean cross-entropy of logits.

    Args:
        settings: What is trained and how.
        samples: The samples.
        backend: The backend.
        metrics: Metrics beside the loss.
        distribution: How it is trained by several processes, if it is.
        normalised: Whether pixels are normalised by the mean and deviation of the training set's.
        frozen: Layers whose names begin so are not trained; none if empty.
        build: Makes the network from its name, as `minicnn.zoo.get_model` does.
        options: Of the network.
    """
    kind = samples["x_train"].dtype.name
    scale = 255 if kind == "uint8" else 1
    first: list[Layer] = [Rescaling(1 / scale)] if scale > 1 else []
    if normalised:
        x = samples["x_train"]
        first.append(Normalization(None, x.mean(dtype=np.float64) / scale, x.var(dtype=np.float64) / scale**2))
    first += [AUGMENTATIONS[name]() for name in settings.augment]
    model = build(
        settings.network, num_classes=samples.num_classes, input_shape=samples.input_shape, backend=backend,
        seed=settings.seed, preprocessing=first, input_dtype=kind, **options,
    )  # fmt: skip
    for layer in model.layers:
        if frozen and model.layer_name(layer).startswith(frozen):
            layer.trainable = False
    model.class_names = samples.class_names
    optimizer: Optimizer
    if settings.optimizer == "sgd":
        optimizer = SGD(settings.learning_rate, momentum=settings.momentum)
    else:
        optimizer = OPTIMIZERS[settings.optimizer](learning_rate=settings.learning_rate)
    model.compile(
        optimizer, SparseCategoricalCrossentropy(from_logits=True),
        list(metrics), precision=settings.precision, distribution=distribution,
    )  # fmt: skip
    return model


def concrete(settings: Settings, samples: Samples) -> Settings:
    """The settings with the batch size as a number."""
    return settings if settings.batch_size else replace(settings, batch_size=len(samples["x_train"]))


def estimated(model: Model, settings: Settings, samples: Samples) -> float:
    """Seconds that the training will take, by its first step done twice; the model stays as it is.

    Nothing, if the backend takes many steps at once: one alone would have to be compiled for its own sake.
    """
    if model.backend.steps_at_once > 1:
        return 0.0
    count = len(samples["x_train"])
    batch = min(settings.batch_size or count, count)
    x, y = samples["x_train"][:batch], samples["y_train"][:batch]
    before = model.get_state()
    with np.errstate(all="ignore"):  # the training itself will say it
        model.train_on_batch(x, y)  # compiles it
        start = time.perf_counter()
        model.train_on_batch(x, y)
    seconds = time.perf_counter() - start
    model.set_state(before)
    validated = len(samples["x_val"]) / 3  # whose forward pass is about a third of a step
    return settings.epochs * (count + validated) / batch * seconds


def fit(
    model: Model, settings: Settings, samples: Samples, callbacks: Sequence[Callback] = (), verbose: str | int = "auto"
) -> list[dict[str, Any]]:
    """Train as the settings say; returns a row with the columns `COLUMNS` for each epoch."""
    count = len(samples["x_train"])
    batch = settings.batch_size or count
    with np.errstate(all="ignore"):  # StopAtNaN says it in words
        history = model.fit(
            samples["x_train"], samples["y_train"], batch, settings.epochs, verbose,
            [Timer(), StopAtNaN(), *callbacks], validation_data=(samples["x_val"], samples["y_val"]),
            shuffle=batch < count, last_batch=settings.last_batch,
        ).history  # fmt: skip
    rows = zip(*(history[c] for c in COLUMNS[1:]), strict=True)
    return [dict(zip(COLUMNS, (i, *map(float, row)), strict=True)) for i, row in enumerate(rows, start=1)]


def judge(model: Model, settings: Settings, samples: Samples, rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Loss and accuracy on the test set; those of the last epoch's validation, if that was on it."""
    if not samples.held_out:
        return {"loss": rows[-1]["val_loss"], "accuracy": rows[-1]["val_accuracy"]}
    batch = settings.batch_size or len(samples["x_train"])
    results: dict[str, float] = model.evaluate(samples["x_test"], samples["y_test"], batch, return_dict=True)
    return results


def write_rows(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write rows with the same columns, such as those of `fit`, as CSV."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


class StopAtNaN(Callback):
    """Stops training when the loss of an epoch is no number: no weight is of use then."""

    def on_epoch_end(self, epoch: int, logs: dict[str, Any]) -> None:
        """See `Callback`."""
        for name in ("loss", "val_loss"):
            if not math.isfinite(logs[name]):
                raise RuntimeError(
                    f"The {name} is a finite number. Received: {logs[name]} in epoch {epoch + 1}. Give a lower --lr."
                )
