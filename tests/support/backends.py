"""Backends that are found by their folder, for the tests that run over all of them."""

from __future__ import annotations

import pytest

from minicnn.backends import get_backend, names
from minicnn.backends.base import Backend

# Their tests have folders of their own, and the marker `gpu` or a simulator.
_ON_GPUS = ("cupy", "numba_cuda", "webgpu")
ON_CPUS = [name for name in names() if name not in _ON_GPUS]


def backend_or_skip(name: str) -> Backend:
    """A backend; the test is skipped where its library is not installed."""
    try:
        return get_backend(name)
    except ImportError as missing:
        pytest.skip(str(missing))
