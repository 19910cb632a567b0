"""Functional: a layer that is made of layers wired together."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, Self

from minicnn.layers.graph import Graph
from minicnn.layers.layer import Layer
from minicnn.layers.options import Shape
from minicnn.layers.serialization import graph_from_config, graph_to_config
from minicnn.layers.symbolic import SymbolicTensor, Tensors
from minicnn.layers.trace import Trace
from minicnn.program.graph import Value


class Functional(Layer):
    """A layer that is made of layers wired together: a model within a model that was read from a file.

    Args:
        inputs: Symbolic tensor or list of them; the result of a layer also, to cut a part out of a network.
        outputs: Symbolic tensor or list of them, made from the inputs.
        name: Name in the model.

    Raises:
        TypeError: If inputs or outputs are something else.
        ValueError: If an output depends on an input that is not given, or two layers have one name.
    """

    _wired: Graph

    def __init__(self, inputs: Tensors, outputs: Tensors, *, name: str | None = None) -> None:
        super().__init__(name=name)
        self._wired = Graph(inputs, outputs)

    @property
    def _graph(self) -> Graph:
        """The layers as they are wired."""
        return self._wired

    @property
    def _default_name(self) -> str:
        # One for all kinds: a nested model is saved as the graph that it is.
        return "model" if type(self).call is Functional.call else super()._default_name

    @property
    def inputs(self) -> list[SymbolicTensor]:
        """The symbolic tensors that it begins with."""
        return list(self._graph.inputs)

    @property
    def outputs(self) -> list[SymbolicTensor]:
        """The symbolic tensors that it ends with."""
        return list(self._graph.outputs)

    @property
    def input(self) -> Any:
        """The symbolic tensor that it begins with; a list if it was made of one."""
        return self.inputs[0] if self._graph.one_input else self.inputs

    @property
    def output(self) -> Any:
        """The symbolic tensor that it ends with; a list if it was made of one."""
        return self.outputs[0] if self._graph.one_output else self.outputs

    @property
    def input_shape(self) -> Shape | list[Shape]:
        """Shape of the input, its batch axis None; a list for several."""
        shapes = [t.shape for t in self.inputs]
        return shapes[0] if self._graph.one_input else shapes

    @property
    def output_shape(self) -> Shape | list[Shape]:
        """Shape of the output, its batch axis None; a list for several."""
        shapes = [t.shape for t in self.outputs]
        return shapes[0] if self._graph.one_output else shapes

    @property
    def output_names(self) -> list[str]:
        """Names of the outputs: those of the layers that make them, numbered where one comes again."""
        names: list[str] = []
        for tensor in self._graph.outputs:
            base = self.layer_name(tensor.source.layer) if tensor.source else tensor.name or "output"
            numbered = (f"{base}_{number}" for number in itertools.count(1))
            names.append(next(name for name in (base, *itertools.islice(numbered, len(names))) if name not in names))
        return names

    @property
    def layers(self) -> list[Layer]:
        """The layers, in the order in which they run."""
        return self._graph.layers

    def layer_name(self, layer: Layer) -> str:
        """Name of a layer within this one."""
        return self._graph.names[layer]

    def get_layer(self, name: str | None = None, index: int | None = None) -> Layer:
        """A layer by its name within this one, or by its place among `layers`.

        Raises:
            ValueError: If there is none.
        """
        layers = self.layers
        if index is not None and name is None and -len(layers) <= index < len(layers):
            return layers[index]
        named = [layer for layer in layers if name is not None and self._graph.names[layer] == name]
        if len(named) != 1:
            raise ValueError(
                f"get_layer takes the name of a layer, or its index from 0 to {len(layers) - 1}. Received: "
                f"name={name!r}, index={index}. Names: {', '.join(self._graph.names[layer] for layer in layers)}."
            )
        return named[0]

    def _held(self) -> list[Any]:
        return [] if self._wired is None else self._wired.layers

    def call(self, inputs: Any) -> Any:
        """Run all layers."""
        graph, trace = self._graph, self._tracing()
        first = len(trace.program.nodes)
        values = graph.trace(trace, [inputs] if isinstance(inputs, Value) else list(inputs), self._path)
        trace.leave(first, values)
        return values[0] if graph.one_output else values

    def _bind(self, trace: Trace, path: str) -> Any:
        # Its layers are reached through the graph; what else a model holds is not part of the Program.
        bound = self._shallow()
        bound._trace, bound._path, bound._origin = trace, path, self
        return bound

    @classmethod
    def _saved_as(cls) -> str:
        # A nested model is saved as the graph that it is, one with a call of its own by its class.
        return "Graph" if cls.call is Functional.call else super()._saved_as()

    def get_config(self) -> dict[str, Any]:
        """Name and structure as plain data; of a model without a graph the arguments of its constructor."""
        if type(self).call is not Functional.call or self._wired is None:
            return super().get_config()
        config = {"name": self._name, **graph_to_config(self._graph)}
        return config if self.trainable else config | {"trainable": False}

    @classmethod
    def from_config(cls, config: Mapping[str, Any], custom_objects: Mapping[str, Any] | None = None) -> Self:
        """A model with the structure that `get_config` gave, and new weights."""
        if "calls" not in config:
            return super().from_config(config, custom_objects)
        model = cls(*graph_from_config(config, custom_objects), name=config.get("name"))
        model._trainable = config.get("trainable", True) is not False
        return model
