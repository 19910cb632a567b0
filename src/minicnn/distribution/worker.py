"""A thread beside the one that computes, for what waits for other ranks."""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


class SideThread:
    """A thread that does one thing after the other; the process ends without waiting for it."""

    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = queue.SimpleQueue()
        threading.Thread(target=_work, args=(self._waiting,), daemon=True).start()
        weakref.finalize(self, self._waiting.put, None)

    def begin(self, work: Callable[[], Any]) -> Future[Any]:
        """Do something after what was begun before; its result or error comes with the Future."""
        done: Future[Any] = Future()
        self._waiting.put((work, done))
        return done


def _work(waiting: queue.SimpleQueue[Any]) -> None:
    while (task := waiting.get()) is not None:
        work, done = task
        try:
            done.set_result(work())
        except BaseException as error:  # whoever waits for it gets it
            done.set_exception(error)
        del task, work, done  # which would keep their arrays
