"""Compilation of kernels: a line on the terminal, or in the bar of a training, and how long all of it took."""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from minicnn.machine import is_terminal

PATIENCE = 1.0  # seconds before anything is shown


class Clock(threading.local):
    """Kernels that a thread has compiled or loaded so far, and the seconds that making steps of Programs took it."""

    kernels = 0
    seconds = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Context manager: what is done in it is counted as compiling."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - begin


clock = Clock()


@contextmanager
def without_collection() -> Iterator[None]:
    """Context manager: Python does not look for cycles of objects that nobody needs."""
    # A plan is hundreds of thousands of objects that all stay: to look through them again and again takes a fifth of
    # the time in which they are made.
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


# Where the line is shown instead of the terminal: two that draw on one terminal would overwrite each other.
screen: ContextVar[Callable[[str], None] | None] = ContextVar("screen", default=None)


class Progress:
    """Context manager: says which of several kernels is being compiled, once that has taken a while.

    Args:
        total: Number of kernels.
    """

    def __init__(self, total: int) -> None:
        self._total, self._count, self._shown = total, 0, False
        self._begin = time.perf_counter()

    def next(self, name: str = "", left: int | None = None) -> None:
        """The next kernel.

        Args:
            name: Its name; none where several are compiled at a time.
            left: How many others are not begun, where other processes compile too.
        """
        self._count = self._count + 1 if left is None else self._total - left
        if time.perf_counter() - self._begin <= PATIENCE:
            return
        text = f"compiling kernel {self._count} of {self._total}{name and ': '}{name[:40]}"
        show = screen.get()
        if show is not None:
            show(text)
        elif is_terminal(sys.stderr):
            self._shown = True
            sys.stderr.write(f"\r\033[K{text}")
            sys.stderr.flush()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        clock.kernels += self._count
        if self._shown:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()
