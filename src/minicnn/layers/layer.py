"""Layer: a named operation with weights, written by composing primitives."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Unpack, overload

from minicnn.arguments import unknown_argument
from minicnn.constraints import get_constraint
from minicnn.initializers import Initializer, get_initializer
from minicnn.layers.calling import ON_ARRAYS, Arguments, is_array
from minicnn.layers.inspectable import Inspectable, checked_bool
from minicnn.layers.options import LayerLimits, start_shape
from minicnn.layers.trace import Trace
from minicnn.layers.weight import Weight
from minicnn.ops import random_uniform, take
from minicnn.ops.random import SOURCE
from minicnn.program.graph import Value
from minicnn.regularizers import Limit, get_regularizer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from minicnn.layers.graph import Graph
    from minicnn.layers.symbolic import SymbolicTensor


class Layer(Inspectable):
    """Base class of layers.

    A subclass declares its weights in `build` and composes primitives in `call`. It writes no
    backward pass: that follows from the primitives. What else a subclass may do:

    - Hold other layers as attributes, also in lists and dicts, and call them in `call`.
    - Take `training` in `call`; draw numbers with `random_uniform`; update statistics with `assign`.
    - Keep each argument of its constructor as an attribute of the same name, so that models can be saved.

    Args:
        name: Name in the model; made from the class name if None.
        trainable: Whether training changes the weights; see the attribute.
        limits: For layers with weights, by weight: `kernel_regularizer`, `bias_regularizer`, `kernel_constraint` ...,
            each a name, an object of `minicnn.regularizers`, or a function of a Value. Regularizers of weights that
            are trained are part of the loss; constraints are applied after each step. The first layer of a Sequential
            may say in place of an `Input` what it takes: `input_shape` of a sample, `input_dim` for one axis, or
            `batch_input_shape`.

    Raises:
        ValueError: If the name is no string, is empty or contains "/", or trainable is no bool.
        TypeError: If the layer has no weight of which a limit is for.

    Example:
        >>> class Scale(Layer):
        ...     def build(self, input_shape):
        ...         self.gain = self.add_weight("gain", input_shape[-1:], "ones")
        ...     def call(self, inputs):
        ...         return inputs * self.gain
    """

    _wired: Graph | None = None  # of a model that is made of layers: what it computes

    def __init__(self, *, name: str | None = None, trainable: bool = True, **limits: Unpack[LayerLimits]) -> None:
        if name is not None and (not isinstance(name, str) or not name or "/" in name):
            raise ValueError(
                f"A layer's name is a string without '/', which separates the parts of a path. Received: name={name!r}."
            )
        self._name = name
        self._trainable = checked_bool(trainable)
        self.built = False
        self._declared: list[tuple[int, ...]] = []  # shapes of the weights
        self._built_for: list[Any] = []  # shapes of inputs for which they are the same
        self._trace: Trace | None = None
        self._path = ""
        self._origin: Layer | None = None  # of which this is a copy bound to a trace
        self._limit(dict(limits))

    def _limit(self, limits: dict[str, Any]) -> None:
        """Keep regularizers and constraints as attributes, all of them, as in Keras."""
        self._start = start_shape(limits)
        names = self._limit_names()
        for name in limits:
            if name not in names:
                raise unknown_argument(type(self), name, limits[name])
        for name in names:
            setattr(self, name, limits.get(name))
            (get_regularizer if name.endswith("regularizer") else get_constraint)(limits.get(name))

    @property
    def trainable(self) -> bool:
        """True if training changes the weights.

        False freezes the layer with all within it: no gradients, no updates, no optimizer state, and batch
        normalisation by the moving statistics. Setting it sets it for the layers within, too. A model that is
        compiled already takes it up at the next `compile`, as in Keras.
        """
        return self._trainable

    @trainable.setter
    def trainable(self, trainable: bool) -> None:
        for layer in self._with_sublayers():
            layer._trainable = checked_bool(trainable)

    def _with_sublayers(self) -> list[Layer]:
        """This layer and all that it holds, at any depth, each once."""
        layers: dict[Layer, None] = {}
        waiting: list[Any] = [self]
        while waiting:
            held = waiting.pop()
            if isinstance(held, Layer) and held not in layers:
                layers[held] = None
                waiting += reversed(held._held())
            elif isinstance(held, list | tuple):
                waiting += reversed(held)
            elif isinstance(held, dict):
                waiting += reversed(held.values())
        return list(layers)

    if not TYPE_CHECKING:  # which would take any name for an attribute

        def __getattr__(self, name: str) -> Any:
            if name in _OF_EVERY_LAYER:
                _check_constructed(self)
            if hasattr(type(self), name):  # a property that says itself what is missing
                return object.__getattribute__(self, name)
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    # For subclasses -----------------------------------------------------------------------------

    def build(self, input_shape: Any) -> None:
        """Declare weights; called before the first `call`.

        A layer that is called again on inputs of another shape must declare weights of the same shapes for them: then
        a copy is built as well, to compare.

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
        name: str | None = None,
        shape: Sequence[int] = (),
        initializer: str | Initializer = "glorot_uniform",
        *,
        trainable: bool = True,
        regularizer: Limit = None,
        constraint: Limit = None,
    ) -> Any:
        """Declare a weight, in `build` or the constructor; assign the result to an attribute.

        Args:
            name: Name within the layer; made from its number if None.
            shape: Shape.
            initializer: Initialiser or its name.
            trainable: False for statistics that the layer updates with `assign`.
            regularizer: Gives what the weight adds to the loss; that of the layer's arguments if None.
            constraint: Gives what the weight becomes after each step; likewise.
        """
        if self._trace is not None:
            raise RuntimeError(
                f"Weights are declared in build. Received: add_weight({name!r}) inside call, on {self!r}. "
                "Move it there."
            )
        if name is None:
            count = sum(isinstance(held, Weight) for held in vars(self).values())
            name = f"weight_{count}" if count else "weight"
        for word in (word for weight, word in self._limited if weight == name):
            regularizer = regularizer or getattr(self, f"{word}_regularizer")
            constraint = constraint or getattr(self, f"{word}_constraint")
        lengths = tuple(int(n) for n in shape)
        self._declared.append(lengths)
        return Weight(
            name, lengths, get_initializer(initializer), trainable, get_regularizer(regularizer),
            get_constraint(constraint),
        )  # fmt: skip

    def assign(self, weight: str | Weight, value: Value) -> None:
        """Replace a weight that is not trainable; later calls, in this step too, see the new value.

        Args:
            weight: Name of the attribute that holds the weight. In a step of one's own also a Weight of any layer that
                the model holds, such as one of a copy that follows another network slowly.
            value: New value, of the weight's shape.
        """
        trace = self._tracing()
        declared = weight if isinstance(weight, Weight) else vars(self._origin or self).get(weight)
        trained = isinstance(weight, str) and isinstance(declared, Weight) and declared.trainable
        if not isinstance(declared, Weight) or trained or value.shape != declared.shape:
            raise ValueError(
                "assign takes the name of an attribute that holds a weight with trainable=False, and a "
                f"value of its shape. Received: {weight!r}, which is {declared!r}, and {value!r}."
            )
        trace.assign(declared, value)

    def add_loss(self, loss: Value) -> None:
        """Add to the loss that is trained for, in `call`: a scalar, or numbers of the samples, whose mean is taken.

        Only the latter will do where a batch is cut into shards.
        """
        self._tracing().losses.append(loss)

    def add_metric(self, value: Value, name: str) -> None:
        """Log a scalar, or the mean of numbers of the samples, under a name, in `call`: see `add_loss`."""
        self._tracing().measured.append((name, value))

    def random_uniform(self, shape: Sequence[int], *, seed: int | None = None, per_sample: bool | None = True) -> Value:
        """Uniform numbers from [0, 1), new at every step, the same on every backend.

        Args:
            shape: Shape.
            seed: Seed; the model's if None.
            per_sample: Whether the first axis counts samples. A part of a batch then gets its part of the numbers, else
                all of them; if None, whether that axis is as long as the part.

        Raises:
            ValueError: If the first axis does not count samples where it should.
        """
        trace, first = self._tracing(), tuple(shape[:1])
        part = trace.batch is not None and (per_sample or (per_sample is None and first == (trace.samples,)))
        if part and first != (trace.samples,):
            raise ValueError(
                "Numbers that are drawn for a part of a batch have its samples along the first axis. Received: shape "
                f"{tuple(shape)} for {trace.samples} samples. Give per_sample=False if all samples share the numbers."
            )
        value: Value = random_uniform(
            trace.step(),
            shape=(trace.batch, *shape[1:]) if part else tuple(shape),
            seed=trace.seed if seed is None else seed,
            stream=trace.stream(self._path),
            dtype=trace.dtype,
        )
        if not part:
            return value
        return take(value, trace.rows())

    # Calling ------------------------------------------------------------------------------------

    # A layer with several results gives a list; unpacked, its parts are of any type.
    @overload
    def __call__(
        self, inputs: SymbolicTensor | Sequence[SymbolicTensor], *more: Any, training: bool | None = None, **named: Any
    ) -> SymbolicTensor: ...
    @overload
    def __call__(
        self, inputs: Value | Sequence[Value], *more: Any, training: bool | None = None, **named: Any
    ) -> Value: ...
    @overload
    def __call__(
        self, inputs: NDArray[Any], *more: Any, training: bool | None = None, **named: Any
    ) -> NDArray[Any]: ...
    @overload
    def __call__(self, inputs: Any, *more: Any, training: bool | None = None, **named: Any) -> Any: ...
    def __call__(self, inputs: Any, *more: Any, training: bool | None = None, **named: Any) -> Any:
        """Apply to symbolic tensors (see `Input`), to Values within another layer's `call`, or to arrays.

        Args:
            inputs: A tensor, or a list of them for layers that take several. Arrays are a batch, shape (N, ...), of any
                library that minicnn runs on; the layer then keeps weights of its own, which models made of it share.
            more: Further arguments of `call`, tensors.
            training: Whether the layer, with all within it, acts as in training; as the model if None, on arrays not,
                but for layers that change images at random.
            named: Arguments of `call` by name: tensors, or what a layer's constructor could take.
        """
        _check_constructed(self)
        if more or named:
            inputs = Arguments.of((inputs, *more), named)
        several = inputs if isinstance(inputs, list | tuple) else [inputs]
        if several and all(hasattr(x, "connect") for x in several):  # symbolic tensors
            return several[0].connect(self, inputs, training)
        if self._trace is None and several and all(map(is_array, several)) and ON_ARRAYS:
            return ON_ARRAYS["call"](self, inputs, training)
        if self._trace is None or not several or not all(isinstance(x, Value) for x in several):
            raise TypeError(
                "A layer is called on symbolic tensors from Input(), on arrays, or on Values inside another layer's "
                f"call. Received: {', '.join(type(x).__name__ for x in several) or 'an empty list'}. Give it one kind "
                "of these; numbers as np.asarray(numbers)."
            )
        return (self._origin or self)._emit(self._trace, self._path, inputs, training)

    def _emit(self, trace: Trace, path: str, inputs: Any, training: bool | None = None) -> Any:
        """Emit this layer's nodes into the trace's Program, under the given path."""
        outer = trace.training, trace.trainable
        trace.training = trace.training if training is None else training
        trace.trainable = trace.trainable and trace.noted.get(self, self._trainable)
        try:
            self._build_once(_shapes(inputs))
            bound = self._bind(trace, path)
            extra = {"training": trace.training} if "training" in inspect.signature(self.call).parameters else {}
            source = SOURCE.set(bound.random_uniform)
            try:
                with trace.program.scope(path.rpartition("/")[2]):
                    placed, named = inputs.split() if isinstance(inputs, Arguments) else ([inputs], {})
                    return bound.call(*placed, **named, **extra)
            finally:
                SOURCE.reset(source)
        except (TypeError, ValueError) as error:
            _note(error, f"In layer {path!r} ({type(self).__name__}).")
            raise
        finally:
            trace.training, trace.trainable = outer

    def _build_once(self, input_shape: Any) -> None:
        """Call `build` if it has not been called; else see to it that the weights are those for such inputs."""
        if not self.built:
            self._declared = []
            self.build(input_shape)
            self.built, self._built_for = True, [input_shape]
        elif self._declared and input_shape not in self._built_for:
            clone = copy.deepcopy(self, {id(weight): weight for weight in self.weights})
            clone._declared = []
            clone.build(input_shape)
            if clone._declared != self._declared:
                shapes = (", ".join(map(str, layer._declared)) for layer in (self, clone))
                raise ValueError(
                    "A layer is called again only on inputs for which its weights have the same shapes. Received: "
                    "inputs {2} for weights {0} of inputs {3}; they take weights {1}. Give them a layer of their "
                    "own.".format(*shapes, input_shape, self._built_for[0])
                )
            self._built_for.append(input_shape)

    def _bind(self, trace: Trace, path: str) -> Any:
        """A copy in which weights are Values of the trace and sublayers can be called."""
        bound = self._shallow()
        bound._trainable = trace.trainable
        for attribute, held in vars(self).items():
            if attribute not in ("_trainable", "_trace", "_path", "_origin", "_callers"):
                setattr(bound, attribute, _bound(held, attribute, trace, path))
        bound._trace, bound._path, bound._origin = trace, path, self
        return bound

    def _shallow(self) -> Any:
        """A copy with the same attributes; `copy.copy` of a model would copy its state as well."""
        clone = object.__new__(type(self))
        vars(clone).update(vars(self))
        return clone

    def _tracing(self) -> Trace:
        if self._trace is None:
            raise RuntimeError(f"assign and random_uniform belong inside call. Received: a call outside, on {self!r}.")
        return self._trace


