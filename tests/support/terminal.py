"""A terminal: a pseudo-terminal that a test writes to, and the screen that a reader would see of it."""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

TOKEN = re.compile(r"\x1b\[(\??)([0-9;]*)([A-Za-z])|\x1b(.?)|([\r\n])|([^\x1b\r\n]+)", re.DOTALL)


def screen(text: str) -> list[str]:
    """The lines on a wide screen after a text that moves the cursor up and down, and erases and styles lines.

    Raises:
        ValueError: If there is an escape code that it does not know.
    """
    lines, row, column = [""], 0, 0
    for private, number, letter, other, control, plain in TOKEN.findall(text):
        if plain:
            lines[row] = lines[row][:column].ljust(column) + plain + lines[row][column + len(plain) :]
            column += len(plain)
        elif control == "\r":
            column = 0
        elif control:
            row += 1  # the terminal itself adds the \r before it
            lines += [""] * (row + 1 - len(lines))
        elif letter == "K":
            lines[row] = "" if number == "2" else lines[row][:column]
        elif letter == "A":
            row = max(row - int(number or 1), 0)
        elif not (letter == "m" or (private and letter in "hl")):  # colours, and whether the cursor is seen
            raise ValueError(
                f"An escape code is one of K, A, m, ?h, ?l. Received: {private}{number}{letter or other!r}."
            )
    return [line.rstrip() for line in lines]


@contextmanager
def pseudo_terminal(monkeypatch: pytest.MonkeyPatch, *streams: str) -> Iterator[list[str]]:
    """Context manager: a terminal as standard output, and as the standard error if that is named, too.

    Args:
        monkeypatch: Puts the streams back.
        streams: Of "stdout" and "stderr".

    Yields:
        A list, which has afterwards what was written there, as one text.
    """
    pty = pytest.importorskip("pty")
    reader, writer = pty.openpty()
    chunks: list[bytes] = []

    def read() -> None:
        try:
            while chunk := os.read(reader, 4096):
                chunks.append(chunk)
        except OSError:  # as Linux says that the other end is closed
            pass

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    written: list[str] = []
    with monkeypatch.context() as patch:
        patch.setenv("TERM", "xterm-256color")
        patch.setenv("COLUMNS", "150")
        files = [open(os.dup(writer), "w", encoding="utf-8") for _ in streams]  # noqa: SIM115
        for name, file in zip(streams, files, strict=True):
            patch.setattr(sys, name, file)
        try:
            yield written
        finally:
            for file in files:
                file.close()
            os.close(writer)
            thread.join(10)
            os.close(reader)
    written.append(b"".join(chunks).decode())
