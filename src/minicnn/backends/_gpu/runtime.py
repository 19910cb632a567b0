"""Runtime of a GPU as the backends use it: arrays, copies, kernels, graphs, events; by CuPy, numba-cuda or wgpu."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import numpy as np

from minicnn.backends._gpu.device import Gpu
from minicnn.backends.base import Array

if TYPE_CHECKING:
    from minicnn.backends._gpu.peer_sums import PeerSums
    from minicnn.ops.groups import Communicator

HostArray = np.ndarray[Any, Any]
Launch = Callable[[], None]
Event = Any
Stream = Any
Beside: TypeAlias = Literal["sums", "updates", "gradients"]  # what has a stream beside that of all else
ALIGNMENT = 16  # bytes, of which the most one load takes


@dataclass(frozen=True)
class KernelText:
    """Source text of a kernel, with its signature.

    Attributes:
        text: What defines a function named "kernel", in the language of the runtime.
        signature: Types of its arguments, such as "float32*" or "int32"; nobody writes to a "const float32*" while the
            kernel is in place.
        threads: Threads of a block.
        shared: Bytes of shared memory of a block that the text does not declare.
        title: What it does, for errors.
        cpp: Whether the text is CUDA C++, whatever the language of the runtime.
        overlaps: Whether it may be in place before the launch ahead of it has ended, where the device can do so.
    """

    text: str
    signature: tuple[str, ...]
    threads: int
    shared: int = 0
    title: str = ""
    cpp: bool = False
    overlaps: bool = True


class Runtime(Protocol):
    """One device. All work is in one order, that of the stream for computing, unless another stream is given.

    Attributes:
        gpu: What is known of the device; None in a simulator.
        captures: Whether launches can be captured into graphs.
        piece: Bytes of the largest piece of memory, if larger memory comes in several; no array lies in two.
        advance: Kernel that adds its second argument to the int32 that its first points to.
        collect: Kernels that copy `count` bytes, and words of four bytes, to row `cursor[0] + offset` of an array:
            kernel(from, to, count, cursor, offset).
    """

    @property
    def gpu(self) -> Gpu | None: ...
    @property
    def bus(self) -> str:
        """Where the device is on its machine, however a process numbers it; empty in a simulator."""

    @property
    def captures(self) -> bool: ...
    @property
    def piece(self) -> int | None: ...
    @property
    def advance(self) -> KernelText: ...
    @property
    def collect(self) -> tuple[KernelText, KernelText]: ...

    def active(self) -> AbstractContextManager[Any]:
        """Context of all that follows: the device is the current one, and errors of CUDA say what to do."""

    def use(self) -> None:
        """Make the device the current one of this thread from here on."""

    def synchronize(self, event: Event | None = None) -> None:
        """Wait until an event has come, or all work is done."""

    # Memory -------------------------------------------------------------------------------------

    def free(self) -> int:
        """Bytes of memory that can still be had."""

    def used(self) -> int:
        """Bytes of memory in use by arrays."""

    def empty(self, shape: tuple[int, ...], dtype: str) -> Array:
        """A new array with any elements, in row-major order."""

    def view(self, array: Array, offset: int, shape: tuple[int, ...], dtype: str) -> Array:
        """An array in the memory of a contiguous one, so many bytes behind its first element."""

    def address(self, array: Any) -> int | None:
        """Address of an array's elements; None unless it is a contiguous one of this runtime and device."""

    def at(self, address: int, nbytes: int) -> Array:
        """Bytes of the device's memory as an array, which does not keep them."""

    def clear(self, array: Array) -> None:
        """Begin to set all bytes of an array of `empty` to zero."""

    def copy(self, source: Array, target: Array) -> None:
        """Begin to copy a contiguous array to one like it; can be captured."""

    def host(self, shape: tuple[int, ...], dtype: str, *, pinned: bool) -> HostArray:
        """A new array in the host's memory; pinned, the device copies from it by itself."""

    def send(self, source: HostArray, target: Array, stream: Stream = None) -> None:
        """Begin to copy a contiguous array of the host to the beginning of one of its dtype on the device."""

    # Order --------------------------------------------------------------------------------------

    def stream(self) -> Stream:
        """A new stream, for copies beside the computing."""

    def event(self, *, timed: bool = False) -> Event:
        """A new event, which has come until it is recorded."""

    def record(self, event: Event, stream: Stream = None) -> None:
        """Have an event come when the work is done that the stream was given so far."""

    def wait(self, event: Event, stream: Stream = None) -> None:
        """Have what the stream is given from here on wait for an event."""

    def done(self, event: Event) -> bool:
        """True if an event has come."""

    def beside(self, launches: Sequence[Launch], *, kind: Beside) -> tuple[Launch, Launch]:
        """Two launches: one begins the given ones beside what comes next, and the other waits for them.

        They may be captured, and launched one by one. What is begun in this way stays in order with others of its kind.
        Sums come before all else where the device has a choice.
        """

    def current(self) -> int:
        """The driver's handle of the stream that work goes to now: while a graph is captured, of its own."""

    def seconds(self, start: Event, end: Event) -> float:
        """Time between two timed events that have come."""

    # Other processes ----------------------------------------------------------------------------

    def reach(self, host: Communicator) -> PeerSums | None:
        """Sums in the memory of the devices of other processes, all of which call it; None where they cannot.

        Args:
            host: What connects the processes.
        """

    # Launching ----------------------------------------------------------------------------------

    def load(self, texts: Sequence[KernelText]) -> list[Any]:
        """Kernels, compiled side by side.

        Raises:
            FitError: If the blocks of one do not fit on the device.
        """

    def prepare(self, kernel: Any, blocks: int, arguments: Sequence[Array | int]) -> Launch:
        """A launch of a kernel, whose arguments are looked at only once: calling it launches."""

    def capture(self, launches: Sequence[Launch]) -> Launch:
        """A graph of launches one after the other: calling it runs them all."""


