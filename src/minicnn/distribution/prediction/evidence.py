"""How far the model is from what was measured: on this machine, and by others."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean
from typing import Any

import numpy as np

from minicnn.distribution.prediction.devices import Rates, fit, work
from minicnn.distribution.prediction.jitter import relative, typical
from minicnn.distribution.prediction.links import Interconnect, sent
from minicnn.distribution.prediction.strategies import Conditions, predict
from minicnn.distribution.prediction.workload import Workload, workload
from minicnn.program.graph import Program

Measured = Mapping[str, Any]
Run = Mapping[str, Any]  # what was trained: network, image, batch, and the seconds
KRIZHEVSKY, YADAN = "Krizhevsky 2014, arXiv:1404.5997", "Yadan et al. 2013, arXiv:1312.5853"
# Speed-up over one GPU of hybrid parallelism for AlexNet: GPUs, samples a GPU, speed-up, source.
PUBLISHED = ((4, 128, 3.74, KRIZHEVSKY), (8, 128, 6.16, KRIZHEVSKY), (4, 64, 2.0, YADAN))


@dataclass(frozen=True)
class Point:
    """A figure that was measured, beside the model's.

    Attributes:
        what: What it is.
        measured: The figure: seconds, or a speed-up.
        predicted: The model's.
        unit: "s", or "times".
        source: Where it was measured.
        fitted: Whether the model was fitted to it, among others.
    """

    what: str
    measured: float
    predicted: float
    unit: str
    source: str
    fitted: bool

    @property
    def error(self) -> float:
        """By how much the model is above what was measured, relative to that."""
        return self.predicted / self.measured - 1


@dataclass(frozen=True)
class Calibration:
    """What the model is given by measurements on a machine.

    Attributes:
        machine: The machine's name.
        ranks: Local ranks that were measured, all at once.
        rates: Of one of them.
        factors: By what a network's steps took longer than the rates say, by its name.
        network: Between the ranks; None if no all-reduce was measured.
        jitter: Step times of a rank, relative to the typical one.
        points: What was measured, beside the model.
    """

    machine: str
    ranks: int
    rates: Rates
    factors: Mapping[str, float]
    network: Interconnect | None
    jitter: Sequence[float]
    points: Sequence[Point]

    def clock(self, network: str) -> Rates:
        """What times the nodes of a network's steps."""
        return self.rates.slower(self.factors.get(network, 1.0))


def calibrate(found: Measured, trace: Callable[[Run, int], Program]) -> Calibration:
    """Fit a rank's rates and the network between local ranks to measurements.

    Args:
        found: The measurements, of `minicnn.bench.local_ranks.measure`.
        trace: Gives the Program of a step of what was trained on so many samples.
    """
    machine, ranks, steps = found["machine"], found["ranks"], found["alone"]
    done = [(work(trace(step, step["batch"])), typical(step["seconds"])) for step in steps]
    rates = fit(done)
    ratios: dict[str, list[float]] = {}
    for step, (what, seconds) in zip(steps, done, strict=True):
        ratios.setdefault(step["network"], []).append(math.log(seconds / rates.seconds(what)))
    factors = {name: math.exp(fmean(logs)) for name, logs in ratios.items()}
    jitter = sorted(t for step in steps for t in relative(step["seconds"]))
    points = [
        Point(f"{_named(step)}, by itself", seconds, factors[step["network"]] * rates.seconds(what), "s", machine, True)
        for step, (what, seconds) in zip(steps, done, strict=True)
    ]
    if not found["all_reduce"]:
        return Calibration(machine, ranks, rates, factors, None, jitter, points)
    sums = [(one["bytes"], typical(one["seconds"])) for one in found["all_reduce"]]
    network = fit_interconnect(f"this machine's memory, {ranks} ranks", sums, ranks)
    points += [
        Point(f"all-reduce of {n / 1e3:,.0f} kB, {ranks} ranks", s, network.all_reduce(n, ranks), "s", machine, True)
        for n, s in sums
    ]
    made = Calibration(machine, ranks, rates, factors, network, jitter, [])
    conditions = Conditions(network, bucket=0.0)  # ranks of one machine share its cores, which hides little
    for run in found["training"]:
        clock, own = made.clock(run["network"]), run["batch"] // ranks
        layers = workload(partial(trace, run), clock.batches(own), clock)
        predicted = predict(layers, "data", ranks, run["batch"], conditions).seconds
        points.append(Point(f"{_named(run)}, {ranks} ranks", typical(run["seconds"]), predicted, "s", machine, False))
    return replace(made, points=points)


def _named(run: Run) -> str:
    return f"step of {run['network']} on {run['batch']} of {'x'.join(map(str, run['image']))}"


def fit_interconnect(name: str, sums: Sequence[tuple[float, float]], ranks: int) -> Interconnect:
    """Latency and bandwidth by which measured all-reduces took what they took, with least relative errors.

    Args:
        name: What the network is called.
        sums: Bytes and seconds.
        ranks: Ranks that took part.
    """
    terms = np.array([[2 * (ranks - 1) / s, sent(n, ranks) / s] for n, s in sums])
    scale = terms.max(axis=0)
    (a, b), *_ = np.linalg.lstsq(terms / scale, np.ones(len(sums)), rcond=None)
    if a < 0:
        a, b = 0.0, float(terms[:, 1].sum() / (terms[:, 1] ** 2).sum() * scale[1])
    return Interconnect(name, float(a / scale[0]), float(scale[1] / b))


def published(alexnet: Workload) -> list[Point]:
    """What others measured with AlexNet, beside the model.

    Their GPUs and links are not described in our terms. What matters is one number: the bytes that a link moves while a
    GPU computes a sample. It is fitted to Krizhevsky's 4 GPUs; the other points follow from it.

    Args:
        alexnet: Layers of AlexNet on images of 224x224.
    """
    found: list[Point] = []
    link = 1.0
    for gpus, own, measured, source in PUBLISHED:
        one_group = Conditions(Interconnect("any", 0.0, 1.0), group=gpus)
        moved = predict(alexnet, "hybrid", gpus, gpus * own, one_group).sent / own
        link = link if found else moved / (gpus / measured - 1)
        what = f"speed-up of AlexNet by hybrid parallelism, {gpus} GPUs"
        found.append(Point(what, measured, gpus / (1 + moved / link), "times", source, not found))
    return found
