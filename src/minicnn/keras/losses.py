"""Losses as classes and as functions of (y_true, y_pred), which give the loss of each sample."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from minicnn.configured import decode as deserialize  # noqa: F401
from minicnn.configured import encode as serialize  # noqa: F401
from minicnn.keras.dispatch import function
from minicnn.losses import *  # noqa: F403
from minicnn.losses import LOSSES, Loss
from minicnn.losses import get_loss as get  # noqa: F401
from minicnn.program.graph import Value


def _of(name: str, kind: type[Loss]) -> Callable[..., Any]:
    def loss(y_true: Any, y_pred: Any, **options: Any) -> Any:
        instance = kind(**options)
        if instance.integer_labels:
            labels: Any = y_true if isinstance(y_true, Value) else np.asarray(y_true)
            return instance.call(labels, y_pred)
        return instance.call(_as(y_true, y_pred.dtype), y_pred)

    loss.__name__ = loss.__qualname__ = name
    loss.__doc__ = f"`{kind.__name__}(**options)` of each sample."
    decorated = function(loss)
    decorated.stands_for = name  # type: ignore[attr-defined]
    return decorated


def _as(x: Any, dtype: str) -> Any:
    from minicnn import ops

    return ops.as_float(x, dtype) if isinstance(x, Value) else np.asarray(x, dtype)


globals().update({name: _of(name, kind) for name, kind in LOSSES.items()})
MSE, MAE, KLD = (globals()[name] for name in ("mse", "mae", "kld"))
__all__ = [name for name in globals() if not name.startswith("_")]
