"""The generated kernels, run on the CPU: plans, memory and whole steps on a machine without a GPU."""

from __future__ import annotations

import shutil
from typing import Any

import numpy as np
import pytest

from backends.cupy.networks import NETWORKS, data
from minicnn.backends import get_backend

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="kernels run on the host through g++")


@pytest.mark.parametrize("network", NETWORKS)
def test_a_step_is_that_of_numpy(network: str) -> None:
    from backends.cupy.emulator import Emulated

    model = NETWORKS[network]("numpy")
    x, y = data()
    feed, arrays = list(model._source(x, y, None, 16, "keep").epoch(shuffle=True, seed=1, epoch=0))[-1]
    rng = np.random.default_rng(3)
    given: dict[str, Any] = {}
    program = model._program_of("train", feed)[0]
    for value in program.inputs:
        if value.name in arrays:
            given[value.name] = np.asarray(arrays[value.name])
        elif value.kind in ("optimizer", "metric"):
            given[value.name] = np.abs(rng.standard_normal(value.shape) * 0.1).astype(value.dtype)
        elif value.shape == ():
            given[value.name] = np.asarray({"learning_rate": 0.05, "step": 4}[value.name], value.dtype)
        else:
            given[value.name] = model._engine.get(value.name)
    expected = get_backend("numpy").compile(model._program_of("train", feed)[0])(given)
    found = Emulated(program)(given)
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=2e-6, err_msg=name)
