"""Executor: the steps of a model, compiled when first needed, on its variables."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from minicnn.backends._executables import ManySteps, StateStep, TimedStep
from minicnn.backends._progress import clock, without_collection
from minicnn.backends.base import Array, Executable, Span, State
from minicnn.distribution import DataParallel
from minicnn.loop.step import Step
from minicnn.loop.totals import Totals
from minicnn.loop.tracing import SCALE, Feed, Run, StepKind
from minicnn.loop.variables import Variables
from minicnn.program.graph import Program, Value

HostArray = np.ndarray[Any, Any]
Sums = Mapping[str, Array]  # of metrics over some steps, on the backend
LARGE = 1 << 16  # elements of an array that is worth a thread
COMPILED = 32  # steps that are kept, each with its memory: one for each kind of step and size of batch


class Executor:
    """Runs the steps of one model, compiled when first needed, on its variables.

    Args:
        step: What Programs are traced from.
        variables: What the steps read and replace.

    Attributes:
        distribution: How training and evaluation are shared out between ranks, if they are.
        steps_taken: Training steps so far.
    """

    def __init__(self, step: Step, variables: Variables) -> None:
        self.step = step
        self.variables = variables
        self.distribution: DataParallel | None = None
        self.steps_taken = 0
        self._compiled: dict[tuple[StepKind, Feed], CompiledStep] = {}
        self._latest: tuple[StepKind, Feed, CompiledStep] | None = None
        self._known: tuple[tuple[int, ...], np.dtype[Any], Feed, str] | None = None

    def forget(self) -> None:
        """Forget compiled steps, and how many were taken."""
        self._compiled.clear()
        self._latest = self._known = None
        self.steps_taken = 0

    def restore(self, arrays: Mapping[str, HostArray], steps_taken: int) -> None:
        """Replace all variables; those that are not named become zero."""
        kept = {n: np.zeros_like(self.variables.get(n)) for n in self.variables.cells if n not in arrays}
        self.variables.set(kept | dict(arrays))
        self.steps_taken = steps_taken

    # Steps --------------------------------------------------------------------------------------

    def train(self, run: Run, totals: Totals, rates: Mapping[str, Sequence[float]], finite: bool = True) -> Totals:
        """Take training steps, at once where the backend can; returns the totals with theirs added.

        Args:
            run: The steps.
            totals: Metric totals so far.
            rates: See `Step.rates`.
            finite: Whether several ranks end with an error when the loss is no finite number.
        """
        rows = {name: np.asarray(numbers, self.variables.dtype) for name, numbers in rates.items()}
        return self._advance("train", run, totals, rows, finite)

    def timeline(self, run: Run, rates: Mapping[str, Sequence[float]]) -> list[Span]:
        """Take a training step, and tell when its parts ran; the whole, where a backend does not part it."""
        backend, zeros = self.variables.backend, Totals().arrays
        with self.variables:
            step = self._step("train", run.feed)
            rows = {**{name: np.asarray(r, self.variables.dtype) for name, r in rates.items()}, "index": run.index}
            new = {n: backend.asarray(row[0]) for n, row in rows.items() if n in step.inputs and row is not None}
            arrays = {**self.variables.state(), **run.arrays, **new, **self._begun(step, zeros)}
            if step.timed is not None:
                results, spans = step.timed.timeline(arrays)
            else:
                start = time.perf_counter()
                results = step.run(arrays)
                backend.synchronize()
                spans = [Span("step", "computing", start, time.perf_counter() - start)]
            self._keep(step, results)
            self.steps_taken += 1
        return spans

    def evaluate(self, run: Run, totals: Totals) -> Totals:
        """Take evaluation steps; returns the totals with theirs added."""
        return self._advance("evaluate", run, totals, {}, False)

    def predict(self, run: Run, draw: int = 0) -> list[Array]:
        """The outputs for one batch, or for all batches whose rows the run's index has.

        Args:
            run: The steps.
            draw: For another number layers that draw numbers in predictions, too, draw others.
        """
        if self.distribution is not None:
            self.variables.join()
        backend = self.variables.backend
        with self.variables:
            step = self._step("predict", run.feed)
            state, drawn = self.variables.state(), {}
            if step.draws:  # training counts from 0 on, so that predictions count from the other end
                drawn["step"] = backend.asarray(np.asarray(2**31 - 1 - draw % 2**30, np.int32))
            if run.index is None or step.many is None:
                if step.on_state is not None:
                    results = step.on_state({**run.arrays, **drawn}, state)
                else:
                    results = step.run({**state, **run.arrays, **drawn})
                return [results[name] for name in step.outputs]
            whole = State(state, **drawn) if drawn else state
            results = step.many(run.arrays, {"index": run.index}, len(run.index), whole)
        return [backend.xp.reshape(results[name], (-1, *results[name].shape[2:])) for name in step.outputs]

    def remember(self, x: Any, run: Run) -> None:
        """Note that an array of NumPy went into a prediction as it is, if it did: see `remembered`."""
        ((name, array),) = run.arrays.items() if len(run.arrays) == 1 else [("", None)]
        if type(x) is not np.ndarray or type(array) is not np.ndarray or run.index is not None:
            return
        if (x.shape, x.dtype, x.ctypes.data) == (array.shape, array.dtype, array.ctypes.data):
            self._known = x.shape, x.dtype, run.feed, name

    def remembered(self, x: Any, batch_size: int) -> tuple[Feed, str] | None:
        """The Feed and the input of the last prediction, if an array is like its own and need not be checked."""
        known = self._known
        if known is None or type(x) is not np.ndarray or x.shape != known[0] or x.dtype != known[1]:
            return None
        return known[2:] if known[2].batch <= batch_size else None

    def predict_alike(self, x: HostArray, feed: Feed, name: str, draw: int) -> list[Array]:
        """The outputs for an array like that of a prediction which is remembered."""
        with self.variables:
            step = self._step("predict", feed)
            if step.on_input is not None and self.distribution is None:
                outputs = step.on_input(x, self.variables.state())
                if outputs is not None:
                    return outputs
        outputs = self.predict(Run(feed, {name: x}), draw)
        # Outputs are new arrays, but where the network hands its input through.
        return [array.copy() if np.may_share_memory(array, x) else array for array in outputs]

    def _advance(self, kind: StepKind, run: Run, totals: Totals, rows: dict[str, HostArray], finite: bool) -> Totals:
        """Totals after the steps of a run, taken as many at a time as the totals have room for.

        `rows` are inputs of which each step has a row of its own, besides the run's index.
        """
        if run.index is not None:
            rows["index"] = run.index
        with self.variables:
            step, at = self._step(kind, run.feed), 0
            rows = {name: row for name, row in rows.items() if name in step.inputs}
            while at < run.steps:
                if totals.room(step.counted) < 1:
                    totals = totals.moved(self.variables.backend.to_numpy)
                count = min(run.steps - at, totals.room(step.counted))
                part = {name: row[at : at + count] for name, row in rows.items()}
                sums = self._take(kind, step, run.arrays, totals.arrays, part, count, finite)
                totals, at = totals.added(sums, count, step.counted), at + count
            return totals

    def _take(
        self, kind: StepKind, step: CompiledStep, arrays: Mapping[str, Array], sums: Sums,
        rows: Mapping[str, HostArray], count: int, finite: bool,
    ) -> Sums:  # fmt: skip
        """Sums after so many steps, which carry the variables from each to the next."""
        state, backend = self.variables.state, self.variables.backend
        if step.many is not None:
            results = step.many({**arrays, **self._begun(step, sums)}, rows, count, state())
            sums = self._keep(step, results)
            if kind == "train":
                self.steps_taken += count
                if finite and self.distribution is not None and SCALE not in step.carried:
                    self.distribution.check_each(results, self.steps_taken - count + 1, backend)
            return sums
        for k in range(count):
            new = {name: backend.asarray(row[k, ...]) for name, row in rows.items()}
            inputs = {**arrays, **new, **self._begun(step, sums)}
            if kind == "evaluate" and step.on_state is not None:
                results = step.on_state(inputs, state())
            else:
                results = step.run({**state(), **inputs})
            sums = self._keep(step, results)
            if kind == "train":
                self.steps_taken += 1
                # In float16 a step whose gradients are not finite changes nothing, and is counted.
                if finite and self.distribution is not None and SCALE not in step.carried:
                    self.distribution.check_finite(results, self.steps_taken, backend)
        return sums

    def _begun(self, step: CompiledStep, sums: Sums) -> Sums:
        # New zeros are made each time, because what is carried is donated: see `Executable`.
        asarray = self.variables.backend.asarray
        return {n: sums[n] if n in sums else asarray(z.copy()) for n, z in step.zeros.items()}

    def _keep(self, step: CompiledStep, results: Mapping[str, Array]) -> Sums:
        # Where weights are overwritten there is nothing to keep, so that many of them are no work in each step.
        for name, array in results.items():
            if name in step.carried:
                self.variables.cells[name].keep(array)
        return {name: results[name] for name in step.zeros}

    # Compilation --------------------------------------------------------------------------------

    def shared(self, kind: StepKind) -> DataParallel | None:
        """The distribution, if a step of this kind is cut into shards."""
        distribution = self.distribution
        return None if distribution is None or distribution.alone or kind == "predict" else distribution

    def program(self, kind: StepKind, feed: Feed) -> Program:
        """The Program of a step; where it is cut into shards, that of this rank's first one."""
        distribution = self.shared(kind)
        return self.step.trace(kind, *((feed,) if distribution is None else distribution.part(feed)))

    def _step(self, kind: StepKind, feed: Feed) -> CompiledStep:
        latest = self._latest
        if latest is not None and latest[1] is feed and latest[0] == kind:  # a Feed takes a microsecond to hash
            return latest[2]
        step = self._compiled.pop((kind, feed), None)
        if step is None:
            while len(self._compiled) >= COMPILED:
                del self._compiled[next(iter(self._compiled))]
            with clock.running(), without_collection():
                step = self._compile(kind, feed)
        self._compiled[kind, feed] = step  # the last one used comes last
        self._latest = kind, feed, step
        return step

    def _compile(self, kind: StepKind, feed: Feed) -> CompiledStep:
        program, distribution, variables = self.program(kind, feed), self.shared(kind), self.variables
        zeros = {v.name: np.zeros(v.shape, v.dtype) for v in program.inputs if v.kind == "metric"}
        large = [v.name for v in program.inputs if v.size >= LARGE]
        run: Executable
        compiled: Executable
        with variables.drawing(large):
            if distribution is None:
                compiled = variables.backend.compile(program)
                run = _picking(program, compiled)
            else:
                run = compiled = distribution.compile(partial(self.step.trace, kind), feed, variables.backend)
        carried = frozenset(n for n in program.updates if n not in zeros)
        draws = any(v.kind == "counter" for v in program.inputs)
        self._check_carried(program)
        # Carried state that is not there yet starts at zero.
        new = [v for v in program.inputs if v.kind in ("optimizer", "counter") and v.name not in variables.cells]
        variables.begin((v.name, _whole(v, program), v.dtype) for v in new)
        counted, inputs = program.counted or feed.batch, frozenset(v.name for v in program.inputs)
        many = compiled.many if isinstance(compiled, ManySteps) else None
        on_state, on_input = (compiled.on_state, compiled.on_input) if isinstance(compiled, StateStep) else (None, None)
        timed = compiled if isinstance(compiled, TimedStep) else None
        outputs = list(program.outputs)
        return CompiledStep(run, many, on_state, on_input, timed, carried, outputs, zeros, draws, counted, inputs)

    def _check_carried(self, program: Program) -> None:
        for value in program.inputs:
            cell = self.variables.cells.get(value.name)
            shape = getattr(None if cell is None else cell.value, "shape", None)
            carried = value.kind in ("optimizer", "counter")
            if carried and shape is not None and tuple(shape) != _whole(value, program):
                raise ValueError(
                    "What a step carries has the shapes that it had before. Received: "
                    f"{value.name!r} with shape {shape}, where the step has {value.shape}. Go on with the step that "
                    "the state is of, or compile the model anew."
                )


