"""CUDA's errors, said so that one knows what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from minicnn.backends._gpu.errors import explanation


@contextmanager
def explained() -> Iterator[None]:
    """Turns errors of CUDA, numba-cuda and cuda.core into ones that name the rule, what was received and the remedy.

    Raises:
        MemoryError: If the device has too little memory.
        RuntimeError: If there is no driver, no device, or a kernel failed.
    """
    try:
        yield
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in ("numba", "numba_cuda", "numba_cuda_mlir", "cuda"):
            raise
        raise explanation(" ".join(str(error).split()), backend="numba_cuda") from error
