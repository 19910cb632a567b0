"""Runs a lowered Program: buffers planned once, kernels in native code, references in between where there are any."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any
from weakref import ReferenceType, ref

import array_api_compat.numpy as xp
import numpy as np

from minicnn.backends.base import State
from minicnn.backends.numba import cpus
from minicnn.backends.numba.chains import Chain
from minicnn.backends.numba.keeping import parted
from minicnn.backends.numba.kernel import KernelCode, compile_all
from minicnn.backends.numba.lowering import PLAIN, Key, Lowering, Task, constant_key
from minicnn.backends.numba.threads import Entry, ForkSafeLock, KernelList, pool
from minicnn.program.graph import Program, Value
from minicnn.program.memory import ALIGNMENT, Buffer, assign

Array = Any
Table = np.ndarray[Any, Any]


class NumbaExecutable:
    """A function from a Program's inputs by name to its outputs and updates by name.

    Attributes:
        tasks: What runs each time, in order; those of a chain by turns.
        preparations: What runs before, once as long as the weights are the same ones.
        segments: Kernels of the tasks, and references in between.
        threads: How many share the work.
    """

    def __init__(self, lowering: Lowering, program: Program, threads: int) -> None:
        self.threads = lowering.threads
        self._lock = ForkSafeLock()  # the arena serves one call at a time
        self._inputs = {(v.name, PLAIN): v for v in program.inputs}
        results = program.outputs | program.updates
        self._results = {name: (lowering.need(v, PLAIN), v) for name, v in results.items()}
        self._indices = lowering.indices
        # The caller's own arrays, and those that the caller gets.
        self._fixed = {constant_key(v): np.ascontiguousarray(v.data, v.dtype) for v in program.constants}
        fresh = {key: v for key, v in self._results.values() if key not in self._fixed}
        weights = {(v.name, PLAIN): v for v in program.inputs if id(v) in lowering.fixed}
        known = [*weights, *self._fixed]
        self.preparations, others = parted(lowering.tasks, known, fresh) if weights else ([], lowering.tasks)
        # A copy of a few numbers takes less time than it takes NumPy to tell where others are.
        most = cpus.host().costs.copied
        updated = {self._results[name][0] for name in program.updates}
        small = [k for k, v in fresh.items() if v.nbytes <= most and k not in updated and k not in self._inputs]
        self._fixed |= {key: _aligned(fresh.pop(key).nbytes) for key in small}
        # Results by the donated inputs in whose place they come, and arrays that the caller has donated.
        shown = {self._results[name][0] for name in program.outputs}  # outputs stay the caller's own
        replaced = {(name, PLAIN): self._results[name][0] for name in program.updates}
        self._replaced = {old: new for old, new in replaced.items() if new not in shown}
        self._spare: dict[Key, Array] = {}
        kept = weights.keys() | self._replaced.keys() | fresh.keys()  # an input that is a result is handed back itself
        passing = {k: v for k, v in self._inputs.items() if k not in kept}
        copied = {key: _aligned(v.nbytes) for key, v in passing.items() if v.nbytes <= most}
        self._copies = {
            key: array.view(passing[key].dtype).reshape(passing[key].shape) for key, array in copied.items()
        }
        self._outside: dict[Key, Value] = fresh | {k: v for k, v in self._inputs.items() if k not in copied}
        self._fixed |= copied
        # Threads wait for each other after each group, so that fewer groups mean less waiting.
        prepared, groups = _side_by_side(self.preparations), _side_by_side(others)
        self.tasks = [task for group in groups for each in group for task in _tasks(each)]
        self._fixed |= self._arena(lowering, [*prepared, *groups], len(prepared))
        self._tables: list[Table] = []  # of chains
        self._functions = compile_all([s for g in (*prepared, *groups) for t in g for s in _sources(t)], threads)
        compiled = (function.address for function in self._functions)
        # Places in tables that are filled in at each call.
        self._holes: dict[Key, list[tuple[Table, int]]] = {key: [] for key in self._outside}
        self._preparing = self._split(prepared, compiled)
        self.segments = self._split(groups, compiled)
        self._written: dict[Key, ReferenceType[Array]] = {}  # the arrays whose addresses are in the holes
        self._state: ReferenceType[State] | None = None  # the weights that are prepared
        checked = [(key, v, v.shape, np.dtype(v.dtype)) for key, v in self._inputs.items()]
        self._weights = [row for row in checked if row[0] in weights]
        self._others = [row for row in checked if row[0] not in weights]
        self._new = [(key, v.shape, np.dtype(v.dtype)) for key, v in fresh.items() if key not in self._inputs]
        self._held: dict[Key, Array] = {}  # the weights
        # Results that are copied.
        self._views = {n: self._view(k, v, {}) for n, (k, v) in self._results.items() if k in self._fixed}
        # All that kernels read and write is where it was at the last call.
        self._kernels = [segment for segment in self.segments if isinstance(segment, KernelList)]
        alone = len(self._kernels) == len(self.segments)
        self._bound = alone and len(self._views) == len(results) and all(key in copied for key, *_ in self._others)

    def _arena(self, lowering: Lowering, groups: list[list[Task]], prepared: int) -> dict[Key, Array]:
        """All other buffers in one arena, those that never live together on each other.

        What the first groups prepare and the others read is beside it, for the next call.
        """
        first: dict[Key, int] = {}
        last: dict[Key, int] = {}
        for i, group in enumerate(groups):
            for key in (key for task in group for key in (*task.reads, *task.writes)):
                first.setdefault(key, i)
                last[key] = i
        unplaced = [key for key in first if key not in self._outside and key not in self._fixed]
        temporary = {" ".join(k): k for k in unplaced if not first[k] < prepared <= last[k]}
        placed = assign([Buffer(n, k[1], lowering.sizes[k], first[k], last[k]) for n, k in temporary.items()])
        self.arena_bytes = max((b.offset + b.nbytes for b in placed), default=0)
        arena = _aligned(self.arena_bytes)
        buffers = {temporary[b.name]: arena[b.offset : b.offset + b.nbytes] for b in placed}
        return buffers | {key: _aligned(lowering.sizes[key]) for key in unplaced if key not in buffers}

    def _split(self, groups: list[list[Task]], compiled: Iterator[int]) -> list[KernelList | Task]:
        """Kernels that follow each other as lists, references by themselves."""
        segments: list[KernelList | Task] = []
        waiting: list[list[Entry]] = []
        for group in groups:
            # Kernels in a row run without going back to Python in between.
            if group[0].source is not None:
                waiting.append([self._entry(task, compiled) for task in group])
                continue
            if waiting:
                segments.append(KernelList(waiting))
                waiting = []
            segments.append(group[0])
        return [*segments, KernelList(waiting)] if waiting else segments

    def _entry(self, task: Task, compiled: Iterator[int]) -> Entry:
        if not isinstance(task, Chain):
            return next(compiled), self._table(task), task.items
        entries = [self._entry(each, compiled) for each in task.tasks]
        rows = np.array([(code, table.ctypes.data, items // task.items) for code, table, items in entries], np.int64)
        self._tables += [rows, *(table for _, table, _ in entries)]
        first = rows.ctypes.data
        return next(compiled), np.array([first, first + rows.nbytes, task.blocks], np.int64), task.items

    def _table(self, task: Task) -> Table:
        numbers = [value for _, value in task.source.numbers] if task.source is not None else []
        table = np.array([0] * len(task.order) + numbers, np.int64)
        for i, key in enumerate(task.order):
            if key in self._outside:
                # The caller's arrays are others each time: their addresses are filled in before a call.
                self._holes[key].append((table, i))
            else:
                table[i] = self._fixed[key].ctypes.data
        return table

    @property
    def launched(self) -> int:
        """Number of kernels, and references in between, in a step."""
        return len(self.tasks)

    def __call__(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Run the Program once; safe to call from several threads, which then wait for each other."""
        return self.on_state(arrays, None)

    def on_state(self, arrays: Mapping[str, Array], state: State | None) -> dict[str, Array]:
        """The same with weights that need not be looked at again if they were those of the last call."""
        buffers: dict[Key, Array] = {}
        for key, value, shape, dtype in self._others:
            array = arrays[key[0]] if state is None or key[0] in arrays else state[key[0]]
            # What is right as it is, as nearly always, takes a tenth of the time that checking it anew does.
            right = type(array) is np.ndarray and array.shape == shape and array.dtype == dtype
            buffers[key] = array if right and array.flags.c_contiguous else _checked(value, array)
        for index, rows in self._indices:
            # Before the kernels, which read raw memory and check nothing.
            _check_index(buffers[index.name, PLAIN], rows)
        with self._lock.now:
            if state is None or self._state is None or self._state() is not state:
                self._prepare(arrays if state is None else {**state, **arrays}, state)
            if self._new:
                self._make_results(arrays, buffers)
            self._run(buffers)
            # Only now: a step that is interrupted has changed nothing.
            for key, result in self._replaced.items():
                if buffers[key] is arrays[key[0]] and buffers[key].flags.writeable:
                    self._spare[result] = buffers[key]
            return self._handed_back(buffers)

    def on_input(self, array: Array, state: State) -> list[Array] | None:
        """See `StateStep.on_input`."""
        if len(self._others) != 1 or self._indices or self._replaced:
            return None
        key = self._others[0][0]
        with self._lock.now:
            if self._state is None or self._state() is not state:
                self._prepare(state, state)
            if self._bound:
                self._copies[key][...] = array
                for segment in self._kernels:
                    pool(self.threads).run(segment)
                return [view.copy() for view in self._views.values()]
            buffers = {key: array if array.flags.c_contiguous else np.ascontiguousarray(array)}
            self._make_results({}, buffers)
            self._run(buffers)
            return list(self._handed_back(buffers).values())

    def _make_results(self, arrays: Mapping[str, Array], buffers: dict[Key, Array]) -> None:
        """Arrays that are the caller's: donated ones, or new ones, whose pages the system has to clear first."""
        operands = set(map(id, arrays.values()))
        for key, shape, dtype in self._new:
            spare = self._spare.pop(key, None)
            buffers[key] = np.empty(shape, dtype) if spare is None or id(spare) in operands else spare

    def _prepare(self, arrays: Mapping[str, Array], state: State | None) -> None:
        """Take other weights, which are those of a State if there is one, and do what depends on them alone."""
        self._state = None
        self._held = {key: _checked(value, arrays[value.name]) for key, value, *_ in self._weights}
        self._fill(self._held)
        for segment in self._preparing:
            if isinstance(segment, KernelList):
                pool(self.threads).run(segment)
        self._state = None if state is None else ref(state)

    def _run(self, buffers: dict[Key, Array]) -> None:
        """Run all tasks on arrays from outside."""
        self._fill(buffers)
        for segment in self.segments:
            if isinstance(segment, KernelList):
                pool(self.threads).run(segment)
            else:
                self._reference(segment, buffers)

    def _fill(self, buffers: Mapping[Key, Array]) -> None:
        """Write addresses of arrays into the tables of kernels, and numbers where there are few."""
        for key, array in buffers.items():
            if key in self._copies:
                self._copies[key][...] = array
                continue
            holes = self._holes[key]
            # Weights are the same arrays each time; NumPy takes longer to tell an address than a short kernel runs.
            if holes and (key not in self._written or self._written[key]() is not array):
                self._written[key], address = ref(array), array.ctypes.data
                for table, i in holes:
                    table[i] = address

    def _reference(self, task: Task, buffers: dict[Key, Array]) -> None:
        node = task.node
        if node is None:
            return
        ins = [self._view(k, v, buffers) for k, v in zip(task.reads, node.inputs, strict=True)]
        outcome = partial(node.op.reference, xp=xp, **node.attrs)(*ins)
        results = outcome if len(task.writes) > 1 else (outcome,)
        for key, value, array in zip(task.writes, node.outputs, results, strict=True):
            self._view(key, value, buffers)[...] = array

    def _view(self, key: Key, value: Value, buffers: dict[Key, Array]) -> Array:
        array = buffers[key] if key in buffers else self._held[key] if key in self._held else self._fixed[key]
        return array.view(value.dtype).reshape(value.shape)

    def _handed_back(self, buffers: dict[Key, Array]) -> dict[str, Array]:
        """Results by name; what is the caller's or the Program's own array already is copied."""
        results = {}
        for name, (key, value) in self._results.items():
            if name in self._views:
                results[name] = self._views[name].copy()
            else:
                results[name] = self._view(key, value, buffers).copy() if key in self._inputs else buffers[key]
        return results


