"""Operation: a primitive, or an operator, applied to symbolic tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from minicnn.layers.layer import Layer
from minicnn.ops.manipulation import getitem
from minicnn.ops.primitive import REGISTRY


class Operation(Layer):
    """A primitive of `minicnn.ops` applied to its inputs; `ops.relu(x)` and `x + 1` make one of a symbolic tensor.

    Args:
        op: Name of the primitive, or "getitem" for `x[...]`, whose `key` has a slice as [start, stop].
        constants: Arguments that are no tensors, by their place; numbers and (nested) lists of them.
        attrs: Keyword arguments.
        name: Name in the model.
        trainable: See `Layer`.

    Raises:
        ValueError: If there is no such primitive, or what it makes is no batch.

    Example:
        >>> from minicnn.layers import Input
        >>> (Input((4,)) * 2.0)[:, :3].shape
        (None, 3)
    """

    def __init__(
        self,
        op: str,
        constants: Mapping[str, Any] | None = None,
        attrs: Mapping[str, Any] | None = None,
        *,
        name: str | None = None,
        trainable: bool = True,
    ) -> None:
        super().__init__(name=name, trainable=trainable)
        if op not in REGISTRY and op != "getitem":
            raise ValueError(f"An Operation is a primitive of minicnn.ops. Received: {op!r}.")
        self.op = op
        self.constants = {place: _plain(value) for place, value in (constants or {}).items()}
        self.attrs = {key: _plain(value) for key, value in (attrs or {}).items()}

    @property
    def _default_name(self) -> str:
        return self.op

    def call(self, inputs: Any) -> Any:
        """Apply the primitive to the inputs, in the places that the constants leave."""
        operands = list(inputs) if isinstance(inputs, list | tuple) else [inputs]
        if self.op == "getitem":
            return getitem(operands[0], _key(self.attrs["key"]))
        for place, value in sorted(self.constants.items(), key=lambda item: int(item[0])):
            beside = operands[0].dtype if "float" in operands[0].dtype else None
            array = value if not isinstance(value, tuple) else np.asarray(value, None if beside is None else beside)
            operands.insert(int(place), array)
        return REGISTRY[self.op](*operands, **self.attrs)


def apply(op: str, arguments: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    """The tensors that a primitive makes of symbolic tensors and numbers or arrays."""
    tensors = [a for a in arguments if hasattr(a, "apply_primitive")]
    constants = {str(i): a for i, a in enumerate(arguments) if not hasattr(a, "apply_primitive")}
    layer = Operation(op, constants, attrs)
    return layer(tensors if len(tensors) > 1 else tensors[0])


def _plain(value: Any) -> Any:
    """Form of an argument that may be saved: numbers and tuples; a slice as (start, stop), an ellipsis as "..."."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, slice):
        if value.step not in (None, 1):
            raise ValueError(f"Slices of a tensor have step 1. Received: {value}.")
        return (value.start, value.stop)
    if value is ...:
        return "..."
    return tuple(map(_plain, value)) if isinstance(value, list | tuple) else value


def _key(plain: Any) -> Any:
    """The index that `_plain` has made plain."""
    parts = [slice(*part) if isinstance(part, tuple) else ... if part == "..." else part for part in plain]
    return tuple(parts)
