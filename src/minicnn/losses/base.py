"""The loss, and the parts that several share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from minicnn import ops
from minicnn.backends import get_backend
from minicnn.backends.base import Array, Backend
from minicnn.configured import Configured
from minicnn.names import snake_case
from minicnn.program.graph import Program, Value

HostArray = np.ndarray[Any, Any]

# Probabilities are kept this far from 0 and 1 before their logarithm is taken, as in Keras.
EPSILON = 1e-7

# How far the sum of a distribution may be from 1: rounding of the shortest formats.
_SUM_TOLERANCE = 1e-2


class Loss(Configured):
    """Base class: a subclass emits the loss of each sample; the Model takes the mean over the batch."""

    # Whether labels are class numbers (int32) rather than floating-point targets.
    integer_labels = False
    ignore_class: int | None = None  # a label whose predictions have no loss: the mean is over the others
    soft_labels = False  # whether targets from 0 to 1 are shares of yes and no, none of them a regression

    @property
    def name(self) -> str:
        """Name in the logs."""
        return snake_case(type(self).__name__)

    def call(self, y_true: Value, y_pred: Value) -> Value:
        """Loss of each sample, shape (N,) or (N, ...) where a sample has many predictions.

        Args:
            y_true: Labels or targets.
            y_pred: The model's output.
        """
        raise NotImplementedError

    def counted(self, y_true: Value, y_pred: Value) -> Value | None:
        """1 for each prediction that counts, 0 for those labelled `ignore_class`; None if all count."""
        if self.ignore_class is None:
            return None
        return 1.0 - ops.cast(ops.equal(y_true, self.ignore_class), dtype=y_pred.dtype)

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        """The mean over the samples: a scalar Value in a step of one's own, and a number for arrays.

        Args:
            y_true: Labels or targets; an array may stand beside a Value.
            y_pred: The model's output.
            sample_weight: Weight of each sample.
        """
        if not isinstance(y_pred, Value):
            weights = None if sample_weight is None else np.asarray(sample_weight)
            return self._of_arrays(np.asarray(y_true), np.asarray(y_pred), weights)

        def value(operand: Any, dtype: str) -> Value:
            return operand if isinstance(operand, Value) else y_pred.program.constant(operand, dtype)

        labels = value(y_true, "int32" if self.integer_labels else y_pred.dtype)
        labels = labels if self.integer_labels else ops.as_float(labels, y_pred.dtype)
        weight = None if sample_weight is None else value(sample_weight, y_pred.dtype)
        mean = ops.mean(of_samples("A loss", self.name, self.call(labels, y_pred), labels, y_pred, weight))
        counted = self.counted(labels, y_pred)
        return mean if counted is None else mean * (float(counted.size) / ops.maximum(ops.sum(counted), 1.0))

    def _of_arrays(self, y_true: HostArray, y_pred: HostArray, weight: HostArray | None) -> float:
        program, backend = Program("loss"), get_backend("numpy")
        arrays = {"y_pred": y_pred if y_pred.dtype.kind == "f" else y_pred.astype("float32")}
        predictions = program.input("y_pred", y_pred.shape, arrays["y_pred"].dtype.name)
        program.outputs["loss"] = self(y_true, predictions, weight)
        return float(backend.to_numpy(backend.compile(program)(arrays)["loss"]))

    def check_targets(self, y_true: Array, backend: Backend) -> None:
        """Raise a ValueError if targets are outside the loss's domain; called before anything is computed.

        Args:
            y_true: Floating-point targets on the backend; class numbers of sparse losses are checked elsewhere.
            backend: Where they are checked.
        """


class FunctionLoss(Loss):
    """A function (y_true, y_pred) of Values as a loss; it cannot be saved.

    Args:
        function: Gives the loss of each sample, shape (N,) or (N, ...), or one number: that of the batch, or of each
            part that it is cut into. Targets are floating-point numbers.
    """

    def __init__(self, function: Callable[[Value, Value], Value]) -> None:
        self.function = function

    @property
    def name(self) -> str:
        """Name in the logs: that of the function."""
        return str(getattr(self.function, "__name__", type(self.function).__name__))

    def call(self, y_true: Value, y_pred: Value) -> Value:
        return self.function(y_true, y_pred)


def of_samples(what: str, name: str, each: Value, y_true: Value, y_pred: Value, weight: Value | None) -> Value:
    """Weighted numbers of the samples, shape (N,), of what a loss or a metric gives.

    Args:
        what: "A loss" or "A metric".
        name: Its name.
        each: A number for each sample, or for each of several predictions of each, whose mean is taken, or one number
            for the batch.
        y_true: Its targets.
        y_pred: Its predictions.
        weight: Weights of the samples, shape (N,), or of their predictions; None for none.

    Raises:
        TypeError: If `each` is no Value.
        ValueError: If it has axes that neither targets nor predictions have, as by broadcasting, or lacks those of the
            weights.
    """
    if not isinstance(each, Value):
        raise TypeError(
            f"{what} composes a Value of primitives. Received: {each!r:.80} from {name!r}. Return what they give: a "
            "number for each sample, along the first axis."
        )
    if not each.shape:  # one number for the batch, whose mean is that number
        each = ops.broadcast_to(each, shape=y_pred.shape[:1] if weight is None else weight.shape)
    samples = each.shape[:1] == y_pred.shape[:1]
    if not samples or not any(_within(each.shape[1:], v.shape[1:]) for v in (y_pred, y_true)):
        axes = "Targets and predictions are broadcast where one has more axes: reshape them to be alike"
        raise ValueError(
            f"{what} gives a number for each of the {y_pred.shape[0]} samples, or for each of their predictions. "
            f"Received: {each.spec} from {name!r}, of targets {y_true.shape} and predictions {y_pred.shape}. "
            f"{axes if samples else 'Take no mean over the first axis, or one over all axes'}."
        )
    places = 1 if weight is None else weight.ndim
    if weight is not None and each.shape[:places] != weight.shape:
        raise ValueError(
            f"{what} is weighed by numbers for what it gives. Received: weights {weight.shape}, {each.spec} from "
            f"{name!r}. Use a weight for each sample."
        )
    if each.ndim > places:  # several numbers for each weight
        each = ops.mean(each, axes=tuple(range(places, each.ndim)))
    return mean_of_samples(each if weight is None else each * weight)


def mean_of_samples(x: Value) -> Value:
    """Means of the samples, shape (N,), of numbers of shape (N, ...)."""
    return ops.mean(x, axes=tuple(range(1, x.ndim))) if x.ndim > 1 else x


def _within(axes: Sequence[int], others: Sequence[int]) -> bool:
    """True if axes longer than 1 are some of the others, in their order."""
    left = iter(others)
    return all(n == 1 or n in left for n in axes)


def extremes(array: Array, backend: Backend) -> tuple[float, float]:
    """The smallest and the largest element, found where the array is; NaN if there is one."""
    return float(backend.to_numpy(backend.xp.min(array))), float(backend.to_numpy(backend.xp.max(array)))


def check_same_shape(loss: Loss, y_true: Value, y_pred: Value) -> None:
    """Raise a ValueError unless targets have the shape of the predictions."""
    if y_true.shape != y_pred.shape:
        raise ValueError(
            f"{type(loss).__name__} takes targets of the shape of the predictions. Received: targets {y_true.shape}, "
            f"predictions {y_pred.shape}. For class numbers use a sparse loss; otherwise reshape the targets."
        )


def is_distribution(y_true: Array, backend: Backend) -> bool:
    """True if the numbers of each row are at least 0, and 1 together."""
    low, high = extremes(backend.xp.sum(y_true, axis=-1), backend)
    return extremes(y_true, backend)[0] >= 0 and low >= 1 - _SUM_TOLERANCE and high <= 1 + _SUM_TOLERANCE


def check_distributions(loss: Loss, y_true: Array, backend: Backend) -> None:
    """Raise a ValueError unless the rows of the targets are distributions."""
    if not is_distribution(y_true, backend):
        sums = extremes(backend.xp.sum(y_true, axis=-1), backend)
        raise ValueError(
            f"Targets of {type(loss).__name__} are a distribution over the classes in each row: numbers of at "
            f"least 0 with the sum 1. Received: numbers from {extremes(y_true, backend)[0]}, sums from {sums[0]} to "
            f"{sums[1]}. For class numbers use SparseCategoricalCrossentropy, or utils.to_categorical of them; for "
            "several labels a sample BinaryCrossentropy."
        )
