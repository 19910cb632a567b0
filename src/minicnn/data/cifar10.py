"""CIFAR-10 (A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from minicnn.data import files
from minicnn.data.dataset import DataError, Dataset, Images, Labels
from minicnn.data.files import PathLike, fail

RECORD = 3073  # a label, then 32x32 pixels of red, of green, of blue
MAX_BATCH = 2**26  # bytes; a batch has 31 million
CLASS_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
ARCHIVES = ("cifar-10-binary.tar.gz", "cifar-10-python.tar.gz")
FOLDERS = ("cifar-10-batches-bin", "cifar-10-batches-py")
SUBFOLDERS = (*(f"cifar10/{folder}" for folder in (*FOLDERS, "")), *FOLDERS)
URLS = ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",)
SHA256 = "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"
SUFFIXES = (".bin", "")  # binary, Python
BATCHES = {f"test_batch{suffix}": 0 for suffix in SUFFIXES} | {
    f"data_batch_{number}{suffix}": number for number in range(1, 10) for suffix in SUFFIXES
}


def cifar10(data_dir: PathLike | None = None, *, download: bool = True) -> Dataset:
    """Photographs of ten classes: 50,000 training and 10,000 test images of 32x32 pixels, RGB.

    Reads the binary and the Python version (without unpickling it), unpacked or inside their `.tar.gz`, from
    `data_dir`, or else from the folder that the environment variable MINICNN_DATA names, or from their
    subfolder `cifar10`; if it is in neither, the binary version is downloaded into the user's cache and
    checked.

    Args:
        data_dir: Folder of the batches, of their folder or of the archive; or the archive itself.
        download: Whether to fetch the archive if nothing is found.

    Returns:
        The Dataset.

    Raises:
        DataError: If the files are not found, or break a rule of their format.
        ImportError: If the archive must be downloaded and pooch is missing.
    """
    if data_dir is not None and Path(data_dir).expanduser().is_file():
        return _read(Path(data_dir).expanduser())
    place, folders = files.find(data_dir, SUBFOLDERS, _place_in)
    if place is None:
        wanted = f"{ARCHIVES[0]}, {ARCHIVES[1]} or the batches that they hold"
        remedy = f"Fetch {URLS[0]} and name its folder by data_dir or MINICNN_DATA."
        missing = files.not_found("cifar10", wanted, folders, remedy)
        if not download:
            raise missing
        place = files.download("cifar10", ARCHIVES[0], URLS, SHA256, uncompressed=False, remedy=str(missing))
    return _read(place)


def _place_in(folder: Path) -> Path | None:
    """The folder itself if it holds batches, or else an archive in it."""
    if any(path.name in BATCHES for path in folder.iterdir()):
        return folder
    return next((folder / name for name in ARCHIVES if (folder / name).is_file()), None)


def _read(place: Path) -> Dataset:
    batches: dict[int, tuple[Images, Labels]] = {}
    for path, data in _archive_batches(place) if place.is_file() else _folder_batches(place):
        number = BATCHES[path.name]
        if number in batches:
            raise fail(path, "each batch is there once", "it twice", "Keep one version of the data set.")
        batches[number] = (_binary_batch if path.suffix else _python_batch)(data, path)
    if sorted(batches) != list(range(max(2, len(batches)))):
        rule = "there are data_batch_1, data_batch_2, ... without a gap, and test_batch"
        names = [f"data_batch_{number}" if number else "test_batch" for number in sorted(batches)]
        raise fail(place, rule, ", ".join(names) or "none", "Fetch the data set again.")
    x_test, y_test = batches.pop(0)
    x_train, y_train = (np.concatenate(parts) for parts in zip(*(batches[i] for i in sorted(batches)), strict=True))
    return Dataset("cifar10", x_train, y_train, x_test, y_test, CLASS_NAMES)


def _folder_batches(folder: Path) -> Iterator[tuple[Path, bytearray]]:
    for path in sorted(folder.iterdir()):
        if path.name in BATCHES:
            with files.open_bounded(path, MAX_BATCH) as (reader, _):
                yield path, reader.read(MAX_BATCH + 1)


def _archive_batches(archive: Path) -> Iterator[tuple[Path, bytearray]]:
    """The batches in an archive, read one after another; nothing is written anywhere."""
    import tarfile

    with files.open_bounded(archive) as (reader, _):
        try:
            stream: Any = reader  # all that a stream of tarfile needs is read(size)
            with tarfile.open(fileobj=stream, mode="r|") as members:
                for member in members:
                    path = archive / Path(member.name).name
                    if not (member.isreg() and path.name in BATCHES):
                        continue
                    if member.issparse() or member.size > MAX_BATCH:  # a sparse one is as large as it says
                        rule = f"a batch is a plain file of at most {MAX_BATCH:,} bytes"
                        raise fail(path, rule, f"{member.size:,} bytes", "Fetch the archive again.")
                    content: Any = members.extractfile(member)
                    yield path, bytearray(content.read())
        except DataError:
            raise
        except Exception as error:  # tarfile raises errors of many kinds on damaged headers
            rule = "a tar archive is complete and undamaged"
            raise fail(archive, rule, repr(error), "Fetch it again.") from error


def _binary_batch(data: bytearray, path: Path) -> tuple[Images, Labels]:
    if not data or len(data) % RECORD:
        rule = f"a binary batch holds records of {RECORD} bytes"
        raise fail(path, rule, f"{len(data):,} bytes, that is {len(data) / RECORD:.3f} records", "Fetch it again.")
    records = np.frombuffer(data, np.uint8).reshape(-1, RECORD)
    return _batch(records[:, 1:], records[:, 0].astype(np.int32), path)


def _python_batch(data: bytearray, path: Path) -> tuple[Images, Labels]:
    from minicnn.data.pickled import read_batch

    batch = read_batch(data, path)
    pixels, labels = batch.get("data"), batch.get("labels")
    if not isinstance(pixels, np.ndarray) or pixels.shape[1:] != (RECORD - 1,) or len(pixels) == 0:
        rule = f"a batch has 'data', an array of shape (N, {RECORD - 1})"
        received = f"shape {pixels.shape}" if isinstance(pixels, np.ndarray) else f"a {type(pixels).__name__}"
        raise fail(path, rule, received, "Fetch it again.")
    if (
        not isinstance(labels, list)
        or len(labels) != len(pixels)
        or not all(type(label) is int and 0 <= label <= 9 for label in labels)
    ):
        rule = f"a batch has 'labels', a list of {len(pixels)} numbers from 0 to 9, one for each image"
        received = f"a list of {len(labels)}" if isinstance(labels, list) else f"a {type(labels).__name__}"
        raise fail(path, rule, received, "Fetch it again.")
    return _batch(pixels, np.array(labels, np.int32), path)


def _batch(pixels: Images, labels: Labels, path: Path) -> tuple[Images, Labels]:
    if labels.max() > 9:
        received = f"{labels.max()} in record {int(labels.argmax())}"
        raise fail(path, "labels are from 0 to 9", received, "Fetch it again.")
    return np.ascontiguousarray(pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)), labels
