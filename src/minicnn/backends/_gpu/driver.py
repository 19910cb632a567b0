"""NVIDIA's driver, for what the libraries of the backends do not offer."""

from __future__ import annotations

import ctypes
import sys
from functools import cache


@cache
def driver() -> ctypes.CDLL:
    """The driver's library."""
    return ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")


class _Handle(ctypes.Structure):
    """CUipcMemHandle, which is passed by value."""

    _fields_ = (("reserved", ctypes.c_char * 64),)


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

    def close(self, address: int) -> None:
        """Leave a window that was opened."""
        _called("cuIpcCloseMemHandle", ctypes.c_uint64(address))


def _called(name: str, *arguments: object) -> None:
    status = getattr(driver(), name)(*arguments)
    if status:
        raise OSError(status, f"{name} of NVIDIA's driver says {status}")
