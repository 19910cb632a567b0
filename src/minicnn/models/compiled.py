"""CompiledNetwork: a network that knows what it is for; it is evaluated and asked for predictions."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

import array_api_compat
import numpy as np

from minicnn.arguments import plain
from minicnn.backends import get_backend, infer_backend, refuse_after_fork
from minicnn.backends.base import Array, Backend
from minicnn.callbacks import Callback, Callbacks, progress
from minicnn.data.forms import Batches, as_data
from minicnn.data.order import LastBatch
from minicnn.distribution import DataParallel, OneProcess
from minicnn.layers.symbolic import SymbolicTensor
from minicnn.loop.adapters import Standardizer, by_place, checked_inputs, samples_of
from minicnn.loop.batches import prediction_runs
from minicnn.loop.objective import Objective
from minicnn.loop.sources import Source, source_of
from minicnn.loop.totals import Totals
from minicnn.loop.tracing import PRECISIONS
from minicnn.models.network import Network, check_counts, check_optional
from minicnn.names import known_name
from minicnn.optimizers import Optimizer, get_optimizer
from minicnn.program.graph import Value
from minicnn.trace import StepTrace, traced

if TYPE_CHECKING:
    from minicnn.models.model import Model


class CompiledNetwork(Network):
    """A model as far as it does not change its weights: compile, evaluate, predict; see `Model`."""

    _fitting: threading.Lock  # held by a training

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
        if self._trace is not None or any(isinstance(v, SymbolicTensor | Value) for v in several):
            return super().__call__(inputs, training=training)
        return self._of_batch(inputs, training is True)

    def _prepare(self, *data: Any) -> None:
        """Choose the backend by the data, unless it is chosen; build a model whose input shape is not known yet."""
        if not self._engine.decided:
            arrays = [a for d in data if d is not None for a in samples_of(d)]
            backend = infer_backend(arrays) or get_backend(None)
            _check_precision(self.precision, backend)
            if self.distribution is not None:
                self.distribution.check_backend(backend.name)
            self._engine.backend = backend
        refuse_after_fork(self.backend)

    def compile(
        self,
        optimizer: str | Optimizer = "sgd",
        loss: Any = "sparse_categorical_crossentropy",
        metrics: Any = (),
        *,
        loss_weights: float | Sequence[float] | Mapping[str, float] | None = None,
        precision: str = "float32",
        distribution: DataParallel | None = None,
        accumulate: int = 1,
    ) -> None:
        """Say what to train for and how.

        Args:
            optimizer: Name or Optimizer.
            loss: Name, Loss or function of (y_true, y_pred); or a list, or a dictionary by `output_names`, of these.
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
        if self._fitting.locked():
            raise RuntimeError(
                "A model is compiled before its training or after it. Received: compile of a model in training, from a "
                "callback or another thread. Set model.stop_training, and compile once fit has returned."
            )
        known_name("precision", precision, PRECISIONS)
        distribution = _distribution(distribution, accumulate)
        if self._engine.decided:
            _check_precision(precision, self.backend)
            if distribution is not None:
                distribution.check_backend(self.backend.name)
        objective = Objective.of(loss, metrics, loss_weights, self.output_names)
        self.optimizer, self._objective = get_optimizer(optimizer), objective
        self.precision = precision
        self._engine.reset(PRECISIONS[precision].dtype, self._weights if self.built else {})
        self._engine.distribution = distribution
        self._noted.clear()
        self._note_trainable()
        self._position = (0, 0)
        if self.built:
            objective.check_outputs(self._outputs)

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
        with self._together(), self._given(x, y) as (x, y):
            source = self._source(x, y, sample_weight, batch_size, steps=steps)
            with Callbacks(callbacks, self._model(), {"steps": _length(source), "verbose": verbose}) as everyone:
                logs = self._evaluate(source, everyone)
        if verbose and self.chief:
            print(" - ".join(f"{k}: {v:.4f}" for k, v in logs.items() if isinstance(v, float)))
        return _as_asked(logs, return_dict)

    def test_on_batch(self, x: Any, y: Any, sample_weight: Any = None, *, return_dict: bool = False) -> Any:
        """Loss and metrics on one batch, as `evaluate` gives them."""
        objective, _ = self._compiled()
        with self._together(), self._given(x, y) as (x, y):
            feed, arrays = self._standardizer(objective).batch(x, y, sample_weight)
            return _as_asked(self._logs(self._engine.evaluate_many(feed, arrays, Totals(), None, 1)), return_dict)

    def trace(self, x: Any, y: Any = None, sample_weight: Any = None, *, kernels: bool = False) -> StepTrace:
        """Every value of one step on one batch, by name: what the next training step would compute. Nothing changes.

        All values are kept on the host, so the batch is better a small one. It is not cut into shards.

        Args:
            x: Inputs of one batch, shape (N, ...).
            y: Labels; without them it is a prediction.
            sample_weight: Weight of each sample.
            kernels: The backend's kernels compute it, with every result among those to be stored; otherwise the
                references do, node by node on the backend's arrays, also where the backend would merge nodes. On
                backends without kernels it is the same.

        Raises:
            RuntimeError: If there are labels and the model is not compiled.
        """
        with self._given(x, y) as (x, y):
            objective, given = None, {}
            if y is not None:
                objective, optimizer = self._compiled()
                self._check_trainable()
                given["learning_rate"] = np.asarray(optimizer.rate(self._engine.steps_taken))
            feed, arrays = self._standardizer(objective).batch(x, y, sample_weight)
            program, _ = self._traced("predict" if y is None else "train", feed)
            given |= {name: self._engine.get(name) for name in self._engine.names()}
            given |= {name: self.backend.to_numpy(array) for name, array in arrays.items()}
            inputs = {v.name: given.get(v.name, np.zeros(v.shape)) for v in program.inputs}
            return traced(program, self.backend, inputs, kernels=kernels)

    def _evaluate(self, source: Source, callbacks: Callbacks) -> dict[str, Any]:
        callbacks("on_test_begin")
        totals = Totals()
        at_once = 1 if callbacks.watch("test") else self.backend.steps_at_once
        for batch, run in enumerate(source.runs(shuffle=False, seed=0, epoch=0, longest=at_once)):
            callbacks("on_test_batch_begin", batch)
            totals = self._engine.evaluate_many(run.feed, run.arrays, totals, run.index, run.steps)
            if callbacks.watch("test"):  # the next step may overwrite the totals
                callbacks("on_test_batch_end", batch, self._logs(totals))
        logs = self._logs(totals)
        callbacks("on_test_end", logs)
        return logs

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
        progress(verbose)  # which refuses what is none
        (batch_size,), (steps,) = check_counts(batch_size=batch_size), check_optional(steps=steps)
        start = time.perf_counter()
        with self._given(x) as (x, _):
            if isinstance(x, Batches) and self.distribution is not None and hasattr(x.loader, "set_shard"):
                x.loader.set_shard(0, 1)  # predictions are not shared out
            if steps is not None:
                cut = slice(steps * batch_size)
                x = Batches(islice(x.loader, steps)) if isinstance(x, Batches) else [a[cut] for a in self._batch_of(x)]
            parts: list[list[Array]] = [[] for _ in self._outputs]
            first: Any = None
            with Callbacks(callbacks, self._model(), {"batch_size": batch_size}) as everyone:
                everyone("on_predict_begin")
                for batch, (given, run) in enumerate(prediction_runs(x, self._standardizer(), batch_size)):
                    first = given[0] if first is None else first
                    everyone("on_predict_batch_begin", batch)
                    found = self._engine.predict(run.feed, run.arrays, run.index, self._next_draw())
                    for part, made in zip(parts, self._results(found, first, given[0].shape[0]), strict=True):
                        part.append(made)
                    everyone("on_predict_batch_end", batch, {"outputs": [part[-1] for part in parts]})
                everyone("on_predict_end")
            if first is None:
                raise ValueError("There is at least one batch to predict. Received: an empty loader.")
            made = self._as_given(first, parts)
        if verbose and self.chief:
            count, seconds = sum(len(part) for part in parts[0]), time.perf_counter() - start
            print(f"{count} samples predicted - {seconds:.1f} s")
        return made

    def predict_on_batch(self, x: Any) -> Any:
        """Outputs for given inputs in one step, as `predict` gives them."""
        return self._of_batch(x)

    def _of_batch(self, x: Any, training: bool = False) -> Any:
        with self._given(x) as (x, _):
            feed, arrays = self._standardizer().batch(x)
            made = self._engine.predict(replace(feed, training=training), arrays, draw=self._next_draw())
            first = self._batch_of(x)[0]
            return self._as_given(first, [[array] for array in self._results(made, first, first.shape[0])])

    def _results(self, outputs: Sequence[Array], first: Array, rows: int) -> list[Array]:
        """Outputs where the first input is; none of those of the row that stands for no rows."""
        there = [a if self.backend.owns(first) else self.backend.to_numpy(a) for a in outputs]
        return there if rows else [a[:0, ...] for a in there]

    def _model(self) -> Model:
        """Itself, as callbacks know it: there is no other compiled network."""
        return cast("Model", self)

    def _together(self) -> AbstractContextManager[None]:
        """What all ranks do at once, if there are several."""
        return nullcontext() if self.distribution is None else self.distribution.together()

    @contextmanager
    def _given(self, x: Any, y: Any = None) -> Iterator[tuple[Any, Any]]:
        """Data by place, while the device of the backend, which they may choose, is the current one."""
        x, y = self._ordered(x, y)
        self._prepare(x, y)
        with self.backend.active():
            yield x, y

    def _next_draw(self) -> int:
        """How many batches were predicted before: layers that are to draw numbers in predictions draw anew."""
        self._draws += 1
        return self._draws - 1

    def _batch_of(self, x: Any) -> list[Any]:
        """The arrays of one batch, wherever they are."""
        return checked_inputs(x, [t.sample_shape for t in self._inputs], least=0)

    def _as_given(self, first: Any, parts: Sequence[Sequence[Array]]) -> Any:
        """The parts of each output as one array, of the kind that the inputs are."""
        own = self.backend.owns(first)
        xp = self.backend.xp if own else np
        joined = [xp.concat(part, axis=0) for part in parts]  # new arrays, even of a single part
        if not own and array_api_compat.is_array_api_obj(first):
            joined = [array_api_compat.array_namespace(first).asarray(array) for array in joined]
        return joined[0] if self._one_output else joined

    # Data and logs ------------------------------------------------------------------------------

    def _ordered(self, x: Any, y: Any = None) -> tuple[Any, Any]:
        """Inputs and labels by place, if they are given by name; loaders as such."""
        if isinstance(x, Mapping):
            x = by_place("inputs", x, [t.name or "" for t in self._inputs] if self.built else [""])
        return as_data(x), by_place("labels", y, self.output_names) if isinstance(y, Mapping) else y

    def _standardizer(
        self, objective: Objective | None = None, class_weight: Mapping[int, float] | None = None
    ) -> Standardizer:
        inputs, outputs = ([t.sample_shape for t in tensors] for tensors in (self._inputs, self._outputs))
        losses, metrics = ((), ()) if objective is None else (objective.losses, objective.metrics)
        return Standardizer(
            self.backend, self._engine.dtype, inputs, outputs, losses, plain(class_weight), metrics=metrics,
            declared=[t.dtype for t in self._inputs],
        )  # fmt: skip

    def _source(
        self, x: Any, y: Any, weight: Any, batch_size: int, last_batch: LastBatch = "keep",
        class_weight: Mapping[int, float] | None = None, **options: Any,
    ) -> Source:  # fmt: skip
        """The source of batches with labels; see `source_of` for the options."""
        objective, _ = self._compiled()
        (batch_size,) = check_counts(batch_size=batch_size)
        x, y = self._ordered(x, y)
        self._prepare(x, y)
        standardizer = self._standardizer(objective, class_weight)
        options |= {"batch_size": batch_size, "last_batch": last_batch, "distribution": self.distribution}
        return source_of(standardizer, x, y, weight, **options)

    def _logs(self, totals: Totals) -> dict[str, Any]:
        """Metric values from their totals; waits for the device."""
        objective, _ = self._compiled()
        return objective.logs(totals.read(self.backend.to_numpy))


