"""Calls of layers: arguments beyond the first, and arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from minicnn.program.graph import Value

# How a layer is applied to arrays: `minicnn.models` enters it, as that takes a model.
ON_ARRAYS: dict[str, Callable[..., Any]] = {}


class Arguments(list[Any]):
    """Several arguments of a call, as in layer(query, value, scale=2.0): a list of those that are tensors.

    Attributes:
        names: For each tensor the name of its argument; None if it was given by its place.
        constants: Arguments by name that are no tensors.
    """

    def __init__(self, tensors: Sequence[Any], names: Sequence[str | None], constants: Mapping[str, Any]) -> None:
        super().__init__(tensors)
        self.names, self.constants = tuple(names), dict(constants)

    @classmethod
    def of(cls, placed: Sequence[Any], named: Mapping[str, Any]) -> Arguments:
        """The arguments of one call.

        Raises:
            TypeError: If one by its place is no tensor.
        """
        wrong = [v for v in placed if not is_tensor(v)]
        if wrong:
            raise TypeError(
                "Of several arguments of a layer those by their place are tensors or arrays, one each. Received: "
                f"{type(wrong[0]).__name__}. Give it by name, or several tensors in one list alone."
            )
        tensors = {name: v for name, v in named.items() if is_tensor(v)}
        constants = {name: v for name, v in named.items() if name not in tensors}
        return cls([*placed, *tensors.values()], [None] * len(placed) + list(tensors), constants)

    def with_tensors(self, tensors: Sequence[Any]) -> Arguments:
        """The same call on other tensors."""
        return Arguments(tensors, self.names, self.constants)

    def split(self) -> tuple[list[Any], dict[str, Any]]:
        """Arguments by place, and by name."""
        pairs = list(zip(self.names, self, strict=True))
        named = {name: tensor for name, tensor in pairs if name is not None}
        return [tensor for name, tensor in pairs if name is None], {**self.constants, **named}


def is_array(value: Any) -> bool:
    """True if it is an array of some library, with elements."""
    return hasattr(value, "shape") and hasattr(value, "dtype") and not isinstance(value, Value | type) and not hasattr(
        value, "connect"
    )  # fmt: skip


def is_tensor(value: Any) -> bool:
    """True if a layer computes with it: a symbolic tensor, a Value or an array."""
    return isinstance(value, Value) or hasattr(value, "connect") or is_array(value)
