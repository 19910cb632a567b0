"""Callback, the containers that call them, History, and callbacks made of plain functions."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np

from minicnn import html
from minicnn.arguments import PlainArguments
from minicnn.states import Rule, anything, check_state, count, dict_of, list_of

if TYPE_CHECKING:
    from minicnn.models import Model

Logs = Mapping[str, Any]


class Callback(metaclass=PlainArguments):
    """Base class: override the points that matter.

    `logs` maps names such as "loss" and "val_accuracy" to numbers. In `on_train_batch_end` they are
    averages over the epoch so far, and are read from the device only when looked at, which waits for it.

    Attributes:
        model: The model in training.
        params: What `fit` was asked for: "epochs", "steps" (per epoch), "verbose", "batch_size" (None with
            a loader), "shuffle", "seed" and "last_batch".
        group: All callbacks of the training.
        runs_last: Whether it is called after those that are not so, at every point.
        every_batch: Whether what it overrides of the batch hooks must be called for every batch. If no callback
            needs that, a backend that is faster so takes many steps between two calls.
        ends_on_nan: Whether it ends the training where the loss is no finite number; without one that does, a training
            on several ranks ends with an error.
    """

    model: Model
    params: dict[str, Any]
    group: Callbacks
    runs_last = False
    every_batch = True
    ends_on_nan = False

    @property
    def chief(self) -> bool:
        """True if this process prints, logs and writes files: of several ranks only the first does."""
        distribution = getattr(getattr(self, "model", None), "distribution", None)
        return distribution is None or distribution.rank == 0

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"

    def set_params(self, params: dict[str, Any]) -> None:
        """Called before training, evaluation or prediction, with what it was asked for."""
        self.params = params

    def set_model(self, model: Model) -> None:
        """Called likewise, with the model."""
        self.model = model

    def on_train_begin(self, logs: Logs) -> None:
        """Before the first epoch; `logs` is empty."""

    def on_train_end(self, logs: Logs) -> None:
        """After the last epoch, also when training was stopped early, with the logs of that epoch."""

    def on_epoch_begin(self, epoch: int, logs: Logs) -> None:
        """Before an epoch, counted from 0; once more where training resumes within it; `logs` is empty."""

    def on_epoch_end(self, epoch: int, logs: dict[str, Any]) -> None:
        """After an epoch and its validation; entries added to `logs` are kept in the history."""

    def on_train_batch_begin(self, batch: int, logs: Logs) -> None:
        """Before a step, counted from 0 in each epoch; `logs` is empty."""

    def on_train_batch_end(self, batch: int, logs: Logs) -> None:
        """After a step."""

    def on_test_begin(self, logs: Logs) -> None:
        """Before the validation at the end of an epoch, or an evaluation; `logs` is empty."""

    def on_test_end(self, logs: Logs) -> None:
        """After the validation at the end of an epoch, or an evaluation, with its logs, such as "loss"."""

    def on_test_batch_begin(self, batch: int, logs: Logs) -> None:
        """Before a batch of them, counted from 0; `logs` is empty."""

    def on_test_batch_end(self, batch: int, logs: Logs) -> None:
        """After a batch of them, with the averages so far."""

    def on_predict_begin(self, logs: Logs) -> None:
        """Before predictions; `logs` is empty."""

    def on_predict_end(self, logs: Logs) -> None:
        """After predictions; `logs` is empty."""

    def on_predict_batch_begin(self, batch: int, logs: Logs) -> None:
        """Before a batch of predictions, counted from 0; `logs` is empty."""

    def on_predict_batch_end(self, batch: int, logs: Logs) -> None:
        """After a batch of predictions; `logs` has them as "outputs"."""

    def close(self) -> None:
        """After training, whether it was completed or broken off: let go of files, the terminal ..."""

    def get_state(self) -> dict[str, Any]:
        """State that the callback must remember when an interrupted training is resumed.

        Plain data (numbers, strings, None, lists, dictionaries with string keys) and NumPy arrays.
        """
        return {name.lstrip("_"): getattr(self, name) for name in self._remembered()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take up a remembered state; what raises a ValueError for one that is none changes nothing before."""
        rules = self._remembered()
        if rules:
            check_state(self, state, **{name.lstrip("_"): rule for name, rule in rules.items()})
        for name in rules:
            # A copy, as the callback goes on changing its own.
            setattr(self, name, copy.deepcopy(state[name.lstrip("_")]))

    def _remembered(self) -> Mapping[str, Rule]:
        """The attributes that are the state, and the rule of each."""
        return {}


