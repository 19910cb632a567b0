"""Places of data sets that are there already."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from minicnn.data import idx, images, kaggle
from minicnn.data.cifar10 import SUBFOLDERS, _place_in
from minicnn.data.files import PathLike, find

# Of each data set that is read from files: its subfolders, and what finds it in a folder.
PLACES: dict[str, tuple[Sequence[str], Callable[[Path], Any]]] = {
    "mnist": (idx.MNIST.subfolders, idx._files_in),
    "fashion_mnist": (idx.FASHION_MNIST.subfolders, idx._files_in),
    "kaggle_digits": (kaggle.SUBFOLDERS, kaggle._csv_in),
    "cifar10": (SUBFOLDERS, _place_in),
    "tiny_imagenet": (images.SUBFOLDERS, images._tiny_imagenet_in),
}


def locate(name: str, data_dir: PathLike | None = None) -> Path | None:
    """Path at which `load` would find a data set without fetching anything; no file is opened.

    Args:
        name: Name of a data set that is read from files.
        data_dir: Folder to look into; left out, the one that MINICNN_DATA names, then the download cache.

    Returns:
        The folder or file, or None if it is in none of them.

    Raises:
        DataError: If a folder that was given does not exist, or holds only a part of the data set.

    Example:
        >>> locate("kaggle_digits", ".") is None
        True
    """
    subfolders, holds = PLACES[name]

    def place(folder: Path) -> Path | None:
        path = holds(folder)
        # MNIST's four files stand for their folder.
        return folder if isinstance(path, dict) else path

    path, _ = find(data_dir, subfolders, place)
    return path or (_downloaded(name) if data_dir is None else None)


def _downloaded(name: str) -> Path | None:
    try:
        import pooch
    except ImportError:
        return None
    folder = Path(pooch.os_cache("minicnn")) / name
    return folder if folder.is_dir() and any(folder.iterdir()) else None
