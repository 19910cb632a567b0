"""Evidence for the model: its errors against measurements on this machine, and by others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from minicnn.distribution.passes import BUCKET
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
    """Constants of the model that were measured on a machine.

    Attributes:
        machine: The machine's name.
        ranks: Local ranks that were measured, all at once.
        rates: Of one of them.
        factors: For each network that was measured the samples of its steps, ascending, and by what these took longer
            than the rates say.
        cut: For each network that was measured the seconds that a step takes longer where gradients are summed: see
            `Conditions`.
        network: Between the ranks; None if no all-reduce was measured, or none from which a bandwidth follows.
        missing: Why there is no network; "" if there is one.
        jitter: Step times of a rank, relative to the typical one.
        points: What was measured, beside the model.
    """

    machine: str
    ranks: int
    rates: Rates
    factors: Mapping[str, Sequence[tuple[int, float]]]
    cut: Mapping[str, float]
    network: Interconnect | None
    missing: str
    jitter: Sequence[float]
    points: Sequence[Point]

    def clock(self, network: str) -> Rates:
        """Clock that times the nodes of a network's steps."""
        return replace(self.rates, factors=self.factors.get(network, Rates.factors))


def calibrate(measured: Measured, trace: Callable[[Run, int], Program]) -> Calibration:
    """Fit a rank's rates and the network between local ranks to measurements.

    Args:
        measured: The measurements, of `minicnn.measure.local_ranks.measure`.
        trace: Gives the Program of a step of what was trained on so many samples.
    """
    machine, ranks, steps = measured["machine"], measured["ranks"], measured["alone"]
    done = [(work(trace(step, step["batch"])), typical(step["seconds"])) for step in steps]
    rates = fit(done)
    factors: dict[str, list[tuple[int, float]]] = {}
    for step, (what, seconds) in zip(steps, done, strict=True):
        factors.setdefault(step["network"], []).append((step["batch"], seconds / rates.seconds(what)))
    factors = {name: sorted(each) for name, each in factors.items()}
    jitter = sorted(t for step in steps for t in relative(step["seconds"]))
    whole = {(step["network"], step["batch"]): seconds for step, (_, seconds) in zip(steps, done, strict=True)}
    cut = {
        one["network"]: max(0.0, typical(one["seconds"]) - whole[one["network"], one["batch"]])
        for one in measured.get("cut", ())
    }
    missing = "no all-reduce was measured on this machine, which takes the extra mpi"
    calibration = Calibration(machine, ranks, rates, factors, cut, None, missing, jitter, [])
    points = [
        Point(f"{_named(step)}, by itself", seconds,
              calibration.clock(step["network"]).seconds(what, step["batch"]), "s",
              machine, True)
        for step, (what, seconds) in zip(steps, done, strict=True)
    ]  # fmt: skip
    if not measured["all_reduce"]:
        return replace(calibration, points=points)
    apart = {one["bytes"]: typical(one["seconds"]) for one in measured.get("apart", ())}
    sums = [(one["bytes"], apart.get(one["bytes"], 0.0), typical(one["seconds"])) for one in measured["all_reduce"]]
    # Steps that are cut have the rest.
    exchanged = [(n, max(whole - modelled, 0.1 * whole)) for n, modelled, whole in sums]
    network = fit_interconnect(f"this machine's memory, {ranks} ranks", exchanged, ranks)
    if network is None:
        took = ", ".join(f"{n / 1e3:,.0f} kB in {1e3 * whole:.3g} ms" for n, _, whole in sums)
        missing = f"all-reduces took no longer with more bytes ({took}), as happens beside other programs"
        return replace(calibration, missing=missing, points=points)
    points += [
        Point(f"all-reduce of {n / 1e3:,.0f} kB, {ranks} ranks", whole, modelled + network.all_reduce(n, ranks), "s",
              machine, True)
        for n, modelled, whole in sums
    ]  # fmt: skip
    # What sends gradients hides behind the backward pass where it has cores of its own.
    bucket = BUCKET if measured.get("facts", {}).get("cores", 0) >= 2 * ranks else 0.0
    for run in measured["training"]:
        clock, batch = calibration.clock(run["network"]), run["batch"] // ranks
        layers = workload(partial(trace, run), clock.batches(batch), clock)
        same = [s for s in (*measured.get("cut", ()), *steps) if (s["network"], s["batch"]) == (run["network"], batch)]
        slowest = _slowest(same[0]["seconds"], ranks) if same else 1.0
        conditions = Conditions(network, [slowest], bucket=bucket, cut=cut.get(run["network"], 0.0))
        predicted = predict(layers, "data", ranks, run["batch"], conditions).seconds
        points.append(Point(f"{_named(run)}, {ranks} ranks", typical(run["seconds"]), predicted, "s", machine, False))
    return replace(calibration, network=network, missing="", points=points)


def _slowest(seconds: Sequence[float], ranks: int) -> float:
    """By how much the slowest of some ranks, which take so many seconds in turn, takes longer than is typical."""
    return typical([max(seconds[i : i + ranks]) for i in range(0, len(seconds), ranks)]) / typical(seconds)


def _named(run: Run) -> str:
    return f"step of {run['network']} on {run['batch']} of {'x'.join(map(str, run['image']))}"


def fit_interconnect(name: str, sums: Sequence[tuple[float, float]], ranks: int) -> Interconnect | None:
    """Latency and bandwidth by which measured all-reduces took what they took, with least relative errors.

    Args:
        name: What the network is called.
        sums: Bytes and seconds.
        ranks: Ranks that took part.

    Returns:
        None if the seconds do not grow with the bytes, so that no bandwidth follows from them.
    """
    terms = np.array([[2 * (ranks - 1) / s, sent(n, ranks) / s] for n, s in sums])
    scale = terms.max(axis=0)
    (a, b), *_ = np.linalg.lstsq(terms / scale, np.ones(len(sums)), rcond=None)
    # No latency can be below zero: then bandwidth alone explains the times.
    if a < 0:
        a, b = 0.0, float(terms[:, 1].sum() / (terms[:, 1] ** 2).sum() * scale[1])
    if b <= 0:
        return None
    return Interconnect(name, float(a / scale[0]), float(scale[1] / b))


def published(alexnet: Workload) -> list[Point]:
    """Published measurements with AlexNet, beside the model.

    Their GPUs and links are not described in our terms. What matters is one number: the bytes that a link moves while a
    GPU computes a sample. It is fitted to Krizhevsky's 4 GPUs; the other points follow from it.

    Args:
        alexnet: Layers of AlexNet on images of 224x224.
    """
    points: list[Point] = []
    link = 1.0
    for gpus, samples, measured, source in PUBLISHED:
        one_group = Conditions(Interconnect("any", 0.0, 1.0), group=gpus)
        moved = predict(alexnet, "hybrid", gpus, gpus * samples, one_group).sent / samples
        # The first point fits the only unknown; all others are predictions.
        link = link if points else moved / (gpus / measured - 1)
        what = f"speed-up of AlexNet by hybrid parallelism, {gpus} GPUs"
        points.append(Point(what, measured, gpus / (1 + moved / link), "times", source, not points))
    return points
