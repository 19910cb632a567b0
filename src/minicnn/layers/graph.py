"""Layers wired together: symbolic tensors record which layer made them from what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from minicnn.layers.layer import Layer, Shape, Trace, snake_case
from minicnn.program.graph import Program, Value


@dataclass(eq=False)
class Call:
    """One application of a layer to symbolic tensors."""

    layer: Layer
    inputs: list[SymbolicTensor]
    as_list: bool


@dataclass(eq=False)
class SymbolicTensor:
    """An array of a model that is being put together.

    Attributes:
        shape: Shape with the batch axis None.
        dtype: Element type.
        name: Name, for inputs.
        source: The call that makes it; None for inputs.
        index: Which of the call's results it is.
    """

    shape: Shape
    dtype: str = "float32"
    name: str | None = None
    source: Call | None = None
    index: int = 0


def Input(shape: Sequence[int], *, dtype: str = "float32", name: str | None = None) -> SymbolicTensor:  # noqa: N802
    """Start of a model: a symbolic tensor.

    Args:
        shape: Shape of one sample, such as (28, 28, 1), without the batch axis.
        dtype: Element type of the arrays that the model will be given; integer images are
            converted to floating point inside the model.
        name: Name, for models with several inputs.

    Example:
        >>> x = Input((28, 28, 1))
    """
    if isinstance(shape, int) or any(not isinstance(n, int) or n < 1 for n in shape):
        message = f"Input takes the shape of one sample as positive integers. Received: {shape!r}. Leave out the batch axis."
        raise ValueError(message)
    return SymbolicTensor((None, *shape), dtype, name)


def connect(layer: Layer, inputs: SymbolicTensor | Sequence[SymbolicTensor]) -> Any:
    """Result tensors of a layer; its shapes are found by tracing it for a batch of one."""
    as_list = not isinstance(inputs, SymbolicTensor)
    tensors = list(inputs) if not isinstance(inputs, SymbolicTensor) else [inputs]
    trace = Trace(Program("shapes"), training=False)
    values = [trace.program.input(f"x{i}", (1, *_sample(t)), t.dtype) for i, t in enumerate(tensors)]
    name = layer.name or snake_case(type(layer).__name__)
    made = layer.trace_call(trace, name, values if as_list else values[0])
    call = Call(layer, tensors, as_list)
    results = list(made) if isinstance(made, list | tuple) else [made]
    for value in results:
        if not isinstance(value, Value) or value.shape[:1] != (1,):
            message = f"A layer returns Values whose first axis is the batch. Received from {layer!r}: {value!r} for a batch of 1."
            raise ValueError(message)
    tensors = [SymbolicTensor((None, *v.shape[1:]), v.dtype, None, call, i) for i, v in enumerate(results)]
    return tensors if isinstance(made, list | tuple) else tensors[0]


def _sample(tensor: SymbolicTensor) -> tuple[int, ...]:
    return tuple(n for n in tensor.shape[1:] if n is not None)


class Graph(Layer):
    """Layers between given inputs and outputs; itself a layer."""

    def __init__(
        self,
        inputs: SymbolicTensor | Sequence[SymbolicTensor],
        outputs: SymbolicTensor | Sequence[SymbolicTensor],
        *,
        name: str | None = None,
    ) -> None:
        super().__init__(name=name)
        self._one_input = isinstance(inputs, SymbolicTensor)
        self._one_output = isinstance(outputs, SymbolicTensor)
        self._inputs = [inputs] if isinstance(inputs, SymbolicTensor) else list(inputs)
        self._outputs = [outputs] if isinstance(outputs, SymbolicTensor) else list(outputs)
        self._calls = _in_order(self._inputs, self._outputs)
        self._layer_names = _names([c.layer for c in self._calls])

    @property
    def layers(self) -> list[Layer]:
        """The layers, in the order in which they run."""
        return list(dict.fromkeys(c.layer for c in self._calls))

    def layer_name(self, layer: Layer) -> str:
        """Name of a layer within this graph."""
        return self._layer_names[layer]

    def call(self, inputs: Any, *, training: bool | None = None) -> Any:
        """Run all layers."""
        values = self.trace_graph(
            self._tracing(), [inputs] if isinstance(inputs, Value) else list(inputs), self._path, training
        )
        return values[0] if self._one_output else values

    def trace_graph(
        self, trace: Trace, inputs: Sequence[Value], path: str = "", training: bool | None = None
    ) -> list[Value]:
        """Emit the nodes of all layers; returns the outputs."""
        made: dict[tuple[int, int], Value] = {}

        def value(tensor: SymbolicTensor) -> Value:
            return made[(id(tensor.source), tensor.index)] if tensor.source else made[(id(tensor), 0)]

        for tensor, given in zip(self._inputs, inputs, strict=True):
            made[(id(tensor), 0)] = given
        for call in self._calls:
            arguments = [value(t) for t in call.inputs]
            name = self._layer_names[call.layer]
            result = call.layer.trace_call(
                trace,
                f"{path}/{name}" if path else name,
                arguments if call.as_list else arguments[0],
                training,
            )
            for i, v in enumerate(result if isinstance(result, list | tuple) else [result]):
                made[(id(call), i)] = v
        return [value(t) for t in self._outputs]


def _in_order(inputs: list[SymbolicTensor], outputs: list[SymbolicTensor]) -> list[Call]:
    """Calls between inputs and outputs, each after those it depends on; no recursion, so any depth."""
    known = {id(t) for t in inputs}
    done: dict[int, Call] = {}
    stack = [(t, False) for t in reversed(outputs)]
    while stack:
        tensor, ready = stack.pop()
        call = tensor.source
        if id(tensor) in known or (call is not None and id(call) in done):
            continue
        if call is None:
            message = (
                f"Every path of a model starts at one of its inputs. Received: an output that depends on "
                f"Input{tensor.shape[1:]} {tensor.name or ''}, which is not among the inputs. Add it to them."
            )
            raise ValueError(message)
        if ready:
            done[id(call)] = call
            continue
        stack.append((tensor, True))
        stack.extend((t, False) for t in reversed(call.inputs))
    return list(done.values())


def _names(layers: Sequence[Layer]) -> dict[Layer, str]:
    """A unique name for each layer: its own, or its class's with a number from the second on."""
    names: dict[Layer, str] = {}
    taken = {layer.name for layer in layers if layer.name}
    for layer in dict.fromkeys(layers):
        if layer.name:
            if layer.name in names.values():
                message = (
                    f"Layer names of a model are unique. Received: {layer.name!r} twice. Rename one of them."
                )
                raise ValueError(message)
            names[layer] = layer.name
            continue
        base = snake_case(type(layer).__name__)
        name, n = base, 0
        while name in taken:
            n += 1
            name = f"{base}_{n}"
        taken.add(name)
        names[layer] = name
    return names
