"""Callbacks that watch one of the logs: early stopping, and stopping on NaN."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

from minicnn.callbacks.base import Callback, Logs, is_number
from minicnn.states import Rule, arrays_like, count, number, optional

_MORE = ("acc", "auc", "precision", "recall", "score", "io_u")  # in the names of metrics of which more is better
Mode = Literal["auto", "min", "max"]


class Monitor:
    """One of the logs, and which of two values of it is the better.

    Args:
        name: Key in the logs.
        mode: "min" if less is better, "max" if more is; "auto" decides by the name: more accuracy, less
            loss or error.
        min_delta: Change that counts as better is larger than this.

    Raises:
        ValueError: If the mode is unknown or "auto" cannot tell.
    """

    def __init__(self, name: str, mode: Mode = "auto", min_delta: float = 0.0) -> None:
        if mode not in ("auto", "min", "max"):
            raise ValueError(f"mode is 'auto', 'min' or 'max'. Received: {mode!r}.")
        if mode == "auto" and not any(part in name for part in (*_MORE, "loss", "error")):
            raise ValueError(
                "mode='auto' tells by the name of what is monitored, an accuracy or the like, loss or error. "
                f"Received: monitor={name!r}. Say mode='min' or mode='max'."
            )
        self.name = name
        self.more = mode == "max" or (mode == "auto" and any(part in name for part in _MORE))
        self.min_delta = abs(min_delta)

    @property
    def worst(self) -> float:
        """A value that every other one is better than."""
        return -math.inf if self.more else math.inf

    def value(self, logs: Logs) -> float:
        """The monitored number.

        Raises:
            ValueError: If there is no such log, or it is not a number.
        """
        # Named in the error: a wrong key is the usual mistake, and the right one is among these.
        available = {k: v for k, v in logs.items() if is_number(v)}
        if self.name not in available:
            raise ValueError(
                f"What is monitored is a number among the logs. Received: {self.name!r}; there are: "
                f"{', '.join(available)}. Logs that start with 'val_' need validation data."
            )
        return float(available[self.name])

    def pauses(self, callback: Callback) -> bool:
        """True if an epoch ends without what is monitored, because it is between two that are validated."""
        group = getattr(callback, "group", None)
        return self.name.startswith("val_") and group is not None and group.without_validation

    def better(self, value: float, than: float) -> bool:
        """True if one value is better than another by more than `min_delta`."""
        return value - self.min_delta > than if self.more else value + self.min_delta < than


class EarlyStopping(Callback):
    """Stops training once what is monitored has not become better for some epochs.

    Args:
        monitor: Key in the logs.
        min_delta: Change that counts as better is larger than this.
        patience: Epochs without a better value after which training stops.
        verbose: 1 prints a line when it stops.
        mode: "min", "max", or "auto", which decides by the name.
        baseline: Value that must be reached: epochs worse than this count as not better.
        restore_best_weights: Whether the weights of the best epoch are put back at the end.
        start_from_epoch: Epochs before this one are not looked at.

    Attributes:
        best: Best value so far.
        best_epoch: Its epoch.
        stopped_epoch: Epoch after which training was stopped; 0 if it was not.

    Raises:
        ValueError: During training, if there is no such log.
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        min_delta: float = 0.0,
        patience: int = 0,
        verbose: int = 0,
        mode: Mode = "auto",
        baseline: float | None = None,
        restore_best_weights: bool = False,
        start_from_epoch: int = 0,
    ) -> None:
        self._monitor = Monitor(monitor, mode, min_delta)
        self.patience = patience
        self.verbose = verbose
        self.baseline = baseline
        self.restore_best_weights = restore_best_weights
        self.start_from_epoch = start_from_epoch
        self._reset()

    def _reset(self) -> None:
        self.wait = self.stopped_epoch = self.best_epoch = 0
        self.best = self._monitor.worst
        self._best_weights: dict[str, Any] | None = None

    def on_train_begin(self, logs: Logs) -> None:
        self._reset()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any]) -> None:
        if self._monitor.pauses(self):
            return
        value = self._monitor.value(logs)
        if epoch < self.start_from_epoch:
            return
        # The first epoch's weights are kept in any case, so that there is something to restore where none was ever
        # better.
        better = self._monitor.better(value, self.best)
        if self.restore_best_weights and (better or self._best_weights is None):
            self._best_weights, self.best_epoch = self.model.get_weights(), epoch
        self.wait += 1
        if better:
            self.best, self.best_epoch = value, epoch
            if self.baseline is None or self._monitor.better(value, self.baseline):
                self.wait = 0
        elif self.wait >= self.patience and epoch > 0:
            self.stopped_epoch = epoch
            self.model.stop_training = True

    def on_train_end(self, logs: Logs) -> None:
        if self.verbose and self.chief and self.stopped_epoch:
            print(f"Epoch {self.stopped_epoch + 1}: stopped early; {self._monitor.name} was best, "
                  f"{self.best:.5g}, in epoch {self.best_epoch + 1}.")  # fmt: skip
        if self._best_weights is not None:
            self.model.set_weights(self._best_weights)

    def _remembered(self) -> Mapping[str, Rule]:
        counts = dict.fromkeys(("wait", "stopped_epoch", "best_epoch"), count)
        return counts | {"best": number, "_best_weights": optional(self._are_weights)}

    def _are_weights(self, value: Any) -> bool:
        weights = {path: (array.shape, array.dtype) for path, array in self.model.get_weights().items()}
        return arrays_like(weights)(value)


class TerminateOnNaN(Callback):
    """Stops training as soon as the loss is NaN or infinite; it waits for the device after every step.

    On several ranks a training without it ends with an error then, as the page "Train on several machines" says.
    """

    ends_on_nan = True

    def on_train_batch_end(self, batch: int, logs: Logs) -> None:
        loss = logs["loss"]
        if not math.isfinite(loss):
            if self.chief:
                print(f"Batch {batch}: the loss is {loss}, training is stopped.")
            self.model.stop_training = True
