"""The backend cupy on a device that does nothing: what is left of a step is the host's work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from backends.cupy.emulated import EmulatedBackend, EmulatedRuntime
from minicnn.backends._gpu.runtime import KernelText, Launch
from minicnn.backends._gpu.tiles import Tiles


class Come:
    """An event that has come."""


class IdleRuntime(EmulatedRuntime):
    """See `Runtime`: memory is there, and launches, graphs, copies and events are forgotten."""

    def synchronize(self, event: Any = None) -> None:
        pass

    def clear(self, array: Any) -> None:
        pass

    def copy(self, source: Any, target: Any) -> None:
        pass

    def send(self, source: Any, target: Any, stream: Any = None) -> None:
        pass

    def event(self, *, timed: bool = False) -> Any:
        return Come()

    def record(self, event: Any, stream: Any = None) -> None:
        pass

    def wait(self, event: Any, stream: Any = None) -> None:
        pass

    def prepare(self, kernel: KernelText, blocks: int, arguments: Sequence[Any]) -> Launch:
        return _nothing

    def capture(self, launches: Sequence[Launch]) -> Launch:
        return _nothing


class IdleBackend(EmulatedBackend):
    """The backend cupy on that runtime; all numbers that it gives are ones."""

    name = "idle"

    def open(self, number: int) -> tuple[EmulatedRuntime, Tiles]:
        return IdleRuntime(), super().open(number)[1]

    def to_numpy(self, array: Any) -> Any:
        return np.ones(array.shape, array.dtype)


def _nothing() -> None:
    pass
