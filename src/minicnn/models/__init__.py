"""Model and Sequential: compile, fit, evaluate, predict, and facts about a network."""

from minicnn.models.model import Model
from minicnn.models.sequential import Sequential

__all__ = ["Model", "Sequential"]
