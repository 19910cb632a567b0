"""Symbolic tensors, of which models are put together: they record which layer made them from what."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from minicnn.arguments import plain_arguments
from minicnn.layers.calling import Arguments
from minicnn.layers.layer import Layer
from minicnn.layers.operation import apply
from minicnn.layers.options import Shape
from minicnn.layers.trace import Trace
from minicnn.names import known_name
from minicnn.ops import as_float
from minicnn.program.graph import ITEMSIZE, MOST_NODES, Program, Value
from minicnn.program.operators import Operators

# Shapes are found by tracing a batch of this size: one would hide layers that mix up samples.
_BATCH = 2

# Sizes that stand for one that is not known: what differs between the two depends on it. Both halve seven times.
_TRIALS = (256, 384)


@dataclass(eq=False)
class LayerCall:
    """One application of a layer to symbolic tensors.

    Attributes:
        layer: The layer.
        inputs: What it is applied to.
        as_list: Whether it is given a list.
        training: What the caller said about training; None follows the model.
        effort: Nodes that it emits, and one more for every 4 KB of their constants.
        specs: Shape, dtype and trial shapes of each result.
        several: Whether the layer gives a list.
        form: Names and constants of several arguments, without their tensors; None for a single one.
    """

    layer: Layer
    inputs: list[SymbolicTensor]
    as_list: bool
    training: bool | None = None
    effort: int = 0
    specs: list[tuple[Shape, str, Trials]] = field(default_factory=list)
    several: bool = False
    form: Arguments | None = None

    def __post_init__(self) -> None:
        alive = (known for known in self.layer._callers if known() is not None)
        self.layer._callers = (*alive, weakref.ref(self))

    def arguments(self, values: list[Any]) -> Any:
        """Arguments of the layer's call, with these in place of the tensors."""
        if self.form is not None:
            return self.form.with_tensors(values)
        return values if self.as_list else values[0]

    @property
    def result(self) -> Tensors:
        """The tensors that the call makes."""
        tensors = [
            SymbolicTensor(shape, dtype, None, self, i, trials) for i, (shape, dtype, trials) in enumerate(self.specs)
        ]
        return tensors if self.several else tensors[0]


