"""Whether two trainings from the same weights on the same batches have computed the same thing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from minicnn.cli.candidates import Result
from minicnn.loop.tracing import PRECISIONS
from minicnn.measure.parity import FEW, largest_difference, smallest_share
from minicnn.tolerance import EPSILON, tolerance

ACCURACY = 0.003  # share of the test samples by which two correct trainings may differ
SMALL = 3  # test samples by which they may in any case

Weights = Mapping[str, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Check:
    """One comparison with the reference.

    Attributes:
        what: What is compared.
        difference: Its largest difference.
        allowed: The most that it may be; None where it is only reported.
        share: Where arrays are compared: the smallest share of the elements of one that differ by more (see
            `smallest_share`).
    """

    what: str
    difference: float
    allowed: float | None
    share: float = 0.0

    @property
    def passed(self) -> bool:
        """Whether the difference is a number, and allowed."""
        return self.allowed is None or self.difference <= self.allowed

    def __str__(self) -> str:
        if self.allowed == 0:
            return f"{self.what} {'equal' if self.passed else 'differ'}"
        share = f", in {self.share:.2%} of an array" if self.share else ""
        allowed = "" if self.allowed is None else f" (at most {self.allowed:.1e})"
        return f"{self.what} {self.difference:.1e}{allowed}{share}"


def compare(
    result: Result, reference: Result, *, precision: str, reduction: int, steps: int, tests: int
) -> list[Check]:
    """Compare a training with the reference's.

    - The weights before training are the same, bit for bit.
    - The change of each weight in the first step, which is the gradient times the rate, is the same within the
      tolerance for the longest sum of the Program, relative to the largest change of that weight (or to a
      thousandth of the largest of all, as some gradients are zero but for rounding).
    - The loss of each epoch is the same within the tolerance for a sum of that many terms in each step: after k
      steps a weight is the sum of its first value and k gradients.
    - The test accuracies differ by at most 0.3 points, or three samples.

    Args:
        result: The training.
        reference: The one that it is compared with.
        precision: Precision policy.
        reduction: Terms of the longest sum in a step.
        steps: Steps of the training.
        tests: Test samples.
    """
    policy = PRECISIONS[precision]
    if policy.products:
        # Inputs of products are rounded, each alike but for a few at the edge; the sums are exact by comparison.
        rtol, drift = tolerance(policy.products)[0], tolerance(policy.products, steps)[0]
    else:
        rtol, drift = tolerance(policy.dtype, reduction)[0], tolerance(policy.dtype, reduction * steps)[0]
    accuracies = [float(r.facts["test"]["accuracy"]) for r in (result, reference)]
    return [
        Check("first weights", float(_first_bits(result.weights) != _first_bits(reference.weights)), 0.0),
        _first_update(result.weights, reference.weights, EPSILON[policy.dtype], rtol),
        Check("loss", _loss_difference(result, reference), drift),
        Check("final weights", _weight_difference(result.weights, reference.weights), None),
        Check("test accuracy", abs(accuracies[0] - accuracies[1]), max(ACCURACY, SMALL / tests)),
    ]


def doubtful(checks: Sequence[Check]) -> bool:
    """Whether a check may have failed by chance, such as a ReLU at its kink, so that another seed has to decide."""
    start, update = (c for what in ("first weights", "first update") for c in checks if c.what == what)
    return not all(c.passed for c in checks) and start.passed and update.share < FEW


def _first_bits(weights: Weights) -> dict[str, bytes]:
    return {key: array.tobytes() for key, array in weights.items() if key.startswith("start/")}


def _first_update(a: Weights, b: Weights, eps: float, rtol: float) -> Check:
    """Largest difference of the first changes, relative to the changes; the rounding of the weights is taken off."""
    rounding = {key.removeprefix("first/"): eps * float(np.abs(b[key]).max()) for key in b if key.startswith("first/")}
    compared = _changes(a), _changes(b), rounding
    return Check("first update", largest_difference(*compared)[0], rtol, smallest_share(*compared, rtol))


def _changes(weights: Weights) -> dict[str, np.ndarray[Any, Any]]:
    paths = [key.removeprefix("start/") for key in weights if key.startswith("start/")]
    return {path: weights[f"first/{path}"].astype(np.float64) - weights[f"start/{path}"] for path in paths}


def _loss_difference(a: Result, b: Result) -> float:
    """The largest relative difference of an epoch's loss; NaN if one is."""
    ours, theirs = ([row["loss"] for row in result.facts["history"]] for result in (a, b))
    return float(np.max([abs(x - y) / max(abs(y), 1e-300) for x, y in zip(ours, theirs, strict=True)]))


def _weight_difference(a: Weights, b: Weights) -> float:
    """Euclidean distance of all final weights, relative to their norm."""
    keys = [key for key in b if key.startswith("final/")]
    distance = sum(float(np.square(a[k].astype(np.float64) - b[k]).sum()) for k in keys)
    norm = sum(float(np.square(b[k].astype(np.float64)).sum()) for k in keys)
    return math.sqrt(distance / max(norm, 1e-300))
