"""Model: a network that can be trained, evaluated and asked for predictions."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any, get_args, overload

import numpy as np
from numpy.typing import NDArray

from minicnn import summary as tables
from minicnn.backends.base import Backend
from minicnn.data.forms import Batches, as_data, as_list, numeric
from minicnn.description import check_model_state
from minicnn.distribution import DataParallel
from minicnn.layers.graph import Graph
from minicnn.layers.layer import Layer
from minicnn.layers.symbolic import Input, SymbolicTensor
from minicnn.layers.weight import Weight
from minicnn.loop.adapters import by_place
from minicnn.loop.held import held_weights
from minicnn.loop.predictions import predict_batch
from minicnn.loop.step_methods import Steps
from minicnn.loop.tracing import StepKind
from minicnn.loop.training import Training
from minicnn.models import fitting, observation, storage
from minicnn.models.called import Called
from minicnn.models.checks import check_counts, check_seed, in_order
from minicnn.names import known_name
from minicnn.optimizers import Optimizer
from minicnn.program.graph import Program, Value
from minicnn.visual import methods as visual

Path = str | os.PathLike[str]


def _of(path: str, doc: str) -> Any:
    """A property: an attribute of what a model's training holds."""
    return property(attrgetter(f"_training.{path}"), doc=doc)


