"""The backend cupy without a GPU: its kernels run on the host, its streams as late as the rules of CUDA allow.

What a stream is given waits until somebody waits for it, so that what is overwritten too early is read wrongly; or the
streams for copies are as early as those rules allow. Each kernel is in place before the one ahead of it has written.
"""

from __future__ import annotations

import atexit
import ctypes
import mmap
import os
import tempfile
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import array_api_compat.numpy as xp
import numpy as np

from backends.cupy import emulator
from minicnn.backends._gpu.backend import GpuBackend
from minicnn.backends._gpu.device import H200
from minicnn.backends._gpu.driver import PeerMemory
from minicnn.backends._gpu.peer_sums import PeerSums, open_windows
from minicnn.backends._gpu.planning import tiles_on
from minicnn.backends._gpu.runtime import ALIGNMENT, Beside, KernelText, Launch, one_by_one
from minicnn.backends._gpu.tiles import Tiles
from minicnn.backends.cupy.generation import generate
from minicnn.backends.cupy.queue_text import ADVANCE, COLLECT

_one_thread = threading.RLock()  # does what waits: Programs are compiled side by side


class Stream:
    """Work that was not done yet."""

    def __init__(self) -> None:
        self.waiting: deque[Callable[[], None]] = deque()
        self.ahead = emulator.Ahead()  # the kernel ahead of what comes next

    def finish(self) -> None:
        """Do all of it."""
        with _one_thread:
            while self.waiting:
                self.waiting.popleft()()
            self.ahead.end()


class Event:
    """How often it was recorded, and how often it has come."""

    def __init__(self) -> None:
        self.recorded, self.come, self.stream, self.time = 0, 0, MAIN, 0.0

    def arrive(self) -> None:
        """What a stream does that comes to it."""
        self.come, self.time = self.come + 1, time.perf_counter()

    def reach(self, count: int) -> None:
        """Do what is needed for it to have come so often."""
        with _one_thread:
            while self.come < count:
                self.stream.waiting.popleft()()


MAIN = Stream()


class DeviceArray(np.ndarray[Any, Any]):
    """An array of the device: who reads or writes it outside of the stream waits for the stream.

    Attributes:
        queue: The rows of which it is the first, where kernels read the others, too.
    """

    queue: DeviceArray | None = None

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, int):
            MAIN.finish()
        return super().__getitem__(key)

    def __setitem__(self, key: Any, value: Any) -> None:
        if self.size:  # no work is done for an empty one, so that nothing waits
            MAIN.finish()
        super().__setitem__(key, value)

    def __array_function__(self, *given: Any) -> Any:
        MAIN.finish()
        return super().__array_function__(*given)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **rest: Any) -> Any:
        MAIN.finish()
        plain = [x.view(np.ndarray) if isinstance(x, DeviceArray) else x for x in inputs]
        return np.asarray(getattr(ufunc, method)(*plain, **rest)).view(DeviceArray)


class SharedMemory(PeerMemory):
    """See `PeerMemory`: files that several processes have in their memory.

    Args:
        do: Gives a stream work: see `EmulatedRuntime.do`.
    """

    def __init__(self, do: Callable[[Callable[[], None]], None]) -> None:
        self._do = do
        self._held: dict[int, tuple[mmap.mmap, str]] = {}

    def allocate(self, nbytes: int) -> tuple[int, bytes]:
        file, path = tempfile.mkstemp(prefix="minicnn-window-")
        os.truncate(file, nbytes)
        os.close(file)
        atexit.register(Path(path).unlink, missing_ok=True)
        return self.open(path.encode()), path.encode()

    def open(self, handle: bytes) -> int:
        with open(handle.decode(), "r+b") as file:
            memory = mmap.mmap(file.fileno(), 0)
        address = np.frombuffer(memory, "uint8").ctypes.data
        self._held[address] = memory, handle.decode()
        return address

    def meet(self, stream: int, theirs: Sequence[int], awaited: Sequence[int]) -> None:
        self._do(partial(self._meet, theirs, awaited))

    def _meet(self, theirs: Sequence[int], awaited: Sequence[int]) -> None:
        for address in theirs:
            ctypes.c_uint32.from_address(address).value = 1
        for address in awaited:
            while not ctypes.c_uint32.from_address(address).value:
                time.sleep(0)
            ctypes.c_uint32.from_address(address).value = 0

    def close(self, address: int) -> None:
        del self._held[address]

    def free(self, address: int) -> None:
        Path(self._held.pop(address)[1]).unlink()


