"""The generated kernels, run on the CPU: plans, memory and whole steps on a machine without a GPU."""

from __future__ import annotations

import numpy as np
import pytest

from backends.cupy.emulator import needs_gxx
from backends.cupy.networks import NETWORKS
from minicnn.backends import get_backend
from support.kernel_check import step_of

pytestmark = needs_gxx


@pytest.mark.parametrize("network", NETWORKS)
def test_a_step_is_that_of_numpy(network: str) -> None:
    from backends.cupy.emulator import Emulated

    program, given = step_of(network)
    expected = get_backend("numpy").compile(program())(given)
    found = Emulated(program())(given)
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=2e-6, err_msg=name)