@dataclass(eq=False, repr=False)
class SymbolicTensor(Operators):
    """An array of a model that is being put together.

    Python's arithmetic operators, indexing and the primitives of `minicnn.ops` make a further one of it.

    Attributes:
        shape: Shape; None for the batch axis, and for lengths that are known only where there are data.
        dtype: Element type.
        name: Name, for inputs.
        source: The call that makes it; None for inputs.
        index: Which of the call's results it is.
        trials: Shapes of one sample for two values of the lengths that are not known; empty if all are.
    """

    shape: Shape
    dtype: str = "float32"
    name: str | None = None
    source: LayerCall | None = None
    index: int = 0
    trials: Trials = ()

    @property
    def key(self) -> Any:
        """An identity that tensors share which stand for the same array."""
        return id(self) if self.source is None else (id(self.source), self.index)

    @property
    def sample_shape(self) -> Shape:
        """Shape of one sample; None for lengths that are not known."""
        return self.shape[1:]

    def trial(self, number: int = 0) -> tuple[int, ...]:
        """Shape of one sample, of two that stand for all if lengths are not known."""
        return self.trials[number] if self.trials else tuple(n for n in self.shape[1:] if n is not None)

    def connect(self, layer: Layer, inputs: Tensors, training: bool | None) -> Any:
        """Result tensors of a layer that is called on inputs of which this is one."""
        return connect(layer, inputs, training)

    def apply_primitive(self, op: str, arguments: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
        """Result of a primitive that is called on this tensor, and perhaps on others, numbers and arrays."""
        return apply(op, arguments, attrs)

    def __getitem__(self, key: Any) -> Any:
        return apply("getitem", [self], {"key": key if isinstance(key, tuple) else (key,)})

    def __iter__(self) -> Iterator[Any]:
        raise TypeError(f"{self!r} stands for an array, and is no sequence. Index it with static slices instead.")

    def __bool__(self) -> bool:
        raise TypeError(
            f"The elements of {self!r} are not known while a model is put together, so it has no truth value. Use "
            "ops.where for an elementwise choice."
        )

    def __repr__(self) -> str:
        return f"<SymbolicTensor{f' {self.name}' if self.name else ''}: {self.dtype}, shape {self.shape}>"


Tensors = SymbolicTensor | Sequence[SymbolicTensor]
Trials = tuple[tuple[int, ...], ...]


@plain_arguments
def Input(shape: Sequence[int | None], *, dtype: str = "float32", name: str | None = None) -> SymbolicTensor:  # noqa: N802
    """Start of a model: a symbolic tensor.

    Args:
        shape: Shape of one sample, such as (28, 28, 1), without the batch axis. None is for a length that is known only
            where there are data, as in (None, None, 3): weights must not depend on it, and each size of images has a
            Program of its own.
        dtype: Element type of the arrays that the model will be given; integer images are
            converted to floating point inside the model.
        name: Name, for models with several inputs.

    Raises:
        ValueError: If the shape has other entries than positive integers, or the dtype is unknown.

    Example:
        >>> x = Input((28, 28, 1))
    """
    try:
        lengths = tuple(None if n is None else operator.index(n) for n in shape)
    except TypeError:
        lengths = (0,)
    if any(n is not None and n < 1 for n in lengths):
        raise ValueError(
            "Input takes the shape of one sample as positive integers, or None where a length is not known. Received: "
            f"{shape!r}. Leave out the batch axis."
        )
    known_name("dtype", dtype, ITEMSIZE)
    if not isinstance(name, str | None):
        raise ValueError(f"An input's name is a string. Received: name={name!r:.60}.")
    trials = tuple(tuple(size if n is None else n for n in lengths) for size in _TRIALS) if None in lengths else ()
    return SymbolicTensor((None, *lengths), dtype, name, trials=trials)


def connect(layer: Layer, inputs: Tensors, training: bool | None, most_nodes: int = MOST_NODES) -> Any:
    """Result tensors of a layer; their shapes are found by tracing it, which may take so many nodes."""
    as_list = not isinstance(inputs, SymbolicTensor)
    tensors = list(inputs) if not isinstance(inputs, SymbolicTensor) else [inputs]
    form = inputs.with_tensors([]) if isinstance(inputs, Arguments) else None
    call = LayerCall(layer, tensors, as_list, training, form=form)
    built = layer.built
    by_trial = [_traced(call, 0, most_nodes)]
    if any(t.trials for t in tensors):
        try:
            by_trial.append(_traced(call, 1, most_nodes))
        except (TypeError, ValueError) as error:
            layer.built = built  # for one size only
            one, other = (tensors[0].trial(number) for number in range(2))
            raise ValueError(
                f"Where a length of the input is not known no weight depends on it. Received: {layer!r}, which takes "
                f"samples of shape {one}, but then none of {other} ({error}). Put GlobalAveragePooling2D before it, or "
                "give Input the length."
            ) from error
    for several in zip(*by_trial, strict=True):
        trials = tuple(tuple(v.shape[1:]) for v in several)
        shape = tuple(lengths[0] if len(set(lengths)) == 1 else None for lengths in zip(*trials, strict=True))
        call.specs.append(((None, *shape), several[0].dtype, trials if None in shape else ()))
    return call.result


def _traced(call: LayerCall, number: int, most_nodes: int) -> list[Value]:
    """The results of a call for samples of the trial shape of that number; says in the call what it takes."""
    trace = Trace(Program("shapes", most_nodes=most_nodes))
    values = [trace.program.input(f"x{i}", (_BATCH, *t.trial(number)), t.dtype) for i, t in enumerate(call.inputs)]
    # A model converts what it is given to floating point.
    values = [as_float(v, trace.dtype) if t.source is None else v for v, t in zip(values, call.inputs, strict=True)]
    outputs = call.layer._emit(trace, call.layer.name, call.arguments(values), call.training)
    call.several = isinstance(outputs, list | tuple)
    results = list(outputs) if call.several else [outputs]
    for value in results:
        if not isinstance(value, Value) or value.shape[:1] != (_BATCH,):
            raise ValueError(
                "A layer returns a Value, or a list of them, whose first axis is the batch. "
                f"Received from {call.layer!r}: {value!r} for a batch of {_BATCH}."
            )
    call.effort = len(trace.program.nodes) + trace.program.constant_bytes // 4096
    trace.program.nodes.clear()  # else its constants would live until Python looks for cycles
    return results
