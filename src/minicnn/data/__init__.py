"""Data sets as uint8 images, and batches of them: everything that a training run reads.

`load(name)` gives a Dataset; `Loader` cuts arrays into batches.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from minicnn.data import augment
from minicnn.data.cifar10 import cifar10
from minicnn.data.dataset import DataError, Dataset
from minicnn.data.files import PathLike
from minicnn.data.idx import fashion_mnist, mnist, read_idx
from minicnn.data.images import image_folder, read_images, tiny_imagenet
from minicnn.data.kaggle import kaggle_digits
from minicnn.data.loader import Loader
from minicnn.data.order import batch_indices, epoch_order, shard_rows
from minicnn.data.places import locate
from minicnn.data.synthetic import synthetic_digits, synthetic_digits_dataset
from minicnn.names import known_name

__all__ = [
    "DataError", "Dataset", "Loader", "augment", "batch_indices", "cifar10", "epoch_order", "fashion_mnist",
    "image_folder", "kaggle_digits", "load", "locate", "mnist", "names", "read_idx", "read_images", "shard_rows",
    "synthetic_digits", "synthetic_digits_dataset", "tiny_imagenet",
]  # fmt: skip

LOADERS: dict[str, Callable[..., Dataset]] = {
    "mnist": mnist,
    "fashion_mnist": fashion_mnist,
    "kaggle_digits": kaggle_digits,
    "cifar10": cifar10,
    "tiny_imagenet": tiny_imagenet,
    "image_folder": image_folder,
    "synthetic_digits": synthetic_digits_dataset,
}


def names() -> list[str]:
    """Names of the data sets that `load` knows."""
    return list(LOADERS)


def load(name: str, data_dir: PathLike | None = None, *, download: bool = True, **options: Any) -> Dataset:
    """Load a data set by its name.

    Args:
        name: One of `names()`.
        data_dir: Folder (or file) to read it from, and nowhere else; left out, it is looked for in the folder that
            the environment variable MINICNN_DATA names, then in the download cache.
        download: Whether to fetch what is not found where no `data_dir` is given, if the data set can be fetched.
        options: Further arguments of the function of that name in `minicnn.data`.

    Returns:
        The Dataset.

    Raises:
        ValueError: If the name is unknown, or the data set is drawn and a `data_dir` is given.
        DataError: If the files are not found, or break a rule of their format.

    Example:
        >>> load("synthetic_digits", n_train=100, n_test=20)
        Dataset('synthetic_digits': 100 training and 20 test images of 28x28x1, 10 classes)
    """
    loader = LOADERS[known_name("A data set", name, LOADERS)]
    if "download" in inspect.signature(loader).parameters:
        options["download"] = download
    if loader is not synthetic_digits_dataset:
        return loader(data_dir, **options)
    if data_dir is not None:
        raise ValueError(f"{name} is drawn, not read, so it takes no data_dir. Received: {data_dir}. Name other data.")
    return loader(**options)