class Callbacks:
    """Several callbacks as one; a context manager that closes them.

    Args:
        callbacks: Callbacks, called in this order except that those that run last come last.
        model: Model in training.
        params: See `Callback`.

    Raises:
        TypeError: If one is no Callback.
    """

    def __init__(self, callbacks: Sequence[Callback], model: Model, params: dict[str, Any]) -> None:
        for callback in callbacks:
            if not isinstance(callback, Callback):
                raise TypeError(
                    "Callbacks are instances of minicnn.callbacks.Callback. "
                    f"Received: {callback!r}. Derive the class from Callback, or make an object of it."
                )
            callback.group = self
            callback.set_params(params)
            callback.set_model(model)
        self.params = params
        # Stable: all others keep the order in which they were given.
        self.callbacks = sorted(callbacks, key=lambda c: c.runs_last)
        self.without_validation = False  # whether the epoch that ends is one of those between two validations
        self._last: Logs = {}

    @property
    def watch_batches(self) -> bool:
        """True if a callback must be called for every batch of the training."""
        return self.watch("train")

    @property
    def ends_on_nan(self) -> bool:
        """True if a callback ends the training where the loss is no finite number."""
        return any(c.ends_on_nan for c in self.callbacks)

    def watch(self, kind: str) -> bool:
        """True if a callback must be called for every batch of a "train", "test" or "predict"."""
        hooks = (f"on_{kind}_batch_begin", f"on_{kind}_batch_end")
        return any(
            c.every_batch and any(h in vars(c) or getattr(type(c), h) is not getattr(Callback, h) for h in hooks)
            for c in self.callbacks
        )

    def __call__(self, point: str, *arguments: Any) -> None:
        """Call one method of each callback, such as "on_epoch_end"; logs that are not given are empty.

        Those of the last epoch are given when training ends.
        """
        if point == "on_epoch_end":
            self._last = arguments[-1]
        if len(arguments) < 1 + ("epoch" in point or "batch" in point):
            arguments = (*arguments, self._last if point == "on_train_end" else {})
        for callback in self.callbacks:
            getattr(callback, point)(*arguments)

    def __enter__(self) -> Callbacks:
        return self

    def __exit__(self, *_: object) -> None:
        with ExitStack() as stack:  # closes every one, even if another cannot be closed
            for callback in self.callbacks:
                stack.callback(callback.close)
        self.callbacks = []  # they know this object: a model in training would live until Python looks for cycles

    def get_state(self) -> dict[str, Any]:
        """States of the callbacks that have one, by class name, numbered where a class comes again."""
        states = {name: callback.get_state() for name, callback in self._named().items()}
        return {name: state for name, state in states.items() if state}

    def set_state(self, states: Mapping[str, Any]) -> None:
        """Hand out remembered states; a callback that has none keeps its own."""
        for name, callback in self._named().items():
            if name in states:
                callback.set_state(states[name])

    def _named(self) -> dict[str, Callback]:
        named: dict[str, Callback] = {}
        counts: dict[str, int] = {}
        for callback in self.callbacks:
            name = type(callback).__name__
            counts[name] = counts.get(name, 0) + 1
            named[name if counts[name] == 1 else f"{name}_{counts[name]}"] = callback
        return named


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
        self.epoch.append(epoch)
        for key, value in logs.items():
            self.history.setdefault(key, []).append(value)

    def plot(self) -> html.Drawing:
        """Curves of all logs that are numbers, those of the validation beside those of the training.

        Returns:
            A drawing, which a notebook shows and `save("history.svg")` writes.
        """
        numbers = {k: v for k, v in self.history.items() if all(map(is_number, v))}
        panels: dict[str, dict[str, list[Any]]] = {}
        for name, values in numbers.items():
            line = "validation" if name.startswith("val_") else "training"
            panels.setdefault(name.removeprefix("val_"), {})[line] = values
        return html.curves("the training by epoch", [epoch + 1 for epoch in self.epoch], panels)

    def _repr_html_(self) -> str:
        rows = [(epoch + 1, *(_short(v[i]) if i < len(v) else "" for v in self.history.values()))
                for i, epoch in enumerate(self.epoch)]  # fmt: skip
        values = html.folded("numbers", html.table(("epoch", *self.history), rows))
        return html.block(repr(self).strip("<>"), "<br>", self.plot()._repr_html_(), values)

    def __repr__(self) -> str:
        last = ", ".join(f"{k} {_short(v[-1])}" for k, v in self.history.items())
        return f"<History of {len(self.epoch)} epochs{f', the last with {last}' if last else ''}>"

    def _remembered(self) -> Mapping[str, Rule]:
        return {"epoch": list_of(count), "history": dict_of(list_of(anything))}


def is_number(value: Any) -> bool:
    """True if a log is a number, as opposed to an array or a text."""
    return not isinstance(value, str | bytes | None) and np.ndim(value) == 0


def _short(value: Any) -> str:
    return f"{float(value):.4g}" if is_number(value) else str(value) if isinstance(value, str) else type(value).__name__


class LambdaCallback(Callback):
    """A callback made of functions, each of which may be left out.

    They take what Keras gives them; `logs` is empty where nothing has been measured yet.

    Args:
        on_epoch_begin: Called with (epoch, logs).
        on_epoch_end: Called with (epoch, logs).
        on_train_begin: Called with (logs).
        on_train_end: Called with (logs), those of the last epoch.
        on_train_batch_begin: Called with (batch, logs).
        on_train_batch_end: Called with (batch, logs).
        others: The other methods of a Callback, such as on_test_begin.

    Raises:
        TypeError: If a Callback has no such method.

    Example:
        >>> stop = LambdaCallback(on_epoch_end=lambda epoch, logs: print(epoch, logs["loss"]))
    """

    def __init__(
        self,
        on_epoch_begin: Callable[[int, Logs], Any] | None = None,
        on_epoch_end: Callable[[int, dict[str, Any]], Any] | None = None,
        on_train_begin: Callable[[Logs], Any] | None = None,
        on_train_end: Callable[[Logs], Any] | None = None,
        on_train_batch_begin: Callable[[int, Logs], Any] | None = None,
        on_train_batch_end: Callable[[int, Logs], Any] | None = None,
        **others: Callable[..., Any] | None,
    ) -> None:
        if unknown := sorted(name for name in others if not name.startswith("on_") or not hasattr(Callback, name)):
            raise TypeError(f"A LambdaCallback takes the methods of a Callback. Received: {', '.join(unknown)}.")
        functions = {
            "on_epoch_begin": on_epoch_begin, "on_epoch_end": on_epoch_end, "on_train_begin": on_train_begin,
            "on_train_end": on_train_end, "on_train_batch_begin": on_train_batch_begin,
            "on_train_batch_end": on_train_batch_end, **others,
        }  # fmt: skip
        self.every_batch = any("batch" in name and function is not None for name, function in functions.items())
        for name, function in functions.items():
            if function is not None:
                setattr(self, name, function)
