"""CUDA's errors, said so that one knows what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import cupy
from cupy.cuda import runtime


@contextmanager
def explained() -> Iterator[None]:
    """Turns errors of CUDA and CuPy into ones that name the rule, what was received and the remedy.

    Raises:
        MemoryError: If the device has too little memory.
        RuntimeError: If there is no driver, an old one, no device, or a kernel failed.
    """
    try:
        yield
    except cupy.cuda.memory.OutOfMemoryError as error:
        message = (
            f"A step's arrays fit in the memory of the GPU. Received: {error} "
            "Use a smaller batch_size, or free arrays and cupy.get_default_memory_pool().free_all_blocks()."
        )
        raise MemoryError(message) from error
    except (runtime.CUDARuntimeError, cupy.cuda.driver.CUDADriverError) as error:
        raise RuntimeError(_said(str(error))) from error


def _said(text: str) -> str:
    """The message for an error of CUDA."""
    if "InsufficientDriver" in text:
        return (
            f"The driver is at least as new as the CUDA of CuPy. Received: {text}. Install a newer NVIDIA "
            'driver, or the CuPy for an older CUDA: pip install "minicnn[cuda12]". Without an NVIDIA GPU use another '
            "backend."
        )
    if "NoDevice" in text or "no CUDA-capable device" in text:
        return f"The cupy backend needs an NVIDIA GPU. Received: {text}. Use another backend, or make the GPU visible."
    if "MemoryAllocation" in text or "out of memory" in text:
        return f"A step's arrays fit in the memory of the GPU. Received: {text}. Use a smaller batch_size."
    return (
        f"Kernels run without an error. Received: {text}. The process's CUDA context may be lost: start it again. "
        "With CupyBackend(reference_only=True) no kernel of minicnn runs; please report which one fails."
    )
