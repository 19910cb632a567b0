"""Engine: a model's arrays on a backend, and its steps, compiled when first needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from minicnn.backends import get_backend
from minicnn.backends.base import Array, Backend, Executable
from minicnn.program.graph import Program
from minicnn.steps import Feed, StepKind

Totals = dict[str, Array]


class Engine:
    """Runs the steps of one model and carries its state from each to the next.

    Attributes:
        dtype: Floating-point type of the weights.
        arrays: State on the backend by name: weights, optimizer state, the step counter.
        steps_taken: Training steps so far.
    """

    def __init__(self, trace: Callable[[StepKind, Feed], Program], backend: str | Backend | None) -> None:
        self._trace = trace
        self._backend = None if backend is None else get_backend(backend)
        self.dtype = "float32"
        self.arrays: dict[str, Array] = {}
        self.steps_taken = 0
        self._host: dict[str, np.ndarray[Any, Any]] = {}  # state that no backend has yet
        self._executables: dict[tuple[StepKind, Feed], Callable[[Mapping[str, Array]], dict[str, Array]]] = {}

    @property
    def decided(self) -> bool:
        """Whether it is known which backend runs the model."""
        return self._backend is not None

    @property
    def backend(self) -> Backend:
        """The backend; the default one if none was chosen before it is needed."""
        if self._backend is None:
            self._backend = get_backend(None)
        return self._backend

    @backend.setter
    def backend(self, backend: Backend) -> None:
        self._backend = backend

    def set(self, arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """Replace state by copies of host arrays; they go to the backend when it is needed."""
        for name, array in arrays.items():
            self.arrays.pop(name, None)
            self._host[name] = np.array(array, self.dtype if array.dtype.kind == "f" else None)

    def get(self, name: str) -> np.ndarray[Any, Any]:
        """A copy of one state array on the host."""
        if name in self._host:
            return self._host[name].copy()
        return np.array(self.backend.to_numpy(self.arrays[name]))

    def names(self) -> list[str]:
        """Names of all state arrays."""
        return [*self.arrays, *self._host]

    def reset(self, dtype: str, keep: Mapping[str, Any]) -> None:
        """Forget compiled steps and all state but the arrays named, which get a new floating-point type."""
        kept = {name: self.get(name) for name in self.names() if name in keep}
        self.dtype, self.arrays, self._host = dtype, {}, {}
        self._executables.clear()
        self.steps_taken = 0
        self.set(kept)

    def state(self) -> dict[str, Array]:
        """All state on the backend."""
        for name in list(self._host):
            self.arrays[name] = self.backend.asarray(self._host.pop(name))
        return self.arrays

    def train(self, feed: Feed, arrays: Mapping[str, Array], totals: Totals, rate: float) -> Totals:
        """One training step; returns the metric totals with those of this batch added."""
        given = {**arrays, "learning_rate": self.backend.asarray(np.asarray(rate, self.dtype))}
        made = self._run("train", feed, given, totals)
        self.steps_taken += 1
        return made

    def evaluate(self, feed: Feed, arrays: Mapping[str, Array], totals: Totals) -> Totals:
        """One evaluation step; returns the metric totals with those of this batch added."""
        return self._run("evaluate", feed, arrays, totals)

    def predict(self, feed: Feed, arrays: Mapping[str, Array]) -> list[Array]:
        """The outputs for one batch."""
        return list(self._executable("predict", feed)({**self.state(), **arrays}).values())

    def _run(self, kind: StepKind, feed: Feed, arrays: Mapping[str, Array], totals: Totals) -> Totals:
        step = self._executable(kind, feed)
        state = self.state()
        made = step({**state, **arrays, **totals})
        state.update({name: array for name, array in made.items() if name in state})
        return {name: array for name, array in made.items() if name.startswith("metric/")}

    def _executable(self, kind: StepKind, feed: Feed) -> Callable[[Mapping[str, Array]], dict[str, Array]]:
        if (kind, feed) not in self._executables:
            program = self._trace(kind, feed)
            for value in program.inputs:
                # Carried state that is not there yet starts at zero.
                if value.kind in ("optimizer", "counter") and value.name not in self.names():
                    self.set({value.name: np.zeros(value.shape, value.dtype)})
            self._executables[kind, feed] = _with_zero_totals(program, self.backend)
        return self._executables[kind, feed]


def _with_zero_totals(program: Program, backend: Backend) -> Executable:
    """The compiled Program, which starts metric totals at zero where none are passed."""
    run = backend.compile(program)
    names = [v.name for v in program.inputs]
    totals = {v.name: np.zeros(v.shape, v.dtype) for v in program.inputs if v.kind == "metric"}

    def call(arrays: Mapping[str, Array]) -> dict[str, Array]:
        # Zeros are made anew each time, because a backend may overwrite what is carried.
        return run({n: arrays[n] if n in arrays else backend.asarray(totals[n].copy()) for n in names})

    return call
