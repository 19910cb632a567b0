"""Callbacks that hand logs to trackers of experiments: TensorBoard, MLflow, Weights & Biases.

Each needs its library when training begins, and of several ranks only the first writes.
"""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Mapping
from typing import Any

from minicnn.callbacks.base import Callback, is_number
from minicnn.extras import needing


class Tracker(Callback):
    """Base class: gives the numbers among the logs of each epoch to `_log`, and where they come from to `_begin`."""

    def on_train_begin(self, logs: Any) -> None:
        if self.chief:
            self._begin()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any]) -> None:
        if self.chief:
            numbers = {name: float(value) for name, value in logs.items() if is_number(value)}
            self._log(epoch, numbers | {"learning_rate": self._rate()})

    def _rate(self) -> float:
        optimizer = self.model.optimizer
        return float(optimizer.rate(max(self.model.steps_taken - 1, 0))) if optimizer else 0.0

    def _settings(self) -> dict[str, Any]:
        """Settings of the training, as plain data."""
        return {
            **self.params, "optimizer": repr(self.model.optimizer), "precision": self.model.precision,
            "backend": repr(self.model.backend), "parameters": self.model.count_params(),
        }  # fmt: skip

    def _begin(self) -> None:
        """Open what is written to."""
        raise NotImplementedError

    def _log(self, epoch: int, numbers: Mapping[str, float]) -> None:
        """Write the numbers of an epoch, counted from 0."""
        raise NotImplementedError


class TensorBoard(Tracker):
    """Writes the logs of each epoch for TensorBoard, as Keras does.

    The folders "train" and "validation" within `log_dir` have the scalars "epoch_loss" and so on.
    `tensorboard --logdir DIR` shows them.

    Args:
        log_dir: Folder, which is made.

    Raises:
        ImportError: When training begins, if tensorboard is missing.
    """

    def __init__(self, log_dir: str | os.PathLike[str] = "logs") -> None:
        self.log_dir = os.fspath(log_dir)
        self._writers: dict[str, Any] = {}

    def _begin(self) -> None:
        self._writer("train")

    def _writer(self, part: str) -> Any:
        if part not in self._writers:
            with needing("The callback TensorBoard needs", "tensorboard", extra="tensorboard"):
                from tensorboard.summary.writer.event_file_writer import EventFileWriter
            self._writers[part] = EventFileWriter(os.path.join(self.log_dir, part))
        return self._writers[part]

    def _log(self, epoch: int, numbers: Mapping[str, float]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        for part, prefix in (("train", ""), ("validation", "val_")):
            values = [
                Summary.Value(tag=f"epoch_{name.removeprefix(prefix)}", simple_value=number)
                for name, number in numbers.items()
                if name.startswith("val_") == bool(prefix)
            ]
            if values:
                writer = self._writer(part)
                writer.add_event(Event(step=epoch, wall_time=time.time(), summary=Summary(value=values)))
                writer.flush()

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()
        self._writers = {}


class MLflowLogger(Tracker):
    """Writes the settings of the training and the logs of each epoch to a run of MLflow.

    The run is the active one, which stays active; without one a run is begun, and ended with the training.
    `mlflow.set_tracking_uri` says where runs are kept.

    Args:
        run_name: Name of a run that is begun.

    Raises:
        ImportError: When training begins, if mlflow is missing.
    """

    def __init__(self, run_name: str | None = None) -> None:
        self.run_name = run_name
        self._started: Any = None

    def _begin(self) -> None:
        self._mlflow = _library(self, "mlflow")
        if self._mlflow.active_run() is None:
            self._started = self._mlflow.start_run(run_name=self.run_name)
        self._mlflow.log_params(self._settings())

    def _log(self, epoch: int, numbers: Mapping[str, float]) -> None:
        self._mlflow.log_metrics(dict(numbers), step=epoch)

    def close(self) -> None:
        if self._started is not None:
            self._mlflow.end_run()
            self._started = None


class WandbLogger(Tracker):
    """Writes the settings of the training and the logs of each epoch to a run of Weights & Biases.

    The run is the active one, which stays open; without one a run is begun, and finished with the training.

    Args:
        options: Arguments of `wandb.init` for a run that is begun, such as project="digits" or mode="offline".

    Raises:
        ImportError: When training begins, if wandb is missing.
    """

    def __init__(self, **options: Any) -> None:
        self.options = options
        self._started = False
        self._run: Any = None

    def _begin(self) -> None:
        wandb = _library(self, "wandb")
        self._started = wandb.run is None
        self._run = wandb.init(**self.options) if self._started else wandb.run
        self._run.config.update(self._settings(), allow_val_change=True)

    def _log(self, epoch: int, numbers: Mapping[str, float]) -> None:
        self._run.log({**numbers, "epoch": epoch})

    def close(self) -> None:
        if self._started and self._run is not None:
            self._run.finish()
        self._run = None


def _library(callback: Tracker, name: str) -> Any:
    """A library that no extra has, as those who use it have it already."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(
            f"The callback {type(callback).__name__} needs {name}: pip install {name}.", name=name
        ) from error
