"""A line on the terminal while kernels compile."""

from __future__ import annotations

import sys
import time

from minicnn.machine import is_terminal

PATIENCE = 1.0  # seconds before anything is shown


class Progress:
    """Says on a terminal which of several kernels is being compiled, once that has taken a while.

    Args:
        total: Number of kernels.
    """

    def __init__(self, total: int) -> None:
        self._total, self._count, self._shown = total, 0, False
        self._begin = time.monotonic()

    def next(self, name: str = "") -> None:
        """The next kernel; without a name where several are compiled at a time."""
        self._count += 1
        if is_terminal(sys.stderr) and time.monotonic() - self._begin > PATIENCE:
            self._shown = True
            sys.stderr.write(f"\r\033[Kcompiling kernel {self._count} of {self._total}{name and ': '}{name[:40]}")
            sys.stderr.flush()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()
