"""NVIDIA's driver, for what the libraries of the backends do not offer."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from functools import cache


@cache
def driver() -> ctypes.CDLL:
    """The driver's library."""
    return ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")


class _Handle(ctypes.Structure):
    """CUipcMemHandle, which is passed by value."""

    _fields_ = (("reserved", ctypes.c_char * 64),)


class _MemoryOperation(ctypes.Structure):
    """CUstreamBatchMemOpParams: a write of a number, or a wait for one."""

    _fields_ = (
        ("operation", ctypes.c_uint), ("address", ctypes.c_uint64), ("value", ctypes.c_uint64),
        ("flags", ctypes.c_uint), ("rest", ctypes.c_uint64 * 2),
    )  # fmt: skip


_WAIT, _WRITE, _EQUAL = 1, 2, 1  # CU_STREAM_MEM_OP_WAIT_VALUE_32 and WRITE_VALUE_32, CU_STREAM_WAIT_VALUE_EQ


class PeerMemory:
    """Memory of a device that kernels of other processes read and write; in the context that is current.

    A window is allocated by one process, and opened by others on the machine by its handle.
    """

    def allocate(self, nbytes: int) -> tuple[int, bytes]:
        """Address of a new window, of zeros, and its handle.

        Raises:
            OSError: If there is no memory, or none that other processes could open.
        """
        address, handle = ctypes.c_uint64(), _Handle()
        _called("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(nbytes))
        _called("cuMemsetD8_v2", address, ctypes.c_ubyte(0), ctypes.c_size_t(nbytes))
        _called("cuIpcGetMemHandle", ctypes.byref(handle), address)
        return address.value, bytes(memoryview(handle))

    def free(self, address: int) -> None:
        """Give a window back that nobody else has open."""
        _called("cuMemFree_v2", ctypes.c_uint64(address))

    def open(self, handle: bytes) -> int:
        """Address here of another process's window.

        Raises:
            OSError: If this device does not reach it.
        """
        address = ctypes.c_uint64()
        # With access to the peer's memory as the only flag there is.
        _called("cuIpcOpenMemHandle_v2", ctypes.byref(address), _Handle.from_buffer_copy(handle), ctypes.c_uint(1))
        return address.value

    def meet(self, stream: int, theirs: Sequence[int], awaited: Sequence[int]) -> None:
        """Have a stream set flags, wait until others are set, and clear these; can be captured.

        No multiprocessor waits. What the stream did before is there for all who see its flags.

        Args:
            stream: The driver's handle.
            theirs: Addresses of the flags, of four bytes each, that are set.
            awaited: Addresses of the flags that are waited for.
        """
        operations = [(_WRITE, a, 1, 0) for a in theirs] + [(_WAIT, a, 1, _EQUAL) for a in awaited]
        operations += [(_WRITE, a, 0, 0) for a in awaited]
        array = (_MemoryOperation * len(operations))(*(_MemoryOperation(*each) for each in operations))
        _called("cuStreamBatchMemOp_v2", ctypes.c_void_p(stream), len(operations), array, 0)

    def close(self, address: int) -> None:
        """Leave a window that was opened."""
        _called("cuIpcCloseMemHandle", ctypes.c_uint64(address))


def _called(name: str, *arguments: object) -> None:
    status = getattr(driver(), name)(*arguments)
    if status:
        raise OSError(status, f"{name} of NVIDIA's driver says {status}")
