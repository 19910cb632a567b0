"""Layers wired together: a graph of them, which is itself a layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

from minicnn.layers.calling import Arguments
from minicnn.layers.layer import Layer
from minicnn.layers.serialization import graph_from_config, graph_to_config
from minicnn.layers.symbolic import Call, SymbolicTensor, Tensors
from minicnn.layers.trace import Trace
from minicnn.program.graph import Value


class Graph(Layer):
    """Layers between given inputs and outputs; itself a layer.

    Args:
        inputs: Symbolic tensor or list of them; the result of a layer also, to cut a part out of a network.
        outputs: Symbolic tensor or list of them, made from the inputs.
        name: Name in the model.

    Raises:
        TypeError: If inputs or outputs are something else; where a subclass is defined that overrides `call`.
        ValueError: If an output depends on an input that is not given, or two layers have one name.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if cls.call is not Graph.call:
            raise TypeError(
                "A model computes what its layers do, in the order of its graph, and is saved as such. Received: "
                f"{cls.__name__} with a call of its own, which would not be run. Derive it from Layer, which can hold "
                "other layers."
            )

    def __init__(self, inputs: Tensors, outputs: Tensors, *, name: str | None = None) -> None:
        super().__init__(name=name)
        self._wire(inputs, outputs)

    def _wire(self, inputs: Tensors, outputs: Tensors) -> None:
        self._one_input = isinstance(inputs, SymbolicTensor)
        self._one_output = isinstance(outputs, SymbolicTensor)
        self._inputs = _tensors("inputs", inputs)
        self._outputs = _tensors("outputs", outputs)
        self._calls = _in_order(self._inputs, self._outputs)
        self._layer_names = _names([c.layer for c in self._calls])
        for layer, known in self._layer_names.items():
            layer._found_as = layer._found_as or known

    @property
    def _default_name(self) -> str:
        return "model"  # one for all kinds: a nested model is saved as the graph that it is

    @property
    def inputs(self) -> list[SymbolicTensor]:
        """The symbolic tensors that it begins with."""
        return list(self._inputs)

    @property
    def outputs(self) -> list[SymbolicTensor]:
        """The symbolic tensors that it ends with."""
        return list(self._outputs)

    @property
    def input(self) -> Any:
        """The symbolic tensor that it begins with; a list if it was made of one."""
        return self._inputs[0] if self._one_input else self.inputs

    @property
    def output(self) -> Any:
        """The symbolic tensor that it ends with; a list if it was made of one."""
        return self._outputs[0] if self._one_output else self.outputs

    @property
    def layers(self) -> list[Layer]:
        """The layers, in the order in which they run."""
        return list(dict.fromkeys(c.layer for c in self._calls))

    def layer_name(self, layer: Layer) -> str:
        """Name of a layer within this graph."""
        return self._layer_names[layer]

    def get_layer(self, name: str | None = None, index: int | None = None) -> Layer:
        """A layer by its name within this graph, or by its place among `layers`.

        Raises:
            ValueError: If there is none.
        """
        layers = self.layers
        if index is not None and name is None and -len(layers) <= index < len(layers):
            return layers[index]
        found = [layer for layer in layers if name is not None and self._layer_names[layer] == name]
        if len(found) != 1:
            raise ValueError(
                f"get_layer takes the name of a layer, or its index from 0 to {len(layers) - 1}. Received: "
                f"name={name!r}, index={index}. Names: {', '.join(self._layer_names[layer] for layer in layers)}."
            )
        return found[0]

    def call(self, inputs: Any) -> Any:
        """Run all layers."""
        given = [inputs] if isinstance(inputs, Value) else list(inputs)
        values = self.trace_graph(self._tracing(), given, self._path)
        return values[0] if self._one_output else values

    def trace_graph(self, trace: Trace, inputs: Sequence[Value], path: str = "") -> list[Value]:
        """Emit the nodes of all layers; returns the outputs."""
        if len(inputs) != len(self._inputs):
            raise ValueError(
                f"A model is called on as many inputs as it has: {len(self._inputs)}. Received: {len(inputs)}."
            )
        made = {tensor.key: given for tensor, given in zip(self._inputs, inputs, strict=True)}
        results: dict[int, Sequence[Value]] = {}

        def value(tensor: SymbolicTensor) -> Value:
            return made[tensor.key] if tensor.key in made else results[id(tensor.source)][tensor.index]

        for call in self._calls:
            arguments = call.given([value(t) for t in call.inputs])
            name = self._layer_names[call.layer]
            result = call.layer.trace_call(trace, f"{path}/{name}" if path else name, arguments, call.training)
            results[id(call)] = result if isinstance(result, list | tuple) else [result]
        return [value(t) for t in self._outputs]

    @classmethod
    def saved_as(cls) -> str:
        """The name of the class in plain data: a nested model is saved as the graph that it is."""
        return "Graph"

    def get_config(self) -> dict[str, Any]:
        """Name and structure as plain data."""
        config = {"name": self._name, **graph_to_config(self)}
        return config if self.trainable else config | {"trainable": False}

    @classmethod
    def from_config(cls, config: Mapping[str, Any], custom_objects: Mapping[str, Any] | None = None) -> Self:
        """A graph with the structure that `get_config` gave."""
        graph = cls(*graph_from_config(config, custom_objects), name=config.get("name"))
        graph._trainable = config.get("trainable", True) is not False  # and not of the layers, which have their own
        return graph

    def _held(self) -> list[Any]:
        return self.layers if "_calls" in vars(self) else []

    def __getstate__(self) -> dict[str, Any]:
        """For `copy.deepcopy` and pickle: flat, because tensors know calls that know tensors, to any depth."""
        state = super().__getstate__()
        if "_calls" not in state:
            return state
        every = {t.key: t for t in (*self._inputs, *(t for c in self._calls for t in c.inputs), *self._outputs)}
        place = {key: i for i, key in enumerate(every)}
        number = {id(call): i for i, call in enumerate(self._calls)}
        given = {t.key for t in self._inputs}
        made = [(replace(t, source=None), None if t.key in given else number[id(t.source)]) for t in every.values()]
        calls = [
            (
                c.layer,
                [place[t.key] for t in c.inputs],
                c.as_list,
                c.training,
                c.effort,
                c.made,
                c.several,
                None if c.form is None else (c.form.names, c.form.constants),
            )
            for c in self._calls
        ]
        ends = [[place[t.key] for t in tensors] for tensors in (self._inputs, self._outputs)]
        for name in ("_inputs", "_outputs", "_calls"):
            del state[name]
        return state | {"_flat": (made, calls, ends)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        flat = state.pop("_flat", None)
        vars(self).update(state)
        if flat is None:
            return
        made, calls, ends = flat
        tensors = [t for t, _ in made]
        self._calls = [
            Call(layer, [tensors[i] for i in given], *(*rest, form and Arguments([], *form)))
            for layer, given, *rest, form in calls
        ]
        for tensor, source in made:
            tensor.source = None if source is None else self._calls[source]
        self._inputs, self._outputs = ([tensors[i] for i in numbers] for numbers in ends)

    def _bind(self, trace: Trace, path: str) -> Any:
        # Its layers are reached through the calls; what else a model holds is not part of the Program.
        bound = self._shallow()
        bound._trace, bound._path, bound._origin = trace, path, self
        return bound


def _tensors(what: str, given: Tensors) -> list[SymbolicTensor]:
    every: Sequence[Any] = given if isinstance(given, list | tuple) else [given]
    tensors = [t for t in every if isinstance(t, SymbolicTensor)]
    wrong = [t for t in every if not isinstance(t, SymbolicTensor)]
    if wrong or not tensors:
        raise TypeError(
            f"The {what} of a model are symbolic tensors: Input(...), or what a layer makes of one. "
            f"Received: {repr(wrong[0]) if wrong else 'none'}."
        )
    return tensors


def _in_order(inputs: list[SymbolicTensor], outputs: list[SymbolicTensor]) -> list[Call]:
    """Calls between inputs and outputs, each after those it depends on; no recursion, so any depth."""
    known = {t.key for t in inputs}
    done: dict[int, Call] = {}
    stack = [(t, False) for t in reversed(outputs)]
    while stack:
        tensor, ready = stack.pop()
        call = tensor.source
        if tensor.key in known or (call is not None and id(call) in done):
            continue
        if call is None:
            raise ValueError(
                "Every path of a model starts at one of its inputs. Received: an output that depends on "
                f"Input({tensor.sample_shape}){f' {tensor.name!r}' if tensor.name else ''}, which is not "
                "among the inputs. Add it to them."
            )
        if ready:
            done[id(call)] = call
            continue
        stack.append((tensor, True))
        stack.extend((t, False) for t in reversed(call.inputs))
    return list(done.values())


def _names(layers: Sequence[Layer]) -> dict[Layer, str]:
    """A unique name for each layer: its own, or its class's with a number from the second on."""
    names: dict[Layer, str] = {}
    taken = {layer._name for layer in layers if layer._name}
    given: set[str] = set()
    counts: dict[str, int] = {}
    for layer in dict.fromkeys(layers):
        if layer._name:
            if layer._name in given:
                raise ValueError(
                    f"Layer names of a model are unique. Received: {layer._name!r} twice. Rename one of them."
                )
            given.add(layer._name)
            names[layer] = layer._name
            continue
        base = layer._default_name
        name, n = base, counts.get(base, 0)
        while name in taken:
            n += 1
            name = f"{base}_{n}"
        taken.add(name)
        names[layer], counts[base] = name, n
    return names