class Model(Steps):
    """A network between symbolic inputs and outputs, with weights, that can be trained; itself a layer.

    A subclass may write `call`, and then needs no symbolic tensors, and what a step does: `train_step`, `test_step`,
    `compute_loss` and `compute_metrics`.

    Args:
        inputs: `Input(...)`, or a list of them, or a dictionary by their names; the result of a layer also, to cut a
            part out of a network.
        outputs: What layers made of them, or a list.
        backend: Name such as "numpy" or "torch:cuda", or a Backend. If None: that of the arrays
            given to `fit`, else the environment variable MINICNN_BACKEND, else NumPy.
        seed: Seed of the first weights, the shuffles and random layers, from 0 to 2**64 - 1.
        name: Name of the model.

    Raises:
        ValueError: If the seed or the backend is unknown, or the layers do not connect inputs and outputs.
        TypeError: If there are no inputs and outputs, and no `call` nor a step in a subclass.

    Example:
        >>> from minicnn.layers import Dense, Input
        >>> x = Input((4,))
        >>> model = Model(x, Dense(2)(x))
        >>> model.count_params()
        10
    """

    _described_as = "Model"  # which class a file names
    _building = False
    _class_names: tuple[str, ...] | None = None

    def __init__(
        self,
        inputs: SymbolicTensor | Sequence[SymbolicTensor] | Mapping[str, SymbolicTensor] | None = None,
        outputs: SymbolicTensor | Sequence[SymbolicTensor] | None = None,
        *,
        backend: str | Backend | None = None,
        seed: int = 0,
        name: str | None = None,
    ) -> None:
        Layer.__init__(self, name=name)
        self._training = Training(backend, check_seed(seed))
        if isinstance(inputs, Mapping):
            inputs = in_order(inputs)
        if inputs is not None or outputs is not None:
            self._wire(Graph(inputs, outputs))  # type: ignore[arg-type]  # which says what is missing
        elif not self._writes("call") and not self._writes_steps():
            raise TypeError(
                "A Model is made of symbolic tensors, or is a subclass with a call or a step of its own. Received: "
                f"{type(self).__name__}() without. Give it inputs=Input(...) and outputs=layer(inputs)."
            )

    def _wire(self, graph: Graph) -> None:
        """Take up a graph, whose weights get first numbers."""
        self._training.wire(graph)
        self._wired, self.built = None if isinstance(graph, Called) else graph, True  # type: ignore[assignment]  # of layers
        step = self._training.step
        if step.objective is not None:  # a Sequential that has got another layer
            step.trainable = self._trainable_now() | step.trainable

    @property
    def _graph(self) -> Graph:
        """The layers as they are wired; a RuntimeError if they are not yet."""
        return self._training.step.wired()

    @property
    def _weights(self) -> dict[str, Weight]:
        """Weights by path."""
        if self._training.step.graph is None and self._predicts():
            self._graph  # noqa: B018  # which says that there is none yet
        if self._writes_steps():
            self._take_up()
        return self._training.weights

    @property
    def output_names(self) -> list[str]:
        """Names of the outputs: see `Functional`; one of a model without a graph."""
        return ["output"] if self._training.step.graph is None else super().output_names

    @classmethod
    def _predicts(cls) -> bool:
        """True if it has a graph, sooner or later: a model with a step alone has none."""
        return cls._writes("call") or not cls._writes_steps()

    def _take_up(self) -> None:
        """Take up the weights of all that the model holds, of which its step may use more than its graph does."""
        known = set(self._training.weights.values())
        self._training.adopt({path: weight for weight, path in held_weights(self) if weight not in known})
        self.built = True

    def build(self, input_shape: Any) -> None:
        """Build a model with a `call` of its own for a shape whose first axis is the batch, or for a list of shapes."""
        if self._training.step.graph is None and self._writes("call") and not self._building:
            several = isinstance(input_shape, list) and not isinstance(input_shape[0], int | None)
            tensors = [Input(tuple(shape)[1:]) for shape in (input_shape if several else [input_shape])]
            self._wire(Called(self, tensors if several else tensors[0]))

    def _build_once(self, input_shape: Any) -> None:
        if type(self).build is Model.build:  # its layers declare what there is
            return
        self._building = True  # a subclass may call build of this class
        try:
            super()._build_once(input_shape)
        finally:
            self._building = False

    def _held(self) -> list[Any]:
        held = super()._held()
        return held if type(self).__init__ is Model.__init__ else [*held, *vars(self).values()]

    @overload  # type: ignore[override]  # one list
    def __call__(
        self, inputs: SymbolicTensor | Sequence[SymbolicTensor], *, training: bool | None = None
    ) -> SymbolicTensor | Any: ...
    @overload
    def __call__(self, inputs: Value | Sequence[Value], *, training: bool | None = None) -> Value | Any: ...
    @overload
    def __call__(self, inputs: NDArray[Any], *, training: bool | None = None) -> NDArray[Any] | Any: ...
    @overload
    def __call__(self, inputs: Any, *, training: bool | None = None) -> Any: ...
    def __call__(self, inputs: Any, *, training: bool | None = None) -> Any:
        """Apply to symbolic tensors, to Values within a layer's `call`, or to arrays.

        Args:
            inputs: A tensor, or a list of them for several inputs. Arrays of any library, shape (N, ...), are a batch.
            training: Whether the layers act as in training; on arrays not if None, and weights and moving statistics
                stay as they are.

        Returns:
            Tensors or Values; for arrays what `predict` gives.
        """
        several = inputs if isinstance(inputs, list | tuple) else [inputs]
        if self._step is not None and not any(isinstance(v, Value) for v in several):
            raise TypeError(
                "A model is called on Values in a step. Received: "
                f"{', '.join(type(v).__name__ for v in several)}. Compute with minicnn.ops there, not on arrays."
            )
        if self._trace is not None or any(isinstance(v, SymbolicTensor | Value) for v in several):
            return super().__call__(inputs, training=training)
        with fitting.received(self, inputs) as (x, _):
            outputs = predict_batch(self._training, x, training is True)
        return outputs[0] if self._graph.one_output else outputs

    # Weights and state --------------------------------------------------------------------------

    seed: int = _of("step.seed", "Seed of the first weights, the shuffles and random layers.")
    backend: Backend = _of("backend", "The backend; decided when first needed.")
    distribution: DataParallel | None = _of("distribution", "How ranks share training and evaluation: see `compile`.")
    precision: str = _of("step.precision", "Precision policy: see `compile`.")
    steps_taken: int = _of("executor.steps_taken", "Training steps so far.")
    samples_seen: int = _of("samples_seen", "Samples of the epoch that is under way.")

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """Names of the classes, one for each output, such as those of a Dataset; a saved model keeps them.

        Raises:
            ValueError: On setting, if they are no names, or not as many as there are outputs.
        """
        return self._class_names

    @class_names.setter
    def class_names(self, names: Sequence[str] | None) -> None:
        self._class_names = None if names is None else visual.checked_names(names, self)

    @property
    def optimizer(self) -> Optimizer | None:
        """The optimizer; None before `compile`. In a step it has `apply(gradients, weights)`."""
        optimizer = self._training.step.optimizer
        return optimizer if self._step is None else self._stepping()  # type: ignore[return-value]  # as one

    @property
    def stop_training(self) -> bool:
        """Set it, usually in a callback, to end `fit` after the step that is under way."""
        return self._training.stop

    @stop_training.setter
    def stop_training(self, stop: bool) -> None:
        self._training.stop = stop

    def join(self) -> None:
        """Put together the kernels of which each rank has a part: all ranks call it at the same time.

        What reads weights does it by itself; where one rank alone is to read them, all call this before.
        """
        self._training.variables.join()

    def count_params(self, *, trainable: bool | None = None) -> int:
        """Number of weights: all, or those that are (not) trainable; those of frozen layers are not.

        Raises:
            RuntimeError: If the model is not built.
        """
        trained = () if trainable is None else self._training.trained_paths(self._trainable_now())
        return sum(math.prod(w.shape) for p, w in self._weights.items() if trainable in (None, p in trained))

    def get_weights(self) -> dict[str, np.ndarray[Any, Any]]:
        """Copies of all weights by path, such as "conv2d/kernel"; `set_weights` takes them."""
        return {path: self._training.variables.get(path) for path in self._weights}

    def set_weights(self, weights: Mapping[str, Any]) -> None:
        """Replace weights by path; those not named stay.

        Raises:
            ValueError: If a path is unknown or a shape differs; then nothing is changed.
            TypeError: If it is no mapping, or an array is on another device or does not hold numbers; then nothing is
                changed.
        """
        if not isinstance(weights, Mapping):
            raise TypeError(
                "set_weights of a model takes a dictionary of arrays by path, as get_weights gives it. Received: "
                f"{type(weights).__name__}. dict(zip(model.get_weights(), arrays)) makes one of arrays in the model's "
                "order; a layer's set_weights takes a list."
            )
        variables, shapes = self._training.variables, {path: weight.shape for path, weight in self._weights.items()}
        arrays = {path: variables.on_host(array, path) for path, array in weights.items()}
        for path, array in arrays.items():
            if array.shape != shapes.get(path):
                raise ValueError(
                    f"set_weights takes arrays by weight path, each of its weight's shape. Received: {path!r} with "
                    f"shape {array.shape}; the model has {shapes.get(path, 'no weight of that name')}. Paths: "
                    f"{', '.join(shapes)}."
                )
        variables.set(arrays)

    def get_state(self) -> dict[str, Any]:
        """Everything that decides how training goes on from here, as plain data and NumPy arrays."""
        return self._training.get_state()

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `get_state` gave, of this model or of one made and compiled in the same way.

        Raises:
            ValueError: If it is no such state; then nothing is changed.
        """
        check_model_state(self, state)
        self._training.set_state(state)

    @classmethod
    def load(
        cls, path: Path, *, backend: str | Backend | None = None, custom_objects: Mapping[str, Any] | None = None
    ) -> Model:
        """Read a model that `save` wrote; see `minicnn.saving`."""
        from minicnn.saving import load_model

        return load_model(path, backend=backend, custom_objects=custom_objects)

    # Programs -----------------------------------------------------------------------------------

    def program(self, kind: StepKind | None = None, *, batch_size: int = 32) -> Program:
        """The Program of one step.

        Args:
            kind: "train", "evaluate" or "predict"; "train" if None and the model is compiled.
            batch_size: Samples in the step.

        Raises:
            RuntimeError: If the model is not compiled, unless the kind is "predict".
        """
        if kind is None:
            kind = "predict" if self._training.step.objective is None else "train"
        known_name("kind", kind, get_args(StepKind))
        (batch_size,) = check_counts(batch_size=batch_size)
        return self._training.program(kind, batch_size)

    # Methods that stand, with what they take, beside what they use.

    compile = fitting.compile
    fit = fitting.fit
    train_on_batch = fitting.train_on_batch
    evaluate = fitting.evaluate
    test_on_batch = fitting.test_on_batch
    predict = fitting.predict
    predict_on_batch = fitting.predict_on_batch

    save = storage.save
    save_weights = storage.save_weights
    load_weights = storage.load_weights
    export = storage.export

    summary = tables.summary
    explain = observation.explain
    trace = observation.trace
    timeline = observation.timeline

    report = visual.report
    saliency = visual.saliency
    grad_cam = visual.grad_cam
    filters = visual.filters

    # What they are given -------------------------------------------------------------------------

    def _trainable_now(self) -> dict[Layer | None, bool]:
        """Trainability of each layer, and of the model under None."""
        return {None if layer is self else layer: layer.trainable for layer in self._with_sublayers()}

    def _placed(self, x: Any, y: Any = None) -> tuple[Any, Any]:
        """Inputs and labels by place, if they are given by name; loaders as such."""
        if isinstance(x, Mapping):
            x = by_place(
                "inputs", x, [""] if self._training.step.graph is None else [t.name or "" for t in self.inputs]
            )
        return as_data(x), by_place("labels", y, self.output_names) if isinstance(y, Mapping) else y

    def _build_for(self, x: Any) -> None:
        """Build a model whose input shape is not known before there are data."""
        if self._training.step.graph is not None or not self._writes("call"):
            return
        if isinstance(x, Batches):
            if not hasattr(x.loader, "__getitem__"):
                raise ValueError(
                    "A model with a call of its own is built from the first arrays it sees. Received: a loader. Call "
                    "build((None, *shape)) before."
                )
            batch = x.loader[0]
            x = batch[0] if isinstance(batch, tuple) else batch
        several = isinstance(x, list | tuple) and len(as_list(x)) > 1
        shapes = [(None, *numeric(a, "Inputs").shape[1:]) for a in as_list(x)]
        Model.build(self, shapes if several else shapes[0])

    def _repr_html_(self) -> str:
        return tables.page(self)

    def __repr__(self) -> str:
        known = f"{len(self.layers)} layers, {self.count_params():,} weights" if self.built else "not built yet"
        return f"<{type(self).__name__} {self.name!r}: {known}>"


def clone_model(model: Model) -> Model:
    """A model of the same structure, with layers of its own and first weights; not compiled.

    `copy.deepcopy(model)` keeps weights, optimizer and what was compiled.

    Args:
        model: The model, which stays as it is.
    """
    clone = copy.deepcopy(model)
    clone._training.forget()
    return clone
