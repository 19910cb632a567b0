"""CUDA's errors, said so that one knows what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import cupy
from cupy.cuda import runtime

from minicnn.backends._gpu.errors import explanation


@contextmanager
def explained(kernel: str = "") -> Iterator[None]:
    """Turns errors of CUDA and CuPy into ones that name the rule, what was received and the remedy.

    Args:
        kernel: The kernel that is launched, if one is.

    Raises:
        MemoryError: If the device has too little memory.
        RuntimeError: If there is no driver, an old one, no device, or a kernel failed.
    """
    try:
        yield
    except cupy.cuda.memory.OutOfMemoryError as error:
        raise explanation(str(error)) from error
    except (runtime.CUDARuntimeError, cupy.cuda.driver.CUDADriverError) as error:
        raise explanation(str(error), kernel) from error
