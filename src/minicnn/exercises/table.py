"""The exercises of the course, in the order in which they are meant to be solved."""

from __future__ import annotations

from minicnn.exercises.course import kernels, layers
from minicnn.exercises.exercise import Exercise

EXERCISES: dict[str, Exercise] = {**layers.EXERCISES, **kernels.EXERCISES}