def _as_asked(logs: dict[str, Any], return_dict: bool) -> Any:
    """Logs as Keras gives them: a number, a list, or a dictionary."""
    values = list(logs.values())
    return logs if return_dict else values if len(values) > 1 else values[0]


def _length(source: Source) -> int | None:
    """Batches of a source; None for a loader that does not know it."""
    try:
        return len(source)
    except TypeError:
        return None


def _distribution(given: DataParallel | None, accumulate: int) -> DataParallel | None:
    (accumulate,) = check_counts(accumulate=accumulate)
    if given is None:
        return DataParallel(accumulate, communicator=OneProcess()) if accumulate > 1 else None
    if not isinstance(given, DataParallel):
        raise TypeError(f"distribution is a DataParallel. Received: {given!r:.60}.")
    if accumulate > 1:
        raise ValueError(
            f"A distribution cuts the batch into its own shards. Received: {given!r} and accumulate={accumulate}. "
            "Leave accumulate out: a rank takes its shards one after the other."
        )
    return given


def _check_precision(precision: str, backend: Backend) -> None:
    if precision not in backend.precisions:
        raise ValueError(
            f"The {backend.name} backend computes in {', '.join(backend.precisions)}. Received: "
            f"precision={precision!r}. Choose one of them, or another backend."
        )
    backend.asarray(np.zeros(()), PRECISIONS[precision].dtype)  # JAX refuses float64 unless its 64-bit mode is on