def _bound(held: Any, attribute: str, trace: Trace, path: str) -> Any:
    """The value of an attribute during a trace: weights become Values and layers callable, in containers too."""
    path = f"{path}/" if path else ""
    if isinstance(held, Weight):
        return trace.value(held, f"{path}{held.name}")
    if isinstance(held, Layer):
        _check_constructed(held)
        inner = held._shallow()
        inner._trace, inner._path, inner._origin = trace, f"{path}{held._name or attribute}", held
        return inner
    if isinstance(held, list | tuple):
        items = [_bound(v, f"{attribute}_{i}", trace, path[:-1]) for i, v in enumerate(held)]
        return held if all(a is b for a, b in zip(items, held, strict=True)) else type(held)(items)
    if isinstance(held, dict):
        return {k: _bound(v, f"{attribute}_{k}", trace, path[:-1]) for k, v in held.items()}
    return held


# What `Layer.__init__` sets.
_OF_EVERY_LAYER = frozenset({"built", "_declared", "_trainable", "_trace", "_path", "_origin"})


def _check_constructed(layer: Layer) -> None:
    if "built" not in vars(layer):
        raise RuntimeError(
            "A layer calls super().__init__(name=name) in its constructor. "
            f"Received: a {type(layer).__name__} that does not. Make it the first line of __init__."
        )


def _shapes(inputs: Any) -> Any:
    if isinstance(inputs, Value):
        return (None, *inputs.shape[1:])
    shapes = [(None, *x.shape[1:]) for x in inputs]
    return shapes[0] if isinstance(inputs, Arguments) else shapes  # as in Keras, that of the first argument


def _note(error: BaseException, note: str) -> None:
    if not getattr(error, "__notes__", None):  # the innermost layer says where
        error.add_note(note)