def _aligned(nbytes: int) -> Array:
    """Bytes that begin where a vector may: NumPy aligns to 16 only."""
    array = np.zeros(nbytes + ALIGNMENT, np.uint8)
    base = -array.ctypes.data % ALIGNMENT
    return array[base : base + nbytes]


def _checked(value: Value, array: Array) -> Array:
    """A contiguous array of an input's dtype; its shape has to be right, because kernels read raw memory."""
    if np.shape(array) != value.shape:
        raise ValueError(
            f"A compiled Program takes inputs of the shapes that it was traced with. Received: shape {np.shape(array)} "
            f"for {value!r}. Trace the Program for that shape."
        )
    # NumPy makes a 0-d array 1-d here, so its shape is put back.
    return np.ascontiguousarray(array, value.dtype).reshape(value.shape)


def _check_index(index: Array, rows: int) -> None:
    if index.size and not 0 <= index.min() <= index.max() < rows:
        raise IndexError(f"A batch is gathered by rows from 0 to {rows - 1}. Received: {index.min()} to {index.max()}.")


def _tasks(task: Task) -> list[Task]:
    """A task, or those of a chain."""
    return task.tasks if isinstance(task, Chain) else [task]


def _sources(task: Task) -> list[KernelCode]:
    """Kernels of a task; the kernels that it calls come first."""
    called = _tasks(task) if isinstance(task, Chain) else []
    return [each.source for each in (*called, task) if each.source is not None]


def _side_by_side(tasks: list[Task]) -> list[list[Task]]:
    """Neighbouring kernels that do not depend on each other in groups; a reference is by itself."""
    groups: list[list[Task]] = []
    read: set[Key] = set()
    written: set[Key] = set()
    for task in tasks:
        alone = task.source is None or not groups or groups[-1][0].source is None
        # A kernel that reads or writes what the group writes must wait, as must one that overwrites what it reads.
        if alone or written & {*task.reads, *task.writes} or read & {*task.writes}:
            groups.append([])
            read, written = set(), set()
        groups[-1].append(task)
        read.update(task.reads)
        written.update(task.writes)
    return groups
