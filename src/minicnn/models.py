"""Model and Sequential: compile, fit, evaluate, predict, and what one may want to know about a network."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from minicnn.backends import infer_backend
from minicnn.backends.base import Array, Backend
from minicnn.callbacks import Callback, Callbacks, History, progress
from minicnn.engine import Engine, Totals
from minicnn.feeding import (
    ArraySource,
    LoaderSource,
    Source,
    Standardizer,
    as_list,
    host,
    is_loader,
    split,
    weigh_classes,
)
from minicnn.initializers import generator
from minicnn.layers.graph import Graph, Input, SymbolicTensor
from minicnn.layers.layer import Layer, Shape, Weight
from minicnn.losses import BinaryCrossentropy, Loss, get_loss
from minicnn.metrics import Accuracy, Metric, get_metric
from minicnn.optimizers import Optimizer, get_optimizer
from minicnn.program.graph import Program, Spec
from minicnn.steps import PRECISIONS, Feed, Objective, StepKind, trace_step
from minicnn.summary import Explanation, summary

LastBatch = Literal["keep", "drop", "pad"]


class Model(Graph):
    """A network between symbolic inputs and outputs, with weights, that can be trained.

    Args:
        inputs: `Input(...)`, or a list of them.
        outputs: What layers made of them, or a list.
        backend: Name such as "numpy" or "torch:cuda", or a Backend. If None: that of the arrays
            given to `fit`, else the environment variable MINICNN_BACKEND, else NumPy.
        seed: Seed of the first weights, the shuffles and random layers.
        name: Name of the model.

    Example:
        >>> from minicnn.layers import Dense, Input
        >>> x = Input((4,))
        >>> model = Model(x, Dense(2)(x))
        >>> model.count_params()
        10
    """

    def __init__(
        self,
        inputs: SymbolicTensor | Sequence[SymbolicTensor],
        outputs: SymbolicTensor | Sequence[SymbolicTensor],
        *,
        backend: str | Backend | None = None,
        seed: int = 0,
        name: str | None = None,
    ) -> None:
        self._set_up(backend, seed)
        self._connect(inputs, outputs, name)

    def _set_up(self, backend: str | Backend | None, seed: int) -> None:
        self.seed = seed
        self.stop_training = False
        self.optimizer: Optimizer | None = None
        self.precision = "float32"
        self._objective: Objective | None = None
        self._engine = Engine(lambda kind, feed: self._program_of(kind, feed)[0], backend)
        self._weights: dict[str, Weight] = {}
        self._paths: dict[Weight, str] = {}
        self._position = (0, 0)  # epoch and batch that come next
        self._totals: Totals = {}  # of the epoch that is under way

    def _connect(self, inputs: Any, outputs: Any, name: str | None) -> None:
        super().__init__(inputs, outputs, name=name)
        _, self._weights = self._program_of("predict", self._feed(1))
        self._engine.set(
            {p: w.initializer(w.shape, generator(self.seed, p)) for p, w in self._weights.items()}
        )

    # Backend and weights ------------------------------------------------------------------------

    @property
    def backend(self) -> Backend:
        """The backend; decided when first needed."""
        return self._engine.backend

    @property
    def input_shape(self) -> Shape | list[Shape]:
        """Shape of the input, its batch axis None; a list for several."""
        shapes = [t.shape for t in self._inputs]
        return shapes[0] if self._one_input else shapes

    @property
    def output_shape(self) -> Shape | list[Shape]:
        """Shape of the output, its batch axis None; a list for several."""
        shapes = [t.shape for t in self._outputs]
        return shapes[0] if self._one_output else shapes

    def count_params(self, *, trainable: bool | None = None) -> int:
        """Number of weights: all, or those that are (not) trainable."""
        return sum(math.prod(w.shape) for w in self._weights.values() if trainable in (None, w.trainable))

    def get_weights(self) -> dict[str, np.ndarray[Any, Any]]:
        """Copies of all weights by path, such as "conv2d/kernel"."""
        return {path: self._engine.get(path) for path in self._weights}

    def set_weights(self, weights: Mapping[str, Any]) -> None:
        """Replace weights by path; those not named stay.

        Raises:
            ValueError: If a path is unknown or a shape differs; then nothing is changed.
        """
        new = {path: host(array) for path, array in weights.items()}
        for path, array in new.items():
            if path not in self._weights or array.shape != self._weights[path].shape:
                expected = {p: w.shape for p, w in self._weights.items()}.get(path, "no weight of that name")
                message = (
                    f"set_weights takes arrays by weight path, each of its weight's shape. Received: {path!r} with shape "
                    f"{array.shape}; the model has {expected}. Paths: {', '.join(self._weights)}."
                )
                raise ValueError(message)
        self._engine.set(new)

    def _prepare(self, *data: Any) -> None:
        """Decide on the backend from the data, unless it is decided; build a model that waits for its input."""
        if not self._engine.decided:
            arrays = [a for d in data if d is not None and not is_loader(d) for a in as_list(d)]
            found = infer_backend(arrays)
            if found is not None:
                self._engine.backend = found

    # Programs -----------------------------------------------------------------------------------

    def _feed(self, batch: int) -> Feed:
        x = tuple(Spec((batch, *(n for n in t.shape[1:] if n is not None)), t.dtype) for t in self._inputs)
        y: tuple[Spec, ...] = ()
        if self._objective is not None:
            y = tuple(
                Spec((batch, *(n for n in t.shape[1:-1] if n)), "int32") if loss.integer_labels
                else Spec((batch, *(n for n in t.shape[1:] if n)), self._engine.dtype)
                for t, loss in zip(self._outputs, self._objective.losses, strict=True)
            )  # fmt: skip
        return Feed(batch, x, y)

    def _program_of(self, kind: StepKind, feed: Feed) -> tuple[Program, dict[str, Weight]]:
        return trace_step(
            kind, self, feed, paths=self._paths, seed=self.seed, precision=PRECISIONS[self.precision],
            objective=None if kind == "predict" else self._compiled(), optimizer=self.optimizer,
        )  # fmt: skip

    def program(self, kind: StepKind | None = None, *, batch_size: int = 32) -> Program:
        """The Program of one step.

        Args:
            kind: "train", "evaluate" or "predict"; "train" if None and the model is compiled.
            batch_size: Samples in the step.
        """
        if kind is None:
            kind = "predict" if self._objective is None else "train"
        return self._program_of(kind, self._feed(batch_size))[0]

    def explain(self, kind: StepKind | None = None, *, batch_size: int = 32) -> Explanation:
        """Which kernel of the backend runs each node, or why its reference does."""
        return Explanation(self.backend.explain(self.program(kind, batch_size=batch_size)))

    def summary(self, print_fn: Callable[[str], Any] | None = print, *, batch_size: int = 1) -> str:
        """Table of the layers: output shape, weights, FLOPs of the forward pass for a batch.

        Args:
            print_fn: Takes the text; None only returns it.
            batch_size: Samples that the FLOPs are for.
        """
        text = summary(self, batch_size)
        if print_fn is not None:
            print_fn(text)
        return text

    @property
    def _output_count(self) -> int:
        return len(self._outputs)

    def _compiled(self) -> Objective:
        if self._objective is None:
            message = "A model is trained or evaluated after compile(). Received: a model that is not compiled. Call it first."
            raise RuntimeError(message)
        return self._objective

    # Training -----------------------------------------------------------------------------------

    def compile(
        self,
        optimizer: str | Optimizer = "sgd",
        loss: str | Loss | Sequence[str | Loss] = "sparse_categorical_crossentropy",
        metrics: Sequence[Any] = (),
        *,
        loss_weights: Sequence[float] | None = None,
        precision: str = "float32",
    ) -> None:
        """Say what to train for and how.

        Args:
            optimizer: Name or Optimizer.
            loss: Name or Loss, or a list with one for each output.
            metrics: Names or Metrics; for several outputs a list of such lists, one an output.
            loss_weights: Weight of each output's loss in the sum.
            precision: "float32", "float64", or "mixed_bfloat16" (products in bfloat16, all else in float32).
        """
        if precision not in PRECISIONS:
            message = f"precision is one of {', '.join(PRECISIONS)}. Received: {precision!r}."
            raise ValueError(message)
        count = self._output_count
        losses = [get_loss(v) for v in loss] if isinstance(loss, list | tuple) else [get_loss(loss)] * count  # type: ignore[arg-type]
        per_output = (
            list(metrics)
            if count > 1 and any(isinstance(m, list | tuple) for m in metrics)
            else [metrics] * count
        )
        weights = [1.0] * count if loss_weights is None else [float(w) for w in loss_weights]
        if not len(losses) == len(per_output) == len(weights) == count:
            message = (
                f"loss, metrics and loss_weights have one entry for each of the {count} outputs. Received: {len(losses)} "
                f"losses, metrics for {len(per_output)}, {len(weights)} weights."
            )
            raise ValueError(message)
        names = [""] if count == 1 else [f"output{i}_" for i in range(count)]
        chosen = [[_metric(m, own) for m in given] for given, own in zip(per_output, losses, strict=True)]
        self.optimizer = get_optimizer(optimizer)
        self._objective = Objective(losses, weights, chosen, names)
        self.precision = precision
        self._engine.reset(PRECISIONS[precision].dtype, self._weights)
        self._position = (0, 0)

    def fit(
        self,
        x: Any,
        y: Any = None,
        batch_size: int = 32,
        epochs: int = 1,
        verbose: str | int = "auto",
        callbacks: Sequence[Callback] = (),
        validation_split: float = 0.0,
        validation_data: Any = None,
        shuffle: bool = True,
        class_weight: Mapping[int, float] | None = None,
        sample_weight: Any = None,
        initial_epoch: int = 0,
        *,
        last_batch: LastBatch = "keep",
        seed: int | None = None,
    ) -> History:
        """Train.

        Args:
            x: Inputs, shape (N, ...), of any array library; a list for several inputs; or a loader, an
                iterable of (x, y) or (x, y, sample_weight) batches with a length.
            y: Labels; None with a loader.
            batch_size: Samples in a step; a loader has its own.
            epochs: Number of the last epoch, counted from 1.
            verbose: 0 is silent, 1 shows progress bars, 2 one line an epoch; "auto" is 1 on a terminal, else 2.
            callbacks: Callbacks.
            validation_split: Share of the samples, the last ones, that are kept for validation.
            validation_data: (x, y), (x, y, sample_weight) or a loader to evaluate after each epoch.
            shuffle: Whether the order changes from epoch to epoch.
            class_weight: Weight of each class number in the loss.
            sample_weight: Weight of each sample in the loss, shape (N,).
            initial_epoch: Epochs already done.
            last_batch: What happens to a last batch that is not full: "keep", "drop", or "pad" by repeating
                samples from the start of the epoch's order.
            seed: Seed of the shuffles; the model's if None.

        Returns:
            The logs of each epoch.
        """
        self._compiled()
        _check_fit(batch_size, epochs, last_batch)
        self._prepare(x, y)
        if not is_loader(x):
            if class_weight is not None:
                sample_weight = weigh_classes(y, class_weight, sample_weight)
            if validation_split:
                x, y, sample_weight, validation_data = _split_off(x, y, sample_weight, validation_split)
        source = self._source(x, y, sample_weight, batch_size, last_batch)
        validation = None if validation_data is None else self._validation(validation_data, batch_size)
        if not len(source):
            message = f"An epoch has at least one batch. Received: no full batch of {batch_size}. Use last_batch='keep'."
            raise ValueError(message)
        history = History()
        everyone = Callbacks(
            [history, *progress(verbose), *callbacks],
            self,
            {"epochs": epochs, "steps": len(source), "verbose": verbose},
        )
        self.stop_training = False
        self._position = (initial_epoch, 0)
        everyone("on_train_begin")
        while self._position[0] < epochs and not self.stop_training:
            self._train_epoch(source, validation, everyone, shuffle, self.seed if seed is None else seed)
        everyone("on_train_end")
        return history

    def _train_epoch(
        self, source: Source, validation: Source | None, callbacks: Callbacks, shuffle: bool, seed: int
    ) -> None:
        epoch, first = self._position
        callbacks("on_epoch_begin", epoch)
        if not first:
            self._totals = {}
        batches = source.epoch(shuffle=shuffle, seed=seed, epoch=epoch, skip=first)
        for batch, (feed, arrays) in enumerate(batches, start=first):
            callbacks("on_train_batch_begin", batch)
            self._totals = self._train_step(feed, arrays, self._totals)
            self._position = (epoch, batch + 1)
            callbacks("on_train_batch_end", batch, _LazyLogs(self, self._totals))
            if self.stop_training:
                break
        logs = self._logs(self._totals)
        if validation is not None:
            logs |= {f"val_{k}": v for k, v in self._evaluate(validation).items()}
        self._position = (epoch + 1, 0)
        callbacks("on_epoch_end", epoch, logs)

    def _train_step(self, feed: Feed, arrays: dict[str, Array], totals: Totals) -> Totals:
        if self.optimizer is None:
            return totals
        return self._engine.train(feed, arrays, totals, self.optimizer.rate(self._engine.steps_taken))

    def train_on_batch(self, x: Any, y: Any, sample_weight: Any = None) -> dict[str, Any]:
        """One training step; returns the logs of this batch."""
        self._compiled()
        self._prepare(x, y)
        feed, arrays = self._standardizer().batch(x, y, sample_weight)
        return self._logs(self._train_step(feed, arrays, {}))

    def evaluate(
        self, x: Any, y: Any = None, batch_size: int = 32, sample_weight: Any = None, *, verbose: int = 0
    ) -> dict[str, Any]:
        """Loss and metrics on given data.

        Args:
            x: Inputs or a loader, as in `fit`.
            y: Labels; None with a loader.
            batch_size: Samples in a step.
            sample_weight: Weight of each sample.
            verbose: 1 prints the result.
        """
        self._compiled()
        self._prepare(x, y)
        logs = self._evaluate(self._source(x, y, sample_weight, batch_size, "keep"))
        if verbose:
            print(" - ".join(f"{k}: {v:.4f}" for k, v in logs.items() if isinstance(v, float)))
        return logs

    def _evaluate(self, source: Source) -> dict[str, Any]:
        totals: Totals = {}
        for feed, arrays in source.epoch(shuffle=False, seed=0, epoch=0):
            totals = self._engine.evaluate(feed, arrays, totals)
        return self._logs(totals)

    def predict(self, x: Any, batch_size: int = 32) -> Any:
        """Outputs for given inputs, batch by batch.

        Args:
            x: Inputs, or a loader of inputs.
            batch_size: Samples in a step.

        Returns:
            Arrays of the kind that x is: NumPy for host arrays, the backend's own for its own.
        """
        self._prepare(x)
        parts: list[list[Array]] = [[] for _ in self._outputs]
        backend, native = self.backend, False
        for batch in x if is_loader(x) else _slices(as_list(x), batch_size):
            native = backend.owns(as_list(batch)[0])
            feed, arrays = self._standardizer(labels=False).batch(batch)
            for part, made in zip(parts, self._engine.predict(feed, arrays), strict=True):
                part.append(made if native else backend.to_numpy(made))
        xp = backend.xp if native else np
        joined = [p[0] if len(p) == 1 else xp.concat(p, axis=0) for p in parts]
        return joined[0] if self._one_output else joined

    # Data and logs ------------------------------------------------------------------------------

    def _standardizer(self, *, labels: bool = True) -> Standardizer:
        return Standardizer(
            self.backend, self._engine.dtype, [tuple(n for n in t.shape[1:] if n is not None) for t in self._inputs],
            self._compiled().losses if labels else [], [int(t.shape[-1] or 0) for t in self._outputs],
        )  # fmt: skip

    def _source(self, x: Any, y: Any, weight: Any, batch_size: int, last_batch: LastBatch) -> Source:
        if is_loader(x):
            return LoaderSource(self._standardizer(), x)
        if y is None:
            message = "Arrays come with labels: pass y as well, or a loader of (x, y). Received: y=None."
            raise ValueError(message)
        return ArraySource(self._standardizer(), x, y, weight, batch_size=batch_size, last_batch=last_batch)

    def _validation(self, data: Any, batch_size: int) -> Source:
        if is_loader(data):
            return self._source(data, None, None, batch_size, "keep")
        if not isinstance(data, tuple | list) or len(data) not in (2, 3):
            message = f"validation_data is (x, y), (x, y, sample_weight) or a loader. Received: {type(data).__name__}."
            raise ValueError(message)
        return self._source(data[0], data[1], data[2] if len(data) == 3 else None, batch_size, "keep")

    def _logs(self, totals: Mapping[str, Array]) -> dict[str, Any]:
        """Metric values from their totals; waits for the device."""
        sums: dict[str, dict[str, np.ndarray[Any, Any]]] = {}
        for name, value in totals.items():
            _, metric, key = name.split("/")
            sums.setdefault(metric, {})[key] = self.backend.to_numpy(value)
        objective = self._compiled()
        known = {
            f"{p}{m.name}": m for p, ms in zip(objective.names, objective.metrics, strict=True) for m in ms
        }
        logs: dict[str, Any] = {}
        for name in sorted(sums, key=lambda n: n != "loss"):
            logs[name] = (
                known[name].result(sums[name]) if name in known
                else float(sums[name]["total"]) / float(sums[name]["count"])
            )  # fmt: skip
        return logs

    def save(self, path: str) -> None:
        """Write architecture, weights and optimizer state to one safetensors file; see `minicnn.saving`."""
        from minicnn.saving import save_model

        save_model(self, path)

    @classmethod
    def load(
        cls,
        path: str,
        *,
        backend: str | Backend | None = None,
        custom_objects: Mapping[str, Any] | None = None,
    ) -> Model:
        """Read a model that `save` wrote; see `minicnn.saving`."""
        from minicnn.saving import load_model

        return load_model(path, backend=backend, custom_objects=custom_objects)


class Sequential(Model):
    """Layers one after the other.

    Args:
        layers: Layers; the first may be `Input(...)`. Without it the model is built from the first data
            it sees.
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
        self._set_up(backend, seed)
        Layer.__init__(self, name=name)
        self._stack = list(layers)
        for layer in self._stack[1:]:
            if not isinstance(layer, Layer):
                message = (
                    "Sequential takes layers, of which the first may be Input(...). "
                    f"Received: {type(layer).__name__} after the first."
                )
                raise TypeError(message)
        if self._stack and isinstance(self._stack[0], SymbolicTensor):
            self._chain(self._stack.pop(0))

    _output_count = 1

    def _chain(self, start: Any) -> None:
        end = start
        for layer in self._stack:
            end = layer(end)
        self._connect(start, end, self.name)
        self.built = True

    def build(self, input_shape: Any) -> None:
        """Build for a shape whose first axis is the batch, such as (None, 28, 28, 1)."""
        if not self.built:
            self._chain(Input(tuple(input_shape)[1:]))

    def _prepare(self, *data: Any) -> None:
        if not self.built:
            first = data[0]
            if is_loader(first):
                message = (
                    "A Sequential without Input is built from the first arrays it sees. Received: a loader. "
                    "Begin the layers with Input(shape), or call build((None, *shape))."
                )
                raise ValueError(message)
            first = as_list(first)[0]
            self.build(first.shape if hasattr(first, "shape") else np.shape(first))
        super()._prepare(*data)

    def __getattr__(self, name: str) -> Any:
        # Reached only for what __init__ has not set: the graph of a model that is not built yet.
        if name in ("_inputs", "_outputs", "_calls", "_layer_names", "_one_input", "_one_output"):
            message = (
                "A Sequential knows its shapes once it is built. Received: a model without Input that has seen no data. "
                "Begin the layers with Input(shape), or call build((None, *shape))."
            )
            raise RuntimeError(message)
        raise AttributeError(name)


