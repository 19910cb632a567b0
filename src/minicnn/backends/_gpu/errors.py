"""Errors of GPUs in words that say what to do; CUDA's are known by their names, whoever raises them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from minicnn.extras import install


class FitError(RuntimeError):
    """The blocks of a kernel do not fit on a multiprocessor: with smaller tiles they may."""


# For each cause: parts of the names that CUDA's runtime and driver give it, the rule, the remedy.
Cause = tuple[tuple[str, ...], type[Exception], str, str]
_CAUSES: tuple[Cause, ...] = (
    (
        ("MemoryAllocation", "OUT_OF_MEMORY", "out of memory", "Out of memory"),
        MemoryError,
        "A step's arrays fit in the memory of the GPU.",
        "Use a smaller batch_size; let go of other models and arrays (cupy.get_default_memory_pool().free_all_blocks() "
        "hands back what nobody uses); or keep data sets on the host with Options(data_bytes=...).",
    ),
    (
        (
            "InsufficientDriver",
            "INSUFFICIENT_DRIVER",
            "SYSTEM_DRIVER_MISMATCH",
            "SystemDriverMismatch",
            "cannot be found",
        ),
        RuntimeError,
        "The {backend} backend needs an NVIDIA GPU and a driver at least as new as its CUDA.",
        f"Install a newer NVIDIA driver, or what is for an older CUDA: {install('cuda12')}. Without an NVIDIA GPU use "
        "another backend, or set NUMBA_ENABLE_CUDASIM=1 before Python starts: then numba_cuda runs, slowly, in a "
        "simulator.",
    ),
    (
        ("NoDevice", "NO_DEVICE", "INVALID_DEVICE", "no CUDA-capable device"),
        RuntimeError,
        "The {backend} backend needs an NVIDIA GPU.",
        "Use another backend, or make the GPU visible (CUDA_VISIBLE_DEVICES).",
    ),
    (
        ("NO_BINARY_FOR_GPU", "NoKernelImage", "INVALID_IMAGE", "UNSUPPORTED_PTX", "INVALID_SOURCE"),
        RuntimeError,
        "The driver runs what the compiler of the backend's CUDA makes for this GPU.",
        f"Install a newer NVIDIA driver; for an old GPU, what is for an older CUDA: {install('cuda12')}.",
    ),
    (
        ("INVALID_VALUE", "InvalidValue", "OUT_OF_RESOURCES", "OutOfResources", "InvalidConfiguration"),
        FitError,
        "A kernel's blocks fit on a multiprocessor.",
        "Smaller tiles are taken where a kernel does not load, and none was left: please report this, with what "
        "`minicnn info` prints.",
    ),
)
_OTHER = (
    RuntimeError,
    "Kernels run without an error.",
    "The process's CUDA context may be lost: start it again. CUDA_LAUNCH_BLOCKING=1 and Options(graph=False) tell "
    "which kernel fails; with reference_only=True no kernel of a plan runs. Please report it.",
)


def explanation(
    received: str, kernel: str = "", *, backend: str = "cupy", causes: Sequence[Cause] = _CAUSES, other: Any = _OTHER
) -> Exception:
    """The error to raise for one of a GPU.

    Args:
        received: Its text, which has its name.
        kernel: The kernel that was to be launched, if it is known.
        backend: Whose error it is.
        causes: Parts of the texts that each cause has, the rule, the remedy; those of CUDA.
        other: Error, rule and remedy if it is none of them.
    """
    those = ((kind, rule, remedy) for names, kind, rule, remedy in causes if any(n in received for n in names))
    kind, rule, remedy = next(those, other)
    where = f" in {kernel}" if kernel else ""
    return kind(f"{rule.format(backend=backend)} Received: {received.rstrip('. ')}{where}. {remedy}")


_LIBRARIES = frozenset(("cuda", "cupy", "cupy_backends", "numba", "numba_cuda", "numba_cuda_mlir"))


@contextmanager
def explained(kernel: str = "") -> Iterator[None]:
    """Turns errors of CUDA and of its libraries into ones that name the rule, what was received and the remedy.

    Args:
        kernel: The kernel that is launched, if one is.

    Raises:
        MemoryError: If the device has too little memory.
        RuntimeError: If there is no driver, an old one, no device, or a kernel failed.
    """
    try:
        yield
    except Exception as error:
        library = type(error).__module__.partition(".")[0]
        if library not in _LIBRARIES:
            raise
        backend = "cupy" if library.startswith("cupy") else "numba_cuda"
        raise explanation(" ".join(str(error).split()), kernel, backend=backend) from error
