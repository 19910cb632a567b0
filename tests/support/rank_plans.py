"""Steps of ranks with a GPU each, planned for a GPU that is not there: what rank 0 of several would launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from backends.cupy.emulated import EmulatedBackend, EmulatedRuntime
from minicnn import Model
from minicnn.backends._gpu import ranks as gpu_ranks
from minicnn.backends._gpu.device import KNOWN
from minicnn.backends._gpu.peer_nodes import ROUND, ROUNDS, places_name
from minicnn.backends._gpu.peer_sums import PeerSums
from minicnn.backends._gpu.planning import tiles_on
from minicnn.backends._gpu.ranks import GraphStep
from minicnn.backends._gpu.runtime import KernelText
from minicnn.backends._gpu.tiles import Tiles
from minicnn.distribution import DataParallel, NcclCommunicator
from minicnn.distribution.schedule import RankSchedule
from minicnn.kernels.peers import addresses
from minicnn.program.graph import Spec

GPU = KNOWN["h100"]


class Nobody(NcclCommunicator):
    """Communicator of ranks that are not there, whose memory GPUs reach."""

    def __init__(self, ranks: int) -> None:
        self.rank, self.size, self._graphs, self._connected = 0, ranks, set(), {}  # type: ignore[assignment]
        self._peers = PeerSums.__new__(PeerSums)
        self._peers._gpu, self._peers._ranks = GPU, ranks

        def nothing(*given: Any) -> None:
            pass

        self.exchange = self.gather = self.add = self.send = self.receive = self.fail = self.captured = nothing  # type: ignore[assignment,method-assign]

    def share(self, data: bytes) -> list[bytes]:
        return [data] * self.size

    def prepare(self, *given: Any, **about: Any) -> None:
        pass

    def shared(self, nbytes: int, runtime: Any) -> Any:
        return runtime.empty((nbytes,), "uint8")

    def within_kernels(self, sums: Sequence[Spec], runtime: Any) -> dict[str, Any]:
        rows = {places_name(k): np.zeros(addresses(self.size), "uint64") for k in range(len(sums))}
        return {**rows, ROUND: np.zeros(ROUNDS.shape, ROUNDS.dtype)}


class _PlannedError(Exception):
    """The step is planned."""


class _Runtime(EmulatedRuntime):
    gpu = GPU

    def load(self, texts: Sequence[KernelText]) -> list[KernelText]:
        return list(texts)


class Planner(EmulatedBackend):
    step: GraphStep

    def open(self, number: int) -> tuple[EmulatedRuntime, Tiles]:
        return _Runtime(), tiles_on(GPU, self.options)

    def rank_step(self, schedule: RankSchedule, run: Any) -> Any:
        step = gpu_ranks.rank_step(schedule, self)
        assert isinstance(step, GraphStep)
        self.step = step
        raise _PlannedError


def planned_by(backend: Planner, train: Callable[[], Any]) -> list[Any]:
    """Executables of rank 0's training step, in order, of a model that is trained on a `Planner`."""
    try:
        train()
    except _PlannedError:
        step = backend.step
        for name, spec in step._moved.items():
            step._fix(name, spec.shape, spec.dtype)
        step._record()
        return [call.run for call in step._tape]
    raise AssertionError("a model of several ranks takes its steps through the backend")


def planned(
    make: Callable[[Any, DataParallel], Model], samples: int, x: Any, y: Any, *, ranks: int, exchanges: bool = True
) -> list[Any]:
    """Executables of rank 0's training step, in order.

    Args:
        make: Makes the model of a backend and a distribution.
        samples: Samples of the batch.
        x: At least so many samples.
        y: Their targets.
        ranks: How many ranks there are, each with a shard.
        exchanges: Whether kernels may take sums.
    """
    backend = Planner()
    backend.exchanges = exchanges
    model = make(backend, DataParallel(ranks, communicator=Nobody(ranks)))
    return planned_by(backend, lambda: model.train_on_batch(x[:samples], y[:samples]))