@dataclass(frozen=True)
class CompiledStep:
    """A Program that a backend has compiled.

    Attributes:
        run: Takes at least the Program's inputs by name.
        many: See `ManySteps.many`; None if the Executable takes one step at a time.
        on_state: See `StateStep.on_state`; None if the Executable looks at all arrays each time.
        on_input: See `StateStep.on_input`; None likewise.
        timed: The Executable, if it tells when its parts run.
        carried: Names of the variables that it replaces.
        outputs: Names of its outputs in order; a backend may return them in another order.
        zeros: Initial values of the metric totals.
        draws: Whether it takes the number of the step, by which numbers are drawn.
        counted: Most that it adds to a count of a metric.
        inputs: Names of what its Program takes.
    """

    run: Executable
    many: Callable[..., dict[str, Array]] | None
    on_state: Callable[..., dict[str, Array]] | None
    on_input: Callable[..., list[Array] | None] | None
    timed: TimedStep | None
    carried: frozenset[str]
    outputs: Sequence[str]
    zeros: dict[str, HostArray]
    draws: bool
    counted: int
    inputs: frozenset[str]


def _whole(value: Value, program: Program) -> tuple[int, ...]:
    """Shape of the array of which a Program has a part."""
    parts = program.parts.get(value.name)
    return value.shape if parts is None else (*value.shape[:-1], value.shape[-1] * parts)


def _picking(program: Program, run: Executable) -> Executable:
    """A compiled Program that may be given more arrays than its inputs."""
    names = [v.name for v in program.inputs]
    return lambda arrays: run({name: arrays[name] for name in names})
