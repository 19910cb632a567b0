"""Around the kernels on numba_cuda, in the simulator or on a GPU: see `EngineSteps`."""

from __future__ import annotations

import pytest

from backends.cupy.networks import NETWORKS
from backends.numba_cuda.running import EITHER, SIMULATED
from minicnn.backends._gpu.options import Options
from minicnn.backends.numba_cuda.backend import NumbaCudaBackend
from support.engine import EngineSteps

pytestmark = EITHER


class TestSteps(EngineSteps):
    """See `EngineSteps`."""

    networks = ("mlp",) if SIMULATED else tuple(NETWORKS)
    samples = 11 if SIMULATED else 40
    steps = 3 if SIMULATED else 37
    graphs = not SIMULATED

    def make(self, options: Options | None = None) -> NumbaCudaBackend:
        """See `EngineSteps.make`."""
        backend = NumbaCudaBackend(options=options)
        backend.steps_at_once = backend.predictions_at_once = 256
        return backend

    # Looking at each line makes the simulator two to four times slower, and these lines are seen elsewhere.
    @pytest.mark.no_cover
    def test_many_steps_at_once_are_the_same_steps_with_graphs_and_without(self) -> None:
        """See `EngineSteps`."""
        super().test_many_steps_at_once_are_the_same_steps_with_graphs_and_without()

    @pytest.mark.no_cover
    def test_data_from_the_host_give_the_same_bits(self) -> None:
        """See `EngineSteps`."""
        super().test_data_from_the_host_give_the_same_bits()

    @pytest.mark.no_cover
    def test_a_loader_gives_the_same_bits(self) -> None:
        """See `EngineSteps`."""
        super().test_a_loader_gives_the_same_bits()
