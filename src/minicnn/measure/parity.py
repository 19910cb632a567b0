"""The gate before every time: whether candidates compute the same.

`parity` compares the loss and the gradients of one batch from the same weights, `loss_parity` losses of several steps,
where gradients alone would tell too little or, as behind many normalisations, rounding too much. Who fails is refused.
After a training `checks` compares its epochs and its accuracy: an update may be wrong where gradients are right.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from minicnn.program.graph import Program

Arrays = Mapping[str, np.ndarray[Any, Any]]

ACCURACY = 0.003  # share of the test samples by which two correct trainings may differ
SMALL = 3  # test samples by which they may in any case
FEW = 0.5  # share of an array's elements that differ, below which chance may have made it


def longest_sum(program: Program) -> int:
    """The most terms that an element of a matrix product or convolution of the Program sums, gradients included."""
    return max((int(n.cost.flops // (2 * sum(v.size for v in n.outputs))) for n in program.nodes), default=1)


@dataclass(frozen=True)
class Probe:
    """Loss and gradients of a candidate from the first weights and one batch.

    Attributes:
        loss: Mean loss.
        gradients: Gradient of each weight by path.
        rounding: Absolute error that each gradient may have beside, by path: where it was found as the difference
            of weights, those of the weights.
    """

    loss: float
    gradients: dict[str, np.ndarray[Any, Any]]
    rounding: dict[str, float]


def parity(
    probes: Mapping[str, Probe], reference: str, rtol: float, others: Mapping[str, float] = MappingProxyType({})
) -> dict[str, str]:
    """Compare each candidate with the reference.

    Args:
        probes: What each computes, by name.
        reference: Name of the one that is taken to be right.
        rtol: Largest difference: of the loss relative to it, of a gradient relative to its largest element (or to a
            thousandth of the largest of all, as some gradients are zero but for rounding).
        others: The same for candidates that compute in another precision, by name.

    Returns:
        For each candidate that computes something else, what differs; it is not to be timed.
    """
    refused = {}
    right = probes[reference]
    for name, probe in probes.items():
        allowed = others.get(name, rtol)
        loss = _loss_difference(probe, right)
        gradient, path = largest_difference(probe.gradients, right.gradients, probe.rounding)
        reasons = []
        if not loss <= allowed:
            reasons.append(f"its loss {probe.loss:.6g} differs from {reference}'s {right.loss:.6g} by {loss:.1e}")
        if not gradient <= allowed:
            reasons.append(f"its gradient of {path} differs from {reference}'s by {gradient:.1e}")
        if reasons:
            refused[name] = f"refused, because {' and '.join(reasons)} (relative; at most {allowed:.1e})"
    return refused


@dataclass(frozen=True)
class Check:
    """One comparison of a training with the reference's.

    Attributes:
        what: What is compared.
        difference: Its largest difference.
        allowed: The most that it may be.
    """

    what: str
    difference: float
    allowed: float

    @property
    def passed(self) -> bool:
        """True if the difference is a number, and allowed."""
        return self.difference <= self.allowed

    def __str__(self) -> str:
        return f"{self.what} {self.difference:.1e} (at most {self.allowed:.1e})"


def checks(
    rows: Sequence[Mapping[str, float]], right: Sequence[Mapping[str, float]], accuracies: tuple[float, float],
    *, drift: float, tests: int,
) -> list[Check]:  # fmt: skip
    """Compare a whole training with the reference's.

    The loss of each epoch is the same within the tolerance for a sum of as many terms as all steps have: after k steps
    a weight is the sum of its first value and k gradients. The test accuracies differ by at most 0.3 points, or three
    samples.

    Args:
        rows: Epochs, each with its "loss".
        right: The reference's.
        accuracies: Test accuracies of both.
        drift: Largest relative difference of a loss.
        tests: Test samples.
    """
    off = [abs(a["loss"] - b["loss"]) / max(abs(b["loss"]), 1e-300) for a, b in zip(rows, right, strict=True)]
    return [
        Check("loss", float(np.max(off)), drift),  # NaN if one is
        Check("test accuracy", abs(accuracies[0] - accuracies[1]), max(ACCURACY, SMALL / tests)),
    ]


def loss_parity(
    losses: Mapping[str, Sequence[float]], rtols: Sequence[float], reference: str | None = None,
    others: Mapping[str, Sequence[float]] = MappingProxyType({}), what: str = "losses",
) -> dict[str, str]:  # fmt: skip
    """Compare the losses of candidates with those of a reference.

    Args:
        losses: Losses by candidate, all of the same steps.
        rtols: Largest relative difference of each loss.
        reference: Name of the one that is taken to be right; the first if None.
        others: The same for candidates that compute in another precision, by name.
        what: What the losses are of, in words.

    Returns:
        For each candidate that computes something else, what differs; it is not to be timed.
    """
    refused = {}
    right = losses[reference] if reference is not None else next(iter(losses.values()), ())
    name_of_right = reference if reference is not None else next(iter(losses), "")
    for name, loss in losses.items():
        allowed = others.get(name, rtols)
        off = [abs(a - b) / max(abs(b), 1e-300) for a, b in zip(loss, right, strict=True)]
        if not all(a <= b for a, b in zip(off, allowed, strict=True)):
            said = " and ".join(f"{a:.1e} (relative; at most {b:.0e})" for a, b in zip(off, allowed, strict=True))
            refused[name] = f"its {what} differ from {name_of_right}'s by {said}"
    return refused


def doubtful(probe: Probe, right: Probe, rtol: float) -> bool:
    """True if what differs may be chance, such as a ReLU at its kink, so that another batch has to decide."""
    share = smallest_share(probe.gradients, right.gradients, probe.rounding, rtol)
    return _loss_difference(probe, right) <= rtol and 0 < share < FEW


def _loss_difference(probe: Probe, right: Probe) -> float:
    return abs(probe.loss - right.loss) / max(abs(right.loss), 1e-300)


def largest_difference(theirs: Arrays, ours: Arrays, rounding: Mapping[str, float]) -> tuple[float, str]:
    """The largest relative difference of arrays from those of a reference, and where it is.

    Args:
        theirs: Arrays by path.
        ours: The reference's.
        rounding: Absolute difference that is allowed, by path.

    Returns:
        The difference, relative to the largest element of the array, at least a thousandth of the largest of all,
        with its path. NaN if an element is no number, infinity if a path is missing.
    """
    worst, where = 0.0, next(iter(ours), "")
    for path, errors in differences(theirs, ours, rounding):
        largest = float(errors.max())
        if not math.isfinite(largest):
            return largest, path
        if largest > worst:
            worst, where = largest, path
    return worst, where


def smallest_share(theirs: Arrays, ours: Arrays, rounding: Mapping[str, float], rtol: float) -> float:
    """The smallest share of the elements of an array that differ, of the arrays that differ anywhere; 0 if none does.

    A pre-activation that is zero but for rounding is on either side of a ReLU's kink, and both sides are right. In the
    weights of that ReLU's own layer this changes the gradients of one unit or channel, in those of layers before it
    all of them: so a small share in one array is the mark of a kink, and a kernel that is wrong rarely leaves it.

    Args:
        theirs: See `largest_difference`.
        ours: See `largest_difference`.
        rounding: See `largest_difference`.
        rtol: Relative difference of an element that is allowed.
    """
    shares = [float(np.mean(~(errors <= rtol))) for _, errors in differences(theirs, ours, rounding)]
    return min((share for share in shares if share > 0), default=0.0)


def differences(
    theirs: Arrays, ours: Arrays, rounding: Mapping[str, float]
) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """Relative differences of the elements of each array by path; infinity for an array that is missing."""
    largest = max((float(np.abs(array).max()) for array in ours.values()), default=0.0)
    for path, right in ours.items():
        if path not in theirs or theirs[path].shape != right.shape:
            yield path, np.full(1, math.inf)
            continue
        scale = max(float(np.abs(right).max()), largest / 1000, np.finfo(np.float64).tiny)
        absolute = np.abs(theirs[path].astype(np.float64) - right) - rounding.get(path, 0.0)
        yield path, np.maximum(absolute, 0.0) / scale
