"""The generated kernels, run on the CPU: plans, memory and whole steps on a machine without a GPU."""

from __future__ import annotations

import numpy as np
import pytest

from backends.cupy.emulated import EmulatedBackend
from backends.cupy.emulator import needs_gxx
from backends.cupy.networks import NETWORKS
from minicnn import Model
from minicnn.backends import get_backend
from minicnn.layers import Average, Conv2D, Input, MaxPooling2D
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


def test_what_is_read_beside_its_maxima_is_stored() -> None:
    """Windows of one element: the sum has the shape of both, and knows of what was pooled the maximum alone."""
    models = []
    for backend in ("numpy", EmulatedBackend(strict=True)):
        image = Input((6, 5, 3))
        convolved = Conv2D(4, 3, activation="tanh")(image)
        models.append(Model(image, Average()([MaxPooling2D(1)(convolved), convolved]), backend=backend))
    models[1].set_weights(models[0].get_weights())
    x = np.random.default_rng(0).standard_normal((3, 6, 5, 3)).astype("float32")
    np.testing.assert_allclose(models[1].predict(x), models[0].predict(x), rtol=1e-4, atol=2e-6)
