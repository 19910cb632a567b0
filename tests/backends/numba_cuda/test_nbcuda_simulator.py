"""Blocks in the simulator: barriers, those that are missing, and threads that fail."""

from __future__ import annotations

import numpy as np
import pytest

import backends.numba_cuda.running  # noqa: F401 - skips all of this where numba-cuda is not installed
from minicnn.backends.numba_cuda.shim import SIMULATED, cuda
from minicnn.backends.numba_cuda.simulator import simulate

pytestmark = pytest.mark.skipif(not SIMULATED, reason="needs NUMBA_ENABLE_CUDASIM=1")


@pytest.mark.parametrize("barrier", [True, False])
@pytest.mark.parametrize("step", [1, 7])
def test_a_missing_barrier_shows_whichever_neighbour_is_read(barrier: bool, step: int) -> None:
    def turned(out):
        shared = cuda.shared.array(8, "int64")
        i = cuda.threadIdx.x
        shared[i] = 0
        cuda.syncthreads()
        for k in range(1, 4):
            shared[i] = k
            if barrier:
                cuda.syncthreads()
            out[cuda.blockIdx.x, k - 1, i] = shared[(i + step) % 8]
            cuda.syncthreads()

    out = np.zeros((2, 3, 8), "int64")
    simulate(cuda.jit(turned), 2, 8, [out])
    assert (out == np.array([[1], [2], [3]])).all() == barrier


def test_a_thread_that_fails_ends_those_that_wait() -> None:
    def fails(out):
        if cuda.threadIdx.x == 3:
            raise ValueError("no number")
        cuda.syncthreads()
        out[cuda.threadIdx.x] = 1

    out = np.zeros(8)
    with pytest.raises(ValueError, match="no number"):
        simulate(cuda.jit(fails), 1, 8, [out])
    assert not out.any()
