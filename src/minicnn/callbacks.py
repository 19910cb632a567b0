"""Callbacks: code that runs at set points of training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minicnn.models import Model

Logs = Mapping[str, Any]


class Callback:
    """Base class: override the points that matter.

    `logs` maps names such as "loss" and "val_accuracy" to numbers. In `on_train_batch_end` they are
    averages over the epoch so far, and are read from the device only when looked at.

    Attributes:
        model: The model in training.
        params: "epochs", "steps" (per epoch, None if unknown) and "verbose".
    """

    model: Model
    params: dict[str, Any]

    def on_train_begin(self) -> None:
        """Before the first epoch."""

    def on_train_end(self) -> None:
        """After the last epoch, also when training was stopped early."""

    def on_epoch_begin(self, epoch: int) -> None:
        """Before an epoch, counted from 0."""

    def on_epoch_end(self, epoch: int, logs: dict[str, Any]) -> None:
        """After an epoch and its validation; entries added to `logs` are kept in the history."""

    def on_train_batch_begin(self, batch: int) -> None:
        """Before a step, counted from 0 in each epoch."""

    def on_train_batch_end(self, batch: int, logs: Logs) -> None:
        """After a step."""

    def get_state(self) -> dict[str, Any]:
        """What the callback must remember when an interrupted training is resumed, as plain data."""
        return {}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take up a remembered state."""


class History(Callback):
    """The logs of each epoch; `fit` returns one.

    Attributes:
        epoch: Numbers of the epochs.
        history: For each log its values, epoch by epoch.
    """

    def __init__(self) -> None:
        self.epoch: list[int] = []
        self.history: dict[str, list[Any]] = {}

    def on_epoch_end(self, epoch: int, logs: dict[str, Any]) -> None:
        """See `Callback`."""
        self.epoch.append(epoch)
        for key, value in logs.items():
            self.history.setdefault(key, []).append(value)

    def get_state(self) -> dict[str, Any]:
        """See `Callback`."""
        return {"epoch": self.epoch, "history": self.history}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """See `Callback`."""
        self.epoch, self.history = list(state["epoch"]), {k: list(v) for k, v in state["history"].items()}


class Callbacks:
    """Several callbacks as one."""

    def __init__(self, callbacks: Sequence[Callback], model: Model, params: dict[str, Any]) -> None:
        for callback in callbacks:
            if not isinstance(callback, Callback):
                message = (
                    f"Callbacks derive from minicnn.callbacks.Callback. Received: {type(callback).__name__}."
                )
                raise TypeError(message)
            callback.model, callback.params = model, params
        self.callbacks = list(callbacks)

    def __call__(self, point: str, *arguments: Any) -> None:
        """Call one method of each callback, such as "on_epoch_end"."""
        for callback in self.callbacks:
            getattr(callback, point)(*arguments)


def progress(verbose: str | int) -> list[Callback]:
    """The callback that shows progress, if any."""
    return []
