"""Layer: a named operation with weights, written by composing primitives."""

from __future__ import annotations

import copy
import inspect
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from minicnn.initializers import Initializer, get_initializer
from minicnn.ops import random_uniform
from minicnn.program.graph import Program, Value

Shape = tuple[int | None, ...]


@dataclass(eq=False)
class Weight:
    """Declaration of an array that a layer owns; the Model holds the numbers.

    Attributes:
        name: Name within the layer.
        shape: Shape.
        initializer: Gives the first values.
        trainable: Whether gradients change it; otherwise the layer assigns it itself.
    """

    name: str
    shape: tuple[int, ...]
    initializer: Initializer
    trainable: bool = True


@dataclass
class Trace:
    """One tracing of layers into a Program.

    Attributes:
        program: The Program that is built.
        training: Whether it is a training step.
        seed: Seed of the model.
        dtype: Floating-point type of weights and activations.
        paths: Name of each weight in the model, kept from one trace to the next.
        weights: Values of the weights met so far, by path.
        declared: The declarations behind `weights`.
        updates: New values of weights that layers assign, by path.
    """

    program: Program
    training: bool = False
    seed: int = 0
    dtype: str = "float32"
    paths: dict[Weight, str] = field(default_factory=dict)
    weights: dict[str, Value] = field(default_factory=dict)
    declared: dict[str, Weight] = field(default_factory=dict)
    updates: dict[str, Value] = field(default_factory=dict)
    streams: dict[str, int] = field(default_factory=dict)

    def value(self, weight: Weight, path: str) -> Value:
        """The Program's input for a weight, declared when first met."""
        path = self.paths.setdefault(weight, path)
        if path not in self.weights:
            kind: Any = "parameter" if weight.trainable else "statistic"
            self.weights[path] = self.program.input(path, weight.shape, self.dtype, kind=kind)
            self.declared[path] = weight
        return self.weights[path]

    def step(self) -> Value:
        """The counter of training steps, an int32 scalar."""
        try:
            return self.program.value("step")
        except KeyError:
            return self.program.input("step", (), "int32", kind="counter")

    def stream(self, path: str) -> int:
        """A number for the random draws of one layer, the same in every trace."""
        count = self.streams[path] = self.streams.get(path, 0) + 1
        return zlib.crc32(f"{path}#{count}".encode())


