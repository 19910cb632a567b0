"""Around the kernels without a GPU: the steps of the CUDA engines on the emulator's runtime."""

from __future__ import annotations

import shutil

import pytest

from backends.cupy.emulated import EmulatedBackend
from minicnn.backends._gpu.options import Options
from support.engine import EngineSteps


@pytest.mark.skipif(shutil.which("g++") is None, reason="kernels run on the host through g++")
class TestSteps(EngineSteps):
    """See `EngineSteps`."""

    def make(self, options: Options | None = None) -> EmulatedBackend:
        """See `EngineSteps.make`."""
        backend = EmulatedBackend(options=options)
        backend.steps_at_once = backend.predictions_at_once = 256
        return backend
