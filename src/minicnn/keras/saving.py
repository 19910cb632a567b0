"""Reading and writing models, and classes of one's own among what they name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minicnn import saving as _saving
from minicnn.configured import decode as deserialize_keras_object
from minicnn.configured import encode as serialize_keras_object
from minicnn.keras.models import file_of, load_model, save_model

__all__ = ["deserialize_keras_object", "load_model", "load_weights", "register_keras_serializable", "save_model",
           "save_weights", "serialize_keras_object"]  # fmt: skip


def save_weights(model: Any, filepath: Any, overwrite: bool = True, **kwargs: Any) -> None:
    """Write the weights of a model: see `minicnn.saving.save_weights` and `models.file_of`."""
    _saving.save_weights(model, file_of(filepath))


def load_weights(model: Any, filepath: Any, skip_mismatch: bool = False, **kwargs: Any) -> None:
    """Read weights: see `minicnn.saving.load_weights` and `models.file_of`."""
    _saving.load_weights(model, file_of(filepath), skip_mismatch)


def register_keras_serializable(package: str = "Custom", name: str | None = None) -> Callable[[Any], Any]:
    """Decorator that leaves a class as it is: `custom_objects` names it to what reads a model."""
    return lambda kind: kind
