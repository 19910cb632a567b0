"""Engine: a model's arrays on a backend, and its steps, compiled when first needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from minicnn.backends import get_backend
from minicnn.backends._progress import clock
from minicnn.backends.base import Array, Backend, Executable, ManySteps, State
from minicnn.distribution import DataParallel
from minicnn.layers.cell import Cell, Lock, Place
from minicnn.loop.totals import Totals
from minicnn.loop.tracing import SCALE, Feed, StepKind
from minicnn.program.graph import Program, Value

HostArray = np.ndarray[Any, Any]
Sums = Mapping[str, Array]  # of metrics over some steps, on the backend
COMPILED = 32  # steps that are kept, each with its memory: one for each kind of step and size of batch


class Engine:
    """Runs the steps of one model and carries its state from each to the next.

    Attributes:
        dtype: Floating-point type of the weights.
        steps_taken: Training steps so far.
    """

    def __init__(self, trace: Callable[..., Program], backend: str | Backend | None) -> None:
        self._trace = trace
        self._backend = None if backend is None else get_backend(backend)
        self.dtype = "float32"
        self.steps_taken = 0
        # State by name: weights, whose cells other models may have too, optimizer state, the step counter.
        self._cells: dict[str, Cell] = {}
        self._place: Place | None = None
        self._state: tuple[int, State] | None = None  # the changes when it was made
        self._turn = Turn()
        self._steps: dict[tuple[StepKind, Feed], _Step] = {}
        self.distribution: DataParallel | None = None  # of training and evaluation

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

    def adopt(self, cells: Mapping[str, Cell]) -> None:
        """Take over cells that other models may share; the engines that share a cell compute one at a time."""
        self._cells |= cells
        self._state = None
        for cell in cells.values():
            cell.lock = cell.lock or self._turn.locks[0]
        self._turn.join(cell.lock for cell in cells.values() if cell.lock)

    def set(self, arrays: Mapping[str, HostArray]) -> None:
        """Replace state by copies of host arrays."""
        with self._turn:
            for name, array in arrays.items():
                copy = np.array(array, self.dtype if array.dtype.kind == "f" else None)
                self._cells.setdefault(name, Cell(self._turn.locks[0])).put(copy)

    def get(self, name: str) -> HostArray:
        """A copy of one state array on the host."""
        with self._turn:
            return self._cells[name].host(self.dtype)

    def join(self) -> None:
        """Put together the arrays of which each rank has a part; all ranks do so at the same time."""
        with self._turn:
            for cell in self._cells.values():
                cell.join()

    def names(self) -> list[str]:
        """Names of all state arrays."""
        return list(self._cells)

    def reset(self, dtype: str, keep: Iterable[str]) -> None:
        """Forget compiled steps and all state but the arrays named, which get a new floating-point type."""
        with self._turn:
            self._cells = {name: self._cells[name] for name in keep}
            self.dtype, self._place, self._state = dtype, None, None
            self._steps.clear()
            self.steps_taken = 0

    def state(self) -> State:
        """All state on the backend; the same object while none of it is another array."""
        place = self._place
        if place is None or place[0] is not self._backend:
            place, self._state = (self.backend, self.dtype), None
            self._place = place
        if self._state is None or self._state[0] != self._turn.changes:
            made = State({n: c.value if c.place is place else c.on(place) for n, c in self._cells.items()})
            self._state = self._turn.changes, made
        return self._state[1]

    def restore(self, arrays: Mapping[str, HostArray], steps_taken: int) -> None:
        """Replace all state; arrays that are not named become zero."""
        self.set({name: np.zeros_like(self.get(name)) for name in self.names() if name not in arrays} | dict(arrays))
        self.steps_taken = steps_taken

    def train_many(
        self,
        feed: Feed,
        arrays: Mapping[str, Array],
        totals: Totals,
        index: HostArray | None,
        rates: Sequence[float],
        finite: bool = True,
    ) -> Totals:
        """Several training steps on rows of whole arrays, or on the same arrays, at once where the backend can.

        Args:
            feed: What each step is given.
            arrays: The arrays.
            totals: Metric totals so far.
            index: Row numbers of each step, int32 (steps, batch); None if each step takes the arrays as they are.
            rates: Learning rate of each step.
            finite: Whether several ranks end with an error when the loss is no finite number.
        """

        def train(step: _Step, part: slice, sums: Sums) -> Sums:
            rows = None if index is None else index[part]
            return self._train(step, arrays, sums, rows, rates[part], finite)

        return self._in_parts("train", feed, totals, len(rates), train)

    def _train(
        self, step: _Step, arrays: Mapping[str, Array], sums: Sums, index: HostArray | None, rates: Sequence[float],
        finite: bool,
    ) -> Sums:  # fmt: skip
        if step.many is not None:
            rows = {"learning_rate": np.asarray(rates, self.dtype)} | ({} if index is None else {"index": index})
            given = {**arrays, **self._begun(step, sums)}
            sums = self._keep(step, step.many(given, rows, len(rates), self.state()))
            self.steps_taken += len(rates)
            return sums
        for k, rate in enumerate(rates):
            given = {**arrays, "learning_rate": self.backend.asarray(np.asarray(rate, self.dtype))}
            if index is not None:
                given["index"] = self.backend.asarray(index[k])
            made = self._one(step, given, sums)
            sums = self._keep(step, made)
            self.steps_taken += 1
            # In float16 a step whose gradients are not finite changes nothing, and is counted.
            if finite and self.distribution is not None and SCALE not in step.carried:
                self.distribution.check_finite(made, self.steps_taken, self.backend)
        return sums

    def evaluate_many(
        self, feed: Feed, arrays: Mapping[str, Array], totals: Totals, index: HostArray | None, steps: int
    ) -> Totals:
        """Several evaluation steps, as `train_many` takes them; returns the totals with those of all steps added."""

        def evaluate(step: _Step, part: slice, sums: Sums) -> Sums:
            count = part.stop - part.start
            if step.many is not None:
                rows = {} if index is None else {"index": index[part]}
                return self._keep(step, step.many({**arrays, **self._begun(step, sums)}, rows, count, self.state()))
            for k in range(part.start, part.stop):
                given = arrays if index is None else {**arrays, "index": self.backend.asarray(index[k])}
                sums = self._keep(step, self._one(step, given, sums))
            return sums

        return self._in_parts("evaluate", feed, totals, steps, evaluate)

    def _in_parts(
        self, kind: StepKind, feed: Feed, totals: Totals, steps: int, run: Callable[[_Step, slice, Sums], Sums]
    ) -> Totals:
        """Totals after so many steps, taken as many at a time as the totals have room for."""
        with self._turn:
            step, at = self._step(kind, feed), 0
            while at < steps:
                if totals.room(step.counted) < 1:
                    totals = totals.moved(self.backend.to_numpy)
                count = min(steps - at, totals.room(step.counted))
                totals = totals.added(run(step, slice(at, at + count), totals.arrays), count, step.counted)
                at += count
            return totals

    def predict(
        self, feed: Feed, arrays: Mapping[str, Array], index: HostArray | None = None, draw: int = 0
    ) -> list[Array]:
        """The outputs for one batch, or for all batches whose rows an index has.

        Args:
            feed: What each step is given.
            arrays: The arrays.
            index: Row numbers of each step, int32 (steps, batch); None if the arrays are one batch.
            draw: For another number layers that draw numbers in predictions, too, draw others.
        """
        if self.distribution is not None:
            self.join()
        with self._turn:
            step = self._step("predict", feed)
            state = self.state()
            if step.draws:  # training counts from 0 on, so that predictions count from the other end
                state = State(state, step=self.backend.asarray(np.asarray(2**31 - 1 - draw % 2**30, np.int32)))
            if index is None or step.many is None:
                made = step.run({**state, **arrays})
                return [made[name] for name in step.outputs]
            made = step.many(arrays, {"index": index}, len(index), state)
        reshape = self.backend.xp.reshape
        return [reshape(made[name], (-1, *made[name].shape[2:])) for name in step.outputs]

    def _one(self, step: _Step, arrays: Mapping[str, Array], sums: Sums) -> Mapping[str, Array]:
        return step.run({**self.state(), **arrays, **self._begun(step, sums)})

    def _begun(self, step: _Step, sums: Sums) -> Sums:
        # New zeros are made each time, because what is carried is donated: see `Executable`.
        return {n: sums[n] if n in sums else self.backend.asarray(z.copy()) for n, z in step.zeros.items()}

    def _keep(self, step: _Step, made: Mapping[str, Array]) -> Sums:
        # Where weights are overwritten there is nothing to keep, so that many of them are no work in each step.
        for name, array in made.items():
            if name in step.carried:
                self._cells[name].keep(array)
        return {name: made[name] for name in step.zeros}

    def _step(self, kind: StepKind, feed: Feed) -> _Step:
        step = self._steps.pop((kind, feed), None)
        if step is None:
            while len(self._steps) >= COMPILED:
                del self._steps[next(iter(self._steps))]
            with clock.running():
                step = self._compiled(kind, feed)
        self._steps[kind, feed] = step  # the last one used comes last
        return step

    def _compiled(self, kind: StepKind, feed: Feed) -> _Step:
        program = self._trace(kind, feed)
        zeros = {v.name: np.zeros(v.shape, v.dtype) for v in program.inputs if v.kind == "metric"}
        many: Callable[..., dict[str, Array]] | None = None
        run: Executable
        if self.distribution is None or self.distribution.alone or kind == "predict":
            compiled = self.backend.compile(program)
            run, many = _given_inputs(program, compiled), compiled.many if isinstance(compiled, ManySteps) else None
        else:
            run = self.distribution.compile(partial(self._trace, kind), feed, self.backend)
        carried = frozenset(n for n in program.updates if n not in zeros)
        draws = any(v.kind == "counter" for v in program.inputs)
        # Carried state that is not there yet starts at zero.
        new = [v for v in program.inputs if v.kind in ("optimizer", "counter") and v.name not in self._cells]
        self.set({v.name: np.zeros(_whole(v, program), v.dtype) for v in new})
        return _Step(run, many, carried, list(program.outputs), zeros, draws, program.counted)


def _whole(value: Value, program: Program) -> tuple[int, ...]:
    """Shape of the array of which a Program has a part."""
    return (
        (*value.shape[:-1], value.shape[-1] * program.parts[value.name]) if value.name in program.parts else value.shape
    )


class Turn:
    """Held while a model computes, so that threads, and models with shared cells, compute one at a time."""

    def __init__(self) -> None:
        self.locks = [Lock()]

    def join(self, locks: Iterable[Lock]) -> None:
        """Hold other locks as well; whoever holds several takes them in the same order."""
        self.locks = sorted({*self.locks, *locks}, key=id)

    @property
    def changes(self) -> int:
        """How often an array of the model became another."""
        return sum([lock.changes for lock in self.locks])

    def __enter__(self) -> None:
        for lock in self.locks:
            lock.acquire()

    def __exit__(self, *_: object) -> None:
        for lock in reversed(self.locks):
            lock.release()


@dataclass(frozen=True)
class _Step:
    """A compiled Program.

    Attributes:
        run: Takes at least the Program's inputs by name.
        many: See `ManySteps.many`; None if the Executable takes one step at a time.
        carried: Names of the state that it replaces.
        outputs: Names of its outputs in order; a backend may return them in another order.
        zeros: Initial values of the metric totals.
        draws: Whether it takes the number of the step, by which numbers are drawn.
        counted: Most that it adds to a count of a metric.
    """

    run: Executable
    many: Callable[..., dict[str, Array]] | None
    carried: frozenset[str]
    outputs: list[str]
    zeros: dict[str, HostArray]
    draws: bool
    counted: int


def _given_inputs(program: Program, run: Executable) -> Executable:
    """A compiled Program that may be given more arrays than its inputs."""
    names = [v.name for v in program.inputs]
    return lambda arrays: run({name: arrays[name] for name in names})
