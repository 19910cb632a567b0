"""Engine: a model's arrays on a backend, and its steps, compiled when first needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from minicnn.backends import get_backend
from minicnn.backends.base import Array, Backend, Executable
from minicnn.loop.tracing import Feed, StepKind
from minicnn.program.graph import Program

Totals = dict[str, Array]
HostArray = np.ndarray[Any, Any]
COMPILED = 32  # steps that are kept, each with its memory: one for each kind of step and size of batch


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
        # State that no backend has yet; a function makes it when it is needed.
        self._host: dict[str, HostArray | Callable[[], HostArray]] = {}
        self._steps: dict[tuple[StepKind, Feed], _Step] = {}

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

    def set(self, arrays: Mapping[str, HostArray | Callable[[], HostArray]]) -> None:
        """Replace state by copies of host arrays, or by functions that make them when they are needed."""
        for name, array in arrays.items():
            self.arrays.pop(name, None)
            self._host[name] = array if callable(array) else self._copy(array)

    def get(self, name: str) -> HostArray:
        """A copy of one state array on the host."""
        if name in self._host:
            return self._on_host(name).copy()
        return np.array(self.backend.to_numpy(self.arrays[name]))

    def _copy(self, array: HostArray) -> HostArray:
        return np.array(array, self.dtype if array.dtype.kind == "f" else None)

    def _on_host(self, name: str) -> HostArray:
        array = self._host[name]
        if callable(array):
            array = self._host[name] = self._copy(array())
        return array

    def names(self) -> list[str]:
        """Names of all state arrays."""
        return [*self.arrays, *self._host]

    def reset(self, dtype: str, keep: Mapping[str, Any]) -> None:
        """Forget compiled steps and all state but the arrays named, which get a new floating-point type."""
        kept = {n: self._host[n] if n in self._host else self.get(n) for n in self.names() if n in keep}
        self.dtype, self.arrays, self._host = dtype, {}, {}
        self._steps.clear()
        self.steps_taken = 0
        self.set(kept)

    def state(self) -> dict[str, Array]:
        """All state on the backend."""
        for name in list(self._host):
            self.arrays[name] = self.backend.asarray(self._on_host(name))
            del self._host[name]
        return self.arrays

    def restore(self, arrays: Mapping[str, HostArray], steps_taken: int) -> None:
        """Replace all state; what is not named is back at zero."""
        zeros = {name: np.zeros_like(self.get(name)) for name in self.names() if name not in arrays}
        self.arrays, self._host = {}, {}
        self.set({**zeros, **arrays})
        self.steps_taken = steps_taken

    def train_many(
        self,
        feed: Feed,
        arrays: Mapping[str, Array],
        totals: Totals,
        index: HostArray | None,
        rates: Sequence[float],
    ) -> Totals:
        """Several training steps on rows of whole arrays, or on the same arrays, at once where the backend can.

        Args:
            feed: What each step is given.
            arrays: The arrays.
            totals: Metric totals so far.
            index: Row numbers of each step, int32 (steps, batch); None if each step takes the arrays as they are.
            rates: Learning rate of each step.
        """
        step = self._step("train", feed)
        if step.many is not None:
            rows = {"learning_rate": np.asarray(rates, self.dtype)} | ({} if index is None else {"index": index})
            totals = self._keep(step, step.many(self._given(step, arrays, totals), rows, len(rates)))
            self.steps_taken += len(rates)
            return totals
        for k, rate in enumerate(rates):
            given = {**arrays, "learning_rate": self.backend.asarray(np.asarray(rate, self.dtype))}
            if index is not None:
                given["index"] = self.backend.asarray(index[k])
            totals = self._keep(step, step.run(self._given(step, given, totals)))
            self.steps_taken += 1
        return totals

    def evaluate_many(
        self, feed: Feed, arrays: Mapping[str, Array], totals: Totals, index: HostArray | None, steps: int
    ) -> Totals:
        """Several evaluation steps, as `train_many` takes them; returns the totals with those of all steps added."""
        step = self._step("evaluate", feed)
        if step.many is not None:
            rows = {} if index is None else {"index": index}
            return self._keep(step, step.many(self._given(step, arrays, totals), rows, steps))
        for k in range(steps):
            given = arrays if index is None else {**arrays, "index": self.backend.asarray(index[k])}
            totals = self._keep(step, step.run(self._given(step, given, totals)))
        return totals

    def predict(self, feed: Feed, arrays: Mapping[str, Array], index: HostArray | None = None) -> list[Array]:
        """The outputs for one batch, or for all batches whose rows an index has."""
        step = self._step("predict", feed)
        if index is None or step.many is None:
            made = step.run({**self.state(), **arrays})
            return [made[name] for name in step.outputs]
        made = step.many({**self.state(), **arrays}, {"index": index}, len(index))
        reshape = self.backend.xp.reshape
        return [reshape(made[name], (-1, *made[name].shape[2:])) for name in step.outputs]

    def _given(self, step: _Step, arrays: Mapping[str, Array], totals: Totals) -> dict[str, Array]:
        # Zeros are made anew each time, because a backend may overwrite what is carried.
        zeros = {n: self.backend.asarray(z.copy()) for n, z in step.zeros.items() if n not in totals}
        return {**self.state(), **arrays, **totals, **zeros}

    def _keep(self, step: _Step, made: Mapping[str, Array]) -> Totals:
        self.arrays.update({name: made[name] for name in step.carried})
        return {name: made[name] for name in step.zeros}

    def _step(self, kind: StepKind, feed: Feed) -> _Step:
        if (kind, feed) in self._steps:
            self._steps[kind, feed] = self._steps.pop((kind, feed))  # the last one used comes last
        else:
            while len(self._steps) >= COMPILED:
                del self._steps[next(iter(self._steps))]
            program = self._trace(kind, feed)
            zeros = {v.name: np.zeros(v.shape, v.dtype) for v in program.inputs if v.kind == "metric"}
            compiled = self.backend.compile(program)
            carried = [n for n in program.updates if n not in zeros]
            many = getattr(compiled, "many", None)
            step = _Step(_given_inputs(program, compiled), many, carried, list(program.outputs), zeros)
            # Carried state that is not there yet starts at zero.
            new = [v for v in program.inputs if v.kind in ("optimizer", "counter") and v.name not in self.names()]
            self.set({v.name: np.zeros(v.shape, v.dtype) for v in new})
            self._steps[kind, feed] = step
        return self._steps[kind, feed]


@dataclass(frozen=True)
class _Step:
    """A compiled Program.

    Attributes:
        run: Takes at least the Program's inputs by name.
        many: Takes them too, and rows of those that differ from step to step; None if the backend has no such thing.
        carried: Names of the state that it replaces.
        outputs: Names of its outputs in order; a backend may return them in another.
        zeros: What metric totals start from.
    """

    run: Executable
    many: Callable[..., dict[str, Array]] | None
    carried: list[str]
    outputs: list[str]
    zeros: dict[str, HostArray]


def _given_inputs(program: Program, run: Executable) -> Executable:
    """The compiled Program, given its own inputs out of all that there are."""
    names = [v.name for v in program.inputs]
    return lambda arrays: run({name: arrays[name] for name in names})