class EmulatedRuntime:
    """See `Runtime`."""

    gpu = H200
    captures = True
    piece = None
    bus = ""
    advance, collect = ADVANCE, COLLECT

    def __init__(self) -> None:
        self._now, self._beside = MAIN, defaultdict[str, Stream](Stream)
        self._graph: list[Callable[[], None]] | None = None  # what is captured
        self.early = False

    def _give(self, work: Callable[[], None], stream: Stream | None = None) -> None:
        """Have a stream do something that overlaps with nothing in it."""
        stream = stream or self._now
        self._in_turn(partial(stream.waiting.extend, (work, stream.ahead.end)))

    def active(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def use(self) -> None:
        pass

    def synchronize(self, event: Event | None = None) -> None:
        MAIN.finish() if event is None else event.reach(event.recorded)

    def free(self) -> int:
        return 1 << 40

    def used(self) -> int:
        return 0

    def empty(self, shape: tuple[int, ...], dtype: str) -> DeviceArray:
        made = np.empty(shape, dtype)
        made.reshape(-1).view("uint8").fill(0xFF)  # NaN where nothing is written
        return made.view(DeviceArray)

    def view(self, array: Any, offset: int, shape: tuple[int, ...], dtype: str) -> DeviceArray:
        made = np.ndarray(shape, dtype, array.view(np.ndarray).reshape(-1).view("uint8"), offset).view(DeviceArray)
        made.queue = array if array.dtype == dtype and array.shape[1:] == shape else None
        return made

    def address(self, array: Any) -> int | None:
        return array.ctypes.data if isinstance(array, DeviceArray) and array.flags.c_contiguous else None

    def at(self, address: int, nbytes: int) -> DeviceArray:
        return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address)).view(DeviceArray)

    def clear(self, array: Any) -> None:
        self._give(partial(array.view(np.ndarray).fill, 0))

    def copy(self, source: Any, target: Any) -> None:
        self._give(partial(np.copyto, target.view(np.ndarray), source.view(np.ndarray)))

    def host(self, shape: tuple[int, ...], dtype: Any, *, pinned: bool) -> Any:
        return np.zeros(shape, dtype)

    def send(self, source: Any, target: Any, stream: Stream | None = None) -> None:
        assert source.flags.c_contiguous
        assert (source.shape[1:], source.dtype) == (target.shape[1:], target.dtype)
        self._give(partial(np.copyto, target[: len(source)].view(np.ndarray), source), stream)
        if stream and self.early:
            stream.finish()

    def stream(self) -> Stream:
        return Stream()

    def event(self, *, timed: bool = False) -> Event:
        return Event()

    def record(self, event: Event, stream: Stream | None = None) -> None:
        self._in_turn(partial(self._record, event, stream or self._now))

    def done(self, event: Event) -> bool:
        event.reach(event.recorded)  # by whoever asks, as nothing else goes on
        return True

    def wait(self, event: Event, stream: Stream | None = None) -> None:
        self._in_turn(partial(self._wait, event, stream or self._now))

    def _in_turn(self, work: Callable[[], None]) -> None:
        """Do something now, or each time that the graph which is captured runs."""
        work() if self._graph is None else self._graph.append(work)

    def _record(self, event: Event, stream: Stream) -> None:
        event.recorded, event.stream = event.recorded + 1, stream
        stream.waiting.append(event.arrive)

    def _wait(self, event: Event, stream: Stream) -> None:
        stream.waiting.append(partial(event.reach, event.recorded))

    def beside(self, launches: Sequence[Launch], *, kind: Beside) -> tuple[Launch, Launch]:
        stream, before, after = self._beside[kind], self.event(), self.event()

        def begin() -> None:
            self.record(before)
            self.wait(before, stream)
            now, self._now = self._now, stream
            try:
                one_by_one(launches)
            finally:
                self._now = now
            self.record(after, stream)

        return begin, partial(self.wait, after)

    def reach(self, host: Any) -> PeerSums | None:
        return open_windows(self, SharedMemory(self.do), host)

    def current(self) -> int:
        return id(self._now)

    def do(self, work: Callable[[], None]) -> None:
        """Give the stream something that the backend does not launch."""
        self._give(work)

    def seconds(self, start: Event, end: Event) -> float:
        return end.time - start.time

    def load(self, texts: Sequence[KernelText]) -> list[KernelText]:
        emulator.compile_all([each.text for each in texts])
        return list(texts)

    def prepare(self, kernel: KernelText, blocks: int, arguments: Sequence[Any]) -> Launch:
        given = [a.queue if isinstance(a, DeviceArray) and a.queue is not None else a for a in arguments]
        launch = emulator.prepared(kernel, given, blocks)

        def give() -> None:
            stream = self._now
            before = [] if kernel.overlaps else [stream.ahead.end]
            self._in_turn(partial(stream.waiting.extend, [*before, partial(launch, stream.ahead)]))

        return give

    def capture(self, launches: Sequence[Launch]) -> Launch:
        self._graph = graph = []
        try:
            one_by_one(launches)
        finally:
            self._graph = None
        return partial(one_by_one, graph)


class EmulatedBackend(GpuBackend):
    """The backend cupy on that runtime."""

    name = "emulated"
    xp = xp
    precisions = ("float32", "float64", "mixed_bfloat16", "mixed_float16")
    generate = staticmethod(generate)
    exchanges = True
    runtime: EmulatedRuntime

    def open(self, number: int) -> tuple[EmulatedRuntime, Tiles]:
        return EmulatedRuntime(), tiles_on(H200, self.options)

    def asarray(self, data: Any, dtype: str | None = None) -> DeviceArray:
        MAIN.finish()
        made = np.array(data, dtype, order="C")
        assert made.ctypes.data % ALIGNMENT == 0
        return made.view(DeviceArray)

    def to_numpy(self, array: Any) -> Any:
        MAIN.finish()
        return np.array(array)

    def owns(self, array: Any) -> bool:
        return isinstance(array, DeviceArray)
