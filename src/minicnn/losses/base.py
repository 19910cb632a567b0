"""What a loss is, and what several share."""

from __future__ import annotations

from collections.abc import Callable

from minicnn.backends.base import Array, Backend
from minicnn.names import snake_case
from minicnn.program.graph import Value
from minicnn.setting import Setting

# Probabilities are kept this far from 0 and 1 before their logarithm is taken, as in Keras.
EPSILON = 1e-7

# How far the sum of a distribution may be from 1: rounding of the shortest formats.
_SUM_TOLERANCE = 1e-2


class Loss(Setting):
    """Base class: a subclass emits the loss of each sample; the Model takes the mean over the batch."""

    # Whether labels are class numbers (int32) rather than floating-point targets.
    integer_labels = False
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

    def check_targets(self, y_true: Array, backend: Backend) -> None:
        """Raise a ValueError if targets are outside the loss's domain; called before anything is computed.

        Args:
            y_true: Floating-point targets on the backend; class numbers of sparse losses are checked elsewhere.
            backend: Where they are checked.
        """


class FunctionLoss(Loss):
    """A function (y_true, y_pred) of Values as a loss; it cannot be saved.

    Args:
        function: Gives the loss of each sample, shape (N,) or (N, ...). Targets are floating-point numbers.
    """

    def __init__(self, function: Callable[[Value, Value], Value]) -> None:
        self.function = function

    @property
    def name(self) -> str:
        """Name in the logs: that of the function."""
        return str(getattr(self.function, "__name__", type(self.function).__name__))

    def call(self, y_true: Value, y_pred: Value) -> Value:
        return self.function(y_true, y_pred)


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
    """Whether the numbers of each row are at least 0, and 1 together."""
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
