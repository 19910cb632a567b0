"""Callbacks that write down how training goes: its times, and a CSV file."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO

import numpy as np

from minicnn.callbacks.base import Callback
from minicnn.files import check_folder, writing
from minicnn.states import Rule, check_state, count, duration, optional

_RECORD = re.compile(r'(?:[^"\r\n]|"[^"]*+"?)++')  # of a CSV file: a line, or several where quotes hold them together


class Timer(Callback):
    """Adds "time_s" and "samples_per_s" to the logs of each epoch: training alone, without validation.

    It waits for the device at the end of each epoch. Put it before callbacks that are to see the two.
    After training was resumed within an epoch, the time is that of both parts.
    """

    def __init__(self) -> None:
        self._start, self._time = time.perf_counter(), 0.0

    def on_epoch_begin(self, epoch: int, logs: Any) -> None:
        self._start, self._time = time.perf_counter(), 0.0

    def on_test_begin(self, logs: Any) -> None:
        self._stop()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any]) -> None:
        if not self._time:
            self._stop()
        logs["time_s"] = self._time
        logs["samples_per_s"] = self.model.samples_seen / self._time

    def _stop(self) -> None:
        self.model.backend.synchronize()
        self._time = time.perf_counter() - self._start

    def get_state(self) -> dict[str, Any]:
        return {"time": time.perf_counter() - self._start}

    def set_state(self, state: Mapping[str, Any]) -> None:
        check_state(self, state, time=duration)
        self._start = time.perf_counter() - state["time"]


class CSVLogger(Callback):
    """Writes the logs of each epoch as a row of a CSV file.

    The columns are "epoch", counted from 0, and the logs in the order in which they come; where one is missing there is
    "NA". Each row is in the file as soon as its epoch has ended. A log that comes later, such as val_loss with
    `validation_freq`, becomes a further column of the whole file. After training was resumed from a back-up, rows
    written after that back-up are taken out and the file is continued.

    Args:
        filename: File to write, in a folder that is there.
        separator: Character between two columns.
        append: Whether to continue a file that is there, rather than to replace it.

    Raises:
        ValueError: If the separator is no single character, or one that the columns need themselves.
        OSError: When training begins, or during it, if the file cannot be written.
    """

    def __init__(self, filename: str | os.PathLike[str], separator: str = ",", append: bool = False) -> None:
        if not isinstance(separator, str) or len(separator) != 1 or separator in '"\r\n':
            raise ValueError(
                "The separator of CSVLogger is one character, no quote and no end of a line. "
                f"Received: separator={separator!r}. Use ',' or '\\t'."
            )
        self.filename = os.fspath(filename)
        self.separator = separator
        self.append = append
        self._begin()

    def _begin(self) -> None:
        self._columns: list[str] = []
        self._rows: int | None = None  # in the file; None before the first
        self._size: int | None = None  # bytes of the file after the last row; None where it was not looked at

    def on_train_begin(self, logs: Any) -> None:
        """See `Callback`; a place where the file cannot be written is refused before anything is computed."""
        self._begin()
        if self.chief:
            with self._opened():
                pass

    @contextmanager
    def _opened(self) -> Iterator[BinaryIO]:
        """The file, for each row anew, so that no crash loses one; it is made if it is not there."""
        with writing(self.filename):
            check_folder(self.filename)
            with open(self.filename, "r+b", opener=_opened_or_created) as file:
                yield file

    def on_epoch_end(self, epoch: int, logs: dict[str, Any]) -> None:
        if not self.chief:
            return
        row = {"epoch": epoch, **{k: v for k, v in logs.items() if k != "epoch"}}
        with self._opened() as file:
            there = file.seek(0, os.SEEK_END)
            if self._size is None or there < self._size or not row.keys() <= set(self._columns):
                file.seek(0)
                lines = self._widened(file.read(), list(row))
                file.seek(0)
                file.write(b"".join(lines))
                self._rows, self._size = len(lines) - 1, file.tell()
            file.seek(self._size)
            file.write(self._line(_cell(row[k]) if k in row else "NA" for k in self._columns))
            file.truncate()
            self._rows, self._size = (self._rows or 0) + 1, file.tell()

    def _widened(self, content: bytes, columns: Sequence[str]) -> list[bytes]:
        """The header and the rows that stay, with columns at the end that were not there."""
        header, *rows = _RECORD.findall(content.decode("utf-8", "surrogateescape")) or [""]
        kept = (len(rows) if self.append else 0) if self._rows is None else self._rows
        old = next(csv.reader([header], delimiter=self.separator), []) if self.append or kept else []
        self._columns = [*old, *(name for name in columns if name not in old)]
        missing = f"{self.separator}NA" * (len(self._columns) - len(old)) + "\n"
        return [self._line(self._columns), *((row + missing).encode("utf-8", "surrogateescape") for row in rows[:kept])]

    def _line(self, cells: Iterable[Any]) -> bytes:
        text = io.StringIO()
        csv.writer(text, delimiter=self.separator, lineterminator="\n").writerow(cells)
        return text.getvalue().encode("utf-8", "surrogateescape")

    def _remembered(self) -> Mapping[str, Rule]:
        return {"_rows": optional(count)}


def _opened_or_created(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CREAT, 0o666)


def _cell(value: Any) -> Any:
    return json.dumps(np.asarray(value).tolist()) if np.ndim(value) else value
