"""Protocols of Executables that can do more than take one step; who wants more asks by `isinstance`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from minicnn.backends.base import Array, Executable, Span, State
from minicnn.program.graph import Node


@runtime_checkable
class ManySteps(Executable, Protocol):
    """An Executable that takes several steps without the host in between; it has the attributes of its Program."""

    def many(
        self, arrays: Mapping[str, Array], rows: Mapping[str, Array], steps: int, state: State | None = None
    ) -> dict[str, Array]:
        """Several steps, each of which is given one row of each array in `rows`, and the updates of the one before.

        Args:
            arrays: Inputs that are the same in every step, and donated ones, by name; not those in `rows`.
            rows: Of those that `is_new_each_step` and the Program has, arrays of the backend or of NumPy with a further
                first axis. What is in neither `rows` nor `arrays` is an error.
            steps: How many; the length of that axis.
            state: Further inputs that are the same in every step, and donated ones.

        Returns:
            Updates after the last step, and its outputs; for a Program without updates the outputs of every step, with
            a further first axis. An update that is missing was made where `state` has its array.

        Raises:
            ValueError: If an array has another shape, or another input than those that `is_new_each_step` has rows.
        """


@runtime_checkable
class StateStep(Executable, Protocol):
    """An Executable that keeps what it makes of weights alone for as long as they are the same."""

    def on_state(self, arrays: Mapping[str, Array], state: State | None) -> dict[str, Array]:
        """Take a step on further inputs; weights are not looked at again if the last step was on the same State."""

    def on_input(self, array: Array, state: State) -> list[Array] | None:
        """New arrays of the outputs for an array of the one further input's shape and dtype; None if it has more."""


@runtime_checkable
class TimedLaunches(Executable, Protocol):
    """An Executable that merges nodes, and can tell how long each launch takes."""

    def launch_times(self, arrays: Mapping[str, Array], repeats: int) -> list[tuple[list[Node], list[float]]]:
        """The nodes of each launch of a step, in order, and the seconds that it takes in each of several steps.

        Donated arrays are left as no step leaves them.
        """


@runtime_checkable
class TimedStep(Executable, Protocol):
    """An Executable that can tell when its parts run."""

    def timeline(self, arrays: Mapping[str, Array]) -> tuple[dict[str, Array], list[Span]]:
        """Take a step; its results, and its parts in the order in which they begin."""


@runtime_checkable
class PlannedMemory(Executable, Protocol):
    """An Executable that keeps what lives within a step in one arena."""

    @property
    def arena_bytes(self) -> int:
        """Bytes of the arena."""

    @property
    def launched(self) -> int:
        """Number of kernels, and references in between, in a step."""
