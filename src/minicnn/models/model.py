"""Model: a network that can be trained, evaluated and asked for predictions."""

from __future__ import annotations

import copy
import os
import threading
import weakref
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal

import numpy as np

from minicnn import __version__
from minicnn.arguments import plain
from minicnn.backends.base import Backend
from minicnn.callbacks import Callback, Callbacks, History, progress
from minicnn.data.forms import Batches, as_data
from minicnn.data.order import LastBatch
from minicnn.description import check_model_state
from minicnn.loop.batches import split_off
from minicnn.loop.objective import LazyLogs
from minicnn.loop.prefetch import Run
from minicnn.loop.sources import Source
from minicnn.loop.totals import Totals
from minicnn.models.compiled import CompiledNetwork, _as_asked, _length
from minicnn.models.network import check_counts, check_optional, check_seed
from minicnn.schedules import Schedule

Path = str | os.PathLike[str]


class Model(CompiledNetwork):
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
        self._totals = Totals()  # of that epoch
        self._no_one_else()

    def _no_one_else(self) -> None:
        """What neither a new model nor a copy has: a training under way, and logs that may still be read."""
        self._fitting = threading.Lock()
        self._open_logs: Callable[[], LazyLogs | None] = _none

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        totals = self._totals.get_state(lambda array: self.backend.to_numpy(array))
        return {k: v for k, v in state.items() if k not in ("_fitting", "_open_logs")} | {"_totals": totals}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._totals = Totals.of_state(state["_totals"], lambda array: self.backend.asarray(array))
        self._no_one_else()

    @property
    def steps_taken(self) -> int:
        """Training steps so far."""
        return self._engine.steps_taken

    # Training -----------------------------------------------------------------------------------

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
        self._compiled()
        epochs, initial_epoch = check_counts(0, epochs=epochs, initial_epoch=initial_epoch)
        (batch_size,) = check_counts(batch_size=batch_size)
        steps_per_epoch, validation_steps, validation_batch_size = check_optional(
            steps_per_epoch=steps_per_epoch, validation_steps=validation_steps,
            validation_batch_size=validation_batch_size,
        )  # fmt: skip
        validation_freq = plain(validation_freq)
        validated = _validated(validation_freq)
        seed = check_seed(self.seed if seed is None else seed)
        given = [] if callbacks is None else [callbacks] if isinstance(callbacks, Callback) else list(callbacks)
        with self._alone(), self._together(), self._given(x, y) as (x, y):
            self._check_trainable()
            if validation_split and (isinstance(x, Batches) or validation_data is not None):
                raise ValueError(
                    "validation_split cuts arrays. Received: a loader, or validation_data as well. Use validation_data."
                )
            if validation_split and y is not None:
                (x, y, sample_weight), validation_data = split_off(
                    x, y, sample_weight, validation_split, len(self._inputs), len(self._outputs)
                )
            source = self._source(
                x, y, sample_weight, batch_size, last_batch, class_weight, steps=steps_per_epoch, again=True,
                onwards=True,
            )  # fmt: skip
            validation = None
            if validation_data is not None:
                size = batch_size if validation_batch_size is None else validation_batch_size
                validation = self._validation(validation_data, size, validation_steps)
            history = History()
            params: dict[str, Any] = {
                "epochs": epochs, "steps": len(source), "verbose": verbose, "shuffle": shuffle,
                "batch_size": None if isinstance(x, Batches) else batch_size, "last_batch": last_batch,
                "seed": seed,
            }  # fmt: skip
            self.stop_training = False
            self._position = (initial_epoch, 0)
            with Callbacks([*given, history, *progress(verbose if self.chief else 0)], self, params) as everyone:
                everyone("on_train_begin")
                about = {
                    "validation_freq": repr(validation_freq),
                    "validation steps": None if validation is None else _length(validation),
                    "class_weight": repr(class_weight),
                    "sample_weight": "none" if sample_weight is None else "given",
                }  # fmt: skip
                self._agree("training", params | about)
                # Training that was stopped within an epoch and then resumed still has to end that epoch.
                while self._position[0] < epochs and (self._position[1] or not self.stop_training):
                    due = validation if validated(self._position[0] + 1) else None
                    everyone.without_validation = validation is not None and due is None
                    self._train_epoch(source, due, everyone, shuffle, seed)
                everyone("on_train_end")
                self._agree("end of the training", params)
        return history

    def _agree(self, when: str, params: Mapping[str, Any]) -> None:
        """Wait for the other ranks, which are to be at the same point of the same training."""
        if self.distribution is None or self.distribution.ranks == 1:
            return
        weights = {path: zlib.crc32(array.tobytes()) for path, array in self.get_weights().items()}
        about = {
            "call of fit": when, "versions": f"minicnn {__version__}, NumPy {np.__version__}",
            # each rank may name a GPU of its own
            "backend": repr(self.backend).replace(self.backend.device, self.backend.device.split(":")[0]),
            "distribution": repr(self.distribution), "seed": self.seed,
            **{k: v for k, v in params.items() if k != "verbose"}, "position in the data": list(self._position),
            "steps taken": self.steps_taken, **weights,
        }  # fmt: skip
        self.distribution.agree(about)

    def _validation(self, data: Any, batch_size: int, steps: int | None = None) -> Source:
        return self._source(*_with_labels(data), batch_size, steps=steps, again=True)

    @contextmanager
    def _alone(self) -> Iterator[None]:
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

    def _train_epoch(
        self, source: Source, validation: Source | None, callbacks: Callbacks, shuffle: bool, seed: int
    ) -> None:
        epoch, first = self._position
        if not first:
            self._totals, self.samples_seen = Totals(), 0
        callbacks("on_epoch_begin", epoch)
        at_once = 1 if callbacks.watch_batches else self.backend.steps_at_once
        for run in source.runs(shuffle=shuffle, seed=seed, epoch=epoch, skip=first, longest=at_once):
            if self.stop_training:
                break
            callbacks("on_train_batch_begin", self._position[1])
            self._totals = self._train_run(run, self._totals, finite=not callbacks.ends_on_nan)
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

    def _train_run(self, run: Run, totals: Totals, finite: bool = True) -> Totals:
        """Training steps; returns the metric totals with theirs added. See `Engine.train_many` for `finite`."""
        _, optimizer = self._compiled()
        kept = self._open_logs()
        if kept is not None:  # they may be read later, and the step may overwrite the totals
            kept.read()
        taken = self._engine.steps_taken
        rates = [optimizer.rate(taken + k) for k in range(run.steps)]
        return self._engine.train_many(run.feed, run.arrays, totals, run.index, rates, finite)

    def train_on_batch(
        self, x: Any, y: Any, sample_weight: Any = None, class_weight: Mapping[int, float] | None = None, *,
        return_dict: bool = False,
    ) -> Any:  # fmt: skip
        """One training step; returns loss and metrics of this batch before the step, as `evaluate` gives them."""
        objective, _ = self._compiled()
        self._check_trainable()
        with self._together(), self._given(x, y) as (x, y):
            feed, arrays = self._standardizer(objective, class_weight).batch(x, y, sample_weight)
            return _as_asked(self._logs(self._train_run(Run(feed, arrays), Totals())), return_dict)

    # Saving and resuming ------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """Everything that decides how training goes on from here, as plain data and NumPy arrays."""
        rate = None if self.optimizer is None else self.optimizer.learning_rate
        return {
            "arrays": {name: self._engine.get(name) for name in self._engine.names()},
            "steps_taken": self._engine.steps_taken,
            "totals": self._totals.get_state(lambda array: self.backend.to_numpy(array)),
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
        self._totals = Totals.of_state(state["totals"], lambda array: self.backend.asarray(array))
        self._position = (state["position"][0], state["position"][1])
        self.samples_seen, self.stop_training = state["samples_seen"], state["stop_training"]
        if self.optimizer is not None and state["learning_rate"] is not None:
            self.optimizer.learning_rate = state["learning_rate"]

    def save(self, path: Path) -> None:
        """Write architecture, weights and optimizer state to one safetensors file; see `minicnn.saving`.

        Of several ranks the first writes it.
        """
        from minicnn.saving import save_model

        self.join()
        if self.chief:
            save_model(self, path)

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

    def save_weights(self, path: Path) -> None:
        """Write the weights to one safetensors file; see `minicnn.saving`. Of several ranks the first writes it."""
        from minicnn.saving import save_weights

        self.join()
        if self.chief:
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


def clone_model(model: Model) -> Model:
    """A model of the same structure, with layers of its own and first weights; not compiled.

    `copy.deepcopy(model)` keeps weights, optimizer and what was compiled.

    Args:
        model: The model, which stays as it is.
    """
    made = copy.deepcopy(model)
    made._forget()
    return made


def _with_labels(data: Any) -> tuple[Any, Any, Any]:
    """Inputs or a loader, labels and sample weights of `validation_data`."""
    data = as_data(data)
    if isinstance(data, Batches):
        return data, None, None
    if not isinstance(data, tuple | list) or len(data) not in (2, 3):
        raise ValueError(
            f"validation_data is (x, y), (x, y, sample_weight) or a loader. Received: {type(data).__name__}."
        )
    x, y, weight = (*data, None)[:3]
    return x, y, weight


def _validated(frequency: Any) -> Callable[[int], bool]:
    """Whether an epoch, counted from 1, ends with a validation, by its number."""
    if isinstance(frequency, Collection) and not isinstance(frequency, str):
        epochs = set(frequency)
        return lambda epoch: epoch in epochs
    check_counts(validation_freq=frequency)
    return lambda epoch: epoch % frequency == 0


def _none() -> None:
    """No logs."""
