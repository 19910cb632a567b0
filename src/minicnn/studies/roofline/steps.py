"""Steps of the study `roofline` as they were timed, and what limits each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from minicnn.measure import Spread, StudyRun
from minicnn.measure.candidates import on_gpu
from minicnn.studies.roofline.ceilings import bandwidth, launch_s, peaks, way_of
from minicnn.studies.roofline.counting import NETWORKS, at_batch
from minicnn.studies.roofline.tables import whole
from minicnn.studies.roofline.verdict import Verdict, floor, judge

TITLES = {
    "resnet18": "ResNet-18",
    "mobilenet_v2": "MobileNetV2",
    "resnet50": "ResNet-50",
    "squeezenet1_1": "SqueezeNet 1.1",
}


@dataclass(frozen=True)
class NetworkStep:
    """A training step of a network on a candidate, as measured.

    Attributes:
        run: On which machine.
        network: Name of the network.
        candidate: Name of the candidate.
        batch: Images.
        time: Seconds, without its input.
        input_s: Seconds of making its input.
    """

    run: StudyRun
    network: str
    candidate: str
    batch: int
    time: Spread
    input_s: float

    @property
    def rate(self) -> float:
        """Images per second."""
        return self.batch / self.time.median

    @property
    def place(self) -> tuple[float, float]:
        """FLOP per byte and FLOP per second, by the Program's count."""
        flops, moved = whole(self.run.found(f"counts-{self.network}"), self.batch)
        return flops / moved, flops / self.time.median


def steps(runs: Sequence[StudyRun]) -> Iterator[NetworkStep]:
    """All steps that were timed."""
    for run in runs:
        for name in [name for name in NETWORKS if run.found(f"counts-{name}")]:
            result = run.results.get(f"training-{name}", {"steps": {}})
            for batch, times in result["steps"].items():
                for candidate, samples in times.items():
                    input_s = Spread.of(result["inputs"][batch][candidate]).median
                    yield NetworkStep(run, name, candidate, int(batch), Spread.of(samples), input_s)


def largest(every: Sequence[NetworkStep], candidate: str) -> dict[str, NetworkStep]:
    """The steps of a candidate by network, at the batch size that all networks have."""
    best: dict[str, NetworkStep] = {}
    mine = [s for s in every if s.candidate == candidate]
    common = [
        b for b in {s.batch for s in mine} if {s.network for s in mine if s.batch == b} == {s.network for s in mine}
    ]
    for step in mine:
        if step.batch == max(common, default=step.batch):
            best[step.network] = step
    return best


def at_epoch(every: Sequence[NetworkStep]) -> Iterator[NetworkStep]:
    """Of each network and candidate on each machine the step in the batch of its epoch, or else in the largest."""
    groups: dict[tuple[int, str, str], list[NetworkStep]] = {}
    for step in every:
        groups.setdefault((id(step.run), step.candidate, step.network), []).append(step)
    for group in groups.values():
        batch = epoch_batch(group[0].run, group[0].network)
        yield next((s for s in group if s.batch == batch), max(group, key=lambda s: s.batch))


def best_of(every: Sequence[NetworkStep]) -> str | None:
    """The candidate that is the fastest on most networks."""
    fastest = {s.network: s.candidate for s in sorted(every, key=lambda s: s.rate)}
    names = list(fastest.values())
    return max(names, key=names.count) if names else None


def verdict_of(step: NetworkStep) -> Verdict | None:
    """The verdict on a step, from its operations at the ceilings of the way in which its candidate computes."""
    ceilings, gpu = step.run.found("ceilings"), on_gpu(step.candidate)
    rates, moved = (peaks(ceilings, gpu), bandwidth(ceilings, gpu)) if ceilings else ({}, None)
    if not rates or not moved:
        return None
    result = step.run.results[f"training-{step.network}"]
    nodes = at_batch(step.run.found(f"counts-{step.network}"), step.batch)
    launched = result["accounts"].get(step.candidate, {}).get("launches")
    launched = result.get("launched", {}).get(step.candidate, launched)
    launch = launch_s(ceilings, step.candidate)
    launches = (len(nodes) if launched is None else launched) * (launch.median if launch else 0.0)
    peak = rates.get(way_of(step.candidate)) or next(iter(rates.values()))
    return judge(step.time.median + step.input_s, floor(nodes, peak, moved, launches, step.input_s))


def epoch_batch(run: StudyRun, network: str) -> int:
    """Batch size of a network's epoch."""
    return int(run.results[f"training-{network}"].get("epoch_batch", run.setting.sizes.epoch_batch))


def epochs_of(run: StudyRun) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Network, candidate and what came out of each epoch."""
    for name in NETWORKS:
        for candidate, epoch in run.results.get(f"training-{name}", {"epochs": {}})["epochs"].items():
            yield name, candidate, epoch
