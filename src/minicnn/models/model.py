"""Model: a network that can be trained, evaluated and asked for predictions."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import array_api_compat
import numpy as np

from minicnn.backends import get_backend, infer_backend, refuse_after_fork
from minicnn.backends.base import Array, Backend
from minicnn.callbacks import Callback, Callbacks, History, progress
from minicnn.description import check_model_state
from minicnn.loop.adapters import Batches, Standardizer, as_data, by_place, samples_of
from minicnn.loop.batches import ArraySource, LoaderSource, Source, prediction_runs, split_off
from minicnn.loop.executor import Totals
from minicnn.loop.objective import LazyLogs, Objective
from minicnn.loop.prefetch import Run
from minicnn.loop.tracing import PRECISIONS
from minicnn.models.network import Network, check_counts, check_seed
from minicnn.optimizers import Optimizer, get_optimizer
from minicnn.schedules import Schedule

LastBatch = Literal["keep", "drop", "pad"]
Path = str | os.PathLike[str]


class Model(Network):
    """A network between symbolic inputs and outputs, with weights, that can be trained.

    Args:
        inputs: `Input(...)`, or a list of them.
        outputs: What layers made of them, or a list.
        backend: Name such as "numpy" or "torch:cuda", or a Backend. If None: that of the arrays
            given to `fit`, else the environment variable MINICNN_BACKEND, else NumPy.
        seed: Seed of the first weights, the shuffles and random layers, from 0 to 2**64 - 1.
        name: Name of the model.

    Attributes:
        optimizer: The optimizer; None before `compile`.
        precision: Precision policy: see `compile`.
        stop_training: Set it, usually in a callback, to end `fit` after the step that is under way.
        samples_seen: Samples of the epoch that is under way.

    Raises:
        ValueError: If the seed or the backend is unknown, or the layers do not connect inputs and outputs.

    Example:
        >>> from minicnn.layers import Dense, Input
        >>> x = Input((4,))
        >>> model = Model(x, Dense(2)(x))
        >>> model.count_params()
        10
    """

    def _set_up(self, backend: str | Backend | None, seed: int) -> None:
        super()._set_up(backend, seed)
        self.stop_training = False
        self.samples_seen = 0  # in the epoch that is under way
        self._position = (0, 0)  # epoch and batch that come next
        self._totals: Totals = {}  # of that epoch
        self._no_one_else()

    def _no_one_else(self) -> None:
        """What neither a new model nor a copy has: a training under way, and logs that may still be read."""
        self._fitting = threading.Lock()
        self._open_logs: Callable[[], LazyLogs | None] = _none

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        totals = {name: np.array(self.backend.to_numpy(total)) for name, total in self._totals.items()}
        return {k: v for k, v in state.items() if k not in ("_fitting", "_open_logs")} | {"_totals": totals}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._totals = {name: self.backend.asarray(total) for name, total in self._totals.items()}
        self._no_one_else()

    @property
    def steps_taken(self) -> int:
        """Training steps so far."""
        return self._engine.steps_taken

    def _prepare(self, *data: Any) -> None:
        """Choose the backend by the data, unless it is chosen; build a model whose input shape is not known yet."""
        if not self._engine.decided:
            arrays = [a for d in data if d is not None for a in samples_of(d)]
            backend = infer_backend(arrays) or get_backend(None)
            _check_precision(self.precision, backend)
            self._engine.backend = backend
        refuse_after_fork(self.backend)

    # Training -----------------------------------------------------------------------------------

    def compile(
        self,
        optimizer: str | Optimizer = "sgd",
        loss: Any = "sparse_categorical_crossentropy",
        metrics: Any = (),
        *,
        loss_weights: Sequence[float] | Mapping[str, float] | None = None,
        precision: str = "float32",
    ) -> None:
        """Say what to train for and how.

        Args:
            optimizer: Name or Optimizer.
            loss: Name, Loss or function of (y_true, y_pred); or a list, or a dictionary by `output_names`, of these.
            metrics: Names, Metrics or functions; for several outputs perhaps a list, or a dictionary by name, of such
                lists. A loss stands for its mean. Sample weights weigh metrics too: Keras calls these weighted
                metrics.
            loss_weights: Weight of each output's loss in the sum, as a list or a dictionary.
            precision: "float32", "float64", or "mixed_bfloat16" and "mixed_float16": products of shorter operands,
                images stored in 16 bits, weights, optimizer and sums in float32. In float16 the loss is scaled, and
                the log "skipped_steps" counts the steps whose gradients were not finite, which change no weight.

        Raises:
            ValueError: If a name is unknown, a number of entries is wrong, or the backend lacks the precision. The
                model stays as it was.
        """
        if precision not in PRECISIONS:
            message = f"precision is one of {', '.join(PRECISIONS)}. Received: {precision!r}."
            raise ValueError(message)
        if self._engine.decided:
            _check_precision(precision, self.backend)
        objective = Objective.of(loss, metrics, loss_weights, self.output_names)
        self.optimizer, self._objective = get_optimizer(optimizer), objective
        self.precision = precision
        self._engine.reset(PRECISIONS[precision].dtype, self._weights if self.built else {})
        self._noted.clear()
        self._note_trainable()
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
                iterable of (x, y) or (x, y, sample_weight) batches with a length, such as a list of tuples.
            y: Labels; None with a loader.
            batch_size: Samples in a step; a loader has its own.
            epochs: Number of the last epoch, counted from 1.
            verbose: 0 is silent, 1 shows progress bars, 2 one line an epoch; "auto" is 1 on a terminal, else 2.
            callbacks: Callbacks.
            validation_split: Share of the samples, the last ones, that are kept for validation.
            validation_data: (x, y), (x, y, sample_weight) or a loader to evaluate after each epoch.
            shuffle: Whether the order changes from epoch to epoch.
            class_weight: Weight of each class number in the loss of the training; 1 for those not named.
            sample_weight: Weight of each sample in the loss, shape (N,).
            initial_epoch: Epochs already done.
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
        self._compiled()
        check_counts(batch_size=batch_size)
        check_counts(0, epochs=epochs, initial_epoch=initial_epoch)
        seed = self.seed if seed is None else seed
        check_seed(seed)
        if not self._fitting.acquire(blocking=False):
            message = (
                "A model is in one fit at a time. Received: fit of a model in training, from another thread or a "
                "callback. Wait until it has ended, or train a copy.deepcopy of the model."
            )
            raise RuntimeError(message)
        try:
            return self._fit(
                x, y, batch_size, epochs, verbose, callbacks, validation_split, validation_data, shuffle, class_weight,
                sample_weight, initial_epoch, last_batch, seed,
            )  # fmt: skip
        finally:
            self._fitting.release()

    def _fit(
        self, x: Any, y: Any, batch_size: int, epochs: int, verbose: str | int, callbacks: Sequence[Callback],
        validation_split: float, validation_data: Any, shuffle: bool, class_weight: Mapping[int, float] | None,
        sample_weight: Any, initial_epoch: int, last_batch: LastBatch, seed: int,
    ) -> History:  # fmt: skip
        self._check_trainable()
        x, y = self._ordered(x, y)
        if validation_split and (isinstance(x, Batches) or validation_data is not None):
            message = (
                "validation_split cuts arrays. Received: a loader, or validation_data as well. Use validation_data."
            )
            raise ValueError(message)
        self._prepare(x, y)
        if validation_split and y is not None:
            (x, y, sample_weight), validation_data = split_off(
                x, y, sample_weight, validation_split, len(self._inputs), len(self._outputs)
            )
        source = self._source(x, y, sample_weight, batch_size, last_batch, class_weight)
        validation = None if validation_data is None else self._validation(validation_data, batch_size)
        history = History()
        params: dict[str, Any] = {
            "epochs": epochs, "steps": len(source), "verbose": verbose, "shuffle": shuffle,
            "batch_size": None if isinstance(x, Batches) else batch_size, "last_batch": last_batch,
            "seed": seed,
        }  # fmt: skip
        self.stop_training = False
        self._position = (initial_epoch, 0)
        with Callbacks([*callbacks, history, *progress(verbose)], self, params) as everyone:
            everyone("on_train_begin")
            # Training that was stopped within an epoch and then resumed still has to end that epoch.
            while self._position[0] < epochs and (self._position[1] or not self.stop_training):
                self._train_epoch(source, validation, everyone, shuffle, seed)
            everyone("on_train_end")
        return history

    def _train_epoch(
        self, source: Source, validation: Source | None, callbacks: Callbacks, shuffle: bool, seed: int
    ) -> None:
        epoch, first = self._position
        if not first:
            self._totals, self.samples_seen = {}, 0
        callbacks("on_epoch_begin", epoch)
        at_once = 1 if callbacks.watch_batches else self.backend.steps_at_once
        for run in source.runs(shuffle=shuffle, seed=seed, epoch=epoch, skip=first, longest=at_once):
            if self.stop_training:
                break
            callbacks("on_train_batch_begin", self._position[1])
            self._totals = self._train_run(run, self._totals)
            batch = self._position[1] + run.steps
            self._position = (epoch, batch)
            self.samples_seen += run.feed.batch * run.steps
            logs = LazyLogs(partial(self._logs, self._totals))
            self._open_logs = weakref.ref(logs)
            callbacks("on_train_batch_end", batch - 1, logs)
            del logs
        epoch_logs = self._logs(self._totals)
        if validation is not None:
            found = self._evaluate(validation, callbacks)
            epoch_logs |= {f"val_{k}": v for k, v in found.items()}
        self._position = (epoch + 1, 0)
        callbacks("on_epoch_end", epoch, epoch_logs)

    def _train_run(self, run: Run, totals: Totals) -> Totals:
        """Training steps; returns the metric totals with theirs added."""
        _, optimizer = self._compiled()
        kept = self._open_logs()
        if kept is not None:  # they may be read later, and the step may overwrite the totals
            kept.read()
        taken = self._engine.steps_taken
        rates = [optimizer.rate(taken + k) for k in range(run.steps)]
        return self._engine.train_many(run.feed, run.arrays, totals, run.index, rates)

    def train_on_batch(self, x: Any, y: Any, sample_weight: Any = None) -> dict[str, Any]:
        """One training step; returns the logs of this batch, as they were before the step."""
        objective, _ = self._compiled()
        self._check_trainable()
        x, y = self._ordered(x, y)
        self._prepare(x, y)
        feed, arrays = self._standardizer(objective).batch(x, y, sample_weight)
        return self._logs(self._train_run(Run(feed, arrays), {}))

    def evaluate(
        self, x: Any, y: Any = None, batch_size: int = 32, sample_weight: Any = None, *, verbose: int = 0,
        return_dict: bool = False, callbacks: Sequence[Callback] = (),
    ) -> Any:  # fmt: skip
        """Loss and metrics on given data.

        Args:
            x: Inputs or a loader, as in `fit`.
            y: Labels; None with a loader.
            batch_size: Samples in a step.
            sample_weight: Weight of each sample.
            verbose: 1 prints the result.
            return_dict: Whether the result is a dictionary by name, such as {"loss": 0.3, "accuracy": 0.9}.
            callbacks: Callbacks, whose methods that begin with `on_test` are called.

        Returns:
            As in Keras: the loss, or a list [loss, metric, ...] if there are metrics, in the order in which `fit`
            logs them, or the dictionary.
        """
        self._compiled()
        check_counts(batch_size=batch_size)
        x, y = self._ordered(x, y)
        self._prepare(x, y)
        source = self._source(x, y, sample_weight, batch_size, "keep")
        with Callbacks(callbacks, self, {"steps": len(source), "verbose": verbose}) as everyone:
            logs = self._evaluate(source, everyone)
        if verbose:
            print(" - ".join(f"{k}: {v:.4f}" for k, v in logs.items() if isinstance(v, float)))
        values = list(logs.values())
        return logs if return_dict else values if len(values) > 1 else values[0]

    def _evaluate(self, source: Source, callbacks: Callbacks) -> dict[str, Any]:
        callbacks("on_test_begin")
        totals: Totals = {}
        at_once = 1 if callbacks.watch("test") else self.backend.steps_at_once
        for batch, run in enumerate(source.runs(shuffle=False, seed=0, epoch=0, longest=at_once)):
            callbacks("on_test_batch_begin", batch)
            totals = self._engine.evaluate_many(run.feed, run.arrays, totals, run.index, run.steps)
            if callbacks.watch("test"):  # the next step may overwrite the totals
                callbacks("on_test_batch_end", batch, self._logs(totals))
        logs = self._logs(totals)
        callbacks("on_test_end", logs)
        return logs

    def predict(self, x: Any, batch_size: int = 32, *, callbacks: Sequence[Callback] = ()) -> Any:
        """Outputs for given inputs, batch by batch.

        Args:
            x: Inputs, or a loader: an iterable of inputs, or of tuples (x, y) of which y is not used. It keeps the
                order of the data: one that is known to shuffle is refused.
            batch_size: Samples in a step; a loader has its own.
            callbacks: Callbacks, whose methods that begin with `on_predict` are called.

        Returns:
            Array of the kind that x is, NumPy for lists; a list of them for several outputs.
        """
        check_counts(batch_size=batch_size)
        x, _ = self._ordered(x)
        self._prepare(x)
        standardizer, backend = self._standardizer(), self.backend
        parts: list[list[Array]] = [[] for _ in self._outputs]
        first: Any = None
        with Callbacks(callbacks, self, {"batch_size": batch_size}) as everyone:
            everyone("on_predict_begin")
            for batch, (given, run) in enumerate(prediction_runs(x, standardizer, batch_size)):
                first = given[0] if first is None else first
                everyone("on_predict_batch_begin", batch)
                outputs = self._engine.predict(run.feed, run.arrays, run.index)
                for part, made in zip(parts, outputs, strict=True):
                    part.append(made if backend.owns(first) else backend.to_numpy(made))
                everyone("on_predict_batch_end", batch, {"outputs": [part[-1] for part in parts]})
            everyone("on_predict_end")
        if first is None:
            message = "There is at least one batch to predict. Received: an empty loader."
            raise ValueError(message)
        xp = backend.xp if backend.owns(first) else np
        joined = [xp.concat(part, axis=0) for part in parts]  # new arrays, even of a single part
        if not backend.owns(first) and array_api_compat.is_array_api_obj(first):
            joined = [array_api_compat.array_namespace(first).asarray(array) for array in joined]
        return joined[0] if self._one_output else joined

    # Data and logs ------------------------------------------------------------------------------

    def _ordered(self, x: Any, y: Any = None) -> tuple[Any, Any]:
        """Inputs and labels by place, if they are given by name; loaders as such."""
        if isinstance(x, Mapping):
            x = by_place("inputs", x, [t.name or "" for t in self._inputs])
        return as_data(x), by_place("labels", y, self.output_names) if isinstance(y, Mapping) else y

    def _standardizer(
        self, objective: Objective | None = None, class_weight: Mapping[int, float] | None = None
    ) -> Standardizer:
        inputs, outputs = ([t.sample_shape for t in tensors] for tensors in (self._inputs, self._outputs))
        losses, metrics = ((), ()) if objective is None else (objective.losses, objective.metrics)
        return Standardizer(self.backend, self._engine.dtype, inputs, outputs, losses, class_weight, metrics=metrics)

    def _source(
        self, x: Any, y: Any, weight: Any, batch_size: int, last_batch: LastBatch,
        class_weight: Mapping[int, float] | None = None,
    ) -> Source:  # fmt: skip
        objective, _ = self._compiled()
        standardizer = self._standardizer(objective, class_weight)
        if isinstance(x, Batches):
            if y is not None or weight is not None:
                message = "A loader gives labels and sample weights itself. Received: a loader, and y or sample_weight."
                raise ValueError(message)
            return LoaderSource(standardizer, x.loader)
        if y is None:
            message = "Arrays come with labels: pass y as well, or a loader of (x, y). Received: y=None."
            raise ValueError(message)
        return ArraySource(standardizer, x, y, weight, batch_size=batch_size, last_batch=last_batch)

    def _validation(self, data: Any, batch_size: int) -> Source:
        data = as_data(data)
        if isinstance(data, Batches):
            return self._source(data, None, None, batch_size, "keep")
        if not isinstance(data, tuple | list) or len(data) not in (2, 3):
            message = f"validation_data is (x, y), (x, y, sample_weight) or a loader. Received: {type(data).__name__}."
            raise ValueError(message)
        x, y, weight = (*data, None)[:3]
        return self._source(*self._ordered(x, y), weight, batch_size, "keep")

    def _logs(self, totals: Mapping[str, Array]) -> dict[str, Any]:
        """Metric values from their totals; waits for the device."""
        objective, _ = self._compiled()
        return objective.logs({name: self.backend.to_numpy(total) for name, total in totals.items()})

    # Saving and resuming ------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """Everything that decides how training goes on from here, as plain data and NumPy arrays."""
        rate = None if self.optimizer is None else self.optimizer.learning_rate
        return {
            "arrays": {name: self._engine.get(name) for name in self._engine.names()},
            "steps_taken": self._engine.steps_taken,
            "totals": {name: np.array(self.backend.to_numpy(t)) for name, t in self._totals.items()},
            "position": list(self._position),
            "samples_seen": self.samples_seen,
            "stop_training": self.stop_training,
            "learning_rate": None if isinstance(rate, Schedule) else rate,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `get_state` gave, of this model or of one made and compiled in the same way.

        Raises:
            ValueError: If it is no such state; then nothing is changed.
        """
        check_model_state(self, state)
        self._engine.restore(state["arrays"], state["steps_taken"])
        self._totals = {name: self.backend.asarray(np.array(t)) for name, t in state["totals"].items()}
        self._position = (state["position"][0], state["position"][1])
        self.samples_seen, self.stop_training = state["samples_seen"], state["stop_training"]
        if self.optimizer is not None and state["learning_rate"] is not None:
            self.optimizer.learning_rate = state["learning_rate"]

    def save(self, path: Path) -> None:
        """Write architecture, weights and optimizer state to one safetensors file; see `minicnn.saving`."""
        from minicnn.saving import save_model

        save_model(self, path)

    def save_weights(self, path: Path) -> None:
        """Write the weights to one safetensors file; see `minicnn.saving`."""
        from minicnn.saving import save_weights

        save_weights(self, path)

    def load_weights(self, path: Path) -> None:
        """Read weights that `save_weights` or `save` wrote; see `minicnn.saving`."""
        from minicnn.saving import load_weights

        load_weights(self, path)

    @classmethod
    def load(
        cls,
        path: Path,
        *,
        backend: str | Backend | None = None,
        custom_objects: Mapping[str, Any] | None = None,
    ) -> Model:
        """Read a model that `save` wrote; see `minicnn.saving`."""
        from minicnn.saving import load_model

        return load_model(path, backend=backend, custom_objects=custom_objects)


def _none() -> None:
    """No logs."""


def _check_precision(precision: str, backend: Backend) -> None:
    if precision not in backend.precisions:
        message = (
            f"The {backend.name} backend computes in {', '.join(backend.precisions)}. Received: "
            f"precision={precision!r}. Choose one of them, or another backend."
        )
        raise ValueError(message)
    backend.asarray(np.zeros(()), PRECISIONS[precision].dtype)  # JAX refuses float64 unless its 64-bit mode is on
