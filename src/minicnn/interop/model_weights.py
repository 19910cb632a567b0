"""A model's own weights, as readers of other libraries' weights see them."""

from __future__ import annotations

from minicnn.layers import Layer
from minicnn.layers.weight import Weight
from minicnn.models import Model


def weights_of(layer: Layer) -> list[Weight]:
    """The weights that a layer itself has declared, in that order."""
    values = (v for value in vars(layer).values() for v in (value if isinstance(value, tuple) else (value,)))
    return [value for value in values if isinstance(value, Weight)]


def paths_of(model: Model) -> dict[Weight, str]:
    """The path of each weight of a model, in the model's order."""
    return {weight: path for path, weight in model._weights.items()}
