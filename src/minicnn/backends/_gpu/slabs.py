"""Memory in few large buffers, where many arrays have stretches: for kernels that bind few buffers."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

UNIT = 256  # bytes, of which all memory is a multiple: no binding begins elsewhere
FIRST, LARGEST = 1 << 24, 1 << 28  # bytes of the first slab, and of the largest that is more than one array needs


@dataclass(eq=False)
class Slab:
    """A buffer that holds many arrays.

    Attributes:
        buffer: The buffer.
        free: Stretches that nobody has: where each begins, and its size.
    """

    buffer: Any
    free: dict[int, int]


class Slabs:
    """The buffers of a device.

    Args:
        create: Makes a buffer of so many bytes.
        most: Bytes of the largest.
    """

    def __init__(self, create: Callable[[int], Any], most: int) -> None:
        self._create, self.most, self._taken = create, most, 0
        self._slabs: list[Slab] = []
        self._returned: deque[tuple[Slab, int, int]] = deque()
        self._lock = threading.RLock()

    def take(self, holder: object, nbytes: int) -> tuple[Slab, int]:
        """A slab, and where so many bytes of it begin, until their holder is gone."""
        size = -(-max(nbytes, 1) // UNIT) * UNIT
        with self._lock:
            self._put_away()
            free = [(n, first, slab) for slab in self._slabs for first, n in slab.free.items() if n >= size]
            if free:
                n, first, slab = min(free, key=lambda one: one[:2])
                del slab.free[first]
            else:
                n = min(self.most, max(size, min(LARGEST, FIRST << len(self._slabs))))
                first, slab = 0, Slab(self._create(n), {})
                self._slabs.append(slab)
            if n > size:
                slab.free[first + size] = n - size
            self._taken += size
        # Whoever collects garbage may hold the lock: what comes back is put away by whoever asks next.
        weakref.finalize(holder, self._returned.append, (slab, first, size))
        return slab, first

    def _put_away(self) -> None:
        with self._lock:
            while self._returned:
                slab, first, size = self._returned.popleft()
                self._taken -= size
                before = next((f for f, n in slab.free.items() if f + n == first), None)
                if before is not None:
                    first, size = before, size + slab.free.pop(before)
                size += slab.free.pop(first + size, 0)
                slab.free[first] = size

    @property
    def used(self) -> int:
        """Bytes that somebody has."""
        self._put_away()
        return self._taken

    def number(self, slab: Slab) -> int:
        """Number of a slab, from 0."""
        return self._slabs.index(slab)


class Memory:
    """Bytes of a slab, given back when nothing refers to them.

    Attributes:
        runtime: The device.
        slab: The slab.
        first: Where they begin.
    """

    def __init__(self, runtime: Any, slabs: Slabs, nbytes: int) -> None:
        self.runtime = runtime
        self.slab, self.first = slabs.take(self, nbytes)


class Pieces:
    """Memory that is larger than a slab: several, one behind the other. No array in it lies in two.

    Attributes:
        runtime: The device.
        pieces: The memories, all of the size of a slab but the last.
    """

    def __init__(self, runtime: Any, slabs: Slabs, nbytes: int) -> None:
        self.runtime, most = runtime, slabs.most
        self.pieces = [Memory(runtime, slabs, min(most, nbytes - first)) for first in range(0, nbytes, most)]
