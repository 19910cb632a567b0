"""Batches from the host: pinned buffers and a stream for copies, so that they arrive while the device computes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import cupy
import numpy as np

from minicnn.backends.base import Stage
from minicnn.backends.cupy.errors import explained
from minicnn.program.graph import Spec

if TYPE_CHECKING:
    from minicnn.backends.cupy.backend import CupyBackend

HostArray = np.ndarray[Any, Any]


def host_array(shape: tuple[int, ...], dtype: str, *, pinned: bool) -> HostArray:
    """An array in the host's memory; pinned, the device copies from it by itself."""
    if not pinned:
        return np.empty(shape, dtype)
    count = int(np.prod(shape))
    memory = cupy.cuda.alloc_pinned_memory(max(1, count * np.dtype(dtype).itemsize))
    return np.frombuffer(memory, dtype, count).reshape(shape)


class CupyStage(Stage):
    """See `Stage`.

    Each slot has memory on the host and on the device, an event after its copy and one after what reads it.

    Args:
        backend: The backend.
        specs: Shape and dtype of one row of each array.
        rows: Rows of a slot.
    """

    def __init__(self, backend: CupyBackend, specs: Mapping[str, Spec], rows: int) -> None:
        self.specs, self.rows = specs, rows
        pinned = backend.options.pinned
        with explained(), cupy.cuda.Device(backend.number) as self._device:
            self.arrays = {n: cupy.empty((self.slots * rows, *s.shape), s.dtype) for n, s in specs.items()}
            self._host = [
                {n: host_array((rows, *s.shape), s.dtype, pinned=pinned) for n, s in specs.items()}
                for _ in range(self.slots)
            ]
            self._stream = cupy.cuda.Stream(non_blocking=True)
            self._copied, self._read = (
                [cupy.cuda.Event(disable_timing=True) for _ in range(self.slots)] for _ in range(2)
            )

    def fill(self, slot: int, rows: int, write: Callable[[Mapping[str, HostArray]], None]) -> None:
        """See `Stage.fill`."""
        host = self._host[slot]
        with explained(), self._device:
            self._copied[slot].synchronize()  # the last copy from this memory is done
            write(host)
            self._stream.wait_event(self._read[slot])
            for name, array in self.arrays.items():
                source, first = host[name][:rows], slot * self.rows
                target = array[first : first + rows]
                target.data.copy_from_host_async(source.ctypes.data, source.nbytes, self._stream)
            self._copied[slot].record(self._stream)

    def begin(self, slot: int) -> None:
        """See `Stage.begin`."""
        with explained(), self._device:
            cupy.cuda.get_current_stream().wait_event(self._copied[slot])

    def end(self, slot: int) -> None:
        """See `Stage.end`."""
        with explained(), self._device:
            self._read[slot].record(cupy.cuda.get_current_stream())

    def close(self) -> None:
        """See `Stage.close`."""
        with explained(), self._device:
            self._stream.synchronize()
