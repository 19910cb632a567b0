"""Sequential: layers one after the other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, overload

from numpy.typing import NDArray

from minicnn.backends.base import Backend
from minicnn.data.forms import Batches, as_list, numeric
from minicnn.layers.functional import Functional
from minicnn.layers.graph import Graph
from minicnn.layers.layer import Layer
from minicnn.layers.serialization import graph_from_config, graph_to_config
from minicnn.layers.symbolic import Input, SymbolicTensor
from minicnn.loop.training import Training
from minicnn.models.checks import check_seed
from minicnn.models.model import Model


class Sequential(Model):
    """Layers one after the other.

    Args:
        layers: Layers; the first may be `Input(...)`, or be told `input_shape`. Without them the model is built from
            the first data it sees.
        backend: See `Model`.
        seed: See `Model`.
        name: Name of the model.

    Example:
        >>> from minicnn.layers import Dense, Flatten, Input
        >>> model = Sequential([Input((28, 28, 1)), Flatten(), Dense(10)])
        >>> model.output_shape
        (None, 10)
    """

    def __init__(
        self,
        layers: Sequence[Layer | SymbolicTensor] = (),
        *,
        backend: str | Backend | None = None,
        seed: int = 0,
        name: str | None = None,
    ) -> None:
        Layer.__init__(self, name=name)
        self._training = Training(backend, check_seed(seed))
        parts = list(layers) if isinstance(layers, Iterable) else [layers, None]
        self._stack = [layer for layer in parts if isinstance(layer, Layer)]
        starts = parts[:1] if parts and isinstance(parts[0], SymbolicTensor) else []
        if len(starts) + len(self._stack) != len(parts):
            raise TypeError(
                "Sequential takes a list of layers, of which the first may be Input(...). Received: "
                f"{', '.join(type(v).__name__ for v in parts) if isinstance(layers, Iterable) else layers!r}."
            )
        self._begin(*(t for t in starts if isinstance(t, SymbolicTensor)))

    def _begin(self, start: SymbolicTensor | None = None) -> None:
        """Build, if it is known of what: of the tensor, or of what the layer or model in the first place takes."""
        first = self._stack[0] if self._stack else None
        if start is None and isinstance(first, Functional) and first._wired is not None and len(first.inputs) == 1:
            start = Input(first.inputs[0].sample_shape, dtype=first.inputs[0].dtype)
        elif start is None and first is not None and first._start is not None:
            start = Input(first._start)
        if start is not None:
            self._chain(start)

    if TYPE_CHECKING:  # there is one output

        @overload
        def predict(self, x: NDArray[Any], *args: Any, **options: Any) -> NDArray[Any]: ...
        @overload
        def predict(self, x: Any, *args: Any, **options: Any) -> Any: ...
        def predict(self, x: Any, *args: Any, **options: Any) -> Any:
            """See `Model.predict`."""

    @property
    def layers(self) -> list[Layer]:
        """The layers, in the order in which they run."""
        return list(dict.fromkeys(self._stack))

    def add(self, layer: Layer | SymbolicTensor) -> None:
        """Put a layer at the end; the first may be `Input(...)`. A compiled model begins with new optimizer state.

        Raises:
            TypeError: If it is something else.
            ValueError: If it does not fit what is there, or it is an Input that is not the first; nothing is changed.
        """
        if isinstance(layer, SymbolicTensor) and not self._stack and not self.built:
            self._chain(layer)
            return
        if not isinstance(layer, Layer):
            raise TypeError(f"add takes a layer, or first of all Input(...). Received: {layer!r}.")
        if self.built:
            self._wire(Graph(self.inputs[0], layer(self.outputs[0])))
            self._stack.append(layer)
        else:
            self._stack.append(layer)
            if len(self._stack) == 1:
                self._begin()

    def pop(self) -> Layer:
        """Take the last layer away, and return it. A compiled model begins with new optimizer state.

        Raises:
            ValueError: If there is none.
        """
        if not self._stack:
            raise ValueError("pop takes a layer away. Received: pop of a Sequential without layers. Add one first.")
        layer = self._stack.pop()
        if self.built:
            self._wire(Graph(self.inputs[0], self._graph.calls[-1].inputs[0]))
        return layer

    _described_as = "Sequential"

    @classmethod
    def _predicts(cls) -> bool:
        return True

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if cls._writes("call"):
            raise TypeError(
                "A Sequential computes what its layers do, one after the other. Received: "
                f"{cls.__name__} with a call of its own, which would not be run. Derive it from Model."
            )

    @classmethod
    def _of_tensors(
        cls, inputs: Any, outputs: Any, *, backend: str | Backend | None = None, seed: int = 0, name: str | None = None
    ) -> Self:
        """A Sequential of the layers between two symbolic tensors.

        Raises:
            ValueError: If they are no chain.
        """
        graph = Graph(inputs, outputs)
        calls = graph.calls
        tensors = [*(call.inputs for call in calls), graph.outputs]
        chain = [[t.source for t in several] for several in tensors] == [[before] for before in (None, *calls)]
        if chain:
            model = cls([*graph.inputs, *(call.layer for call in calls)], backend=backend, seed=seed, name=name)
            chain = graph_to_config(model._graph) == graph_to_config(graph)
        if not chain:
            raise ValueError("The layers of a Sequential are a chain. Received: others. Make a Model of them.")
        return model

    @classmethod
    def from_config(cls, config: Mapping[str, Any], custom_objects: Mapping[str, Any] | None = None) -> Self:
        """A Sequential with the structure that `get_config` gave, and new weights."""
        model = cls._of_tensors(*graph_from_config(config, custom_objects), name=config.get("name"))
        model._trainable = config.get("trainable", True) is not False
        return model

    def _held(self) -> list[Any]:
        return self._stack

    def _chain(self, start: Any) -> None:
        built = [layer.built for layer in self._stack]
        end = start
        try:
            for layer in self._stack:
                end = layer(end)
            self._wire(Graph(start, end))
        except Exception:  # another shape may fit: what this one has built must not stand in its way
            for layer, before in zip(self._stack, built, strict=True):
                layer.built = before
            raise

    def build(self, input_shape: Any) -> None:
        """Build for a shape whose first axis is the batch, such as (None, 28, 28, 1)."""
        if not self.built:
            self._chain(Input(tuple(input_shape)[1:]))
            objective = self._training.step.objective
            if objective is not None:
                objective.check_outputs(self.outputs)

    def _build_for(self, x: Any) -> None:
        if not self.built:
            if isinstance(x, Batches):
                raise ValueError(
                    "A Sequential without Input is built from the first arrays it sees. Received: a loader. "
                    "Begin the layers with Input(shape), or call build((None, *shape))."
                )
            self.build(numeric(as_list(x)[0], "Inputs").shape)
