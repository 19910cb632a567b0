"""ModelCheckpoint: files of the model, written while it trains."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal

from minicnn.callbacks.base import Callback, Logs
from minicnn.callbacks.monitors import Mode, Monitor
from minicnn.description import describe
from minicnn.files import check_ending, check_folder, writing
from minicnn.states import Rule, count, number, optional

SaveFrequency = Literal["epoch"] | int


def check_save_freq(save_freq: SaveFrequency) -> None:
    """Refuse what is neither "epoch" nor a positive integer."""
    if save_freq != "epoch" and (not isinstance(save_freq, int) or save_freq < 1):
        raise ValueError(f"save_freq is 'epoch' or a number of batches, at least 1. Received: {save_freq!r}.")


class ModelCheckpoint(Callback):
    """Saves the model after each epoch, after every so many batches, or when it is better than before.

    Each file is written atomically: an interruption leaves the one that was there whole.

    Args:
        filepath: File to write, with fields such as "model-{epoch:02d}-{val_loss:.2f}.safetensors": "epoch"
            counted from 1, "batch" counted from 1, and the logs. Folders with fields in their names are made.
        monitor: Key in the logs, for `save_best_only`.
        verbose: 1 prints a line for each file.
        save_best_only: Whether only a model better than all before is saved.
        save_weights_only: Whether the file holds the weights alone; else it is one for `load_model`.
        mode: "min", "max", or "auto", which decides by the name of what is monitored.
        save_freq: "epoch", or a number of batches; then the logs are those of the epoch so far.
        initial_value_threshold: What the first model must be better than, for `save_best_only`.

    Raises:
        ValueError: If an argument is out of range; during training, if there is no such log.
        OSError: When training begins, if the folder is not there; during training, if the file cannot be written.
    """

    def __init__(
        self,
        filepath: str | os.PathLike[str],
        monitor: str = "val_loss",
        verbose: int = 0,
        save_best_only: bool = False,
        save_weights_only: bool = False,
        mode: Mode = "auto",
        save_freq: SaveFrequency = "epoch",
        initial_value_threshold: float | None = None,
    ) -> None:
        check_save_freq(save_freq)
        if save_best_only and save_freq != "epoch" and monitor.startswith("val_"):
            raise ValueError(
                "Within an epoch there are logs of the training alone, none of a validation. Received: "
                f"monitor={monitor!r}, save_freq={save_freq!r}. Use monitor={monitor.removeprefix('val_')!r} or "
                "save_freq='epoch'."
            )
        check_ending(filepath)
        self._monitor = Monitor(monitor, mode) if save_best_only else None
        self.filepath = os.fspath(filepath)
        self.verbose = verbose
        self.save_weights_only = save_weights_only
        self.save_freq = save_freq
        self.every_batch = save_freq != "epoch"
        self.best: float | None = initial_value_threshold
        self._batches = 0
        self._epoch = 0

    def on_train_begin(self, logs: Logs) -> None:
        """See `Callback`; what cannot be saved, or saved there, is refused before anything is computed."""
        if self.chief:
            check_folder(self._fixed())
        if not self.save_weights_only:
            describe(self.model)

    def on_epoch_begin(self, epoch: int, logs: Logs) -> None:
        self._epoch = epoch

    def on_epoch_end(self, epoch: int, logs: dict[str, Any]) -> None:
        if self.save_freq == "epoch":
            self._save({"epoch": epoch + 1}, logs)

    def on_train_batch_end(self, batch: int, logs: Logs) -> None:
        self._batches += 1
        if self.save_freq != "epoch" and self._batches % self.save_freq == 0:
            self._save({"epoch": self._epoch + 1, "batch": batch + 1}, logs)

    def _save(self, fields: dict[str, int], logs: Logs) -> None:
        if self._monitor is not None:
            if self._monitor.pauses(self):
                return
            value = self._monitor.value(logs)
            if not self._monitor.better(value, self._monitor.worst if self.best is None else self.best):
                return
            self.best = value
        path = self._path({**logs, **fields} if "{" in self.filepath else fields)
        if "{" in os.path.dirname(self.filepath):  # its folders have names that only training tells
            with writing(path):
                os.makedirs(os.path.dirname(path), exist_ok=True)
        if self.save_weights_only:
            self.model.save_weights(path)
        else:
            self.model.save(path)
        if self.verbose and self.chief:
            print(f"Epoch {fields['epoch']}: saved {path}.")

    def _fixed(self) -> str:
        """The path up to the first part whose name only training tells."""
        head, brace, _ = self.filepath.partition("{")
        return os.path.join(os.path.dirname(head), "x") if brace else self.filepath

    def _path(self, fields: Mapping[str, Any]) -> str:
        try:
            return self.filepath.format(**fields)
        except (KeyError, IndexError, ValueError, TypeError) as error:
            raise ValueError(
                f"Fields of filepath are those that there are: {', '.join(fields)}. "
                f"Received: {self.filepath!r} ({type(error).__name__}: {error})."
            ) from error

    def _remembered(self) -> Mapping[str, Rule]:
        return {"best": optional(number), "_batches": count}
