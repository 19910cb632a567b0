"""MNIST and Fashion-MNIST, and the IDX format that they come in.

An IDX file is a big-endian header of 32-bit integers - a magic number, the count, and for images the rows
and columns - and then one byte a label or pixel (http://yann.lecun.com/exdb/mnist).
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from minicnn.arguments import plain_arguments
from minicnn.data.dataset import Dataset
from minicnn.data.files import PathLike, download, fail, find_or_download, open_bounded

MAGIC = {1: 0x0801, 3: 0x0803}  # by number of dimensions: labels, images
KINDS = {1: "labels", 3: "images"}
MAX_SIDE = 4096  # pixels
MAX_BYTES = 5 * 2**27  # of one file, uncompressed: room for the largest of EMNIST's, which has 547 million
ROOM = 5  # times the size of MNIST's files, for data sets in their place
FILES = {  # attribute of the Dataset: name, dimensions, bytes
    "x_train": ("train-images-idx3-ubyte", 3, 16 + 60_000 * 28 * 28),
    "y_train": ("train-labels-idx1-ubyte", 1, 8 + 60_000),
    "x_test": ("t10k-images-idx3-ubyte", 3, 16 + 10_000 * 28 * 28),
    "y_test": ("t10k-labels-idx1-ubyte", 1, 8 + 10_000),
}


@dataclass(frozen=True)
class _IdxFiles:
    """A data set in IDX files: its mirrors, and the SHA-256 of each file's uncompressed content."""

    name: str
    subfolders: tuple[str, ...]
    class_names: tuple[str, ...]
    mirrors: tuple[str, ...]
    sha256: dict[str, str]


MNIST = _IdxFiles(
    "mnist",
    ("mnist", "MNIST/raw"),
    tuple("0123456789"),
    ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
    {
        "x_train": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "y_train": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "x_test": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "y_test": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    },
)
FASHION_MNIST = _IdxFiles(
    "fashion_mnist",
    ("fashion_mnist", "fashion-mnist", "FashionMNIST/raw"),
    (
        "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
        "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
    ),
    (
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    ),
    {
        "x_train": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "y_train": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "x_test": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "y_test": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    },
)  # fmt: skip


def mnist(data_dir: PathLike | None = None, *, download: bool = True) -> Dataset:
    """Handwritten digits: 60,000 training and 10,000 test images of 28x28 pixels, grey, white on black.

    The four IDX files, plain or gzip, are read from `data_dir` or its subfolder `mnist`. If `data_dir` is left
    out, they are looked for in the folder that the environment variable MINICNN_DATA names, and if they are
    not there, they are downloaded into the user's cache and checked.

    Args:
        data_dir: Folder of the files, or of the folder `mnist` that holds them.
        download: Whether to fetch files that are not found where no `data_dir` is given.

    Returns:
        The Dataset.

    Raises:
        DataError: If the files are not found, or break a rule of their format.
        ImportError: If files must be downloaded and pooch is missing.
    """
    return _load(MNIST, data_dir, download)


def fashion_mnist(data_dir: PathLike | None = None, *, download: bool = True) -> Dataset:
    """Clothing, in the format and the numbers of MNIST (arXiv:1708.07747).

    Args:
        data_dir: Folder of the four files, or of the folder `fashion_mnist` that holds them; see `mnist`.
        download: Whether to fetch files that are not found.

    Returns:
        The Dataset.

    Raises:
        DataError: If the files are not found, or break a rule of their format.
        ImportError: If files must be downloaded and pooch is missing.
    """
    return _load(FASHION_MNIST, data_dir, download)


