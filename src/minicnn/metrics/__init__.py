"""Metrics: sums that the Program accumulates on the device, and what they say at the end."""

from __future__ import annotations

from functools import partial
from typing import Any

from minicnn.configured import register
from minicnn.documentation import complete
from minicnn.losses import LOSSES, Loss
from minicnn.metrics.base import Mean, Metric
from minicnn.metrics.counts import AUC, ConfusionMatrix, F1Score, FBetaScore, IoU, MeanIoU, Precision, Recall
from minicnn.metrics.means import (
    Accuracy,
    BinaryAccuracy,
    CategoricalAccuracy,
    CosineSimilarity,
    MeanLoss,
    RootMeanSquaredError,
    SparseCategoricalAccuracy,
    SparseTopKCategoricalAccuracy,
    TopKCategoricalAccuracy,
)
from minicnn.names import look_up

__all__ = [
    "AUC", "METRICS", "Accuracy", "BinaryAccuracy", "CategoricalAccuracy", "ConfusionMatrix", "CosineSimilarity",
    "F1Score", "FBetaScore", "IoU", "Mean", "MeanIoU", "MeanLoss", "Metric", "Precision", "Recall",
    "RootMeanSquaredError",
    "SparseCategoricalAccuracy", "SparseTopKCategoricalAccuracy", "TopKCategoricalAccuracy", "get_metric",
]  # fmt: skip

METRICS: dict[str, type[Metric]] = {
    "accuracy": Accuracy,
    "acc": Accuracy,
    "binary_accuracy": BinaryAccuracy,
    "categorical_accuracy": CategoricalAccuracy,
    "sparse_categorical_accuracy": SparseCategoricalAccuracy,
    "top_k_categorical_accuracy": TopKCategoricalAccuracy,
    "sparse_top_k_categorical_accuracy": SparseTopKCategoricalAccuracy,
    "confusion_matrix": ConfusionMatrix,
    "precision": Precision,
    "recall": Recall,
    "auc": AUC,
    "cosine_similarity": CosineSimilarity,  # before the loss of that name, whose sign is the other
    "f1_score": F1Score,
    "fbeta_score": FBetaScore,
    "root_mean_squared_error": RootMeanSquaredError,
}

register(*(kind for kind in map(globals().get, __all__) if isinstance(kind, type) and issubclass(kind, Metric)))
for _kind in (*METRICS.values(), MeanIoU, IoU):
    complete(_kind)


def get_metric(identifier: Any) -> Metric:
    """A metric.

    Args:
        identifier: Metric, its class or its name; a loss, its class or its name, for its mean; or a function of
            (y_true, y_pred) that gives a number for each sample.
    """
    if isinstance(identifier, Metric):
        return identifier
    if isinstance(identifier, type) and issubclass(identifier, Metric):
        return identifier()  # type: ignore[call-arg]  # each has defaults
    if isinstance(identifier, Loss) or callable(identifier):
        return MeanLoss(identifier)
    named: dict[str, Any] = {**{name: partial(MeanLoss, name) for name in LOSSES}, **METRICS}
    # The name is the key in the logs, as it is written.
    metric: Metric = look_up("A metric", named, identifier, "a Metric")(name=identifier)
    return metric
