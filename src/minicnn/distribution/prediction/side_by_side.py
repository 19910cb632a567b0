"""Strategies side by side over numbers of ranks, with the choice among them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from minicnn.distribution.prediction.strategies import STRATEGIES, Conditions, Prediction, predict
from minicnn.distribution.prediction.workload import Timed, Workload, workload
from minicnn.program.graph import Program

Scaling = Literal["strong", "weak"]
ALIKE = 1.01  # times that differ by no more are taken for the same


class RankDevice(Protocol):
    """Device of a rank: a `Clock` that says which batches it must see."""

    def __call__(self, program: Program) -> Sequence[Timed]:
        """See `minicnn.distribution.prediction.workload.Clock`."""
        ...

    def batches(self, largest: int) -> list[int]:
        """Batches that are to be timed, for steps of at most so many samples on a rank."""
        ...


@dataclass(frozen=True)
class Row:
    """All strategies on some ranks.

    Attributes:
        ranks: Ranks.
        batch: Samples of a step on all ranks together.
        predictions: By strategy, in the order of `STRATEGIES`.
        speedups: Samples a second, by those of one rank; 0 where a strategy is impossible.
        chosen: Name of the fastest that fits into the memory; None if there is none.
        why: Why, in one sentence.
    """

    ranks: int
    batch: int
    predictions: Sequence[Prediction]
    speedups: Sequence[float]
    chosen: str | None
    why: str


def counted(trace: Callable[[int], Program], device: RankDevice, largest: int) -> Workload:
    """The layers of a step, timed on a device.

    Args:
        trace: Gives the Program of a training step on a batch.
        device: What a rank computes with.
        largest: Samples of the largest step on a rank.
    """
    return workload(trace, device.batches(largest), device)


def scaling(
    work: Workload, ranks: Sequence[int], batch: int, conditions: Conditions, kind: Scaling = "strong"
) -> list[Row]:
    """Predict steps on several numbers of ranks.

    Args:
        work: The step's layers.
        ranks: Numbers of ranks.
        batch: Samples of a step: on all ranks together for "strong" scaling, on each for "weak".
        conditions: How ranks compute together.
        kind: Whether a step has the same samples on any number of ranks, or each rank.

    Raises:
        ValueError: If a number is below 1.
    """
    for name, numbers in (("ranks", ranks), ("batch", [batch])):
        if not numbers or min(numbers) < 1:
            raise ValueError(f"{name} is at least 1. Received: {name}={', '.join(map(str, numbers)) or 'none'}.")
    alone = predict(work, "data", 1, batch, conditions).seconds / batch
    rows = []
    for count in ranks:
        whole = batch * (count if kind == "weak" else 1)
        predictions = [predict(work, strategy, count, whole, conditions) for strategy in STRATEGIES]
        speedups = [alone * whole / p.seconds for p in predictions]
        chosen, why = _choice(predictions)
        best = next((s for p, s in zip(predictions, speedups, strict=True) if p.strategy == chosen), 1.0)
        rows.append(
            Row(
                count, whole, predictions, speedups, chosen, why + " One rank by itself is faster." * (best < 1 / ALIKE)
            )
        )
    return rows


def predict_scaling(
    model: Any, ranks: Sequence[int], *, batch_size: int, device: RankDevice, conditions: Conditions,
    kind: Scaling = "strong",
) -> list[Row]:  # fmt: skip
    """Predict how the training of a model scales; nothing is computed but the prediction.

    Args:
        model: A compiled model.
        ranks: Numbers of ranks.
        batch_size: See `scaling`.
        device: `Rates` of a processor, or a `PlannedGpu`.
        conditions: How ranks compute together.
        kind: See `scaling`.

    Returns:
        A row for each number of ranks.

    Raises:
        ValueError: If a number is below 1.
    """

    def trace(batch: int) -> Program:
        program: Program = model.program("train", batch_size=batch)
        return program

    return scaling(counted(trace, device, batch_size), ranks, batch_size, conditions, kind)


def _choice(predictions: Sequence[Prediction]) -> tuple[str | None, str]:
    """The fastest that fits, or the simplest of those that are as fast; and why."""
    ranks = predictions[0].ranks
    possible = [p for p in predictions if p.impossible is None]
    fitting = sorted((p for p in possible if p.fits), key=lambda p: p.seconds)
    if not possible:
        return None, f"None is possible on {ranks} ranks: {predictions[0].impossible}."
    if not fitting:
        least = min(possible, key=lambda p: p.memory)
        return None, f"None fits: {least.strategy} parallelism takes the least memory, {amount(least.memory)} a rank."
    if ranks == 1:
        return "data", "One rank shares nothing."
    alike = [p for p in fitting if p.seconds <= ALIKE * fitting[0].seconds]
    best = next(p for p in predictions if p in alike)
    text = f"{best.strategy} parallelism, {time(best.seconds)} a step on {ranks:,} ranks"
    larger = [p for p in possible if not p.fits and p.seconds < best.seconds]
    if larger:
        other = min(larger, key=lambda p: p.seconds)
        return best.strategy, f"{text}: {other.strategy} would be faster, but takes {amount(other.memory)} a rank."
    others = [p for p in fitting if p is not best]
    if not others:
        return best.strategy, f"{text}: no other is possible."
    other = others[0]
    if other in alike:
        return best.strategy, f"{text}: {other.strategy} is not faster by more than {100 * (ALIKE - 1):.0f} %."
    parts = {
        "computes": (best.compute, other.compute), "waits for links": (best.exposed, other.exposed),
        "waits for its pipeline": (best.idle, other.idle),
    }  # fmt: skip
    what, (ours, theirs) = max(parts.items(), key=lambda item: item[1][1] - item[1][0])
    why = f"since a rank {what} {time(ours)} and not {time(theirs)}"
    sends = f", and sends {amount(best.sent)} and not {amount(other.sent)}"
    fewer = what == "waits for links" and best.sent < other.sent
    return best.strategy, f"{text} against {time(other.seconds)} by {other.strategy}, {why}{sends if fewer else ''}."


def time(seconds: float) -> str:
    """Seconds in the unit in which a reader would say them."""
    unit, size = next((u for u in (("s", 1.0), ("ms", 1e-3)) if seconds >= 0.9995 * u[1]), ("us", 1e-6))
    return f"{seconds / size:.3g} {unit}" if seconds < 1e3 else f"{seconds:,.0f} s"


def amount(nbytes: float) -> str:
    """Bytes in the unit in which a reader would say them."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= 0.9995 * size:
            return f"{nbytes / size:,.3g} {unit}" if nbytes < 1e12 else f"{nbytes / size:,.0f} {unit}"
    return f"{nbytes:.0f} B"
