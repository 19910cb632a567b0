"""A compiled Program: its kernels, its memory, and the CUDA graphs of one step and of many."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from minicnn.backends._gpu.calls import call, collective
from minicnn.backends._gpu.fusion_groups import FusionGroup, covered, named
from minicnn.backends._gpu.inputs import Inputs, Known, lies_askew
from minicnn.backends._gpu.placement import place
from minicnn.backends._gpu.runtime import ALIGNMENT, KernelText, Launch, one_by_one, stored
from minicnn.backends._gpu.second_stream import with_second_stream
from minicnn.backends._gpu.source import Source
from minicnn.backends._gpu.staging import Upload
from minicnn.backends.base import EACH_STEP, Array, Span, State, is_new_each_step
from minicnn.program.graph import Node, Program, Spec, Value

if TYPE_CHECKING:
    from minicnn.backends._gpu.backend import GpuBackend

Addresses = tuple[tuple[int, ...], tuple[int, ...]]
STEPS = 16  # in one graph, where many are asked for
QUEUE_BYTES = 2**24  # of what is new in each step, up to which there is room for all steps of a run
BINDINGS = 4  # sets of arrays that graphs are kept for
_NOWHERE: Mapping[int, Array] = {}


class StepExecutable:
    """A Program that runs on arrays by name: see `Executable`, `ManySteps`, `TimedLaunches` and `PlannedMemory`.

    Donated arrays (weights, optimizer state, metric totals) are overwritten where they are; data sets are read where
    they are; what is new in each step comes from a queue with one row a step, so that many steps run without the host.
    Other inputs are copied to where graphs find them, as a queue of one row.

    Attributes:
        inputs: Where its kernels find what it is given.
        captures: Whether its launches can be captured into graphs.
    """

    def __init__(self, backend: GpuBackend, program: Program, *, second_stream: bool = True) -> None:
        self._backend, self._program, self._runtime = backend, program, backend.runtime
        self.inputs = inputs = Inputs.of(program)  # before its plan rewrites it
        runtime = self._runtime
        self._queued, self._copied = inputs.queued, inputs.copied
        self._totals, self._bound = inputs.totals, inputs.bound
        # Planning rewrites the Program in place.
        self._plan = backend.plan(program, second_stream=second_stream)
        self._placement = place(self._plan, runtime.piece)

        queued = {id(v) for v in self._queued}
        self._sources: list[Source | FusionGroup] = [
            launch[0] if launch[0].reference else backend.generate(self._plan, launch, queued, backend.block)
            for launch in self._plan.launches
        ]
        collect = () if program.updates else runtime.collect
        texts = [
            KernelText(s.text, s.signature, s.threads, s.shared, s.title, overlaps=s.overlaps)
            for s in self._sources
            if isinstance(s, Source)
        ]
        # All kernels at once, so that they are compiled in parallel.
        loaded = iter(runtime.load([*texts, runtime.advance, *collect]))
        self._kernels = [next(loaded) if isinstance(s, Source) else None for s in self._sources]
        self._advance = next(loaded)
        self._collect = [(text.threads, next(loaded)) for text in collect]
        self.captures = backend.captures and all(isinstance(s, Source) or collective(s.anchor) for s in self._sources)

        self._arena = backend.arena()
        self._arena.reserve(self._placement.nbytes)
        self._allocation = 0  # of the arena, for which there are graphs
        self._constants = {id(v): backend.asarray(v.data, v.dtype) for v in program.constants}
        self._cursor = self._zeros((1,), "int32")
        self._static = {v.name: self._zeros(v.shape, stored(v.dtype)) for v in self._totals}
        self._capacity = 0
        self._queue: dict[str, Array] = {}
        self._collected: dict[str, Array] = {}  # outputs of many steps
        self._graphs: dict[Addresses, dict[int, Launch]] = {}
        self._state = Known(weakref.ref(State()), (), self._bound, list(program.updates))
        self._uploads = [Upload(runtime), Upload(runtime)]  # one is filled while the device copies from the other
        self._grow(1)  # a queue of one row: single steps and many then run the same kernels

    @property
    def arena_bytes(self) -> int:
        return self._placement.nbytes

    @property
    def is_alone(self) -> bool:
        """True if a step that is a part of something longer leaves the arena, and other ranks, alone."""
        return self._placement.offsets.keys() <= self._plan.outputs and not self._plan.waits

    @property
    def launched(self) -> int:
        return len(self._sources)

    # Running ------------------------------------------------------------------------------------

    def __call__(self, arrays: Mapping[str, Any]) -> dict[str, Array]:
        # Steps of several models share one arena, which serves one of them at a time.
        with self._runtime.active(), self._arena.lock:
            self._fill(arrays, {}, 1)
            results = self._run(arrays, 1, State())
            return {name: array[0, ...] for name, array in results.items()} if self._collected else results

    def many(
        self, arrays: Mapping[str, Any], rows: Mapping[str, Any], steps: int, state: State | None = None
    ) -> dict[str, Array]:
        with self._runtime.active(), self._arena.lock:
            self._grow(steps)
            self._fill(arrays, rows, steps)
            return self._run(arrays, steps, State() if state is None else state)

    @property
    def outputs(self) -> dict[str, Spec]:
        """Arrays that a step makes anew."""
        return {name: value.spec for name, value in self._program.outputs.items()}

    def updated(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """The arrays that steps on some arrays overwrite."""
        return {name: self._static.get(name, arrays.get(name)) for name in self._program.updates}

    def place(self, value: Value) -> Array:
        """Where kernels find an input that is moved; brought there, it is not copied by a step that is bound."""
        known = self._static if value.name in self._static else {value.name: self._row(value)}
        return self._array(value, known)

    def bind(self, arrays: Mapping[str, Array], outputs: Mapping[str, Array]) -> list[Launch]:
        """Launches of one step as a part of something longer, on arrays that stay where they are.

        Args:
            arrays: All inputs, contiguous, on the device.
            outputs: Where the outputs go.
        """
        runtime = self._runtime
        runtime.clear(self._cursor)
        for value in self._bound:
            self._checked(value, arrays[value.name])
        # Kernels read many bytes at once: what lies askew is copied, and all else read where it is.
        odd = [v for v in (*self._queued, *self._copied) if lies_askew(v, runtime.address(arrays[v.name]))]
        rows = {v.name: runtime.view(arrays[v.name], 0, (1, *v.shape), stored(v.dtype)) for v in self._queued}
        kept = rows | {v.name: self._row(v) for v in odd} | self._static
        targets = [(arrays[v.name], self._array(v, kept)) for v in (*odd, *self._totals)]
        launches: list[Launch] = [
            partial(runtime.copy, source, target)
            for source, target in targets
            if runtime.address(source) != runtime.address(target)
        ]
        # Outputs are written where they go, not into the arena; what is there already, or twice, is copied.
        roots = {name: id(self._plan.root(value)) for name, value in self._program.outputs.items()}
        elsewhere = {key: outputs[name] for name, key in reversed(roots.items()) if key in self._placement.offsets}
        everything = {**arrays, **kept}
        launches += self._launches(everything, 0, elsewhere)
        return launches + [
            partial(runtime.copy, self._array(value, everything, elsewhere), outputs[name])
            for name, value in self._program.outputs.items()
            if elsewhere.get(roots[name]) is not outputs[name]
        ]

    def release(self) -> None:
        """Let graphs go; they are captured again when they are needed."""
        self._graphs.clear()

    @property
    def titles(self) -> list[str]:
        """Titles of a step's launches, in order."""
        return [named(groups) for groups in self._plan.launches]

    def timeline(self, arrays: Mapping[str, Array]) -> tuple[dict[str, Array], list[Span]]:
        """See `TimedStep`: launches follow each other without a graph."""
        spans, at = list[Span](), 0.0
        inputs = {v.name: arrays[v.name] for v in self._program.inputs}
        for title, (_, (seconds,)) in zip(self.titles, self.launch_times(inputs, 1), strict=True):
            spans.append(Span(title, "computing", at, seconds))
            at += seconds
        return self(inputs), spans

    def launch_times(self, arrays: Mapping[str, Array], repeats: int) -> list[tuple[list[Node], list[float]]]:
        """See `TimedLaunches`.

        The launches of a step follow each other without a graph, with an event between any two; one step before the
        first does not count.
        """
        runtime = self._runtime
        times: list[list[float]] = [[] for _ in self._sources]
        with runtime.active(), self._arena.lock:
            self._fill(arrays, {}, 1)
            self._begin(arrays, State())
            launches = self._launches({**arrays, **self._static, **self._queue}, 0)
            for number in range(repeats + 1):
                # Events lie in the stream: the host's delays between launches do not count unless the device runs dry.
                events = [runtime.event(timed=True) for _ in range(len(times) + 1)]
                runtime.record(events[0])
                for launch, event in zip(launches, events[1:], strict=False):
                    launch()
                    runtime.record(event)
                runtime.synchronize(events[-1])
                for samples, pair in zip(times, pairwise(events), strict=True):
                    samples += [runtime.seconds(*pair)] if number else []
        return [(covered(groups), samples) for groups, samples in zip(self._plan.launches, times, strict=True)]

    def _begin(self, arrays: Mapping[str, Array], state: State) -> Addresses:
        """Set the totals, and the queue to its first row.

        Returns:
            Where the arrays begin that steps read, and overwrite, where they are. Those of a State are looked at once.
        """
        allocation = self._arena.reserve(self._placement.nbytes)
        # A graph holds addresses: in a new arena all of them are others.
        if self._allocation != allocation:
            self._graphs.clear()
            self._allocation = allocation
        # Checking each weight takes microseconds, which for small networks is as long as the step; a State is checked
        # once.
        if self._state.known() is not state:
            kept, passed = ([v for v in self._bound if (v.name in state) == there] for there in (True, False))
            returned = [n for n in self._program.updates if n not in state]
            addresses = tuple(self._checked(v, state[v.name]) for v in kept)
            self._state = Known(weakref.ref(state), addresses, passed, returned)
        for value in self._totals:
            if arrays[value.name] is not self._static[value.name]:
                self._static[value.name][...] = arrays[value.name]
        self._runtime.clear(self._cursor)
        return self._state.addresses, tuple([self._checked(v, arrays[v.name]) for v in self._state.passed])

    def _run(self, arrays: Mapping[str, Array], steps: int, state: State) -> dict[str, Array]:
        addresses = self._begin(arrays, state)
        graphs = self._graphs[addresses] = self._graphs.pop(addresses, {})  # the last one used comes last
        # Two or three sets of arrays alternate in practice, such as training and validation; each graph holds memory.
        while len(self._graphs) > BINDINGS:
            del self._graphs[next(iter(self._graphs))]
        left = steps
        # A launch of a graph costs the host some microseconds, however many steps are in it.
        for size in (STEPS, 1) if self.captures else (1,):
            count, left = divmod(left, size)
            if count and size not in graphs:
                graphs[size] = self._steps({**state, **arrays, **self._static, **self._queue}, size)
            for _ in range(count):
                graphs[size]()
        outputs = self._program.outputs
        # Many steps without updates are a prediction: each leaves its outputs in a row.
        if self._collected:
            return {n: self._copy(self._collected[n], (steps, *v.shape)) for n, v in outputs.items()}
        everything = {**state, **arrays, **self._static, **self._queue} if outputs else {}
        # Outputs are copied, since the next step writes to the same place in the arena.
        copies = {n: self._copy(self._array(v, everything), v.shape) for n, v in outputs.items()}
        return copies | {n: self._static[n] if n in self._static else arrays[n] for n in self._state.returned}

    def _checked(self, value: Value, array: Any) -> int:
        """Address of an input that kernels read, or overwrite, where it is."""
        address = self._runtime.address(array)
        if address is None or address % ALIGNMENT or array.shape != value.shape or array.dtype != value.dtype:
            received = f"{getattr(array, 'dtype', type(array).__name__)}{list(getattr(array, 'shape', ()))}"
            received += ", which begins in between" if address is not None and address % ALIGNMENT else ""
            raise ValueError(
                f"{value.name} is a contiguous array of {self._backend.name}, {value.spec}, on {self._backend.device}, "
                f"from a multiple of {ALIGNMENT} bytes on. Received: {received}. Convert it with backend.asarray."
            )
        return address

    # Memory -------------------------------------------------------------------------------------

    def _zeros(self, shape: tuple[int, ...], dtype: str) -> Array:
        array = self._runtime.empty(shape, dtype)
        self._runtime.clear(array)
        return array

    def _copy(self, array: Array, shape: tuple[int, ...]) -> Array:
        """A new array with the elements that an array begins with."""
        dtype = str(array.dtype)
        target = self._runtime.empty(shape, dtype)
        self._runtime.copy(array if array.shape == shape else self._runtime.view(array, 0, shape, dtype), target)
        return target

    def _grow(self, steps: int) -> None:
        if steps > self._capacity:
            row, empty = sum(v.nbytes for v in self._queued), self._runtime.empty
            if steps > 1 and self._program.updates:  # for the longest run at once: graphs would be captured again
                steps = max(steps, min(self._backend.steps_at_once, QUEUE_BYTES // max(1, row)))
            self._capacity = steps
            self._queue |= {v.name: empty((steps, *v.shape), stored(v.dtype)) for v in self._queued}
            if not self._program.updates:
                outputs = self._program.outputs.items()
                self._collected = {n: empty((steps, *v.shape), stored(v.dtype)) for n, v in outputs}
            # Their kernels have the address of the queue before.
            self._graphs.clear()

    def _fill(self, arrays: Mapping[str, Any], rows: Mapping[str, Any], steps: int) -> None:
        """Bring the steps' inputs to where graphs find them, without waiting for the device."""
        # Two in turn: while the device copies from one, the host fills the other.
        self._uploads.reverse()
        upload = self._uploads[0]
        upload.begin()
        for value in (*self._queued, *self._copied):
            each = value.name in rows
            source = rows[value.name] if each else arrays[value.name]
            shape = (steps, *value.shape) if each else value.shape
            if tuple(source.shape) != shape or (each and not is_new_each_step(value.name)):
                raise ValueError(
                    f"{value.name} has shape {shape}, and of {' and '.join(EACH_STEP)} alone there is one row for each "
                    f"step. Received: {tuple(source.shape)}."
                )
            count = steps if is_new_each_step(value.name) else 1
            upload.bring(value.name, source, self._row(value), count, self._backend.owns(source))
        upload.end()

    def _row(self, value: Value) -> Array:
        """The queue of an input, of one row unless it is new in each step."""
        if value.name not in self._queue:
            self._queue[value.name] = self._runtime.empty((1, *value.shape), stored(value.dtype))
        return self._queue[value.name]

    def _array(self, value: Value, arrays: Mapping[str, Array], elsewhere: Mapping[int, Array] = _NOWHERE) -> Array:
        """The array of a value, in the shape that it has in the Program; of a queue its first row.

        `elsewhere` has, by id, arrays of values that would be in the arena.
        """
        root = self._plan.root(value)
        root, dtype = self._placement.in_place.get(id(root), root), stored(value.dtype)
        if id(root) in elsewhere:
            return self._runtime.view(elsewhere[id(root)], 0, value.shape, dtype)
        offset = self._placement.offsets.get(id(root))
        if offset is not None:
            return self._runtime.view(self._arena.memory, offset, value.shape, dtype)
        if root.kind == "constant":
            if id(root) not in self._constants:
                self._constants[id(root)] = self._backend.asarray(root.data, root.dtype)
            base = self._constants[id(root)]
        else:
            base = arrays[root.name]
        return self._runtime.view(base, 0, value.shape, dtype)

    # Launching ----------------------------------------------------------------------------------

    def _steps(self, arrays: Mapping[str, Array], size: int) -> Launch:
        """Launch that runs so many steps on the given arrays: a graph, or its launches one by one."""
        launches = [launch for n in range(size) for launch in (*self.step(arrays, n), *self._collecting(arrays, n))]
        # The device counts its own steps, so that a graph that was captured once reads other rows each time.
        launches.append(self._runtime.prepare(self._advance, 1, (self._cursor, size)))
        return self._runtime.capture(launches) if self.captures else partial(one_by_one, launches)

    def step(self, arrays: Mapping[str, Array], offset: int) -> list[Launch]:
        """Launches of a step as `_launches` has them, in two streams where they are captured."""
        launches = self._launches(arrays, offset)
        return with_second_stream(launches, self._plan.beside, self._runtime) if self.captures else launches

    def _launches(
        self, arrays: Mapping[str, Array], offset: int, elsewhere: Mapping[int, Array] = _NOWHERE
    ) -> list[Launch]:
        """Launches of a step, on the rows of the queue at the cursor plus an offset: first one for each source."""
        runtime, launches = self._runtime, []
        for source, kernel in zip(self._sources, self._kernels, strict=True):
            if isinstance(source, Source):
                arguments = [self._array(v, arrays, elsewhere) for v in source.arguments]
                arguments += [self._cursor, offset] if source.queued else []
                launches.append(runtime.prepare(kernel, source.blocks, arguments))
            else:
                launches.append(self._called(source.anchor, arrays, elsewhere))
        for old, v in self._placement.copies:
            launches.append(partial(runtime.copy, self._array(v, arrays, elsewhere), arrays[old.name]))
        return launches

    def _collecting(self, arrays: Mapping[str, Array], offset: int) -> list[Launch]:
        """Launches that put the outputs of such a step into their rows, where they are collected."""
        runtime, launches = self._runtime, []
        for name, rows in self._collected.items():
            value = self._program.outputs[name]
            # Four bytes at a time where they are whole; the tail of odd rows would lie askew.
            wide = value.nbytes % 4 == 0
            count = value.nbytes // 4 if wide else value.nbytes
            if count:
                threads, kernel = self._collect[wide]
                arguments = [self._array(value, arrays), rows, count, self._cursor, offset]
                launches.append(runtime.prepare(kernel, -(-count // threads), arguments))
        return launches

    def _called(self, node: Node, arrays: Mapping[str, Array], elsewhere: Mapping[int, Array]) -> Launch:
        inputs, outputs = (
            [self._array(v, arrays, elsewhere) for v in values] for values in (node.inputs, node.outputs)
        )
        queued = {v.name for v in self._queued}
        queues = {k: arrays[v.name] for k, v in enumerate(node.inputs) if v.name in queued}
        return call(node, inputs, outputs, queues, self._cursor, self._backend)
