"""What the CUDA engine says when something is wrong with the machine; needs none."""

from __future__ import annotations

import sys

import pytest

from minicnn.backends._gpu.errors import FitError, explanation
from minicnn.backends._gpu.options import Options
from minicnn.backends.cupy import nvrtc


@pytest.mark.parametrize(
    ("received", "kind", "said"),
    [
        ("Out of memory allocating 640,000,000,000 bytes (allocated so far: 512 bytes).", MemoryError,
         r"arrays fit in the memory.*640,000,000,000 bytes.*smaller batch_size"),
        ("cudaErrorMemoryAllocation: out of memory", MemoryError, "smaller batch_size"),
        ("CUDA_ERROR_OUT_OF_MEMORY: out of memory", MemoryError, "smaller batch_size"),
        ("cudaErrorInsufficientDriver: CUDA driver version is insufficient for CUDA runtime version", RuntimeError,
         "cupy backend needs .* at least as new as its CUDA.*Install a newer NVIDIA driver.*another backend"),
        ("cudaErrorNoDevice: no CUDA-capable device is detected", RuntimeError, "needs an NVIDIA GPU.*visible"),
        ("CUDA_ERROR_NO_BINARY_FOR_GPU: no kernel image is available", RuntimeError, "newer NVIDIA driver.*older CUDA"),
        ("CUDA_ERROR_UNSUPPORTED_PTX_VERSION: the provided PTX", RuntimeError, "newer NVIDIA driver"),
        ("CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES: too many resources requested", FitError,
         "fit on a multiprocessor.*Smaller tiles.*report"),
        ("cudaErrorIllegalAddress: an illegal memory access was encountered", RuntimeError,
         "start it again.*CUDA_LAUNCH_BLOCKING=1.*reference_only=True"),
    ],
)  # fmt: skip
def test_every_cause_has_a_rule_and_a_remedy(received: str, kind: type[Exception], said: str) -> None:
    with pytest.raises(kind, match=said) as caught:
        raise explanation(received)
    assert f"Received: {received.rstrip('.')}. " in str(caught.value)
    assert type(caught.value) is kind


def test_a_launch_names_its_kernel() -> None:
    error = explanation("CUDA_ERROR_INVALID_VALUE: invalid argument", "matmul+add with 3 blocks of 2048 threads")
    assert "Received: CUDA_ERROR_INVALID_VALUE: invalid argument in matmul+add with 3 blocks of 2048 threads." in str(
        error
    )


def test_without_the_packages_that_find_a_compiler_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "load", nvrtc.load.__wrapped__)
    monkeypatch.setitem(sys.modules, "cuda.pathfinder", None)
    with pytest.raises(ImportError, match=r'Received: none .*pip install "minicnn-arrays\[cuda13\]"'):
        nvrtc.version()


def test_options_are_checked() -> None:
    with pytest.raises(ValueError, match="block is a power of two"):
        Options(block=100)
    with pytest.raises(ValueError, match="data_bytes is a number of bytes"):
        Options(data_bytes=-1)
