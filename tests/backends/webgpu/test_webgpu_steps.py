"""Around the kernels on webgpu: see `EngineSteps`."""

from __future__ import annotations

import backends.webgpu.running  # noqa: F401 - skips all of this where there is no adapter
from minicnn.backends._gpu.options import Options
from minicnn.backends.webgpu.backend import WebGpuBackend
from support.engine import EngineSteps


class TestSteps(EngineSteps):
    """See `EngineSteps`."""

    rows = 2**22  # those of the binding that every adapter has

    def make(self, options: Options | None = None) -> WebGpuBackend:
        """See `EngineSteps.make`."""
        backend = WebGpuBackend(options=options)
        backend.steps_at_once = backend.predictions_at_once = 256
        return backend
