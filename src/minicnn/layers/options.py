"""Arguments that layers have in common: names, limits of weights, and the input shape of a first layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from minicnn.documentation import complete
from minicnn.layers.inspectable import STARTS
from minicnn.regularizers import Limits

if TYPE_CHECKING:
    from minicnn.layers.layer import Layer

Shape = tuple[int | None, ...]


class Starts(TypedDict, total=False):
    """Arguments of a layer that is the first of a Sequential, in place of an `Input` before it."""

    input_shape: Sequence[int | None]
    input_dim: int
    batch_input_shape: Sequence[int | None]


class LayerOptions(Starts, total=False):
    """Arguments that every layer takes, by name: see `Layer`."""

    name: str | None
    trainable: bool


class LayerLimits(Starts, Limits, total=False):
    """Arguments of the base class beside its name and `trainable`."""


class LimitedOptions(LayerOptions, Limits, total=False):
    """Arguments that every layer with weights takes."""


def start_shape(arguments: dict[str, Any]) -> Shape | None:
    """The shape of one sample that a first layer is told, taken out of its arguments; None if it is told none."""
    shapes = {name: arguments.pop(name) for name in STARTS if name in arguments}
    if len(shapes) > 1:
        raise ValueError(
            f"The shape that a first layer takes is given once. Received: {', '.join(shapes)}. Give one of them."
        )
    for name, shape in shapes.items():
        if shape is not None:
            return (shape,) if name == "input_dim" else tuple(shape)[1 if name.startswith("batch") else 0 :]
    return None


def document(layer: type[Layer]) -> None:
    """Add to the docstring what base classes say of arguments and shapes, and what holds for most layers."""
    code = layer.__init__.__code__
    names = list(code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount])
    sections = {"Input_shape": "Any, (N, ...).", "Output_shape": "That of the input."}
    if "options" in code.co_varnames:
        sections["Raises"] = "ValueError: If an argument is out of range."
        names += ["name", "trainable"]
    if layer._limited:
        sections["limits"] = f"See `Layer`: {', '.join(layer._limit_names())}."
        names += ["limits"]
    complete(layer, names, **sections)
