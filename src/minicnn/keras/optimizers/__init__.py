"""Optimizers; those of Keras 2 took `decay`."""

from __future__ import annotations

from typing import Any

from minicnn import optimizers as _optimizers
from minicnn.configured import decode as deserialize  # noqa: F401
from minicnn.configured import encode as serialize  # noqa: F401
from minicnn.keras.dispatch import Made
from minicnn.keras.optimizers import schedules as schedules
from minicnn.optimizers import AdamW as AdamW
from minicnn.optimizers import Lion as Lion
from minicnn.optimizers import Muon as Muon
from minicnn.optimizers import Nadam as Nadam
from minicnn.optimizers import Optimizer as Optimizer
from minicnn.optimizers import get_optimizer as get  # noqa: F401
from minicnn.schedules import InverseTimeDecay


def _with_decay(kind: Any) -> Any:
    def optimizer(*args: Any, decay: float = 0.0, **options: Any) -> Any:
        instance = kind(*args, **options)
        if decay:  # rate / (1 + decay * step)
            instance.learning_rate = InverseTimeDecay(instance.learning_rate, 1, decay)
        return instance

    return Made(kind, optimizer)


SGD, RMSprop, Adagrad, Adadelta, Adam = (
    _with_decay(getattr(_optimizers, name)) for name in ("SGD", "RMSprop", "Adagrad", "Adadelta", "Adam")
)
