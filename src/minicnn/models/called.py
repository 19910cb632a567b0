"""Called: the graph of a model that is one layer, the model itself, whose `call` its author has written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from minicnn.layers.graph import Graph
from minicnn.layers.layer import Layer
from minicnn.layers.symbolic import SymbolicTensor, Tensors, connect
from minicnn.layers.trace import Trace
from minicnn.program.graph import Value


class Called(Graph):
    """A model's own `call` between symbolic inputs and outputs: run anew for each Program.

    Args:
        model: The model.
        inputs: Symbolic tensor or list of them.
    """

    def __init__(self, model: Layer, inputs: Tensors) -> None:
        self._model = model
        results = connect(model, inputs, None)
        several = results if isinstance(results, list | tuple) else [results]
        self.one_input, self.one_output = isinstance(inputs, SymbolicTensor), not isinstance(results, list | tuple)
        self.inputs = [inputs] if isinstance(inputs, SymbolicTensor) else list(inputs)
        # No layer of a graph makes them.
        self.outputs = [replace(tensor, source=None) for tensor in several]
        self.calls, self.names = [], {}
        for name, held in vars(model).items():
            self._name(held, name)

    def _name(self, held: Any, name: str) -> None:
        """Enter a layer that is an attribute, or those in a container that is one, under their names in a step."""
        if isinstance(held, Layer):
            self.names[held] = held._name or name
            held._found_as = held._found_as or self.names[held]
        elif isinstance(held, list | tuple | dict):
            for key, part in held.items() if isinstance(held, dict) else enumerate(held):
                self._name(part, f"{name}_{key}")

    @property
    def layers(self) -> list[Layer]:
        """The layers that are attributes of the model."""
        return list(self.names)

    def trace(self, trace: Trace, inputs: Sequence[Value], path: str = "") -> list[Value]:
        """See `Graph.trace`."""
        if len(inputs) != len(self.inputs):
            return super().trace(trace, inputs, path)  # which says what is wrong
        result = self._model._emit(trace, path, inputs[0] if self.one_input else list(inputs))
        return list(result) if isinstance(result, list | tuple) else [result]

    def __getstate__(self) -> dict[str, Any]:
        return dict(vars(self))

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
