"""Callbacks that write down how training goes: its times, and a CSV file."""

from __future__ import annotations

import csv
import io
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO

import numpy as np

from minicnn.callbacks.base import Callback
from minicnn.files import check_folder, writing
from minicnn.states import Rule, check_state, count, duration, list_of, optional, text


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

    The columns are "epoch", counted from 0, and the logs of the first epoch in their order; one that is
    missing later becomes "NA". Each row is in the file as soon as its epoch has ended. After training was
    resumed from a back-up, rows written after that back-up are taken out and the file is continued.

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
        self._columns: list[str] = []
        self._size: int | None = None  # bytes of the file after the last row; None before the first

    def on_train_begin(self, logs: Any) -> None:
        """See `Callback`; a place where the file cannot be written is refused before anything is computed."""
        self._columns, self._size = [], None
        if self.chief:
            with self._opened():
                pass

    @contextmanager
    def _opened(self) -> Iterator[BinaryIO]:
        """The file, for each row anew, so that no crash loses one; it is made if it is not there."""
        with writing(self.filename):
            check_folder(self.filename)
            with open(self.filename, "ab") as file:
                yield file

    def on_epoch_end(self, epoch: int, logs: dict[str, Any]) -> None:
        if not self.chief:
            return
        keep, text = self._size, io.StringIO()
        if keep is None and self.append and os.path.exists(self.filename):
            keep = os.path.getsize(self.filename)
            with open(self.filename, newline="", encoding="utf-8") as old:
                lines = list(old)
            self._columns = next(csv.reader(lines, delimiter=self.separator), [])
            if lines and not lines[-1].endswith(("\n", "\r")):
                text.write("\n")
        self._columns = self._columns or ["epoch", *(k for k in logs if k != "epoch")]
        writer = csv.writer(text, delimiter=self.separator, lineterminator="\n")
        with self._opened() as file:
            file.truncate(min(keep or 0, file.tell()))
            if not file.seek(0, os.SEEK_END):
                writer.writerow(self._columns)
            row = {**logs, "epoch": epoch}
            writer.writerow([_cell(row[k]) if k in row else "NA" for k in self._columns])
            file.write(text.getvalue().encode())
            self._size = file.tell()

    def _remembered(self) -> Mapping[str, Rule]:
        return {"_columns": list_of(text), "_size": optional(count)}


def _cell(value: Any) -> Any:
    return json.dumps(np.asarray(value).tolist()) if np.ndim(value) else value
