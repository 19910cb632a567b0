"""Engines by name, and what they compute for a Program."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from backends.cupy.emulator import needs_gxx
from minicnn.program import Program

Array = np.ndarray[Any, Any]


ENGINES = ["numpy", "numba", "torch", "jax", pytest.param("emulated", marks=needs_gxx), "numba_cuda"]


def computed(backend: Any, program: Program, given: dict[str, Array]) -> dict[str, Array]:
    """Outputs of a Program."""
    with np.errstate(all="ignore"):
        made = backend.compile(program)({k: backend.asarray(a) for k, a in given.items()})
        return {k: backend.to_numpy(a) for k, a in made.items()}
