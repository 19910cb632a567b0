"""Model and Sequential: compile, fit, evaluate, predict, and facts about a network."""

from minicnn.models.model import Model, clone_model
from minicnn.models.sequential import Sequential

__all__ = ["Model", "Sequential", "clone_model"]
