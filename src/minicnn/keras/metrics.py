"""Metrics; those that are the mean of a loss under the name of its class."""

from typing import Any

from minicnn import losses as _losses
from minicnn import metrics as _metrics
from minicnn.configured import decode as deserialize  # noqa: F401
from minicnn.configured import encode as serialize  # noqa: F401
from minicnn.metrics import *  # noqa: F403
from minicnn.metrics import get_metric as get  # noqa: F401


def _mean_of(kind: Any) -> Any:
    def metric(name: str | None = None, dtype: str | None = None, **options: Any) -> Any:
        return _metrics.MeanLoss(kind(**options), name)

    metric.__doc__ = f"The mean of `losses.{kind.__name__}(**options)`; its type is the model's."
    return metric


_MEANS = "BinaryCrossentropy CategoricalCrossentropy KLDivergence MeanAbsoluteError MeanSquaredError Poisson"
globals().update({name: _mean_of(getattr(_losses, name)) for name in _MEANS.split()})
SparseCategoricalCrossentropy = _mean_of(_losses.SparseCategoricalCrossentropy)
LogCoshError = _mean_of(_losses.LogCosh)
