"""Cell: where the numbers of one state array are, which several models may share."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from minicnn.backends.base import Array, Backend

    Place = tuple[Backend, str]  # and the floating-point type

HostArray = np.ndarray[Any, Any]


class Parts(ABC):
    """An array of which each of several ranks has some parts."""

    @abstractmethod
    def whole(self) -> HostArray:
        """The array, in the host's memory; all ranks ask for it at the same time."""


class Cell:
    """One array of a model's state: in the host's memory, or on the backend of the model that used it last.

    A layer's weight has one cell, whatever models are made of the layer; what one of them learns is what all have.

    Attributes:
        value: The array; before it is needed perhaps a function that makes it, and None if nothing is known.
        place: Backend and floating-point type that the array is for; None in the host's memory.
        lock: Held by a model that computes with the cell; it counts how often the array became another.
    """

    __slots__ = ("lock", "place", "value")

    def __init__(self, lock: Lock | None = None) -> None:
        self.value: Array | HostArray | Callable[[], HostArray] | None = None
        self.place: Place | None = None
        self.lock = lock

    def put(self, value: HostArray | Callable[[], HostArray]) -> None:
        """Replace the array by one of the host, which is the cell's own from now on, or by a function that makes it."""
        self._become(value, None)

    def keep(self, value: Array) -> None:
        """Replace the array by another one at the same place."""
        if value is not self.value:
            self._become(value, self.place)

    def _become(self, value: Any, place: Place | None) -> None:
        self.value, self.place = value, place
        if self.lock is not None:
            self.lock.changes += 1

    def host(self, dtype: str) -> HostArray:
        """A copy in the host's memory, floating-point numbers in the given type."""
        self.join()
        array: Any
        if callable(self.value):  # it is asked once, and what it made remains without a floating-point type
            array = self.value()
            self.value = partial(np.asarray, array)
        else:
            array = self.value if self.place is None else self.place[0].to_numpy(self.value)
        return np.array(array, dtype if array.dtype.kind == "f" else None)

    def join(self) -> None:
        """Put together what is in parts on several ranks, which do so at the same time."""
        if isinstance(self.value, Parts):
            self.put(self.value.whole())

    def on(self, place: Place) -> Array:
        """The array for a backend and a floating-point type; it moves there if it is elsewhere."""
        if self.place is not place:
            self.join()
            here = self.place is not None and _alike(self.place, place)
            self._become(self.value if here else place[0].asarray(self.host(place[1])), place)
        return self.value

    def __getstate__(self) -> Any:
        """For `copy.deepcopy` and pickle: the numbers, wherever they are."""
        self.join()
        if self.place is None or self.value is None:
            return self.value
        return np.array(self.place[0].to_numpy(self.value))

    def __setstate__(self, state: Any) -> None:
        self.value, self.place, self.lock = state, None, None


class Lock:
    """A lock that a thread may take again.

    Attributes:
        changes: How often an array of the cells that it is for became another.
    """

    def __init__(self) -> None:
        lock = threading.RLock()
        self.acquire, self.release, self.changes = lock.acquire, lock.release, 0

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


def _alike(a: Place, b: Place) -> bool:
    """True if an array for one place is as good at the other."""
    return type(a[0]) is type(b[0]) and a[0].device == b[0].device and a[1] == b[1]
