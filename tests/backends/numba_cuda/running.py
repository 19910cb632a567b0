"""Where the tests of this folder run: in the CUDA simulator (NUMBA_ENABLE_CUDASIM=1), else on a GPU."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

pytest.importorskip("numba_cuda")

from minicnn.backends.numba_cuda.shim import SIMULATED, cuda

ON_DEVICE = not SIMULATED and bool(cuda.is_available())
SKIP = pytest.mark.skipif(not (SIMULATED or ON_DEVICE), reason="needs a GPU, or NUMBA_ENABLE_CUDASIM=1")
EITHER = [SKIP] if SIMULATED else [SKIP, pytest.mark.gpu]
GPU_ONLY = [pytest.mark.gpu, pytest.mark.skipif(not ON_DEVICE, reason="needs a GPU")]

few = settings(max_examples=8 if SIMULATED else 60, suppress_health_check=[HealthCheck.too_slow])
# Where kernels are compiled for each example, which takes seconds on a GPU.
fewer = settings(few, max_examples=8 if SIMULATED else 20)
