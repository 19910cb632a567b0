"""Loading kernels and launching them so that each is in place before the one ahead of it has ended."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import partial
from typing import Any

import cupy

from minicnn.backends._gpu.driver import driver
from minicnn.backends._gpu.errors import explained
from minicnn.backends._gpu.runtime import Launch

_MOST_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_OVERLAPS = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute, whose value is a union of 64 bytes."""

    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_int), ("rest", ctypes.c_char * 60))


class _Configuration(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint),
    )


class Kernel:
    """A kernel, compiled from a text that begins with wait_for_previous() where it may overlap with others.

    Args:
        code: Machine code of a kernel named "kernel".
        threads: Threads of a block.
        shared: Bytes of dynamic shared memory that it is launched with.
        title: What it does, for errors.
        overlaps: Its blocks may be placed while the kernel ahead of it ends: compute capability 9.0 and later.
    """

    def __init__(self, code: bytes, threads: int, shared: int = 0, title: str = "", *, overlaps: bool = False) -> None:
        module = cupy.cuda.function.Module()
        module.load(code)
        self._function = module.get_function("kernel")
        self.threads, self._shared, self._title = threads, shared, title
        self._attribute = _Attribute(_OVERLAPS, 0, 1) if overlaps else None
        if shared:
            cupy.cuda.driver.funcSetAttribute(self._function.ptr, _MOST_DYNAMIC_SHARED, shared)

    def prepared(self, blocks: int, arguments: Sequence[Any]) -> Launch:
        """Launch of the kernel on the current stream.

        Args:
            blocks: Blocks.
            arguments: CuPy arrays, of which it keeps the address alone, and 32-bit integers.
        """
        values = [
            ctypes.c_void_p(a.data.ptr) if isinstance(a, cupy.ndarray) else ctypes.c_uint(int(a) & 0xFFFFFFFF)
            for a in arguments
        ]
        configuration = _Configuration((blocks, 1, 1), (self.threads, 1, 1), self._shared)
        if self._attribute is not None:
            configuration.attributes, configuration.count = ctypes.pointer(self._attribute), 1
        return partial(
            self._launch, configuration, values, (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        )

    def _launch(self, configuration: _Configuration, values: list[Any], places: Any) -> None:
        """Launch with the values at some places of memory, which are there as long as the values are."""
        configuration.stream = cupy.cuda.get_current_stream().ptr
        with explained(f"{self._title} with {configuration.grid[0]} blocks of {self.threads} threads"):
            function = ctypes.c_void_p(self._function.ptr)
            status = driver().cuLaunchKernelEx(ctypes.byref(configuration), function, places, None)
            if status:
                raise cupy.cuda.driver.CUDADriverError(status)
