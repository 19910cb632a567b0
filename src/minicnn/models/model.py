"""Model: a network that can be trained, evaluated and asked for predictions."""

from __future__ import annotations

import copy
import math
import os
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import attrgetter
from typing import Any, Literal, get_args, overload

import numpy as np

from minicnn.arguments import plain
from minicnn.backends.base import Backend
from minicnn.callbacks import Callback, Callbacks, History, progress
from minicnn.data.forms import Batches, as_data, as_list, numeric
from minicnn.data.order import LastBatch
from minicnn.description import check_model_state
from minicnn.distribution import DataParallel
from minicnn.layers.graph import Graph
from minicnn.layers.layer import Layer
from minicnn.layers.symbolic import Input, SymbolicTensor
from minicnn.layers.weight import Weight
from minicnn.loop.adapters import by_place, split_off
from minicnn.loop.held import held_weights
from minicnn.loop.objective import Objective
from minicnn.loop.observation import timeline, trace
from minicnn.loop.predictions import predict, predict_alike, predict_batch
from minicnn.loop.sources import BatchSource
from minicnn.loop.totals import Totals
from minicnn.loop.tracing import PRECISIONS, Precision, StepKind
from minicnn.loop.training import Training
from minicnn.loop.written import WrittenStep
from minicnn.losses import Loss, LossName
from minicnn.models.called import Called
from minicnn.models.checks import (
    as_asked,
    check_counts,
    check_distribution,
    check_optional,
    check_seed,
    in_order,
    validated,
    with_labels,
)
from minicnn.models.steps import Steps
from minicnn.names import known_name
from minicnn.optimizers import Optimizer, get_optimizer
from minicnn.program.graph import Program, Value
from minicnn.summary import Explanation, page, summary
from minicnn.trace import StepTrace, Timeline
from minicnn.visual.methods import VisualMethods

Path = str | os.PathLike[str]


def _of(path: str, doc: str) -> Any:
    """A property: an attribute of what a model's training holds."""
    return property(attrgetter(f"_training.{path}"), doc=doc)


