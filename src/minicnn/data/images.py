"""Folders of images, one folder a class, and Tiny-ImageNet, which is nearly that."""

from __future__ import annotations

import io
import os
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np

from minicnn.arguments import plain_arguments
from minicnn.data.dataset import DataError, Dataset, Images
from minicnn.data.files import PathLike, entries, fail, find_or_download, open_bounded, open_regular
from minicnn.data.order import philox
from minicnn.extras import needing
from minicnn.machine import total_memory

# Only what is an image by its name is opened: a stray text file in a folder is no error.
SUFFIXES = {  # all by which Pillow knows these formats
    ".apng", ".bmp", ".dib", ".gif", ".jfif", ".jpe", ".jpeg", ".jpg", ".pbm", ".pfm", ".pgm", ".png", ".pnm", ".ppm",
    ".tif", ".tiff", ".webp",
}  # fmt: skip
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")  # all that Pillow may take a file for
# Conversion of deeper modes clips instead of scaling, so that they are refused rather than made white.
MODES = {"1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "HSV", "LAB"}  # 8 bits a channel
SUBFOLDERS = ("tiny_imagenet", "tiny-imagenet-200")  # of Tiny-ImageNet
MAX_PIXELS = 2**25  # of one image; WebP takes 20 bytes for each while it is decoded
MAX_AT_ONCE = 2**26  # pixels of the images that are being decoded
MAX_FILE = 2**27  # bytes of one image, encoded
MAX_SCANS = 50  # of a JPEG, each of which goes over all pixels in a few bytes; progressive ones have about 10
MAX_BYTES = 2**34  # of all images, decoded; and half of the machine's memory
MAX_TABLE = 2**22  # bytes of a text; words.txt has 2.7 million
Sample = tuple[Path, int]  # an image and its label


@plain_arguments
def image_folder(
    path: PathLike | None,
    size: int | tuple[int, int] | None = None,
    *,
    channels: Literal[1, 3] = 3,
    test_fraction: float = 0.2,
    seed: int = 0,
) -> Dataset:
    """Images in one folder a class, which may have folders of its own.

    A folder `train` that itself has class folders is the training set; the test set is then the class folders
    of `test`, or else of `val`. In any other tree, and where neither of these is there, a part of each class
    is drawn as the test set. Classes, and images within a class, are in the order of their names. Images are turned
    as their EXIF orientation says.

    Passed over are `__MACOSX`, hidden files and folders, links from a class to other folders, files that have not the
    suffix of an image, and, with a warning, folders without images.

    Args:
        path: The folder.
        size: Height and width, or both as one number, that images are resized to (bilinear, antialiased); if
            left out, all images must have the same size.
        channels: 3 for RGB, 1 for grey.
        test_fraction: Part of each class that is held out where the tree has no test set, from 0 to below 1.
        seed: Seed of that draw.

    Returns:
        The Dataset, named as the folder.

    Raises:
        DataError: If the folder holds no classes, or an image cannot be read or breaks a rule; or if its only folder
            holds nothing but folders, as an unpacked archive does.
        ValueError: If an argument is out of its range.
        ImportError: If Pillow is missing.

    Example:
        ```python
        data = image_folder("flowers", size=64)
        ```
    """
    if path is None:
        raise ValueError("image_folder reads a folder of class folders. Received: none. Name it by data_dir.")
    if not 0 <= test_fraction < 1:
        raise ValueError(f"test_fraction is from 0 to below 1. Received: {test_fraction}.")
    root = Path(path).expanduser()
    split = _classes(root / "train")
    train_root = root / "train" if split else root
    classes = split or _classes(root)
    # An unpacked archive often is a folder in a folder, which looks like a single class.
    only = train_root / next(iter(classes), "")
    if len(classes) == 1 and all(path.parent != only for path in classes[only.name]):
        rule, received = "a single class folder holds images itself", f"folders in {only.name!r}"
        raise fail(train_root, rule, received, f"Name {only}, if these are the classes.")
    train = _samples(train_root, classes, list(classes))
    empty = sorted(set(_folders(train_root)) - set(classes))
    if empty:
        warnings.warn(
            f"Class folders hold images; those without are passed over. Received in {train_root}: {', '.join(empty)}.",
            stacklevel=2,
        )
    test_root, tested = next(
        ((root / name, images) for name in ("test", "val") if split and (images := _classes(root / name))), (None, {})
    )
    if test_root is None:
        train, test = _hold_out(train, test_fraction, seed)
    else:
        unknown = sorted(set(tested) - set(classes))
        if unknown:
            rule = "every class of the test set is in the training set"
            raise fail(test_root, rule, f"{', '.join(unknown)}", "Add it there, or remove it here.")
        test = _samples(test_root, tested, list(classes))
    return _dataset(root.resolve().name, train, test, list(classes), size, channels)


@plain_arguments
def read_images(paths: PathLike | Sequence[PathLike], shape: Sequence[int | None] = (None, None, 3)) -> Images:
    """Images from files, as a model takes them: `model.predict(read_images("cat.jpg", model.input_shape))`.

    Args:
        paths: A file, or a list of them.
        shape: (H, W, C), with the batch axis None before it or without: the size that images are resized to, and 1
            channel for grey or 3 for RGB. If H and W are None they stay as large as they are, all of one size.

    Returns:
        uint8 (N, H, W, C), with values from 0 to 255.

    Raises:
        DataError: If a file is no image, or images that stay as they are have several sizes.
        ValueError: If there are no paths, or it is another shape.
        ImportError: If Pillow is missing.
    """
    files = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    height, width, channels = shape[-3:] if len(shape) in (3, 4) else (0, 0, 0)
    if not files or channels not in (1, 3) or (height is None) != (width is None):
        raise ValueError(
            "Images are read from at least one file, to a shape (H, W, C) of 1 or 3 channels. Received: "
            f"{len(files)} paths, shape {tuple(shape)}."
        )
    size = None if height is None or width is None else (height, width)
    return _read([Path(path).expanduser() for path in files], size, channels)


@plain_arguments
def tiny_imagenet(data_dir: PathLike | None = None, *, size: int | tuple[int, int] | None = None) -> Dataset:
    """Tiny-ImageNet: 200 classes, 100,000 training and 10,000 test images of 64x64 pixels, RGB.

    Its validation set, whose labels are public, is the test set. Class k is the k-th of the training set's
    folders in the order of their names, and has the name that `words.txt` gives it.

    Args:
        data_dir: The folder `tiny-imagenet-200`, or the folder that holds it (or holds it as
            `tiny_imagenet`); if left out, MINICNN_DATA names it.
        size: Height and width, or both as one number, that images are resized to.

    Returns:
        The Dataset.

    Raises:
        DataError: If the files are not found, or break a rule of their format.
        ImportError: If Pillow is missing.
    """
    wanted = "the folder tiny-imagenet-200 with train/, val/ and words.txt"
    source = "and unpack http://cs231n.stanford.edu/tiny-imagenet-200.zip"
    root = find_or_download("tiny_imagenet", data_dir, SUBFOLDERS, _tiny_imagenet_in, wanted, source)
    classes = _classes(root / "train")
    ids = list(classes)
    train = _samples(root / "train", classes, ids)
    words = dict(_table(root / "words.txt", 2))
    test = []
    for name, wnid, *_ in _table(root / "val" / "val_annotations.txt", 6):
        if wnid not in ids or Path(name).name != name:
            rule = "each line names an image and a class of the training set"
            raise fail(root / "val" / "val_annotations.txt", rule, f"{name!r} {wnid!r}", "Unpack the archive again.")
        test.append((root / "val" / "images" / name, ids.index(wnid)))
    return _dataset("tiny_imagenet", train, test, [words.get(wnid, wnid) for wnid in ids], size, 3)


def _tiny_imagenet_in(folder: Path) -> Path | None:
    wanted = (folder / "train", folder / "val" / "val_annotations.txt", folder / "words.txt")
    return folder if all(path.exists() for path in wanted) else None


def _table(path: Path, columns: int) -> list[list[str]]:
    """The lines of a text, each split at tabs."""
    with open_bounded(path, MAX_TABLE) as (reader, _):
        content = reader.read(MAX_TABLE + 1)
    try:
        lines = content.decode("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise fail(path, "a table is a text in UTF-8", str(error), "Unpack the archive again.") from error
    rows = [line.split("\t") for line in lines if line]
    for number, row in enumerate(rows, 1):
        if len(row) != columns:
            rule = f"each line has {columns} columns, split by tabs"
            raise fail(path, rule, f"{len(row)} in row {number}", "Unpack the archive again.")
    return rows


def _seen(folder: Path) -> list[Path]:
    return [path for path in entries(folder) if not path.name.startswith(".") and path.name != "__MACOSX"]


def _folders(root: Path) -> list[str]:
    return [path.name for path in _seen(root) if path.is_dir()] if root.is_dir() else []


def _classes(root: Path) -> dict[str, list[Path]]:
    """The images of each folder that has any, in itself or in its folders."""
    images_of = {name: _images(root / name) for name in _folders(root)}
    return {name: images for name, images in images_of.items() if images}


def _images(folder: Path) -> list[Path]:
    images, folders = [], [folder]
    while folders:
        for path in _seen(folders.pop()):
            if path.suffix.lower() in SUFFIXES:
                images.append(path)
            elif path.is_dir() and not path.is_symlink():  # a link may lead back
                folders.append(path)
    return sorted(images)


def _samples(root: Path, classes: Mapping[str, Sequence[Path]], names: Sequence[str]) -> list[Sample]:
    samples = [(path, names.index(name)) for name, paths in classes.items() for path in paths]
    if not samples:
        rule = f"there is a folder for each class, with images whose suffix is one of {', '.join(sorted(SUFFIXES))}"
        raise fail(root, rule, "none", "Put the images of each class into a folder, or name another one.")
    return samples


def _hold_out(samples: list[Sample], fraction: float, seed: int) -> tuple[list[Sample], list[Sample]]:
    """Split every class on its own; each part keeps its order, and a class its first training image."""
    labels = np.array([label for _, label in samples])
    held = np.zeros(len(samples), bool)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        shuffled = philox(seed, int(label)).permutation(members)
        # By class, so that small classes are in both parts, and by a generator for each, so that what is drawn of one
        # does not depend on how many images others have.
        held[shuffled[: round(fraction * len(members))]] = True
    train = [sample for sample, out in zip(samples, held, strict=True) if not out]
    return train, [sample for sample, out in zip(samples, held, strict=True) if out]


def _dataset(
    name: str,
    train: list[Sample],
    test: list[Sample],
    class_names: Sequence[str],
    size: int | tuple[int, int] | None,
    channels: int,
) -> Dataset:
    if channels not in (1, 3):
        raise ValueError(f"Images have 1 channel (grey) or 3 (RGB). Received: channels={channels}.")
    H, W = (size, size) if isinstance(size, int) else size or (None, None)
    if size is not None and not (H and W and 0 < H * W <= MAX_PIXELS):
        raise ValueError(f"size is a height and a width, of 1 to {MAX_PIXELS:,} pixels in all. Received: {size}.")
    samples = train + test
    images = _read([path for path, _ in samples], None if H is None or W is None else (H, W), channels, f" in {name!r}")
    labels = np.array([label for _, label in samples], np.int32)
    n = len(train)
    return Dataset(name, images[:n], labels[:n], images[n:], labels[n:], tuple(class_names))


def _read(paths: Sequence[Path], size: tuple[int, int] | None, channels: int, where: str = "") -> Images:
    """Images of one size, uint8 (N, H, W, channels), decoded side by side."""
    with needing("Reading images needs", "Pillow"):
        from PIL import Image
    from concurrent.futures import ThreadPoolExecutor

    with warnings.catch_warnings(action="ignore", category=Image.DecompressionBombWarning):
        first = _decode(paths[0], size, channels)
        shape = first.shape
        most = min(MAX_BYTES, total_memory() // 2 or MAX_BYTES)
        try:
            if len(paths) * first.size > most:
                raise MemoryError
            images = np.empty((len(paths), *shape), np.uint8)
        except MemoryError as error:
            raise DataError(
                f"A Dataset holds at most {most:,} bytes of images, and no more than there is memory for. Received: "
                f"{len(paths):,} images of shape {shape}{where}. Give a smaller size."
            ) from error

        def fill(i: int) -> None:
            image = _decode(paths[i], size, channels)
            if image.shape != shape:
                rule = f"all images have the same size, {shape[0]}x{shape[1]} as {paths[0].name}"
                received = f"{image.shape[0]}x{image.shape[1]}"
                raise fail(paths[i], rule, received, "Give size= to resize them all, or a shape with a size.")
            images[i] = image

        # Pillow decodes without holding the interpreter's lock, so that threads are enough.
        with ThreadPoolExecutor() as pool:
            for _ in pool.map(fill, range(len(paths))):
                pass
    return images


class _Pixels:
    """Has threads wait while the images that are being decoded have too many pixels in all."""

    def __init__(self) -> None:
        self._free, self._changed = MAX_AT_ONCE, threading.Condition()

    @contextmanager
    def take(self, count: int) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: self._free >= count)
            self._free -= count
        try:
            yield
        finally:
            with self._changed:
                self._free += count
                self._changed.notify_all()


_pixels = _Pixels()


def _decode(path: Path, size: Any, channels: int) -> Images:
    """One image, uint8, shape (H, W, channels)."""
    from PIL import Image, ImageOps

    with open_regular(path) as stream:
        content = stream.read(MAX_FILE + 1)
    try:
        if len(content) > MAX_FILE or content[:2] in (b"P1", b"P2", b"P3"):
            raise ValueError(f"more than {MAX_FILE:,} bytes, or pixels written as text")
        # Counted in the bytes, because Pillow would go through all scans before it could say how many there are.
        if content[:2] == b"\xff\xd8" and content.count(b"\xff\xda") > MAX_SCANS:
            raise ValueError(f"a JPEG of more than {MAX_SCANS} scans")
        with Image.open(io.BytesIO(content), formats=FORMATS) as image:
            width, height = image.size
            if not 0 < width * height <= MAX_PIXELS:
                many = f"more than {MAX_PIXELS:,}" if width * height else "no"
                raise ValueError(f"{many} pixels: {width}x{height}")
            if image.mode not in MODES:
                raise ValueError(f"mode {image.mode}, which has not 8 bits a channel")
            with _pixels.take(width * height):
                # Cameras store how they were held beside the pixels; viewers turn images, and so a network sees what
                # people see.
                decoded = ImageOps.exif_transpose(image).convert("RGB" if channels == 3 else "L")
        if size is not None:
            decoded = decoded.resize((size[1], size[0]), Image.Resampling.BILINEAR)
    except Exception as error:  # Pillow raises errors of many kinds on damaged files
        rule = f"an image is {', '.join(FORMATS)} and has 1 to {MAX_PIXELS:,} pixels of 8 bits a channel"
        raise fail(path, rule, str(error), "Mend or remove it.") from error
    return np.asarray(decoded, np.uint8).reshape(decoded.height, decoded.width, channels)