@plain_arguments
def read_idx(path: PathLike, ndim: int, *, max_bytes: int = MAX_BYTES) -> npt.NDArray[np.uint8]:
    """Read an IDX file of bytes, plain or gzip.

    Nothing is allocated on the word of the header: memory grows with what the file really holds.

    Args:
        path: The file.
        ndim: 1 for labels, 3 for images.
        max_bytes: The most bytes that it may hold, uncompressed.

    Returns:
        Shape (N,) or (N, H, W).

    Raises:
        DataError: If the file breaks a rule of the format.
    """
    path = Path(path)
    remedy = "Fetch the file again."
    with open_bounded(path, max_bytes) as (reader, at_most):
        length = 4 * (1 + ndim)
        header = reader.read(length)
        if len(header) < length:
            raise fail(path, f"IDX {KINDS[ndim]} start with {length} bytes of header", f"{len(header)} bytes", remedy)
        magic, *shape = (int(number) for number in np.frombuffer(header, ">u4"))
        if magic != MAGIC[ndim]:
            rule = f"IDX {KINDS[ndim]} start with the magic number 0x{MAGIC[ndim]:08x}"
            raise fail(path, rule, f"0x{magic:08x}", "Check that it is the right file.")
        if shape[0] < 1 or any(not 1 <= side <= MAX_SIDE for side in shape[1:]):
            rule = f"the header names at least one item, and images of 1 to {MAX_SIDE} pixels a side"
            raise fail(path, rule, f"shape {tuple(shape)}", remedy)
        total = math.prod(shape)
        rule = f"a header of shape {tuple(shape)} is followed by exactly {total:,} bytes"
        # Before anything is read: a header must not make us ask for memory that the file cannot fill.
        if length + total > at_most:
            raise fail(path, rule, f"a file that holds at most {at_most:,} bytes", remedy)
        content = reader.read(total)
        if len(content) < total:
            raise fail(path, rule, f"{len(content):,} bytes", remedy)
        if reader.read(1):
            raise fail(path, rule, "more", remedy)
    return np.frombuffer(content, np.uint8).reshape(shape)


def _load(source: _IdxFiles, data_dir: PathLike | None, fetch: bool) -> Dataset:
    wanted = f"the files {', '.join(f'{name}[.gz]' for name, *_ in FILES.values())}"
    download = partial(_download, source) if fetch else None
    mirror = f"them from {source.mirrors[0]}"
    paths = find_or_download(source.name, data_dir, source.subfolders, _files_in, wanted, mirror, download)
    arrays: dict[str, Any] = {}
    for key, path in paths.items():
        _, ndim, size = FILES[key]
        arrays[key] = read_idx(path, ndim, max_bytes=ROOM * size)
    for split in ("train", "test"):
        x, y = arrays[f"x_{split}"], arrays[f"y_{split}"]
        path = paths[f"y_{split}"]
        if len(x) != len(y):
            rule = "there is one label for each image"
            received = f"{len(y):,} labels, and {len(x):,} images in {paths[f'x_{split}']}"
            raise fail(path, rule, received, "Fetch both files again.")
        if y.max() > 9:
            rule = f"labels are from 0 to {len(source.class_names) - 1}"
            raise fail(path, rule, f"{y.max()} at index {int(y.argmax())}", "Fetch the file again.")
        header = np.array([MAGIC[1], len(y)], ">u4")
        digest = hashlib.sha256(header.tobytes() + y.tobytes()).hexdigest()
        # Both have files of the same names: a mixed-up folder would train, to a puzzling accuracy.
        for other in (MNIST, FASHION_MNIST):
            if other is not source and digest in other.sha256.values():
                remedy = f"Name the folder of {source.name}, or load {other.name!r}."
                raise fail(path, f"the labels are those of {source.name}", f"those of {other.name}", remedy)
        arrays[f"x_{split}"] = x[..., None]
        arrays[f"y_{split}"] = y.astype(np.int32)
    return Dataset(source.name, class_names=source.class_names, **arrays)


def _files_in(folder: Path) -> dict[str, Path] | None:
    """The four files in a folder, or None if it holds none of them; unpackers may write "." for "-"."""
    paths = {}
    for key, (name, *_) in FILES.items():
        names = (name, f"{name}.gz", name.replace("-idx", ".idx"), name.replace("-idx", ".idx") + ".gz")
        files = [folder / candidate for candidate in names if (folder / candidate).is_file()]
        if files:
            paths[key] = files[0]
    missing = [name for key, (name, *_) in FILES.items() if key not in paths]
    if paths and missing:
        raise fail(folder, "the four IDX files are together", f"no {', '.join(missing)}", "Add what is missing.")
    return paths or None


def _download(source: _IdxFiles, remedy: str) -> dict[str, Path]:
    return {
        key: download(
            source.name,
            f"{name}.gz",
            [f"{mirror}{name}.gz" for mirror in source.mirrors],
            source.sha256[key],
            size,
            uncompressed=True,
            remedy=remedy,
        )
        for key, (name, _, size) in FILES.items()
    }
