"""Training: the aim of a model, how far it is, and the loop over epochs and batches."""

from __future__ import annotations

import threading
import weakref
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import numpy as np

from minicnn import __version__
from minicnn.arguments import plain
from minicnn.backends import get_backend, infer_backend, refuse_after_fork
from minicnn.backends.base import Array, Backend
from minicnn.callbacks import Callbacks
from minicnn.distribution import DataParallel
from minicnn.initializers import Initializer, generator
from minicnn.layers.graph import Graph
from minicnn.layers.weight import Weight
from minicnn.loop.adapters import samples_of
from minicnn.loop.batches import source_of
from minicnn.loop.executor import Executor
from minicnn.loop.objective import LazyLogs
from minicnn.loop.sources import BatchSource
from minicnn.loop.standardizer import Standardizer
from minicnn.loop.step import Step
from minicnn.loop.totals import Totals
from minicnn.loop.tracing import PRECISIONS, Run
from minicnn.loop.variables import Variables
from minicnn.program.graph import Program
from minicnn.schedules import Schedule


class Training:
    """The training of a model: what it is for, its arrays, and how far it is.

    It knows the model's graph, and not the model.

    Attributes:
        step: What the model is compiled for: the graph, losses and metrics, the optimizer.
        weights: The weights of the graph by path.
        variables: Their arrays, and the optimizer's.
        executor: What runs the steps.
        stop: Whether `fit` ends after the step that is under way.
        position: Epoch and batch that come next.
        samples_seen: Samples of the epoch that is under way.
        totals: Metric totals of that epoch.
        draws: Batches predicted so far: see `next_draw`.
    """

    def __init__(self, backend: str | Backend | None, seed: int) -> None:
        self.step = Step(seed)
        self.weights: dict[str, Weight] = {}
        self.stop = False
        self.samples_seen = 0
        self.position = (0, 0)
        self.totals = Totals()
        self.draws = 0
        self._begin(backend)

    def _begin(self, backend: str | Backend | None) -> None:
        """Set what a copy has of its own."""
        self.variables = Variables(backend)
        self.executor = Executor(self.step, self.variables)
        self._fitting = threading.Lock()
        self._open_logs: Callable[[], LazyLogs | None] = _none  # logs that may still be read

    def __getstate__(self) -> dict[str, Any]:
        """For `copy.deepcopy` and pickle: plain data and NumPy arrays; compiled steps are made again."""
        variables, executor = self.variables, self.executor
        more = {name: variables.get(name) for name in variables.cells if name not in self.weights}
        backend = variables.backend if variables.decided else None
        left_out = ("variables", "executor", "_fitting", "_open_logs")
        return {k: v for k, v in vars(self).items() if k not in left_out} | {
            "totals": self.totals.get_state(self._to_numpy),
            "variables": (backend, variables.dtype, more),
            "executor": (executor.steps_taken, executor.distribution),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        backend, dtype, more = state.pop("variables")
        steps_taken, distribution = state.pop("executor")
        vars(self).update(state)
        self._begin(backend)
        self.variables.dtype = dtype
        self.executor.steps_taken, self.executor.distribution = steps_taken, distribution
        self.variables.share({path: weight.cell for path, weight in self.weights.items()})
        self.variables.set(more)
        self.totals = Totals.of_state(state["totals"], self._asarray)

    # These ask for the backend, and so choose one, only where there is an array.

    def _to_numpy(self, array: Array) -> np.ndarray[Any, Any]:
        return self.backend.to_numpy(array)

    def _asarray(self, array: np.ndarray[Any, Any]) -> Array:
        return self.backend.asarray(array)

    @property
    def backend(self) -> Backend:
        """The backend; decided when first needed."""
        return self.variables.backend

    @property
    def distribution(self) -> DataParallel | None:
        """The distribution of training and evaluation over ranks, if there is one."""
        return self.executor.distribution

    @property
    def chief(self) -> bool:
        """True if this process prints and writes files: of several ranks only the first does."""
        return self.distribution is None or self.distribution.rank == 0

    # What is trained ----------------------------------------------------------------------------

    def wire(self, graph: Graph) -> None:
        """Take up a graph: its weights, with first values where they have none, and no other arrays."""
        step = self.step
        before, step.graph = step.graph, graph
        step.paths.clear()
        try:
            _, self.weights = step.declare(step.feed(1))
        except Exception:  # what does not fit is not taken up
            step.graph = before
            raise
        for path, weight in self.weights.items():
            if weight.cell.value is None:  # else another model made of the layer has numbers for it
                weight.cell.put(partial(_first, weight.initializer, weight.shape, step.seed, path))
        self.variables.reset(self.variables.dtype, ())  # of a Sequential that had fewer or more layers
        self.executor.forget()
        self.variables.share({path: weight.cell for path, weight in self.weights.items()})

    def adopt(self, declared: Mapping[str, Weight]) -> None:
        """Take up further weights by path: of a step that is written, which may reach more than the graph does.

        Raises:
            ValueError: If one is that of another model.
        """
        new = {path: weight for path, weight in declared.items() if path not in self.weights}
        for path, weight in new.items():
            if path in self.variables.cells:  # its numbers were restored before it was known
                weight.cell.put(self.variables.get(path))
            if weight.cell.value is None:
                weight.cell.put(partial(_first, weight.initializer, weight.shape, self.step.seed, path))
        self.weights |= new
        self.variables.share({path: weight.cell for path, weight in new.items()})

    def compile(self, precision: str, distribution: DataParallel | None, **parts: Any) -> None:
        """Set what to train for; `parts` are attributes of the step. Optimizer state begins anew.

        Raises:
            ValueError: If the backend lacks the precision, or cannot be shared out; then nothing is changed.
            RuntimeError: If a training is under way.
        """
        if self._fitting.locked():
            raise RuntimeError(
                "A model is compiled before its training or after it. Received: compile of a model in training, from a "
                "callback or another thread. Set model.stop_training, and compile once fit has returned."
            )
        if self.variables.decided:
            _check_precision(precision, self.backend)
            if distribution is not None:
                distribution.connect(self.backend)
        step = self.step
        self.step = self.executor.step = Step(step.seed, step.graph, precision=precision, paths=step.paths, **parts)
        self.variables.reset(self.step.dtype, self.weights)
        self.executor.forget()
        self.executor.distribution = distribution
        self.position = (0, 0)

    def forget(self) -> None:
        """Begin anew: with first weights, as if nothing had been compiled or trained."""
        self.compile("float32", None)
        for path, weight in self.weights.items():
            weight.cell.put(partial(_first, weight.initializer, weight.shape, self.step.seed, path))

    def trained_paths(self, trainable: Mapping[Any, bool] | None = None) -> list[str]:
        """Paths of the weights that training changes: as compiled, or as it would be with other layers trainable."""
        if self.step.graph is None:
            return [path for path, weight in self.weights.items() if weight.trainable]
        program, _ = self.step.declare(self.step.feed(1), trainable)
        return [v.name for v in program.inputs if v.kind == "parameter"]

    def program(self, kind: Any, batch_size: int) -> Program:
        """The Program of a step to be shown: see `DataParallel.program`."""
        seen = None if self.step.author is None or kind == "predict" else self.step.seen
        feed = self.step.feed(batch_size) if seen is None else seen.of(batch_size)
        distribution = self.executor.shared(kind)
        if distribution is None:
            return self.step.trace(kind, feed)
        return distribution.program(partial(self.step.trace, kind), feed)

    # Data ---------------------------------------------------------------------------------------

    def choose_backend(self, *data: Any) -> None:
        """Choose the backend by the data, unless it is chosen."""
        if not self.variables.decided:
            backend = infer_backend([a for d in data if d is not None for a in samples_of(d)]) or get_backend(None)
            _check_precision(self.step.precision, backend)
            if self.distribution is not None:
                self.distribution.connect(backend)
            self.variables.backend = backend
        refuse_after_fork(self.backend)

    def standardizer(self, class_weight: Mapping[int, float] | None = None, *, labelled: bool = True) -> Standardizer:
        """The standardizer of the model's data; without labels for predictions."""
        free = labelled and self.step.author is not None
        graph = self.step.graph if free else self.step.wired()
        inputs, outputs = ([], []) if graph is None else (graph.inputs, graph.outputs)
        objective = self.step.compiled()[0] if labelled else None
        losses, metrics = ((), ()) if objective is None else (objective.losses, objective.metrics)
        return Standardizer(
            self.backend, self.variables.dtype, [t.sample_shape for t in inputs], [t.sample_shape for t in outputs],
            losses, plain(class_weight), metrics=metrics if losses else (), declared=[t.dtype for t in inputs],
            free=free,
        )  # fmt: skip

    def source(
        self, x: Any, y: Any, weight: Any, batch_size: int, class_weight: Mapping[int, float] | None = None,
        **options: Any,
    ) -> BatchSource:  # fmt: skip
        """The source of batches with labels; see `source_of` for the options."""
        options |= {"batch_size": batch_size, "distribution": self.distribution}
        return source_of(self.standardizer(class_weight), x, y, weight, **options)

    # Steps --------------------------------------------------------------------------------------

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Context manager: a training, if no other is under way."""
        if not self._fitting.acquire(blocking=False):
            raise RuntimeError(
                "A model is in one fit at a time. Received: fit of a model in training, from another thread or a "
                "callback. Wait until it has ended, or train a copy.deepcopy of the model."
            )
        try:
            yield
        finally:
            self._fitting.release()

    def together(self) -> AbstractContextManager[None]:
        """Context manager: all ranks, if there are several, do this at once."""
        return nullcontext() if self.distribution is None else self.distribution.together()

    def logs(self, totals: Totals) -> dict[str, Any]:
        """Metric values from their totals; waits for the device."""
        return self.step.logs(totals.read(self._to_numpy))

    def train(self, run: Run, totals: Totals, finite: bool = True) -> Totals:
        """Take training steps; returns the metric totals with theirs added. See `Executor.train`."""
        kept = self._open_logs()
        if kept is not None:  # they may be read later, and the step may overwrite the totals
            kept.read()
        self.step.seen = run.feed
        return self.executor.train(run, totals, self.step.rates(self.executor.steps_taken, run.steps), finite)

    def fit(
        self, source: BatchSource, validation: BatchSource | None, validates: Callable[[int], bool],
        callbacks: Callbacks, shuffle: bool, seed: int, epochs: range, about: Mapping[str, Any],
    ) -> None:  # fmt: skip
        """Train for some epochs: see `Model.fit`; all ranks must have been asked `about` the same."""
        self.stop, self.position = False, (epochs.start, 0)
        callbacks("on_train_begin")
        self.agree("training", {**callbacks.params, **about})
        # Training that was stopped within an epoch and then resumed still has to end that epoch.
        while self.position[0] < epochs.stop and (self.position[1] or not self.stop):
            due = validation if validates(self.position[0] + 1) else None
            callbacks.without_validation = validation is not None and due is None
            self.train_epoch(source, due, callbacks, shuffle, seed)
        callbacks("on_train_end")
        self.agree("end of the training", callbacks.params)

    def train_epoch(
        self, source: BatchSource, validation: BatchSource | None, callbacks: Callbacks, shuffle: bool, seed: int
    ) -> None:
        """Train from the position to the end of its epoch, and validate."""
        epoch, first = self.position
        if not first:
            self.totals, self.samples_seen = Totals(), 0
        callbacks("on_epoch_begin", epoch)
        at_once = 1 if callbacks.watch_batches else self.backend.steps_at_once
        for run in source.runs(shuffle=shuffle, seed=seed, epoch=epoch, skip=first, longest=at_once):
            if self.stop:
                break
            callbacks("on_train_batch_begin", self.position[1])
            self.totals = self.train(run, self.totals, finite=not callbacks.ends_on_nan)
            batch = self.position[1] + run.steps
            self.position = (epoch, batch)
            self.samples_seen += run.feed.batch * run.steps
            logs = LazyLogs(partial(self.logs, self.totals))
            self._open_logs = weakref.ref(logs)
            callbacks("on_train_batch_end", batch - 1, logs)
            del logs
        epoch_logs = self.logs(self.totals)
        if validation is not None:
            epoch_logs |= {f"val_{name}": value for name, value in self.evaluate(validation, callbacks).items()}
        self.position = (epoch + 1, 0)
        callbacks("on_epoch_end", epoch, epoch_logs)

    def evaluate(self, source: BatchSource, callbacks: Callbacks) -> dict[str, Any]:
        """Losses and metrics of all batches."""
        callbacks("on_test_begin")
        totals = Totals()
        at_once = 1 if callbacks.watch("test") else self.backend.steps_at_once
        for batch, run in enumerate(source.runs(shuffle=False, seed=0, epoch=0, longest=at_once)):
            callbacks("on_test_batch_begin", batch)
            totals = self.executor.evaluate(run, totals)
            if callbacks.watch("test"):  # the next step may overwrite the totals
                callbacks("on_test_batch_end", batch, self.logs(totals))
        logs = self.logs(totals)
        callbacks("on_test_end", logs)
        return logs

    def next_draw(self) -> int:
        """Number of batches predicted before: layers that are to draw numbers in predictions draw anew."""
        self.draws += 1
        return self.draws - 1

    def further_rates(self) -> dict[str, float]:
        """Learning rates of optimizers beside that of `compile`, but for schedules."""
        every = {name: optimizer.learning_rate for name, optimizer in self.step.further_optimizers().items()}
        return {name: rate for name, rate in every.items() if not isinstance(rate, Schedule)}

    # Ranks and states ---------------------------------------------------------------------------

    def agree(self, when: str, params: Mapping[str, Any]) -> None:
        """Wait for the other ranks, which are to be at the same point of the same training."""
        if self.distribution is None or self.distribution.ranks == 1:
            return
        weights = {path: zlib.crc32(self.variables.get(path).tobytes()) for path in self.weights}
        about = {
            "call of fit": when, "versions": f"minicnn {__version__}, NumPy {np.__version__}",
            # each rank may name a GPU of its own
            "backend": repr(self.backend).replace(self.backend.device, self.backend.device.split(":")[0]),
            "distribution": repr(self.distribution), "seed": self.step.seed,
            **{k: v for k, v in params.items() if k != "verbose"}, "position in the data": list(self.position),
            "steps taken": self.executor.steps_taken, **weights,
        }  # fmt: skip
        self.distribution.agree(about)

    def get_state(self) -> dict[str, Any]:
        """See `Model.get_state`."""
        rate = None if self.step.optimizer is None else self.step.optimizer.learning_rate
        return {
            "arrays": {name: self.variables.get(name) for name in self.variables.cells},
            "steps_taken": self.executor.steps_taken,
            "totals": self.totals.get_state(self._to_numpy),
            "position": list(self.position),
            "samples_seen": self.samples_seen,
            "stop_training": self.stop,
            "learning_rate": None if isinstance(rate, Schedule) else rate,
            "rates": self.further_rates(),
        }  # fmt: skip

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state that was checked: see `Model.set_state`."""
        self.executor.restore(state["arrays"], state["steps_taken"])
        self.totals = Totals.of_state(state["totals"], self._asarray)
        self.position = (state["position"][0], state["position"][1])
        self.samples_seen, self.stop = state["samples_seen"], state["stop_training"]
        if self.step.optimizer is not None and state["learning_rate"] is not None:
            self.step.optimizer.learning_rate = state["learning_rate"]
        for name, rate in state["rates"].items():
            self.step.further_optimizers()[name].learning_rate = rate


def _check_precision(precision: str, backend: Backend) -> None:
    if precision not in backend.precisions:
        raise ValueError(
            f"The {backend.name} backend computes in {', '.join(backend.precisions)}. Received: "
            f"precision={precision!r}. Choose one of them, or another backend."
        )
    backend.asarray(np.zeros(()), PRECISIONS[precision].dtype)  # JAX refuses float64 unless its 64-bit mode is on


def _first(initializer: Initializer, shape: tuple[int, ...], seed: int, path: str) -> np.ndarray[Any, Any]:
    """Initial values of a weight."""
    return initializer(shape, generator(seed, path))


def _none() -> None:
    """No logs."""
