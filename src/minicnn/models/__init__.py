"""Model and Sequential: compile, fit, evaluate, predict, and facts about a network."""

from importlib import import_module as _import_module
from typing import Any as _Any

from minicnn.models import arrays as _arrays  # noqa: F401  which says how layers are applied to arrays
from minicnn.models.model import Model, clone_model
from minicnn.models.sequential import Sequential

__all__ = ["Model", "Sequential", "clone_model"]


def __getattr__(name: str) -> _Any:
    if name in ("load_model", "save_model"):  # where Keras has them; `saving` imports this package
        return getattr(_import_module("minicnn.saving"), name)
    raise AttributeError(f"module 'minicnn.models' has no attribute {name!r}")
