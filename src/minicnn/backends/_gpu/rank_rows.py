"""Rows of what is new in each step of a rank, or told by each, where graphs and copies find them."""

from __future__ import annotations

from typing import Any

from minicnn.backends._gpu.runtime import Runtime


class RowQueues:
    """Arrays by name, each with a row for each of some steps.

    Args:
        runtime: The device.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._arrays: dict[str, tuple[Any, list[Any]]] = {}

    def make(self, name: str, steps: int, like: Any) -> list[Any]:
        """Rows like an array, at least so many."""
        if name not in self._arrays or len(self._arrays[name][1]) < steps:
            shape, dtype = tuple(like.shape), str(like.dtype)
            whole = self._runtime.empty((steps, *shape), dtype)
            rows = [self._runtime.view(whole, k * like.nbytes, shape, dtype) for k in range(steps)]
            self._arrays[name] = whole, rows
        return self._arrays[name][1]

    def whole(self, name: str) -> Any:
        """All rows of a name, one after the other."""
        return self._arrays[name][0]

    def some(self, name: str, first: int, count: int) -> Any:
        """So many rows from one on, or that one itself."""
        whole, rows = self._arrays[name]
        if count == 1:
            return rows[first]
        return self._runtime.view(whole, first * rows[0].nbytes, (count, *whole.shape[1:]), str(whole.dtype))
