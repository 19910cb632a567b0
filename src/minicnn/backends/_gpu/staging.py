"""Rows from the host: through pinned memory that is filled while the device copies and computes what came before."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import Lock
from typing import Any

import numpy as np

from minicnn.backends._gpu.runtime import HostArray, Runtime
from minicnn.backends.base import Array, Stage
from minicnn.program.graph import Spec

STAGE_BYTES = 8 * 2**20  # of a slot: large enough for copies at full speed
PINNED_BYTES = 16 * 2**20  # of one input; more is copied as it is
SPARE_BYTES = 2**28  # of data on the device, up to which their memory is kept for the next who bring such data
SPARES = 2  # such memories: for training and for validation
BROADCAST_BYTES = 2**16  # of equal rows; more are copied once


class Upload:
    """Pinned memory through which rows go into the queue, so that the host need not wait for the device."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime, self._done = runtime, runtime.event()
        self._memory: dict[str, HostArray] = {}
        self._large: list[HostArray] = []

    def begin(self) -> None:
        """Wait until the memory may be written again."""
        # The device may still copy from this memory.
        self._runtime.synchronize(self._done)
        self._large.clear()

    def bring(self, name: str, data: Any, target: Array, rows: int, owned: bool) -> None:
        """Begin to copy an array to the first rows of one of the device; one row of them to all.

        Args:
            name: What it is.
            data: The rows, or one of them.
            target: The array of the device.
            rows: How many.
            owned: Whether the array is the backend's own; else it is of the host.
        """
        if not owned:
            one = data.ndim < target.ndim
            self.send(name, np.broadcast_to(data, (rows, *data.shape)) if one else data, target)
        elif (
            data.dtype == target.dtype
            and data.nbytes == target.nbytes
            and self._runtime.address(data) is not None  # contiguous
        ):
            self._runtime.copy(data, target)
        else:
            target[:rows] = data

    def send(self, name: str, rows: HostArray, target: Array) -> None:
        """Begin to copy rows to the first ones of an array of the device."""
        if len(rows) > 1 and rows.strides[0] == 0 and rows.nbytes > BROADCAST_BYTES:  # the device repeats one
            self.send(name, np.ascontiguousarray(rows[0])[None], target)
            target[1 : len(rows)] = target[:1]
            return
        # Pinned memory is scarce: it cannot be swapped. The array is kept until the copy is done.
        if rows.nbytes > PINNED_BYTES:
            self._large.append(np.ascontiguousarray(rows, target.dtype))
            self._runtime.send(self._large[-1], target)
            return
        if name not in self._memory or len(self._memory[name]) < len(rows):
            self._memory[name] = self._runtime.host(rows.shape, target.dtype, pinned=True)
        memory = self._memory[name][: len(rows)]
        # The one copy by the host; the device fetches it from there without holding the host up.
        memory[...] = rows
        self._runtime.send(memory, target)

    def end(self) -> None:
        """Let later writes of the memory wait for these copies."""
        self._runtime.record(self._done)


class GpuStage(Stage):
    """See `Stage`.

    Each slot has memory on the host and on the device, an event after its copy and one after what reads it.

    Args:
        runtime: The device.
        specs: Shape and dtype of one row of each array.
        rows: Rows of a slot.
        total: Rows of the arrays, if all that comes is kept.
        pinned: Whether the device copies from the host's memory by itself.
    """

    def __init__(self, runtime: Runtime, specs: Mapping[str, Spec], rows: int, total: int = 0, *, pinned: bool) -> None:
        self.specs, self.rows, self.total, self._runtime = dict(specs), rows, total, runtime
        self.spares: Stages | None = None  # who takes it back
        with runtime.active():
            self.arrays = {n: runtime.empty((total or self.slots * rows, *s.shape), s.dtype) for n, s in specs.items()}
            self._host = [
                {n: runtime.host((rows, *s.shape), s.dtype, pinned=pinned) for n, s in specs.items()}
                for _ in range(self.slots)
            ]
            self._stream = runtime.stream()
            self._copied, self._read = ([runtime.event() for _ in range(self.slots)] for _ in range(2))
            self.again()

    def again(self) -> None:
        """Begin anew: copies wait for all that is computed until now, which may read the same memory."""
        with self._runtime.active():
            for event in self._read:
                self._runtime.record(event)

    def fill(
        self, slot: int, rows: int, write: Callable[[Mapping[str, HostArray]], None], first: int | None = None
    ) -> None:
        host, runtime, first = self._host[slot], self._runtime, slot * self.rows if first is None else first
        with runtime.active():
            runtime.synchronize(self._copied[slot])  # the last copy from this memory is done
            write(host)
            runtime.wait(self._read[slot], self._stream)
            for name, array in self.arrays.items():
                runtime.send(host[name][:rows], array[first : first + rows], self._stream)
            runtime.record(self._copied[slot], self._stream)

    def begin(self, slot: int) -> None:
        with self._runtime.active():
            self._runtime.wait(self._copied[slot])

    def end(self, slot: int) -> None:
        if self.total:  # nothing is copied there again
            return
        with self._runtime.active():
            self._runtime.record(self._read[slot])

    def close(self) -> None:
        with self._runtime.active():
            for event in self._copied:
                self._runtime.synchronize(event)

    def release(self) -> None:
        if self.spares is not None:
            self.spares.put(self)


class Stages:
    """Stages of a backend: the next data of the same form get the memory of the last, for which there are graphs."""

    def __init__(self) -> None:
        self._spares: list[GpuStage] = []  # what was given back last comes last
        self._lock = Lock()

    def take(self, runtime: Runtime, specs: Mapping[str, Spec], rows: int, total: int, *, pinned: bool) -> GpuStage:
        """A stage: see `Backend.stage`."""
        with self._lock:
            for stage in self._spares:
                if (stage.specs, stage.rows, stage.total) == (specs, rows, total):
                    self._spares.remove(stage)
                    stage.again()
                    return stage
        stage = GpuStage(runtime, specs, rows, total, pinned=pinned)
        if sum(array.nbytes for array in stage.arrays.values()) <= SPARE_BYTES and total:
            stage.spares = self
        return stage

    def put(self, stage: GpuStage) -> None:
        """Take one back that nobody reads any more."""
        with self._lock:
            self._spares = [*self._spares, stage][-SPARES:]
