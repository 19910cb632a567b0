"""Matrix products by cuBLAS, called so that a CUDA graph can capture them (CuPy's own calls refuse that)."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import cupy

from minicnn.backends.cupy.nvidia import load
from minicnn.program.graph import Node

MISSING = (
    "Products by the library need cuBLAS. Received: none that can be loaded. Install it, pip install nvidia-cublas (for"
    ' CUDA 12 nvidia-cublas-cu12), or use Options(library="never").'
)
WORKSPACE = 32 * 2**20  # bytes; what NVIDIA recommends for its newest devices


def library() -> Any:
    """The library.

    Raises:
        ImportError: If there is none.
    """
    return load("cublas", MISSING)


def layout(node: Node) -> tuple[int, int, int, int, int, int, int, int]:
    """Arguments of a product for a library that counts columns first, to which our rows are columns.

    Returns:
        Transposition of b, of a (1 or 0); rows, columns and terms of the transposed product; leading dimensions of b,
        a and the result.
    """
    (m, n), (a, b) = node.outputs[0].shape, (v.shape for v in node.inputs)
    ta, tb = node.attrs["transpose_a"], node.attrs["transpose_b"]
    return int(tb), int(ta), n, m, a[0 if ta else 1], b[1], a[1], n


class Handle:
    """cuBLAS on one device; products are the same bits every time, as they use one stream and one workspace.

    Args:
        device: Number of the device, the current one.
    """

    def __init__(self, device: int) -> None:
        self._handle = ctypes.c_void_p()
        _check(library().cublasCreate_v2(ctypes.byref(self._handle)))
        self._workspace = cupy.empty(WORKSPACE, "uint8")
        self.device = device

    def multiply(self, node: Node, a: Any, b: Any, out: Any) -> None:
        """Put the product of a matmul's inputs into an array, on the current stream."""
        blas, stream = library(), cupy.cuda.get_current_stream()
        # A new stream takes the workspace away.
        _check(blas.cublasSetStream_v2(self._handle, ctypes.c_void_p(stream.ptr)))
        pointer = ctypes.c_void_p(self._workspace.data.ptr)
        _check(blas.cublasSetWorkspace_v2(self._handle, pointer, ctypes.c_size_t(WORKSPACE)))
        wide = node.outputs[0].dtype == "float64"
        number = ctypes.c_double if wide else ctypes.c_float
        call = blas.cublasDgemm_v2 if wide else blas.cublasSgemm_v2
        tb, ta, rows, columns, terms, ldb, lda, ldc = layout(node)
        one, zero = number(1), number(0)
        arrays = [ctypes.c_void_p(x.data.ptr) for x in (b, a, out)]
        status = call(
            self._handle, tb, ta, rows, columns, terms, ctypes.byref(one), arrays[0], ldb, arrays[1], lda,
            ctypes.byref(zero), arrays[2], ldc,
        )  # fmt: skip
        _check(status)


@cache
def handle(device: int) -> Handle:
    """The handle of a device, which must be the current one; it stays as long as the process."""
    return Handle(device)


def _check(status: int) -> None:
    if status:
        message = (
            f"cuBLAS multiplies without an error. Received: status {status}. Use "
            'Options(library="never"), and report it if memory is not the reason.'
        )
        raise RuntimeError(message)
