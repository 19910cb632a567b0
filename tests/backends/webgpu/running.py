"""Where the tests of this folder run: on the first adapter that is there, such as Mesa's for processors."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

pytest.importorskip("wgpu")

from minicnn.backends.webgpu.adapters import adapters

if not adapters():
    pytest.skip("needs an adapter, such as that of mesa-vulkan-drivers", allow_module_level=True)
# Each example compiles a kernel, for half a second on a processor.
few = settings(max_examples=5, suppress_health_check=[HealthCheck.too_slow])
