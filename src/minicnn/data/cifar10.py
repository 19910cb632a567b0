"""CIFAR-10 (A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from minicnn.data import files
from minicnn.data.dataset import Dataset, Images, Labels
from minicnn.data.files import PathLike, fail

RECORD = 3073  # a label, then 32x32 pixels of red, of green, of blue
MAX_BATCH = 2**25  # bytes; a batch has 31 million
MAX_ARCHIVE = 2**28  # bytes, uncompressed; it has 184 million
MAX_MEMBERS = 1000  # of an archive; it has 9
MAX_OPCODES = 200_000  # of a pickle; a batch has about 50,000
PLAIN, NO_CONTENT = b"0\0", b"123456"  # types of members: files; links, devices, folders, pipes
BLOCK = 512  # bytes; all that a tar archive holds is filled up to a multiple
CLASS_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
ARCHIVES = ("cifar-10-binary.tar.gz", "cifar-10-python.tar.gz")
FOLDERS = ("cifar-10-batches-bin", "cifar-10-batches-py")
SUBFOLDERS = (*(f"cifar10/{folder}" for folder in (*FOLDERS, "")), *FOLDERS)
URLS = ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",)
SHA256 = "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"
SIZE = 170_052_171  # bytes of the archive
SUFFIXES = (".bin", "")  # binary, Python
PASSED_OVER = {"PROTO", "FRAME", "MARK", "APPEND", "APPENDS", "BINPUT", "LONG_BINPUT", "MEMOIZE"}  # load nothing
PICKLE = f"Fetch the file again from the data set's own page, or {ARCHIVES[0]}, which has no pickles."
# Members are known by these names alone, so that nothing else in an archive is ever looked at.
BATCHES = {f"test_batch{suffix}": 0 for suffix in SUFFIXES} | {
    f"data_batch_{number}{suffix}": number for number in range(1, 10) for suffix in SUFFIXES
}


def cifar10(data_dir: PathLike | None = None, *, download: bool = True) -> Dataset:
    """Photographs of ten classes: 50,000 training and 10,000 test images of 32x32 pixels, RGB.

    Reads the binary version, or else the Python version (without unpickling it), unpacked or inside their
    `.tar.gz`, from `data_dir` or its subfolder `cifar10`. If `data_dir` is left out, they are looked for in the
    folder that the environment variable MINICNN_DATA names, and if they are not there, the binary version is
    downloaded into the user's cache and checked.

    Args:
        data_dir: Folder of the batches, of their folder or of the archive; or the archive itself.
        download: Whether to fetch the archive if nothing is found where no `data_dir` is given.

    Returns:
        The Dataset.

    Raises:
        DataError: If the files are not found, or break a rule of their format.
        ImportError: If the archive must be downloaded and pooch is missing.
    """
    if data_dir is not None and Path(data_dir).expanduser().is_file():
        return _read(Path(data_dir).expanduser())
    wanted = f"{ARCHIVES[0]}, {ARCHIVES[1]} or the batches that they hold"
    fetch = _download if download else None
    return _read(files.find_or_download("cifar10", data_dir, SUBFOLDERS, _place_in, wanted, URLS[0], fetch))


def _download(remedy: str) -> Path:
    return files.download("cifar10", ARCHIVES[0], URLS, SHA256, SIZE, uncompressed=False, remedy=remedy)


def _place_in(folder: Path) -> Path | None:
    """The folder itself if it holds batches, or else an archive in it."""
    if any(path.name in BATCHES for path in files.entries(folder)):
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
    for path in files.entries(folder):
        if path.name in BATCHES:
            with files.open_bounded(path, MAX_BATCH) as (reader, _):
                yield path, reader.read(MAX_BATCH + 1)


def _archive_batches(archive: Path) -> Iterator[tuple[Path, bytearray]]:
    """The batches in an archive, read one after another; nothing is written anywhere.

    Of tarfile only the header of a member is of use: TarFile reads extended headers of any length, skips any
    number of bytes, and remembers all members. No batch needs an extended header.
    """
    import tarfile

    rule = "a tar archive is complete and undamaged"
    with files.open_bounded(archive, MAX_ARCHIVE) as (reader, _):
        for _ in range(MAX_MEMBERS):
            # Header by header, with a limit to each number: a hostile archive ends here, not in memory.
            header = bytes(reader.read(BLOCK))
            if header == bytes(BLOCK):  # the end of an archive
                reader.finish()
                return
            try:
                member = tarfile.TarInfo.frombuf(header, "latin-1", "strict")
            except tarfile.HeaderError as error:
                raise fail(archive, rule, str(error), "Fetch it again.") from error
            path = archive / Path(member.name).name
            if member.type in NO_CONTENT:
                continue
            if not 0 <= member.size <= MAX_BATCH:
                most = f"a member has at most {MAX_BATCH:,} bytes"
                raise fail(path, most, f"{member.size:,} bytes", "Fetch the archive again.")
            # Also what is passed over is read, within the limit of the whole: a stream that is decompressed cannot be
            # moved on otherwise.
            content = reader.read(-(-member.size // BLOCK) * BLOCK)
            if len(content) < member.size:
                raise fail(path, rule, f"{len(content):,} of {member.size:,} bytes", "Fetch the archive again.")
            if member.type in PLAIN and path.name in BATCHES:
                del content[member.size :]
                yield path, content
    raise fail(archive, f"an archive has at most {MAX_MEMBERS:,} members", "more", "Check that it is the right file.")


def _binary_batch(data: bytearray, path: Path) -> tuple[Images, Labels]:
    if not data or len(data) % RECORD:
        rule = f"a binary batch holds records of {RECORD} bytes"
        raise fail(path, rule, f"{len(data):,} bytes, that is {len(data) / RECORD:.3f} records", "Fetch it again.")
    records = np.frombuffer(data, np.uint8).reshape(-1, RECORD)
    return _batch(records[:, 1:], records[:, 0].astype(np.int32), path)


def _python_batch(data: bytearray, path: Path) -> tuple[Images, Labels]:
    """The pixels and labels in a pickle, which is not unpickled.

    A pickle is a program for a stack machine. Its instructions are listed, and none is carried out: the labels
    are the numbers that it loads after the text "labels", the pixels are the one long text that it loads, as
    the content of an array of bytes that is not in Fortran's order.
    """
    import pickletools

    rule = f"a pickled batch has 'labels', a list of numbers from 0 to 9, and for each {RECORD - 1} bytes of 'data'"
    try:
        listed = list(itertools.islice(pickletools.genops(bytes(data)), MAX_OPCODES))
    except Exception as error:  # pickletools raises errors of many kinds
        raise fail(path, rule, str(error), PICKLE) from error
    steps = [(code.name, argument) for code, argument, _ in listed if code.name not in PASSED_OVER]
    loads: list[Any] = [value.encode("latin-1", "replace") if isinstance(value, str) else value for _, value in steps]
    start = loads.index(b"labels") + 1 if loads.count(b"labels") == 1 else len(loads)
    numbers = itertools.takewhile(lambda step: step[0] == "BININT1", steps[start + 1 :])
    labels: list[Any] = [number for _, number in numbers if steps[start][0] == "EMPTY_LIST"]
    contents = [i for i, value in enumerate(loads) if isinstance(value, bytes) and len(value) >= RECORD - 1]
    before = loads[: contents[0]] if len(contents) == 1 else []
    if len(listed) == MAX_OPCODES or not labels or max(labels) > 9:
        raise fail(path, rule, f"{len(labels):,} labels up to {max(labels, default=0)}", PICKLE)
    if not (b"data" in before and b"u1" in before and steps[len(before) - 1][0] == "NEWFALSE"):
        raise fail(path, rule, "no array of bytes in row-major order, or several", PICKLE)
    pixels = np.frombuffer(loads[contents[0]], np.uint8)
    if pixels.size != len(labels) * (RECORD - 1):
        raise fail(path, rule, f"{len(labels):,} labels and {pixels.size:,} bytes", PICKLE)
    return _batch(pixels, np.array(labels, np.int32), path)


def _batch(pixels: Images, labels: Labels, path: Path) -> tuple[Images, Labels]:
    if labels.max() > 9:
        received = f"{labels.max()} in record {int(labels.argmax())}"
        raise fail(path, "labels are from 0 to 9", received, "Fetch it again.")
    return np.ascontiguousarray(pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)), labels
