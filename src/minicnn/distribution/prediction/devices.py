"""Devices of a rank: a processor by three rates that were fitted to measured steps, or a GPU by its plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from minicnn.distribution.prediction.workload import Timed
from minicnn.program.graph import Program
from minicnn.program.shares import shares

if TYPE_CHECKING:
    from minicnn.backends._gpu.device import Gpu

MOST_BATCH = 512  # for which a step is planned; beyond, times go on in a line


@dataclass(frozen=True)
class Rates:
    """A device that takes for each node a time for its operations, one for its bytes, and one for itself.

    Attributes:
        flops: Floating-point operations a second.
        bandwidth: Bytes a second.
        overhead: Seconds of a node beside them.
        factors: Samples of measured steps of a network, ascending, and by what these took longer than the rates say;
            in between factors lie on lines.
    """

    flops: float
    bandwidth: float
    overhead: float = 0.0
    factors: Sequence[tuple[int, float]] = ((1, 1.0),)

    def __call__(self, program: Program) -> list[Timed]:
        """See `Clock`."""
        factor = self._factor(next((v.shape[0] for v in program.inputs if v.kind == "input" and v.shape), 1))
        return [
            Timed(n, factor * self._by_rates(n.cost.flops, n.cost.bytes, 1), factor * self.overhead)
            for n in program.nodes
        ]

    def seconds(self, work: Sequence[float], samples: int = 1) -> float:
        """Seconds of a step with so many operations, bytes, nodes and samples."""
        return self._factor(samples) * self._by_rates(*work)

    def batches(self, largest: int) -> list[int]:
        """Batches that are to be timed, as a cost is a constant plus a multiple of the batch, and the measured ones."""
        return [1, *(n for n, _ in self.factors if 1 < n < largest), max(2, largest)]

    def _by_rates(self, flops: float, nbytes: float, nodes: float) -> float:
        return flops / self.flops + nbytes / self.bandwidth + nodes * self.overhead

    def _factor(self, samples: int) -> float:
        return float(np.interp(samples, [n for n, _ in self.factors], [factor for _, factor in self.factors]))


def work(program: Program) -> list[float]:
    """Operations, bytes and nodes of a step."""
    costs = [node.cost for node in program.nodes]
    return [float(sum(c.flops for c in costs)), float(sum(c.bytes for c in costs)), float(len(costs))]


def fit(steps: Sequence[tuple[Sequence[float], float]]) -> Rates:
    """Rates by which measured steps take what they took, with the least squares of relative errors.

    Args:
        steps: Operations, bytes and nodes of steps, and the seconds that were measured.

    Raises:
        ValueError: If there is no step.
    """
    if not steps:
        raise ValueError("Rates are fitted to measured steps. Received: none. Measure at least one.")
    # Divided by the time: errors are then relative, and short steps count as much as long ones.
    terms = np.array([[w / seconds for w in done] for done, seconds in steps])
    scale = terms.max(axis=0)
    kept = [0, 1, 2]
    while True:  # a rate below 0 says that its term explains nothing
        rates, *_ = np.linalg.lstsq(terms[:, kept] / scale[kept], np.ones(len(steps)), rcond=None)
        if len(kept) == 1 or (rates > 0).all():
            break
        kept.pop(int(np.argmin(rates)))
    per = dict(zip(kept, np.abs(rates) / scale[kept], strict=True))
    flops, bandwidth = (1 / per[k] if k in per else float(np.finfo(float).max) for k in (0, 1))
    return Rates(float(flops), float(bandwidth), float(per.get(2, 0.0)))


@dataclass(frozen=True)
class PlannedGpu:
    """A GPU on which the cupy backend's plan of the step says what each launch takes."""

    gpu: Gpu

    def __call__(self, program: Program) -> list[Timed]:
        """See `Clock`."""
        from minicnn.backends._gpu.costs import costs_on
        from minicnn.backends._gpu.options import Options
        from minicnn.backends._gpu.planning import planned
        from minicnn.backends.cupy.generation import generate

        # A launch's own time does not shrink with the batch.
        least = costs_on(self.gpu).launches.launch / self.gpu.clock
        one_after_the_other = Options(second_stream=False)  # as those of a rank's parts are
        return [
            Timed(node, share * launch.seconds, share * min(least, launch.seconds))
            for launch in planned(program, self.gpu, generate, one_after_the_other).launches
            for node, share in zip(launch.nodes, shares(launch.nodes), strict=True)
        ]

    def batches(self, largest: int) -> list[int]:
        """Batches that are to be timed: tiles fill a GPU or do not, so that times do not lie on one line."""
        return [n for n in (1, 8, 64) if n < largest] + [min(max(2, largest), MOST_BATCH)]
