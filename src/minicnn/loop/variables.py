"""Variables: the arrays that a model carries from step to step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from minicnn.backends import get_backend
from minicnn.backends.base import Backend, State
from minicnn.data.forms import host, numeric
from minicnn.layers.cell import Cell, Lock
from minicnn.machine import cores
from minicnn.states import check_range

if TYPE_CHECKING:
    from minicnn.layers.cell import Place

HostArray = np.ndarray[Any, Any]


class Variables:
    """The arrays that a model carries from step to step, by name: weights, optimizer state, counters.

    Entered while a model computes with them, so that threads, and models that share weights, compute one at a time.

    Attributes:
        dtype: Floating-point type of the arrays.
        cells: Where each array is; other models may have the same cells.
    """

    def __init__(self, backend: str | Backend | None) -> None:
        self._backend = None if backend is None else get_backend(backend)
        self.dtype = "float32"
        self.cells: dict[str, Cell] = {}
        self._locks = [Lock()]
        self._place: Place | None = None
        self._state: tuple[int, State] | None = None  # the changes when it was made

    def __enter__(self) -> None:
        for lock in self._locks:
            lock.acquire()

    def __exit__(self, *_: object) -> None:
        for lock in reversed(self._locks):
            lock.release()

    @property
    def decided(self) -> bool:
        """True if it is known which backend computes with them."""
        return self._backend is not None

    @property
    def backend(self) -> Backend:
        """The backend; the default one if none was chosen before it is needed."""
        if self._backend is None:
            self._backend = get_backend(None)
        return self._backend

    @backend.setter
    def backend(self, backend: Backend) -> None:
        self._backend = backend

    def share(self, cells: Mapping[str, Cell]) -> None:
        """Take over cells that other models may have; models with a cell in common compute one at a time."""
        self.cells |= cells
        self._state = None
        for cell in cells.values():
            cell.lock = cell.lock or self._locks[0]
        # Whoever holds several locks takes them in the same order, so that nobody waits for ever.
        self._locks = sorted({*self._locks, *(cell.lock for cell in cells.values() if cell.lock)}, key=id)

    def set(self, arrays: Mapping[str, HostArray]) -> None:
        """Replace arrays by copies of host arrays."""
        with self:
            for name, array in arrays.items():
                self._cell(name).put(np.array(array, self.dtype if array.dtype.kind == "f" else None))

    def begin(self, values: Iterable[tuple[str, tuple[int, ...], str]]) -> None:
        """Let arrays of some names, shapes and dtypes begin at zero."""
        for name, shape, dtype in values:
            self._cell(name).put(partial(np.zeros, shape, dtype))

    def _cell(self, name: str) -> Cell:
        return self.cells.setdefault(name, Cell(self._locks[0]))

    @contextmanager
    def drawing(self, names: Iterable[str]) -> Iterator[None]:
        """Context manager: the arrays of some names are made beside what goes on in it, if nobody needed them yet."""
        cells = [self.cells[name] for name in names if name in self.cells]
        waiting = [(cell, cell.value) for cell in cells if callable(cell.value)]
        if not waiting:
            yield
            return
        # NumPy draws numbers without Python's lock.
        with ThreadPoolExecutor(cores()) as pool:
            arrays = [(cell, pool.submit(_drawn, make, self.dtype)) for cell, make in waiting]
            yield
        for cell, array in arrays:
            cell.value = partial(np.asarray, array.result())

    def get(self, name: str) -> HostArray:
        """A copy of one array on the host."""
        with self:
            return self.cells[name].host(self.dtype)

    def on_host(self, array: Any, name: str) -> HostArray:
        """An array of any library on the host, in the floating-point type; a ValueError if that cannot hold it."""
        array = numeric(array, "Weights")
        copy = self.backend.to_numpy(array) if self.decided and self.backend.owns(array) else host(array)
        check_range(copy, self.dtype, name)
        return copy.astype(self.dtype)

    def join(self) -> None:
        """Put together the arrays of which each rank has a part; all ranks do so at the same time."""
        with self:
            for cell in self.cells.values():
                cell.join()

    def reset(self, dtype: str, keep: Iterable[str]) -> None:
        """Forget all arrays but those named, which get a new floating-point type."""
        with self:
            self.cells = {name: self.cells[name] for name in keep}
            self.dtype, self._place, self._state = dtype, None, None

    def state(self) -> State:
        """All arrays on the backend; the same object while none of them is another one."""
        place = self._place
        if place is None or place[0] is not self._backend:
            place, self._state = (self.backend, self.dtype), None
            self._place = place
        changes = sum([lock.changes for lock in self._locks])
        if self._state is None or self._state[0] != changes:
            state = State({n: c.value if c.place is place else c.on(place) for n, c in self.cells.items()})
            # Cells that had to move count as changed by that.
            self._state = sum([lock.changes for lock in self._locks]), state
        return self._state[1]


def _drawn(make: Callable[[], HostArray], dtype: str) -> HostArray:
    """Initial values, floating-point numbers in the given type."""
    array = make()
    return np.asarray(array, dtype if array.dtype.kind == "f" else None)