class Model(VisualMethods, Steps):
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

    def __call__(self, inputs: Any, *, training: bool | None = None) -> Any:  # type: ignore[override]  # one list
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
        with self._received(inputs) as (x, _):
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

    def save(self, path: Path) -> None:
        """Write architecture, weights and optimizer state to one safetensors file; see `minicnn.saving`.

        Of several ranks the first writes it.
        """
        from minicnn.saving import save_model

        self.join()
        if self._training.chief:
            save_model(self, path)

    def save_weights(self, path: Path) -> None:
        """Write the weights to one safetensors file; see `minicnn.saving`. Of several ranks the first writes it."""
        from minicnn.saving import save_weights

        self.join()
        if self._training.chief:
            save_weights(self, path)

    def load_weights(self, path: Path, skip_mismatch: bool = False) -> None:
        """Read weights that `save_weights` or `save` wrote; see `minicnn.saving`."""
        from minicnn.saving import load_weights

        load_weights(self, path, skip_mismatch)

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

    def explain(self, kind: StepKind | None = None, *, batch_size: int = 32) -> Explanation:
        """Name for each node the kernel of the backend that runs it, or why its reference does."""
        program = self.program(kind, batch_size=batch_size)
        return Explanation(program, self.backend.explain(program.copy()))

    def summary(self, print_fn: Callable[[str], Any] | None = print, *, batch_size: int = 1) -> str | None:
        """Table of the layers: output shape, weights, FLOPs of the forward pass for a batch.

        Args:
            print_fn: Takes the text; if None it is returned.
            batch_size: Samples that the FLOPs are for.
        """
        text = summary(self, batch_size)
        if print_fn is None:
            return text
        print_fn(text)  # and nothing is returned, which a notebook would show once more
        return None

    def trace(self, x: Any, y: Any = None, sample_weight: Any = None, *, kernels: bool = False) -> StepTrace:
        """Every value of one step on one batch, by name: what the next training step would compute. Nothing changes.

        All values are kept on the host, so the batch is better a small one. It is not cut into shards.

        Args:
            x: Inputs of one batch, shape (N, ...).
            y: Labels; without them it is a prediction, but for a model without a graph.
            sample_weight: Weight of each sample.
            kernels: The backend's kernels compute it, with every result among those to be stored; otherwise the
                references do, node by node on the backend's arrays, also where the backend would merge nodes. On
                backends without kernels it is the same.

        Raises:
            RuntimeError: If there are labels and the model is not compiled.
        """
        with self._received(x, y) as (x, y):
            return trace(self._training, x, y, sample_weight, kernels)

    def timeline(self, x: Any, y: Any = None, sample_weight: Any = None) -> Timeline:
        """When each part of a training step on one batch runs, on each rank; some training steps are taken for it.

        On GPUs the parts are launches, which follow each other without a graph; on the CPU those between which ranks
        compute together. All ranks call it at the same time.

        Args:
            x: Inputs of one batch, shape (N, ...).
            y: Labels.
            sample_weight: Weight of each sample.
        """
        training = self._training
        training.step.compiled()
        with training.together(), self._received(x, y) as (x, y):
            return timeline(training, x, y, sample_weight)

    # Training -----------------------------------------------------------------------------------

    def _trainable_now(self) -> dict[Layer | None, bool]:
        """Trainability of each layer, and of the model under None."""
        return {None if layer is self else layer: layer.trainable for layer in self._with_sublayers()}

    def _note_trainable(self) -> None:
        """Warn, once after each compile, where `trainable` of a layer was set since."""
        step, compiled = self._training.step, self._training.step.trainable
        changed = [layer or self for layer, now in self._trainable_now().items() if now is not compiled.get(layer, now)]
        if changed and not step.warned:
            step.warned = True
            warnings.warn(
                "Training changes what was trainable when the model was compiled. Received: trainable set since then, "
                f"on {', '.join(sorted(repr(layer.name) for layer in changed)):.200}. Call compile() again to take it "
                "up, which begins with new optimizer state; nothing is to be done where another model is to leave "
                "these layers alone.",
                stacklevel=3,
            )

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

    @contextmanager
    def _received(self, x: Any, y: Any = None) -> Iterator[tuple[Any, Any]]:
        """Data by place, while the device of the backend, which they may choose, is the current one."""
        x, y = self._placed(x, y)
        self._build_for(x)
        if self._writes_steps():
            self._take_up()  # now, and not within the step, in which the locks of all its weights are held
        self._training.choose_backend(x, y)
        with self.backend.active():
            yield x, y

    def compile(
        self,
        optimizer: str | Optimizer | type[Optimizer] = "sgd",
        loss: LossName | str | Loss | Callable[..., Any] | Sequence[Any] | Mapping[str, Any] | None = None,
        metrics: Any = (),
        *,
        loss_weights: float | Sequence[float] | Mapping[str, float] | None = None,
        precision: Precision | str = "float32",
        distribution: DataParallel | None = None,
        accumulate: int = 1,
    ) -> None:
        """Say what to train for and how.

        Args:
            optimizer: Name or Optimizer.
            loss: Name, Loss or function of (y_true, y_pred); or a list, or a dictionary by `output_names`, of these.
                None is "sparse_categorical_crossentropy", and no loss for a model with a step of its own. An empty list
                is for a model whose layers add all there is to the loss.
            metrics: Names, Metrics or functions; for several outputs a dictionary by name, or a list with an entry for
                each, of one, a list of them, or None; any other list is of all outputs. A loss stands for its mean.
                Sample weights weigh metrics too: Keras calls these weighted metrics.
            loss_weights: Weight of each output's loss in the sum, as a list or a dictionary; a number for one output.
            precision: "float32", "float64", or "mixed_bfloat16" and "mixed_float16": products of shorter operands,
                images stored in 16 bits, weights, optimizer and sums in float32. In float16 the loss is scaled, and
                the log "skipped_steps" counts the steps whose gradients were not finite, which change no weight.
            distribution: How training and evaluation are shared out between processes, and cut into shards.
            accumulate: Parts that each batch is cut into, whose gradients are summed one after the other: less memory,
                the bits of `DataParallel(shards=accumulate)`. A distribution has shards of its own.

        Raises:
            ValueError: If a name is unknown, a number of entries is wrong, or the backend lacks the precision. The
                model stays as it was.
            RuntimeError: If the model is in training.
        """
        known_name("precision", precision, PRECISIONS)
        distribution = check_distribution(distribution, accumulate)
        if loss is None:
            loss = [] if self._writes_steps() else "sparse_categorical_crossentropy"
        objective = Objective.of(loss, metrics, loss_weights, self.output_names)
        written = None
        if self._writes_steps() or not objective.losses:
            written = WrittenStep(self, self._training.step, self._training.adopt)
        self._training.compile(
            precision, distribution, written, objective=objective, optimizer=get_optimizer(optimizer),
            trainable=self._trainable_now(), warned=False,
        )  # fmt: skip
        if self._training.step.graph is not None and objective.losses:
            objective.check_outputs(self._graph.outputs)

    def fit(
        self,
        x: Any,
        y: Any = None,
        batch_size: int = 32,
        epochs: int = 1,
        verbose: str | int = "auto",
        callbacks: Callback | Sequence[Callback] | None = None,
        validation_split: float = 0.0,
        validation_data: Any = None,
        shuffle: bool = True,
        class_weight: Mapping[int, float] | None = None,
        sample_weight: Any = None,
        initial_epoch: int = 0,
        steps_per_epoch: int | None = None,
        validation_steps: int | None = None,
        validation_batch_size: int | None = None,
        validation_freq: int | Collection[int] = 1,
        *,
        last_batch: LastBatch = "keep",
        seed: int | None = None,
    ) -> History:
        """Train.

        Args:
            x: Inputs, shape (N, ...), of any array library; a list for several inputs; or a loader, an iterable of
                (x, y) or (x, y, sample_weight) batches with a length, such as a list of tuples or a
                `minicnn.utils.PyDataset`; or a generator of such batches, with `steps_per_epoch`.
            y: Labels; None with a loader.
            batch_size: Samples in a step; a loader has its own.
            epochs: Number of the last epoch, counted from 1.
            verbose: 0 is silent, 1 shows progress bars, 2 one line an epoch; "auto" is 1 on a terminal, else 2.
            callbacks: A callback, or several.
            validation_split: Share of the samples, the last ones, that are kept for validation.
            validation_data: (x, y), (x, y, sample_weight) or a loader to evaluate after each epoch.
            shuffle: Whether the order changes from epoch to epoch: that of samples, of a PyDataset that of batches.
            class_weight: Weight of each class number in the loss of the training; 1 for those not named.
            sample_weight: Weight of each sample in the loss, shape (N,), or of each of its predictions, (N, ...).
            initial_epoch: Epochs already done.
            steps_per_epoch: Batches of an epoch; None for all of the data. Each epoch goes on where the one before has
                ended; data that are not a generator begin anew at their end.
            validation_steps: Batches to validate on; None for all.
            validation_batch_size: Samples in a step of the validation; those of the training if None.
            validation_freq: Epochs from one validation to the next; or the numbers, counted from 1, of those that end
                with one.
            last_batch: What happens to a last batch that is not full: "keep", "drop", or "pad" by repeating
                samples from the start of the epoch's order.
            seed: Seed of the shuffles; the model's if None.

        Returns:
            The logs of each epoch.

        Raises:
            RuntimeError: If the model is not compiled.
            ValueError: If shapes, lengths, labels or arguments do not fit.
            TypeError: If data do not hold numbers, or are on another device than the model.
        """
        self._training.step.compiled()
        epochs, initial_epoch = check_counts(0, epochs=epochs, initial_epoch=initial_epoch)
        (batch_size,) = check_counts(batch_size=batch_size)
        steps_per_epoch, validation_steps, validation_batch_size = check_optional(
            steps_per_epoch=steps_per_epoch, validation_steps=validation_steps,
            validation_batch_size=validation_batch_size,
        )  # fmt: skip
        validation_freq = plain(validation_freq)
        validates = validated(validation_freq)
        seed = check_seed(self.seed if seed is None else seed)
        several = [] if callbacks is None else [callbacks] if isinstance(callbacks, Callback) else list(callbacks)
        with self._training.alone(), self._training.together(), self._received(x, y) as (x, y):
            self._note_trainable()
            training = self._training
            if validation_split and (isinstance(x, Batches) or validation_data is not None):
                raise ValueError(
                    "validation_split cuts arrays. Received: a loader, or validation_data as well. Use validation_data."
                )
            if validation_split and y is not None:
                (x, y, sample_weight), validation_data = split_off(
                    x, y, sample_weight, validation_split, *self._counts()
                )
            source = training.source(
                x, y, sample_weight, batch_size, class_weight, last_batch=last_batch, steps=steps_per_epoch,
                several_epochs=True, continues=True,
            )  # fmt: skip
            validation = None
            if validation_data is not None:
                size = batch_size if validation_batch_size is None else validation_batch_size
                inputs, targets, weights = with_labels(validation_data)
                validation = training.source(
                    *self._placed(inputs, targets), weights, size, steps=validation_steps, several_epochs=True
                )
            history = History()
            params: dict[str, Any] = {
                "epochs": epochs, "steps": len(source), "verbose": verbose, "shuffle": shuffle,
                "batch_size": None if isinstance(x, Batches) else batch_size, "last_batch": last_batch,
                "seed": seed,
            }  # fmt: skip
            about = {
                "validation_freq": repr(validation_freq),
                "validation steps": None if validation is None else _length(validation),
                "class_weight": repr(class_weight),
                "sample_weight": "none" if sample_weight is None else "given",
            }  # fmt: skip
            display = progress(verbose if training.chief else 0)
            with Callbacks([*several, history, *display], self, params) as everyone:
                training.fit(
                    source, validation, validates, everyone, shuffle, seed, range(initial_epoch, epochs), about
                )
        return history

    def _counts(self) -> tuple[int, int]:
        """Numbers of input and output arrays."""
        return (1, 1) if self._training.step.graph is None else (len(self.inputs), len(self.outputs))

    def train_on_batch(
        self, x: Any, y: Any = None, sample_weight: Any = None, class_weight: Mapping[int, float] | None = None, *,
        return_dict: bool = False,
    ) -> Any:  # fmt: skip
        """One training step; returns loss and metrics of this batch before the step, as `evaluate` gives them."""
        training = self._training
        training.step.compiled()
        self._note_trainable()
        with training.together(), self._received(x, y) as (x, y):
            run = training.standardizer(class_weight).batch(x, y, sample_weight)
            return as_asked(training.logs(training.train(run, Totals())), return_dict)

    @overload
    def evaluate(
        self, x: Any, y: Any = None, batch_size: int = 32, verbose: str | int = 0, sample_weight: Any = None,
        steps: int | None = None, *, return_dict: Literal[True], callbacks: Sequence[Callback] = (),
    ) -> dict[str, Any]: ...  # fmt: skip
    @overload
    def evaluate(
        self, x: Any, y: Any = None, batch_size: int = 32, verbose: str | int = 0, sample_weight: Any = None,
        steps: int | None = None, *, return_dict: bool = False, callbacks: Sequence[Callback] = (),
    ) -> Any: ...  # fmt: skip
    def evaluate(
        self, x: Any, y: Any = None, batch_size: int = 32, verbose: str | int = 0, sample_weight: Any = None,
        steps: int | None = None, *, return_dict: bool = False, callbacks: Sequence[Callback] = (),
    ) -> Any:  # fmt: skip
        """Loss and metrics on given data.

        Args:
            x: Inputs or a loader, as in `fit`; a loader needs no length.
            y: Labels; None with a loader.
            batch_size: Samples in a step.
            verbose: 0 is silent; 1, 2 and "auto" print the result.
            sample_weight: Weight of each sample.
            steps: Batches to take; None for all.
            return_dict: Whether the result is a dictionary by name, such as {"loss": 0.3, "accuracy": 0.9}.
            callbacks: Callbacks, whose methods that begin with `on_test` are called.

        Returns:
            As in Keras: the loss, or a list [loss, metric, ...] if there are metrics, in the order in which `fit`
            logs them, or the dictionary.
        """
        progress(verbose)  # which refuses what is none
        (steps,) = check_optional(steps=steps)
        (batch_size,) = check_counts(batch_size=batch_size)
        training = self._training
        training.step.compiled()
        with training.together(), self._received(x, y) as (x, y):
            source = training.source(x, y, sample_weight, batch_size, steps=steps)
            with Callbacks(callbacks, self, {"steps": _length(source), "verbose": verbose}) as everyone:
                logs = training.evaluate(source, everyone)
        if verbose and training.chief:
            print(" - ".join(f"{k}: {v:.4f}" for k, v in logs.items() if isinstance(v, float)))
        return as_asked(logs, return_dict)

    def test_on_batch(self, x: Any, y: Any = None, sample_weight: Any = None, *, return_dict: bool = False) -> Any:
        """Loss and metrics on one batch, as `evaluate` gives them."""
        training = self._training
        training.step.compiled()
        with training.together(), self._received(x, y) as (x, y):
            run = training.standardizer().batch(x, y, sample_weight)
            return as_asked(training.logs(training.executor.evaluate(run, Totals())), return_dict)

    def predict(
        self, x: Any, batch_size: int = 32, verbose: str | int = 0, steps: int | None = None, *,
        callbacks: Sequence[Callback] = (),
    ) -> Any:  # fmt: skip
        """Outputs for given inputs, batch by batch.

        Args:
            x: Inputs, or a loader: an iterable of inputs, or of tuples (x, y) of which y is not used. It keeps the
                order of the data: one that is known to shuffle is refused.
            batch_size: Samples in a step; a loader has its own.
            verbose: 0 is silent; 1, 2 and "auto" print a line when it is done.
            steps: Batches to take; None for all.
            callbacks: Callbacks, whose methods that begin with `on_predict` are called.

        Returns:
            Array of the kind that x is, NumPy for lists; a list of them for several outputs.
        """
        # A network of few samples computes for less time than it takes to check what it is given.
        if not verbose and not callbacks and steps is None and self._training.written is None:
            outputs = predict_alike(self._training, x, batch_size)
            if outputs is not None:
                return outputs[0] if self._graph.one_output else outputs
        progress(verbose)  # which refuses what is none
        (batch_size,), (steps,) = check_counts(batch_size=batch_size), check_optional(steps=steps)
        start = time.perf_counter()
        with self._received(x) as (x, _), Callbacks(callbacks, self, {"batch_size": batch_size}) as everyone:
            outputs = predict(self._training, x, batch_size, steps, everyone)
        if verbose and self._training.chief:
            print(f"{len(outputs[0])} samples predicted - {time.perf_counter() - start:.1f} s")
        return outputs[0] if self._graph.one_output else outputs

    def predict_on_batch(self, x: Any) -> Any:
        """Outputs for given inputs in one step, as `predict` gives them."""
        return self(x)

    def export(
        self, path: Path, kind: Literal["predict", "evaluate", "train", "state"] = "predict", *,
        hold_weights: bool = True,
    ) -> None:  # fmt: skip
        """Write a step as an ONNX file of standard operators, for any batch size, in float32.

        What a step carries to the next one, such as the weights, comes in by its name, and goes out as "next/NAME";
        outputs that begin with "metric/" are the totals of metrics over the batch. Before the file is written, ONNX
        Runtime computes one step with it, and the results are those of NumPy.

        Args:
            path: File to write, usually with the ending ".onnx".
            kind: "predict"; "evaluate", loss and metrics; "train", a whole training step with the backward pass and
                the update; or "state", which takes nothing and gives what the first training step takes.
            hold_weights: Whether the file holds the weights; else they are inputs. Those of "train" are always.

        Raises:
            ValueError: If primitives have no form in ONNX, of which all are named, the precision is not float32, or
                there are more than 2 GB of weights.
            RuntimeError: If the model is not compiled, where the kind takes it, or the file does not agree with NumPy.
            OSError: If the file cannot be written; names the path and a remedy.
            ImportError: If onnx or onnxruntime is missing.
        """
        from minicnn.interop.onnx.exporting import export

        export(self, path, kind, hold_weights=hold_weights)

    def _repr_html_(self) -> str:
        return page(self)

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


def _length(source: BatchSource) -> int | None:
    """Batches of a source; None for a loader that does not know it."""
    try:
        return len(source)
    except TypeError:
        return None