class OneQueue:
    """Runtime of a device with one queue: all work, copies included, has one order."""

    bus = ""  # such devices do not say

    def use(self) -> None:
        """See `Runtime.use`; such a device is not a thread's."""

    def stream(self) -> Stream:
        """See `Runtime.stream`."""

    def wait(self, event: Event, stream: Stream = None) -> None:
        """See `Runtime.wait`."""

    def done(self, event: Event) -> bool:
        """See `Runtime.done`."""
        return True

    def at(self, address: int, nbytes: int) -> Array:
        """See `Runtime.at`; only who reaches other processes asks for it."""
        raise NotImplementedError

    def reach(self, host: Communicator) -> None:
        """See `Runtime.reach`."""

    def beside(self, launches: Sequence[Launch], *, kind: Beside) -> tuple[Launch, Launch]:
        """See `Runtime.beside`."""
        return in_order(launches)

    def current(self) -> int:
        """See `Runtime.current`."""
        return 0


def stored(dtype: str) -> str:
    """The dtype of an array of such elements: of bfloat16, which arrays do not know, their bits."""
    return "uint16" if dtype == "bfloat16" else dtype


def one_by_one(launches: Sequence[Launch]) -> None:
    """Run them without a graph."""
    for launch in launches:
        launch()


def in_order(launches: Sequence[Launch]) -> tuple[Launch, Launch]:
    """`Runtime.beside` of a device that has one order."""
    return partial(one_by_one, launches), partial(one_by_one, ())


def check_number(number: int, count: int, name: str = "cuda", seen: str = "CUDA sees") -> None:
    """Refuse a device that is not there.

    Args:
        number: Its number.
        count: How many there are.
        name: What stands before a number.
        seen: Who says so.

    Raises:
        ValueError: If there are not so many.
    """
    if not 0 <= number < count:
        raise ValueError(
            f"The device is one of the {count} that {seen}. Received: '{name}:{number}'. "
            f"Use {name}:0 to {name}:{count - 1}."
        )
