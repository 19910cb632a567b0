"""Optimizers: from gradients to update nodes."""

from __future__ import annotations

from minicnn import schedules as schedules  # where Keras has them
from minicnn.configured import register
from minicnn.documentation import complete
from minicnn.names import look_up
from minicnn.optimizers.adam import Adam, AdamW, Nadam
from minicnn.optimizers.base import Optimizer
from minicnn.optimizers.descent import SGD, Adadelta, Adagrad, Lion, RMSprop
from minicnn.optimizers.muon import Muon

__all__ = [
    "OPTIMIZERS", "SGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Lion", "Muon", "Nadam", "Optimizer", "RMSprop",
    "get_optimizer",
]  # fmt: skip

OPTIMIZERS: dict[str, type[Optimizer]] = {"sgd": SGD, "adam": Adam, "adamw": AdamW, "rmsprop": RMSprop,
    "adagrad": Adagrad, "adadelta": Adadelta, "lion": Lion, "nadam": Nadam, "muon": Muon}  # fmt: skip

register(*OPTIMIZERS.values())
for _kind in OPTIMIZERS.values():
    complete(_kind)


def get_optimizer(identifier: str | Optimizer | type[Optimizer]) -> Optimizer:
    """An optimizer by name or class with its defaults, or the one given."""
    if isinstance(identifier, Optimizer):
        return identifier
    if isinstance(identifier, type) and issubclass(identifier, Optimizer):
        return identifier()  # type: ignore[call-arg]  # as below
    return look_up("An optimizer", OPTIMIZERS, identifier, "an Optimizer")()  # type: ignore[call-arg]  # each has defaults
