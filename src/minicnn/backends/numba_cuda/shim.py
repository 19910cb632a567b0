"""The one place that knows which library has the device's memory: numba-cuda, or its successor numba-cuda-mlir.

Kernel files take the global name `cuda` from here; the simulator replaces exactly the globals that are that module.
What kernels call that Python has no word for stands here as the simulator runs it; `translation.py` has their
instructions.
"""

from __future__ import annotations

import importlib.metadata
import os
from importlib.util import find_spec
from typing import Any

import numpy as np

NEWEST_NUMPY = (2, 4)  # numba-cuda up to 0.30.4 calls numpy.row_stack, which NumPy 2.5 lacks


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:3] if part.isdigit())


def check_numpy(numpy: str, numba_cuda: str) -> None:
    """Refuse a pair of versions that compiles but cannot launch.

    Raises:
        ImportError: If NumPy is too new for numba-cuda; says what to install.
    """
    if _version(numba_cuda) <= (0, 30, 4) and _version(numpy)[:2] > NEWEST_NUMPY:
        newest = ".".join(map(str, NEWEST_NUMPY))
        raise ImportError(
            f"a NumPy that is not newer than {newest}: numba-cuda {numba_cuda} cannot launch kernels under "
            f'NumPy {numpy}. Use pip install "numpy<2.5"'
        )


if find_spec("numba_cuda") is not None:
    LIBRARY = "numba-cuda"
    check_numpy(np.__version__, importlib.metadata.version("numba-cuda"))
    from numba import cuda, types
elif find_spec("numba_cuda_mlir") is not None:
    LIBRARY = "numba-cuda-mlir"
    from numba_cuda_mlir import cuda, types
else:
    _missing = "numba_cuda"
    raise ImportError(_missing, name=_missing)

VERSION = importlib.metadata.version(LIBRARY)
SIMULATED = LIBRARY == "numba-cuda" and os.environ.get("NUMBA_ENABLE_CUDASIM", "0") not in ("", "0")


def device_function(function: Any) -> Any:
    """A function that kernels call; the simulator's is one of its own."""
    return cuda.jit(function, device=True) if SIMULATED else function


def read(pointer: Any, i: Any) -> Any:
    """Element i of memory that the kernel does not write; if nobody else does, it is loaded early and in any order."""
    return pointer[i]


def read_four(pointer: Any, i: Any) -> Any:
    """Four elements from i on, a multiple of four, by one load."""
    return pointer[i], pointer[i + 1], pointer[i + 2], pointer[i + 3]


def read_word(pointer: Any, i: Any) -> Any:
    """Four bytes as one number, the first the lowest."""
    word = np.uint32(0)
    for k in range(4):
        word |= np.uint32(pointer[i + k]) << np.uint32(8 * k)
    return word


def read_words(pointer: Any, i: Any) -> Any:
    """Four such words, from a multiple of 16 on."""
    return read_word(pointer, i), read_word(pointer, i + 4), read_word(pointer, i + 8), read_word(pointer, i + 12)


def byte(word: Any, k: Any) -> Any:
    """The k-th byte of a word as float32: one instruction puts it into a float, another subtracts 2^23."""
    return np.float32(word >> (8 * k) & 255)


def choose(condition: Any, a: Any, b: Any) -> Any:
    """One of two, both of which are computed, so that no load waits for a branch."""
    return a if condition else b


__all__ = [
    "LIBRARY", "SIMULATED", "VERSION", "byte", "check_numpy", "choose", "cuda", "device_function", "read", "read_four",
    "read_word", "read_words", "types",
]  # fmt: skip
