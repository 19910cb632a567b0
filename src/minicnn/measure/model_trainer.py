"""The trainer of minicnn's own models: on one of the backends, by `fit`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from typing import Any

import numpy as np

from minicnn.backends import get_backend
from minicnn.backends.base import Backend
from minicnn.callbacks import Callback, LambdaCallback, Timer
from minicnn.jobs import job
from minicnn.jobs.settings import Settings
from minicnn.loop.tracing import PRECISIONS
from minicnn.measure import cases
from minicnn.measure.operations import apart, step_inputs, step_times
from minicnn.measure.parity import Probe
from minicnn.measure.trainer import Batch, Row, Trainer, Work
from minicnn.models import Model
from minicnn.tolerance import EPSILON

MOVES = 5  # how often weights are moved by a rounding


def build(
    settings: Settings, samples: job.Samples, backend: Backend, work: Work, metrics: Sequence[str] = ("accuracy",)
) -> Model:
    """The network of a training, compiled."""
    return job.make_model(settings, samples, backend, metrics, build=cases.get_model, **work.network)


def on_numpy(settings: Settings, samples: job.Samples, work: Work) -> Model:
    """The network on NumPy, which has no products in 16 bits: weights are the same without."""
    return build(replace(settings, precision=PRECISIONS[settings.precision].dtype), samples, get_backend("numpy"), work)


def first_weights(settings: Settings, samples: job.Samples, work: Work) -> dict[str, np.ndarray[Any, Any]]:
    """The weights that every candidate starts from, by path."""
    return on_numpy(settings, samples, work).get_weights()


class ModelTrainer(Trainer):
    """A minicnn model on one of its backends, trained by `fit`."""

    def __init__(self, name: str, settings: Settings, work: Work, **options: Any) -> None:
        super().__init__(name, settings, work, **options)
        self.samples = self.samples.in_rows() if work.rows else self.samples
        self.model = build(self.settings, self.samples, self.backend, work, ("accuracy",) if work.accuracy else ())
        self._first: Any = None

    @cached_property
    def data(self) -> Batch:
        """The training set; on the device once and for all, where the backend keeps so much there."""
        x, y = self.samples["x_train"], self.samples["y_train"]
        if self.backend.keeps(x.nbytes + y.nbytes):
            x, y = self.backend.asarray(x), self.backend.asarray(y)
            self.backend.synchronize()
        return x, y

    def reset(self, batch: int | None = None) -> None:
        """See `Trainer.reset`; the first call, before any step, takes them."""
        if self._first is None:
            self._first = self.model.get_state()
        self.model.set_state(self._first)

    def place(self, rows: np.ndarray[Any, Any]) -> Batch:
        """See `Trainer.place`."""
        return self.backend.asarray(self.samples["x_train"][rows]), self.backend.asarray(self.samples["y_train"][rows])

    def step(self, batch: Batch) -> float:
        """See `Trainer.step`."""
        return float(self.model.train_on_batch(*batch, return_dict=True)["loss"])

    def accuracy(self, batch: Batch) -> float:
        """See `Trainer.accuracy`."""
        return float(self.model.train_on_batch(*batch, return_dict=True)["accuracy"])

    def logits(self, batch: int) -> np.ndarray[Any, Any]:
        """See `Trainer.logits`."""
        return np.asarray(self.model.predict(self.samples["x_test"], batch))

    def probe(self, epoch: int = 0) -> Probe:
        """See `Trainer.probe`: one step with the learning rate 1 takes the gradients off the weights."""
        before, state = self.model.get_weights(), self.model.get_state()
        optimizer: Any = self.model.optimizer
        rate, optimizer.learning_rate = optimizer.learning_rate, 1.0
        count = len(self.samples["x_train"])
        if self.settings.batch_size == count:
            rows = job.probed(self.settings, count, epoch)
            row = self._whole(1) if len(rows) == count else _row(self._steps_on([self.place(rows)]))
        else:
            begun, self.epoch = self.epoch, epoch

            def stop(*_: Any) -> None:
                self.model.stop_training = True

            row = self._fit(LambdaCallback(on_train_batch_end=stop))
            self.epoch = begun
        after = self.model.get_weights()
        optimizer.learning_rate = rate
        self.model.set_state(state)
        eps = EPSILON[PRECISIONS[self.settings.precision].dtype]
        rounding = {p: eps * float(max(np.abs(before[p]).max(), np.abs(after[p]).max())) for p in before}
        return Probe(row["loss"], {p: before[p].astype(np.float64) - after[p] for p in before}, rounding)

    def sensitivity(self, epochs: int, rounding: float) -> list[float]:
        """See `Trainer.sensitivity`; leaves the training as it was."""
        state, begun, first = self.model.get_state(), self.epoch, self.model.get_weights()

        def losses(moved: dict[str, np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
            self.model.set_weights(moved)
            values = np.array(self.losses(epochs))
            self.model.set_state(state)
            self.epoch = begun
            return values

        right, changes = losses(first), [np.zeros(epochs)]
        for seed in range(MOVES):
            rng = np.random.default_rng(seed)
            steps = {p: rounding * rng.integers(-1, 2, a.shape) for p, a in first.items()}
            moved = losses({p: (a * (1 + steps[p])).astype(a.dtype) for p, a in first.items()})
            changes.append(np.abs(moved / right - 1))
        return [float(change) for change in np.max(changes, axis=0)]

    def _evaluate(self, part: str) -> dict[str, float]:
        batch = min(self.settings.batch_size or 0, len(self.samples[f"x_{part}"]))
        x, y = self.samples[f"x_{part}"], self.samples[f"y_{part}"]
        if not self.work.accuracy:
            return {"accuracy": float((self.model.predict(x, batch).argmax(1) == y).mean())}
        results: dict[str, float] = self.model.evaluate(x, y, batch, return_dict=True)
        return results

    def nodes(self, repeats: int) -> dict[str, Any] | None:
        """See `Trainer.nodes`."""
        program = self.model.program("train", batch_size=len(self.data[1]))
        data = {
            "x": self.data[0],
            "y": self.data[1],
            "learning_rate": np.asarray(self.settings.learning_rate, np.float32),
        }
        arrays = step_inputs(self.model, program, data)
        # Beside a host that waits after each, a GPU's operations all take as long as launching one and waiting for it.
        if self.backend.device == "cpu":
            times = step_times(self.backend, program, arrays, repeats=repeats, merged=False)
            if times is not None:
                return {"apart": False, "nodes": [asdict(node) for node in times[1]]}
        program, arrays = (
            self.model.program("train", batch_size=len(self.data[1])),
            step_inputs(self.model, program, data),
        )
        return {"apart": True, "nodes": [asdict(n) for n in apart(self.backend, program, arrays, repeats=repeats)]}

    def account(self) -> dict[str, Any]:
        """See `Trainer.account`."""
        plan = self.model.program("train", batch_size=self.settings.batch_size or 0).memory()
        return {**super().account(), "plan": {**plan.by_kind, "arena": plan.arena_bytes, "peak": plan.peak_bytes}}

    def _forward(self, passes: int) -> object:
        return self.model.evaluate([self.data] * passes, return_dict=True)

    def _epoch(self) -> Row:
        return self._fit()

    def train(self, epochs: int) -> list[Row]:
        """See `Trainer.train`; one call of `fit`, which stops where a loss is no number."""
        self._awaken()
        with np.errstate(all="ignore"):  # StopAtNaN says it in words
            history = self._history(
                *self.data,
                job.StopAtNaN(),
                epochs=epochs,
                validation_data=(self.samples["x_val"], self.samples["y_val"]),
            )
        rows = zip(*(history[c] for c in job.COLUMNS[1:]), strict=True)
        self.epoch += epochs
        return [
            dict(zip(job.COLUMNS, (i, *map(float, row)), strict=True))
            for i, row in enumerate(rows, start=self.epoch - epochs + 1)
        ]

    def _fit(self, *callbacks: Callback) -> Row:
        return self.fit(*self.data, *callbacks)

    def fit(self, x: Any, y: Any, *callbacks: Callback) -> Row:
        """Train on arrays, or on a loader, for the epoch that comes next."""
        return _row(self._history(x, y, *callbacks))

    def _history(self, x: Any, y: Any, *callbacks: Callback, epochs: int = 1, **options: Any) -> Mapping[str, Any]:
        count, batch = len(self.samples["x_train"]), self.settings.batch_size or 0
        history = self.model.fit(
            x, y, batch, self.epoch + epochs, 0, [Timer(), *callbacks], shuffle=batch < count,
            initial_epoch=self.epoch, last_batch=self.settings.last_batch, **options,
        )  # fmt: skip
        return history.history

    def _whole(self, steps: int) -> Row:
        return _row(self._steps_on([self.data] * steps))

    def _steps_on(self, batches: Sequence[Batch]) -> Mapping[str, Any]:
        return self.model.fit(list(batches), epochs=1, verbose=0, callbacks=[Timer()]).history


def _row(history: Mapping[str, Any]) -> Row:
    keys = ("loss", "accuracy", "time_s", "samples_per_s")
    return {key: float(history[key][-1]) for key in keys if key in history}
