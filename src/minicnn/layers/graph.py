"""Graph: layers wired together between symbolic inputs and outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from minicnn.layers.layer import Layer
from minicnn.layers.symbolic import LayerCall, SymbolicTensor, Tensors
from minicnn.layers.trace import Trace
from minicnn.program.graph import Value


class Graph:
    """Layers wired together between symbolic inputs and outputs: what a model computes.

    Args:
        inputs: Symbolic tensor or list of them; the result of a layer also, to cut a part out of a network.
        outputs: Symbolic tensor or list of them, made from the inputs.

    Attributes:
        inputs: The symbolic tensors that it begins with.
        outputs: Those that it ends with.
        one_input: Whether it was given a tensor as input, and not a list; `one_output` likewise.
        calls: Applications of layers, each after those that it depends on.
        names: Name of each layer within the graph.

    Raises:
        TypeError: If inputs or outputs are something else.
        ValueError: If an output depends on an input that is not given, or two layers have one name.
    """

    def __init__(self, inputs: Tensors, outputs: Tensors) -> None:
        self.one_input = isinstance(inputs, SymbolicTensor)
        self.one_output = isinstance(outputs, SymbolicTensor)
        self.inputs = _tensors("inputs", inputs)
        self.outputs = _tensors("outputs", outputs)
        self.calls = _in_order(self.inputs, self.outputs)
        self.names = _names([c.layer for c in self.calls])
        for layer, name in self.names.items():
            layer._found_as = layer._found_as or name

    @property
    def layers(self) -> list[Layer]:
        """The layers, in the order in which they run."""
        return list(dict.fromkeys(c.layer for c in self.calls))

    def trace(self, trace: Trace, inputs: Sequence[Value], path: str = "") -> list[Value]:
        """Emit the nodes of all layers into the trace's Program; returns the outputs.

        Raises:
            ValueError: If there are more or fewer inputs.
        """
        if len(inputs) != len(self.inputs):
            raise ValueError(
                f"A model is called on as many inputs as it has: {len(self.inputs)}. Received: {len(inputs)}."
            )
        values = {tensor.key: value for tensor, value in zip(self.inputs, inputs, strict=True)}
        results: dict[int, Sequence[Value]] = {}

        def value(tensor: SymbolicTensor) -> Value:
            return values[tensor.key] if tensor.key in values else results[id(tensor.source)][tensor.index]

        for call in self.calls:
            arguments = call.arguments([value(t) for t in call.inputs])
            name = self.names[call.layer]
            result = call.layer._emit(trace, f"{path}/{name}" if path else name, arguments, call.training)
            results[id(call)] = result if isinstance(result, list | tuple) else [result]
        return [value(t) for t in self.outputs]

    def __getstate__(self) -> dict[str, Any]:
        """For `copy.deepcopy` and pickle: flat, because tensors know calls that know tensors, to any depth."""
        every = {t.key: t for t in (*self.inputs, *(t for c in self.calls for t in c.inputs), *self.outputs)}
        place = {key: i for i, key in enumerate(every)}
        number = {id(call): i for i, call in enumerate(self.calls)}
        begin = {t.key for t in self.inputs}
        tensors = [(replace(t, source=None), None if t.key in begin else number[id(t.source)]) for t in every.values()]
        calls = [
            (c.layer, [place[t.key] for t in c.inputs], c.as_list, c.training, c.effort, c.specs, c.several, c.form)
            for c in self.calls
        ]
        ends = [[place[t.key] for t in tensors] for tensors in (self.inputs, self.outputs)]
        return {"tensors": tensors, "calls": calls, "ends": ends, "names": self.names,
                "one_input": self.one_input, "one_output": self.one_output}  # fmt: skip

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.names, self.one_input, self.one_output = state["names"], state["one_input"], state["one_output"]
        tensors = [t for t, _ in state["tensors"]]
        self.calls = [LayerCall(layer, [tensors[i] for i in inputs], *rest) for layer, inputs, *rest in state["calls"]]
        for tensor, source in state["tensors"]:
            tensor.source = None if source is None else self.calls[source]
        self.inputs, self.outputs = ([tensors[i] for i in numbers] for numbers in state["ends"])


def _tensors(what: str, argument: Tensors) -> list[SymbolicTensor]:
    every: Sequence[Any] = argument if isinstance(argument, list | tuple) else [argument]
    tensors = [t for t in every if isinstance(t, SymbolicTensor)]
    wrong = [t for t in every if not isinstance(t, SymbolicTensor)]
    if wrong or not tensors:
        raise TypeError(
            f"The {what} of a model are symbolic tensors: Input(...), or what a layer makes of one. "
            f"Received: {repr(wrong[0]) if wrong else 'none'}."
        )
    return tensors


def _in_order(inputs: list[SymbolicTensor], outputs: list[SymbolicTensor]) -> list[LayerCall]:
    """Calls between inputs and outputs, each after those it depends on; no recursion, so any depth."""
    known = {t.key for t in inputs}
    done: dict[int, LayerCall] = {}
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
    chosen: set[str] = set()
    counts: dict[str, int] = {}
    for layer in dict.fromkeys(layers):
        if layer._name:
            if layer._name in chosen:
                raise ValueError(
                    f"Layer names of a model are unique. Received: {layer._name!r} twice. Rename one of them."
                )
            chosen.add(layer._name)
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
