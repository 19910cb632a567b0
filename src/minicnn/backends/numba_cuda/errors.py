"""CUDA's errors, said so that one knows what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from minicnn.backends._gpu import errors


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
        raise explanation(" ".join(str(error).split())) from error


def explanation(text: str) -> Exception:
    """The error to raise for what CUDA says."""
    if "OUT_OF_MEMORY" in text or "out of memory" in text:
        return MemoryError(f"A step's arrays fit in the memory of the GPU. Received: {text}. Use a smaller batch_size.")
    if "OUT_OF_RESOURCES" in text or ("INVALID_VALUE" in text and "SetAttribute" in text):
        return errors.explanation(text)
    return RuntimeError(_said(text))


def _said(text: str) -> str:
    if "driver" in text.lower() and ("cannot be found" in text or "INSUFFICIENT" in text or "init" in text):
        return (
            f"The numba_cuda backend needs an NVIDIA GPU and a driver at least as new as its CUDA. Received: {text}. "
            "Install a newer driver, use another backend, or set NUMBA_ENABLE_CUDASIM=1 before Python starts to run "
            "the kernels, slowly, in the simulator."
        )
    if "NO_DEVICE" in text or "INVALID_DEVICE" in text or "no CUDA-capable device" in text:
        return (
            f"The numba_cuda backend needs an NVIDIA GPU. Received: {text}. Use another backend, or make the GPU "
            "visible."
        )
    return (
        f"Kernels run without an error. Received: {text}. The process's CUDA context may be lost: start it again. "
        "With NumbaCudaBackend(reference_only=True) none of the training kernels runs; please report which one fails."
    )