class _LazyLogs(Mapping[str, Any]):
    """Logs that are read from the device when first looked at."""

    def __init__(self, model: Model, totals: Mapping[str, Array]) -> None:
        self._model, self._totals = model, totals
        self._values: dict[str, Any] | None = None

    def _read(self) -> dict[str, Any]:
        if self._values is None:
            self._values = self._model._logs(self._totals)
        return self._values

    def __getitem__(self, key: str) -> Any:
        return self._read()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())


def _metric(given: str | Metric, loss: Loss) -> Metric:
    """A metric by name; the accuracy of a single logit has its threshold at 0."""
    if given in ("accuracy", "acc") and isinstance(loss, BinaryCrossentropy) and loss.from_logits:
        return Accuracy(threshold=0.0)
    return get_metric(given)


def _slices(arrays: list[Any], batch_size: int) -> Iterator[list[Any]]:
    arrays = [a if hasattr(a, "shape") else np.asarray(a) for a in arrays]
    for start in range(0, arrays[0].shape[0], batch_size):
        yield [a[start : start + batch_size, ...] for a in arrays]


def _check_fit(batch_size: int, epochs: int, last_batch: str) -> None:
    if batch_size < 1 or epochs < 0:
        message = f"batch_size is at least 1 and epochs at least 0. Received: batch_size={batch_size}, epochs={epochs}."
        raise ValueError(message)
    if last_batch not in ("keep", "drop", "pad"):
        message = f"last_batch is 'keep', 'drop' or 'pad'. Received: {last_batch!r}."
        raise ValueError(message)


def _split_off(x: Any, y: Any, weight: Any, fraction: float) -> tuple[Any, Any, Any, Any]:
    """Training data and validation data, cut from the end."""
    xs, ys = as_list(x), as_list(y)
    arrays = [a if a is None or hasattr(a, "shape") else np.asarray(a) for a in (*xs, *ys, weight)]
    first, last = split(arrays, fraction)

    def parts(flat: list[Any]) -> tuple[Any, Any, Any]:
        a, b = flat[: len(xs)], flat[len(xs) : -1]
        return (a if len(a) > 1 else a[0]), (b if len(b) > 1 else b[0]), flat[-1]

    return (*parts(first), tuple(v for v in parts(last) if v is not None))
