"""The exercises of the course, in the order in which they are meant to be solved."""

from __future__ import annotations

from minicnn.exercises.course import autodiff, kernels, layers, programs, training
from minicnn.exercises.exercise import Exercise

EXERCISES: dict[str, Exercise] = {
    **autodiff.EXERCISES, **layers.EXERCISES, **training.EXERCISES, **programs.EXERCISES, **kernels.EXERCISES,
}  # fmt: skip
