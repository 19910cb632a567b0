"""The CSV of Kaggle's "Digit Recognizer": MNIST digits as `label,pixel0,...,pixel783`."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from minicnn.data.dataset import DataError, Dataset, Images, Labels
from minicnn.data.files import PathLike, fail, find, not_found

SUBFOLDERS = ("kaggle_digits", "digit-recognizer")
SIDE = 28
COLUMNS = 1 + SIDE * SIDE
MAX_BYTES = 2**28  # Kaggle's file has 77 million
HEADER = ",".join(["label", *(f"pixel{i}" for i in range(SIDE * SIDE))])
AGAIN = "Fetch the file again."
REMEDY = "Fetch train.csv of kaggle.com/c/digit-recognizer and name its folder by data_dir or MINICNN_DATA."


def kaggle_digits(
    data_dir: PathLike | None = None,
    *,
    test_samples: int = 1000,
    holdout: Literal["first", "last"] = "last",
) -> Dataset:
    """The labelled rows of Kaggle's digits: 42,000 images of 28x28 pixels, grey, white on black.

    Args:
        data_dir: The CSV file, or the folder of `train.csv` or of a subfolder `kaggle_digits` or
            `digit-recognizer` that holds it; else MINICNN_DATA names it.
        test_samples: Rows held out as the test set.
        holdout: Whether these are the first or the last rows.

    Returns:
        The Dataset, each part in the order of the file.

    Raises:
        DataError: If the file is not found or breaks a rule of its format.
        ValueError: If `test_samples` or `holdout` is out of its range.
    """
    if holdout not in ("first", "last"):
        message = f"holdout is 'first' or 'last'. Received: {holdout!r}."
        raise ValueError(message)
    path = _find(data_dir)
    rows = _read(path)
    if not 0 <= test_samples < len(rows):
        message = f"test_samples is from 0 to {len(rows) - 1} of the {len(rows)} rows. Received: {test_samples}."
        raise ValueError(message)
    cut = test_samples if holdout == "first" else len(rows) - test_samples
    first, last = rows[:cut], rows[cut:]
    train, test = (last, first) if holdout == "first" else (first, last)
    return Dataset("kaggle_digits", *_split(train), *_split(test), tuple("0123456789"))


def _split(rows: npt.NDArray[np.uint8]) -> tuple[Images, Labels]:
    return np.ascontiguousarray(rows[:, 1:]).reshape(-1, SIDE, SIDE, 1), rows[:, 0].astype(np.int32)


def _find(data_dir: PathLike | None) -> Path:
    if data_dir is not None and Path(data_dir).expanduser().is_file():
        return Path(data_dir).expanduser()
    path, folders = find(data_dir, SUBFOLDERS, _csv_in)
    if path is None:
        missing = not_found("kaggle_digits", "the file train.csv", folders, REMEDY)
        raise missing
    return path


def _csv_in(folder: Path) -> Path | None:
    path = folder / "train.csv"
    return path if path.is_file() else None


def _read(path: Path) -> npt.NDArray[np.uint8]:
    """All rows, shape (N, 785)."""
    size = path.stat().st_size
    if size > MAX_BYTES:
        raise fail(path, f"the file has at most {MAX_BYTES:,} bytes", f"{size:,}", "Check that it is the right file.")
    # Latin-1 decodes any byte, so that damage shows as a value that is not a number.
    with path.open(encoding="latin-1") as lines:
        header = lines.readline(2 * len(HEADER)).rstrip("\n")
    if header != HEADER:
        raise fail(path, f"line 1 is {HEADER[:20]}...pixel{SIDE * SIDE - 1}", f"{header[:40]!r}", AGAIN)
    try:
        with warnings.catch_warnings(action="ignore"):  # of a file without rows
            rows = np.loadtxt(path, np.uint8, comments=None, delimiter=",", skiprows=1, encoding="latin-1", ndmin=2)
    except ValueError as error:
        raise _first_mistake(path, str(error)) from error
    if rows.size == 0:
        raise fail(path, "there is at least one row below line 1", "none", AGAIN)
    if rows.shape[1] != COLUMNS or rows[:, 0].max() > 9:
        raise _first_mistake(path, f"{rows.shape[1]} values on each line")
    return rows


def _first_mistake(path: Path, received: str) -> DataError:
    """The error for the first line that breaks a rule."""
    rule = f"each line below the first holds {COLUMNS} values from 0 to 255, the first from 0 to 9"
    with path.open(encoding="latin-1") as lines:
        for number, line in enumerate(lines, 1):
            if number == 1 or line == "\n":
                continue
            fields = line.removesuffix("\n").split(",")
            if len(fields) != COLUMNS:
                received = f"{len(fields)} on line {number}"
                break
            wrong = [field for i, field in enumerate(fields) if not _is_number(field, 255 if i else 9)]
            if wrong:
                received = f"{wrong[0][:20]!r} on line {number}"
                break
    return fail(path, rule, received, AGAIN)


def _is_number(field: str, most: int) -> bool:
    field = field.strip()
    return field.isascii() and field.isdigit() and len(field) < 10 and int(field) <= most
