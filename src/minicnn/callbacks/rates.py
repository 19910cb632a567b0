"""Callbacks that change the learning rate between epochs."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

from minicnn.callbacks.base import Callback
from minicnn.callbacks.monitors import Mode, Monitor
from minicnn.optimizers import Optimizer
from minicnn.schedules import Schedule
from minicnn.states import Rule, count, number


class _RateCallback(Callback):
    """The model's learning rate as a number that can be set; its value goes into the logs."""

    @property
    def rate(self) -> float:
        """Learning rate of the optimizer."""
        rate = self._optimizer.learning_rate
        if isinstance(rate, Schedule):
            raise ValueError(
                f"{type(self).__name__} sets the learning rate between epochs, so the optimizer's is a number. "
                f"Received: {rate!r}. Leave out the callback or the schedule."
            )
        return rate

    @rate.setter
    def rate(self, rate: float) -> None:
        self._optimizer.learning_rate = rate

    @property
    def _optimizer(self) -> Optimizer:
        if self.model.optimizer is None:
            raise RuntimeError(
                f"{type(self).__name__} needs an optimizer. Received: a model without one. Call compile()."
            )
        return self.model.optimizer

    def on_train_begin(self, logs: Any) -> None:
        """See `Callback`; refuses an optimizer with a schedule before anything is computed."""
        self.rate  # noqa: B018 - it raises

    def on_epoch_end(self, epoch: int, logs: dict[str, Any]) -> None:
        logs["learning_rate"] = self.rate


class LearningRateScheduler(_RateCallback):
    """Sets the learning rate at the start of each epoch.

    Args:
        schedule: Called with the epoch, counted from 0, and if it takes a second argument the learning
            rate so far; returns the new one.
        verbose: 1 prints a line each epoch.

    Raises:
        ValueError: During training, if the schedule returns no finite number of at least 0, or the
            optimizer has a schedule of its own.

    Example:
        >>> halving = LearningRateScheduler(lambda epoch, rate: rate * 0.5 if epoch else rate)
    """

    def __init__(self, schedule: Callable[..., float], verbose: int = 0) -> None:
        self.schedule = schedule
        self.verbose = verbose
        try:
            # Asked of the signature and not tried out: a TypeError from within the schedule would look the same.
            inspect.signature(schedule).bind(0, 0.0)
            self._takes_rate = True
        except (TypeError, ValueError, OverflowError):  # ValueError: a function in C without a signature
            self._takes_rate = False

    def on_epoch_begin(self, epoch: int, logs: Any) -> None:
        new = self.schedule(epoch, self.rate) if self._takes_rate else self.schedule(epoch)
        try:
            rate = float(new)
        except (TypeError, ValueError, OverflowError):
            rate = math.nan
        if not 0 <= rate < math.inf:
            raise ValueError(
                "A learning rate is a finite number of at least 0. "
                f"Received from the schedule for epoch {epoch}: {new!r}."
            )
        self.rate = rate
        if self.verbose and self.chief:
            print(f"Epoch {epoch + 1}: the learning rate is {rate:.5g}.")


class ReduceLROnPlateau(_RateCallback):
    """Lowers the learning rate once what is monitored has not become better for some epochs.

    Args:
        monitor: Key in the logs.
        factor: What is left of the learning rate, below 1.
        patience: Epochs without a better value after which the rate is lowered.
        verbose: 1 prints a line when it is.
        mode: "min", "max", or "auto", which decides by the name.
        min_delta: Change that counts as better is larger than this.
        cooldown: Epochs after a fall in which nothing is counted.
        min_lr: Lowest learning rate.

    Raises:
        ValueError: If the factor is not between 0 and 1; during training, if there is no such log.
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        factor: float = 0.1,
        patience: int = 10,
        verbose: int = 0,
        mode: Mode = "auto",
        min_delta: float = 1e-4,
        cooldown: int = 0,
        min_lr: float = 0.0,
    ) -> None:
        if not 0 <= factor < 1:
            raise ValueError(
                f"factor is what is left of the learning rate, at least 0 and below 1. Received: {factor}."
            )
        self._monitor = Monitor(monitor, mode, min_delta)
        self.factor = factor
        self.patience = patience
        self.verbose = verbose
        self.cooldown = cooldown
        self.min_lr = min_lr
        self._reset()

    def _reset(self) -> None:
        self.best, self.wait, self.cooldown_counter = self._monitor.worst, 0, 0

    def on_train_begin(self, logs: Any) -> None:
        super().on_train_begin(logs)
        self._reset()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any]) -> None:
        super().on_epoch_end(epoch, logs)
        if self._monitor.pauses(self):
            return
        value = self._monitor.value(logs)
        if self.cooldown_counter:
            self.cooldown_counter -= 1
            self.wait = 0
        if self._monitor.better(value, self.best):
            self.best, self.wait = value, 0
        elif not self.cooldown_counter:
            self.wait += 1
            if self.wait >= self.patience and self.rate > self.min_lr:
                self.rate = max(self.rate * self.factor, self.min_lr)
                self.cooldown_counter, self.wait = self.cooldown, 0
                if self.verbose and self.chief:
                    print(f"Epoch {epoch + 1}: the learning rate is lowered to {self.rate:.5g}.")

    def _remembered(self) -> Mapping[str, Rule]:
        return {"best": number, "wait": count, "cooldown_counter": count}
