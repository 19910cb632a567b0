"""Every engine for tests that all of them pass, by the name that is the parameter `backend`."""

from __future__ import annotations

from typing import Any

import pytest

from minicnn.backends import get_backend
from support.campaign import NIGHT
from support.numba_check import without_jit


@pytest.fixture
def engine(backend: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A backend; "emulated" is cupy, whose kernels run on the host. By day kernels of numba run as Python."""
    if backend == "emulated":
        from backends.cupy.emulated import EmulatedBackend

        return EmulatedBackend()
    if backend == "numba_cuda":
        pytest.importorskip("numba_cuda")
        from minicnn.backends.numba_cuda.shim import SIMULATED, cuda

        if not SIMULATED and not cuda.is_available():
            pytest.skip("needs a GPU, or NUMBA_ENABLE_CUDASIM=1")
    if backend == "numba" and not NIGHT:
        without_jit(monkeypatch)
    return get_backend(backend)
