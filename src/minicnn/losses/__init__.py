"""Losses: from labels and predictions to one number for each sample."""

from __future__ import annotations

from typing import Any, Literal

from minicnn.configured import register
from minicnn.documentation import complete
from minicnn.losses.base import FunctionLoss, Loss
from minicnn.losses.crossentropy import (
    BinaryCrossentropy,
    BinaryFocalCrossentropy,
    CategoricalCrossentropy,
    CategoricalFocalCrossentropy,
    SparseCategoricalCrossentropy,
)
from minicnn.losses.regression import Huber, LogCosh, MeanAbsoluteError, MeanSquaredError, Poisson
from minicnn.losses.similarity import CosineSimilarity, Dice, KLDivergence, Tversky
from minicnn.names import look_up, stood_for

__all__ = [
    "LOSSES", "BinaryCrossentropy", "BinaryFocalCrossentropy", "CategoricalCrossentropy",
    "CategoricalFocalCrossentropy", "CosineSimilarity", "Dice", "FunctionLoss", "Huber", "KLDivergence",
    "LogCosh", "Loss", "MeanAbsoluteError", "MeanSquaredError", "Poisson", "SparseCategoricalCrossentropy",
    "Tversky", "get_loss",
]  # fmt: skip

LossName = Literal[
    "sparse_categorical_crossentropy", "categorical_crossentropy", "binary_crossentropy", "binary_focal_crossentropy",
    "categorical_focal_crossentropy", "mean_squared_error", "mse", "mean_absolute_error", "mae", "huber", "log_cosh",
    "kl_divergence", "kld", "poisson", "cosine_similarity", "dice", "tversky",
]  # fmt: skip

LOSSES: dict[str, type[Loss]] = {
    "sparse_categorical_crossentropy": SparseCategoricalCrossentropy,
    "categorical_crossentropy": CategoricalCrossentropy,
    "binary_crossentropy": BinaryCrossentropy,
    "binary_focal_crossentropy": BinaryFocalCrossentropy,
    "categorical_focal_crossentropy": CategoricalFocalCrossentropy,
    "mean_squared_error": MeanSquaredError,
    "mse": MeanSquaredError,
    "mean_absolute_error": MeanAbsoluteError,
    "mae": MeanAbsoluteError,
    "huber": Huber,
    "log_cosh": LogCosh,
    "kl_divergence": KLDivergence,
    "kld": KLDivergence,
    "poisson": Poisson,
    "cosine_similarity": CosineSimilarity,
    "dice": Dice,
    "tversky": Tversky,
}

register(*LOSSES.values())
for _kind in LOSSES.values():
    complete(_kind)


def get_loss(identifier: Any) -> Loss:
    """A loss by name or class with its defaults, the one given, or a function of (y_true, y_pred) as one."""
    identifier = stood_for(identifier)
    if isinstance(identifier, Loss):
        return identifier
    if isinstance(identifier, type) and issubclass(identifier, Loss):
        return identifier()
    if callable(identifier) and not isinstance(identifier, type):
        return FunctionLoss(identifier)
    return look_up("A loss", LOSSES, identifier, "a Loss")()