class Layer:
    """Base class of layers.

    A subclass declares its weights in `build` and composes primitives in `call`. It writes no
    backward pass: that follows from the primitives.

    Args:
        name: Name in the model; made from the class name if None.

    Example:
        >>> class Scale(Layer):
        ...     def build(self, input_shape):
        ...         self.gain = self.add_weight("gain", input_shape[-1:], "ones")
        ...     def call(self, inputs):
        ...         return inputs * self.gain
    """

    def __init__(self, *, name: str | None = None) -> None:
        self.name = name
        self.built = False
        self._trace: Trace | None = None
        self._path = ""
        self._origin: Layer = self

    # For subclasses -----------------------------------------------------------------------------

    def build(self, input_shape: Any) -> None:
        """Declare weights; called once, before the first `call`.

        Args:
            input_shape: Shape of the input, its batch axis None; a list of shapes for several inputs.
        """

    def call(self, inputs: Any) -> Any:
        """Compose primitives from the input Value (or list of Values); may take `training` as well.

        Attributes that hold weights are Values here, and layers held as attributes can be called.
        """
        raise NotImplementedError

    def add_weight(
        self,
        name: str,
        shape: Sequence[int],
        initializer: str | Initializer = "glorot_uniform",
        *,
        trainable: bool = True,
    ) -> Any:
        """Declare a weight; assign the result to an attribute.

        Args:
            name: Name within the layer.
            shape: Shape.
            initializer: Initialiser or its name.
            trainable: False for statistics that the layer updates with `assign`.
        """
        return Weight(name, tuple(int(n) for n in shape), get_initializer(initializer), trainable)

    def assign(self, weight: str, value: Value) -> None:
        """Replace a weight that is not trainable after this step; `weight` is its attribute's name."""
        declared = vars(self._origin)[weight]
        path = self._tracing().paths[declared]
        self._tracing().updates[path] = value

    def random_uniform(self, shape: Sequence[int]) -> Value:
        """Uniform numbers from [0, 1), new at every step, the same on every backend."""
        trace = self._tracing()
        value: Value = random_uniform(
            trace.step(),
            shape=tuple(shape),
            seed=trace.seed,
            stream=trace.stream(self._path),
            dtype=trace.dtype,
        )
        return value

    def get_config(self) -> dict[str, Any]:
        """Arguments of the constructor, as plain data: those attributes that bear the arguments' names."""
        parameters = inspect.signature(type(self).__init__).parameters
        config = {}
        for name in parameters:
            if name in ("self", "args", "kwargs"):
                continue
            if not hasattr(self, name):
                message = (
                    f"A layer keeps each argument as an attribute of the same name, so that a model can be saved. "
                    f"Received: {type(self).__name__} without {name!r}. Set self.{name} or override get_config."
                )
                raise AttributeError(message)
            config[name] = getattr(self, name)
        return config

    # Calling ------------------------------------------------------------------------------------

    def __call__(self, inputs: Any, *, training: bool | None = None) -> Any:
        """Apply to symbolic tensors (see `Input`), or to Values within another layer's `call`."""
        from minicnn.layers.graph import SymbolicTensor, connect

        several = inputs if isinstance(inputs, list | tuple) else [inputs]
        if several and all(isinstance(x, SymbolicTensor) for x in several):
            return connect(self, inputs)
        if self._trace is None or not all(isinstance(x, Value) for x in several):
            message = (
                f"A layer is called on symbolic tensors from Input(), or on Values inside another layer's call. "
                f"Received: {', '.join(type(x).__name__ for x in several)}. To compute on arrays put it into a "
                "Sequential and call predict."
            )
            raise TypeError(message)
        return self._origin.trace_call(self._trace, self._path, inputs, training)

    def trace_call(self, trace: Trace, path: str, inputs: Any, training: bool | None = None) -> Any:
        """Emit this layer's nodes into the trace's Program, under the given path."""
        try:
            self.build_once(_shapes(inputs))
            bound = self._bind(trace, path)
            extra = {}
            if "training" in inspect.signature(self.call).parameters:
                extra["training"] = trace.training if training is None else training
            with trace.program.scope(path.rpartition("/")[2]):
                return bound.call(inputs, **extra)
        except (TypeError, ValueError) as error:
            _note(error, f"In layer {path!r} ({type(self).__name__}).")
            raise

    def build_once(self, input_shape: Any) -> None:
        """Call `build` if it has not been called."""
        if not self.built:
            self.build(input_shape)
            self.built = True

    def _bind(self, trace: Trace, path: str) -> Any:
        """A copy in which weights are Values of the trace and sublayers can be called."""
        bound = copy.copy(self)
        bound._trace, bound._path, bound._origin = trace, path, self
        for attribute, held in vars(self).items():
            if attribute != "_origin":
                setattr(bound, attribute, _bound(held, attribute, trace, path)) if attribute[
                    0
                ] != "_" else None
        return bound

    def _tracing(self) -> Trace:
        if self._trace is None:
            message = f"assign and random_uniform belong inside call. Received: a call outside, on {self!r}."
            raise RuntimeError(message)
        return self._trace

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"


def _bound(held: Any, attribute: str, trace: Trace, path: str) -> Any:
    """What an attribute is during a trace: Values for weights, callable copies for layers."""
    if isinstance(held, Weight):
        return trace.value(held, f"{path}/{held.name}")
    if isinstance(held, Layer):
        inner = copy.copy(held)
        inner._trace, inner._path, inner._origin = trace, f"{path}/{held.name or attribute}", held
        return inner
    if isinstance(held, list | tuple) and any(isinstance(v, Layer | Weight) for v in held):
        return type(held)(_bound(v, f"{attribute}_{i}", trace, path) for i, v in enumerate(held))
    if isinstance(held, Mapping) and any(isinstance(v, Layer | Weight) for v in held.values()):
        return {k: _bound(v, f"{attribute}_{k}", trace, path) for k, v in held.items()}
    return held


def _shapes(inputs: Any) -> Any:
    if isinstance(inputs, Value):
        return (None, *inputs.shape[1:])
    return [(None, *x.shape[1:]) for x in inputs]


def _note(error: BaseException, note: str) -> None:
    if not getattr(error, "__notes__", None):  # the innermost layer says where
        error.add_note(note)


def snake_case(name: str) -> str:
    """Class name as a layer name: GlobalMaxPooling2D becomes global_max_pooling2d."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z][a-z])|(?<=[a-z])(?=[A-Z])", "_", name).lower()
