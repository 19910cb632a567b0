"""Showing progress: a bar on a terminal or in a notebook, one line an epoch elsewhere."""

from __future__ import annotations

import sys
import time
from abc import abstractmethod
from typing import Any

from minicnn import html
from minicnn.backends import _progress as compilation
from minicnn.callbacks.base import Callback, Logs, is_number
from minicnn.machine import is_terminal

# Shortest time between two looks at the logs, in seconds: reading them waits for the device.
_INTERVAL = 0.2


def progress(verbose: str | int) -> list[Callback]:
    """The callback that shows progress, if any.

    Args:
        verbose: 0 for nothing; 1 for a bar, in a notebook or on a terminal where rich is installed, and one line an
            epoch; 2 for the lines alone; "auto" is 1.

    Raises:
        ValueError: If it is something else.
    """
    if verbose not in (0, 1, 2, "auto"):
        raise ValueError(f"verbose is 0, 1, 2 or 'auto'. Received: {verbose!r}.")
    if verbose == 0:
        return []
    if verbose != 2 and _in_notebook():
        return [_NotebookBar()]
    if verbose != 2 and is_terminal(sys.stdout):
        try:
            return [_TerminalBar()]
        except ImportError:
            pass
    return [_Lines()]


class _Lines(Callback):
    """One line an epoch: time and rate of the training, without what compiling took, and all logs that are numbers."""

    def on_epoch_begin(self, epoch: int, logs: Logs) -> None:
        self._start, self._time = time.perf_counter(), 0.0
        self._kernels, self._waited = compilation.clock.kernels, compilation.clock.seconds
        self._before = self.model.samples_seen  # of the part that was trained before a resumption

    def _elapsed(self) -> float:
        """Seconds of the epoch without those that compiling took."""
        return time.perf_counter() - self._start - (compilation.clock.seconds - self._waited)

    def on_test_begin(self, logs: Logs) -> None:
        self._time = self._elapsed()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any]) -> None:
        taken = self._time or self._elapsed()
        rate = (self.model.samples_seen - self._before) / taken
        times = f"{taken:.1f} s - {rate:.0f} samples/s"
        waited, kernels = compilation.clock.seconds - self._waited, compilation.clock.kernels - self._kernels
        if kernels and waited > compilation.PATIENCE:
            print(f"Compiling {kernels} kernels took {waited:.1f} s", flush=True)
        rest = {k: v for k, v in logs.items() if k not in ("time_s", "samples_per_s")}  # of a Timer
        print(f"Epoch {epoch + 1}/{self.params['epochs']} - {times} - {_text(rest)}", flush=True)


class _EpochBar(_Lines):
    """A bar while an epoch runs, which its line then replaces."""

    every_batch = False
    _bar: Any = None
    _screen: Any = None

    def on_epoch_begin(self, epoch: int, logs: Logs) -> None:
        super().on_epoch_begin(epoch, logs)
        self._epoch, self._shown, self._completed = epoch, self._start, 0
        self._screen = compilation.screen.set(self._compiling)
        if not self.model.steps_taken:  # the first step may take long: kernels are compiled
            self._show(0, "")

    def _compiling(self, text: str) -> None:
        if time.perf_counter() - self._shown >= _INTERVAL:
            self._show(self._completed, text)

    def on_train_batch_end(self, batch: int, logs: Logs) -> None:
        if time.perf_counter() - self._shown < _INTERVAL:
            return
        text = _text(logs)
        rate = (self.model.samples_seen - self._before) / self._elapsed()
        self._show(batch + 1, f"{rate:.0f} samples/s - {text}")

    def on_test_begin(self, logs: Logs) -> None:
        super().on_test_begin(logs)
        if self._bar is not None or self._time > _INTERVAL:
            self._show(self.params["steps"], "validation")

    @property
    def _name(self) -> str:
        return f"Epoch {self._epoch + 1}/{self.params['epochs']}"

    @abstractmethod
    def _draw(self, completed: int, text: str) -> None:
        """Draw the bar; short epochs have none."""

    def _show(self, completed: int, text: str) -> None:
        self._draw(completed, text)
        self._completed, self._shown = completed, time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any]) -> None:
        self.close()
        super().on_epoch_end(epoch, logs)

    def close(self) -> None:
        if self._screen is not None:
            compilation.screen.reset(self._screen)
            self._screen = None


class _TerminalBar(_EpochBar):
    """The bar by rich."""

    def __init__(self) -> None:
        import rich.progress

        self._rich = rich.progress

    def _draw(self, completed: int, text: str) -> None:
        if self._bar is None:
            bar = (self._rich.BarColumn(), self._rich.MofNCompleteColumn())
            columns = ("{task.description}", *bar, "{task.fields[logs]}")
            # No thread of its own: it is drawn when there is something new.
            self._bar = self._rich.Progress(*columns, auto_refresh=False, transient=True)
            self._bar.add_task(self._name, total=self.params["steps"], logs="")
            self._bar.start()
        self._bar.update(0, completed=completed, logs=text, refresh=True)

    def close(self) -> None:
        super().close()
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


class _NotebookBar(_EpochBar):
    """The bar as an output of the cell, each time in the place of the last; lines come below it, as text."""

    _output: Any = None

    def _draw(self, completed: int, text: str) -> None:
        self._bar, total = True, self.params["steps"]
        bar = f'<progress value="{completed}" max="{total}"></progress>'
        self._put(
            f"{self._name} - {completed}/{total} - {text}",
            f"{self._name} {bar} {completed}/{total} {html.escape(text)}",
        )

    def _put(self, text: str, shown: str) -> None:
        from IPython.display import display

        data = {"text/plain": text, "text/html": shown}
        if self._output is None:
            self._output = display(data, raw=True, display_id=True)
        else:
            self._output.update(data, raw=True)

    def close(self) -> None:
        super().close()
        if self._bar is not None:
            self._put("", "")
            self._bar = None


def _in_notebook() -> bool:
    """True if cells are run whose output can be replaced: Jupyter's, or those of an editor."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


def _text(logs: Logs) -> str:
    """Logs that are numbers, as in "loss: 0.1234 - accuracy: 0.9876"."""
    return " - ".join(f"{k}: {_number(float(v))}" for k, v in logs.items() if is_number(v))


def _number(value: float) -> str:
    return f"{value:.4f}" if value == 0 or 1e-3 <= abs(value) < 1e5 else f"{value:.3g}"
