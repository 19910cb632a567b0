"""Weight: the declaration of an array that a layer owns."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from minicnn.initializers import Initializer
from minicnn.layers.cell import Cell
from minicnn.program.graph import Value


@dataclass(eq=False, repr=False)
class Weight:
    """Declaration of an array that a layer owns; all models made of the layer share its numbers.

    Attributes:
        name: Name within the layer.
        shape: Shape.
        initializer: Gives the first values.
        trainable: Whether gradients change it; otherwise the layer assigns it itself.
        regularizer: Gives what it adds to the loss.
        constraint: Gives what it becomes after each step.
        cell: Where the numbers are; models fill it.
    """

    name: str
    shape: tuple[int, ...]
    initializer: Initializer
    trainable: bool = True
    regularizer: Callable[[Value], Value] | None = None
    constraint: Callable[[Value], Value] | None = None
    cell: Cell = field(default_factory=Cell)

    def __repr__(self) -> str:
        return f"<Weight {self.name!r}: {self.shape}{'' if self.trainable else ', not trainable'}>"

    def numpy(self) -> np.ndarray[Any, Any]:
        """A copy of the numbers.

        Raises:
            RuntimeError: If there are none, because no model is made of the layer.
        """
        cell = self.cell
        if cell.value is None:
            raise RuntimeError(
                f"A weight has numbers once a model is made of its layer. Received: {self.name!r} of a layer in none. "
                "Put the layer into a Model, or into a Sequential that is built."
            )
        with cell.lock or nullcontext():
            cell.join()
            return cell.host(self.dtype)

    @property
    def dtype(self) -> str:
        """Floating-point type of the numbers."""
        if self.cell.place is not None:
            return self.cell.place[1]
        value = self.cell.value
        return "float32" if value is None or callable(value) else str(value.dtype)

    def put(self, array: np.ndarray[Any, Any]) -> None:
        """Replace the numbers by a copy of a host array."""
        with self.cell.lock or nullcontext():
            self.cell.put(np.array(array))
