"""The CSV of Kaggle's "Digit Recognizer": MNIST digits as `label,pixel0,...,pixel783`."""

from __future__ import annotations

import itertools
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from minicnn.arguments import plain_arguments
from minicnn.data.dataset import Dataset, Images, Labels
from minicnn.data.files import PathLike, fail, find_or_download, open_regular

SUBFOLDERS = ("kaggle_digits", "digit-recognizer")
SIDE = 28
COLUMNS = 1 + SIDE * SIDE
MAX_BYTES = 2**27  # Kaggle's file has 77 million
MAX_LINE = 8192  # characters; 785 values of three digits and their commas are 3,140
MAX_LINES = MAX_BYTES // (2 * COLUMNS)  # as many as there can be if all values have one digit
HEADER = ",".join(["label", *(f"pixel{i}" for i in range(SIDE * SIDE))])
REFETCH = "Fetch the file again."


@plain_arguments
def kaggle_digits(
    data_dir: PathLike | None = None, *, test_samples: int = 1000, holdout: Literal["first", "last"] = "last"
) -> Dataset:
    """The labelled rows of Kaggle's digits: 42,000 images of 28x28 pixels, grey, white on black.

    Args:
        data_dir: The CSV file, or the folder of `train.csv` or of a subfolder `kaggle_digits` or
            `digit-recognizer` that holds it; if left out, MINICNN_DATA names the folder.
        test_samples: Rows held out as the test set.
        holdout: Whether these are the first or the last rows.

    Returns:
        The Dataset, each part in the order of the file.

    Raises:
        DataError: If the file is not found or breaks a rule of its format.
        ValueError: If `test_samples` or `holdout` is out of its range.
    """
    if holdout not in ("first", "last"):
        raise ValueError(f"holdout is 'first' or 'last'. Received: {holdout!r}.")
    path = _find(data_dir)
    rows = _read(path)
    if not 0 <= test_samples < len(rows):
        raise ValueError(
            f"test_samples is from 0 to {len(rows) - 1} of the {len(rows)} rows. Received: {test_samples}."
        )
    cut = test_samples if holdout == "first" else len(rows) - test_samples
    first, last = rows[:cut], rows[cut:]
    train, test = (last, first) if holdout == "first" else (first, last)
    return Dataset("kaggle_digits", *_split(train), *_split(test), tuple("0123456789"))


def _split(rows: npt.NDArray[np.uint8]) -> tuple[Images, Labels]:
    return np.ascontiguousarray(rows[:, 1:]).reshape(-1, SIDE, SIDE, 1), rows[:, 0].astype(np.int32)


def _find(data_dir: PathLike | None) -> Path:
    if data_dir is not None and Path(data_dir).expanduser().is_file():
        return Path(data_dir).expanduser()
    source = "train.csv of kaggle.com/c/digit-recognizer"
    return find_or_download("kaggle_digits", data_dir, SUBFOLDERS, _csv_in, "the file train.csv", source)


def _csv_in(folder: Path) -> Path | None:
    path = folder / "train.csv"
    return path if path.is_file() else None


def _read(path: Path) -> npt.NDArray[np.uint8]:
    """All rows, shape (N, 785)."""
    lines, parts, number = _lines(path), [], 2
    while some := list(itertools.islice(lines, 512)):
        if any(some):
            parts.append(_rows(some, number, path))
        number += len(some)
    if not parts:
        raise fail(path, "there is at least one row below line 1", "none", REFETCH)
    return np.concatenate(parts)


def _lines(path: Path) -> Iterator[str]:
    """The lines below the first."""
    with open_regular(path) as stream:
        size = os.fstat(stream.fileno()).st_size
        if size > MAX_BYTES:
            rule = f"the file has at most {MAX_BYTES:,} bytes"
            raise fail(path, rule, f"{size:,}", "Check that it is the right file.")
        # Latin-1 decodes any byte, so that damage shows as a value that is not a number.
        header = stream.readline(MAX_LINE).decode("latin-1").rstrip("\r\n")
        if header != HEADER:
            raise fail(path, f"line 1 is {HEADER[:20]}...pixel{SIDE * SIDE - 1}", f"{header[:40]!r}", REFETCH)
        for number in itertools.count(2):
            line = stream.readline(MAX_LINE + 1)
            if not line:
                return
            if len(line) > MAX_LINE or number > MAX_LINES:
                rule = f"there are at most {MAX_LINES:,} lines of at most {MAX_LINE:,} characters"
                raise fail(path, rule, f"more on line {number}", REFETCH)
            yield line.decode("latin-1").rstrip("\r\n")


def _rows(lines: list[str], first: int, path: Path) -> npt.NDArray[np.uint8]:
    """The rows of some lines, the first of which has this number; empty lines are passed over."""
    try:
        with warnings.catch_warnings(action="error"):  # some versions of NumPy warn of 1.5, and take it for 1
            rows = np.loadtxt(lines, np.uint8, comments=None, delimiter=",", ndmin=2)
        if rows.shape[1] == COLUMNS and rows[:, 0].max() <= 9:
            return rows
        received = f"{rows.shape[1]} values on each line"
    except (ValueError, Warning) as error:
        received = str(error)
    for number, line in enumerate(lines, first):
        fields = line.split(",") if line else []
        if line and len(fields) != COLUMNS:
            received = f"{len(fields)} on line {number}"
            break
        wrong = [field for i, field in enumerate(fields) if not _is_number(field, 255 if i else 9)]
        if wrong:
            received = f"{wrong[0][:20]!r} on line {number}"
            break
    rule = f"each line below the first holds {COLUMNS} values from 0 to 255, the first from 0 to 9"
    raise fail(path, rule, received, REFETCH)


def _is_number(field: str, most: int) -> bool:
    field = field.strip()
    return field.isascii() and field.isdigit() and len(field) < 10 and int(field) <= most
