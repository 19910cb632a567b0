"""A compiled Program: its kernels, its memory, and the CUDA graphs of one step and of many."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from minicnn.backends._gpu.fusion_groups import FusionGroup
from minicnn.backends._gpu.inputs import Inputs
from minicnn.backends._gpu.placement import place
from minicnn.backends._gpu.source import Source
from minicnn.backends.base import EACH_STEP
from minicnn.backends.numba_cuda.arrays import Array, empty, from_numpy
from minicnn.backends.numba_cuda.creation import wrap
from minicnn.backends.numba_cuda.device import Kernel, Launch, Memory, prepare_all
from minicnn.backends.numba_cuda.elementwise import assign, contiguous
from minicnn.backends.numba_cuda.errors import explained
from minicnn.backends.numba_cuda.generation import generate
from minicnn.backends.numba_cuda.shim import SIMULATED
from minicnn.program.graph import Program, Value

if TYPE_CHECKING:
    from minicnn.backends.numba_cuda.backend import NumbaCudaBackend

STEPS = 16  # in one graph, where many are asked for
LARGE = 1 << 20  # bytes of rows from which they are sent while the steps before them run
BINDINGS = 4  # sets of arrays that launches and graphs are kept for

_ADVANCE = Kernel("def kernel(cursor, steps):\n    cursor[0] = cursor[0] + steps\n", ("int32*", "int32"), 1)


class StepExecutable:
    """A Program that runs on arrays by name.

    Carried arrays (weights, optimizer state, metric totals) are overwritten where they are; data sets are read where
    they are; what is new in each step comes from a queue with one row a step, so that many steps run without the host;
    other inputs are its only row.
    Arguments of launches are looked at once for each set of arrays.
    """

    def __init__(self, backend: NumbaCudaBackend, program: Program) -> None:
        self._backend, self._program, self._gpu = backend, program, backend.gpu
        inputs = Inputs.of(program)  # before its plan rewrites it
        self._queued, self._copied = inputs.queued, inputs.copied
        self._totals, self._bound = inputs.totals, inputs.bound
        self._plan = backend.plan(program)
        self._placement = place(self._plan)

        queued = {id(v) for v in self._queued}
        threads = backend.tiles.limits.reduction if SIMULATED else backend.options.block
        self._sources: list[Source | FusionGroup] = [
            launch[0] if launch[0].reference else generate(self._plan, launch, queued, threads)
            for launch in self._plan.launches
        ]
        self._kernels = [
            Kernel(s.text, s.signature, s.threads, s.shared) if isinstance(s, Source) else None for s in self._sources
        ]
        prepare_all([k for k in (*self._kernels, _ADVANCE) if k is not None], self._gpu)
        self._captures = backend.captures and all(self._kernels)

        self._arena = Memory(self._gpu, max(self._placement.nbytes, 1))
        self._constants = {id(v): from_numpy(np.asarray(v.data, v.dtype), self._gpu) for v in program.constants}
        self._cursor = from_numpy(np.zeros(1, "int32"), self._gpu)
        self._static = {v.name: from_numpy(np.zeros(v.shape, v.dtype), self._gpu) for v in self._totals}
        self._capacity = 0
        self._queue = {v.name: empty((1, *v.shape), np.dtype(v.dtype), self._gpu) for v in self._copied}
        self._bindings: dict[tuple[Any, ...], _Binding] = {}
        self._grow(1)

    @property
    def arena_bytes(self) -> int:
        """Bytes of the memory that is planned for what lives within a step."""
        return self._placement.nbytes

    @property
    def launched(self) -> int:
        """How many kernels a step is."""
        return len(self._sources)

    # Running ------------------------------------------------------------------------------------

    def __call__(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """One step: outputs and updates by name."""
        for value in (*self._queued, *self._copied):
            self._fill(value, arrays[value.name], 1)
        return self._run(arrays, 1)

    def many(self, arrays: Mapping[str, Any], rows: Mapping[str, Any], steps: int) -> dict[str, Any]:
        """Several steps, each of which is given one row of each array in `rows`.

        Args:
            arrays: Inputs that are the same in every step, by name.
            rows: Of those of `EACH_STEP` that the Program has, NumPy arrays or arrays of numba_cuda with a further
                first axis.
            steps: How many; the length of that axis.

        Returns:
            Outputs of the last step, and updates.
        """
        self._grow(steps)
        late = {}
        for value in self._copied:
            self._fill(value, arrays[value.name], 1)
        for value in self._queued:
            each = value.name in rows
            given = rows[value.name] if each else arrays[value.name]
            late_too = each and self._captures and not isinstance(given, Array) and given.nbytes > LARGE
            if late_too and not _repeats(given):
                late[value.name] = self._host(value, given, steps, each=True)
            else:
                self._fill(value, given, steps, each=each)
        return self._run(arrays, steps, late)

    def _run(
        self, arrays: Mapping[str, Any], steps: int, late: Mapping[str, np.ndarray[Any, Any]] | None = None
    ) -> dict[str, Any]:
        everything = {v.name: self._checked(v, arrays[v.name]) for v in self._bound} | self._static
        for value in self._totals:
            if arrays[value.name] is not self._static[value.name]:
                assign(self._static[value.name], arrays[value.name])
        with explained(), self._gpu.active():
            self._cursor.memory.clear()
            if late:
                self._gpu.begin_sending()
            self._binding(everything).run(steps, late or {})
        results = {
            name: contiguous(self._array(value, everything), copy=True) for name, value in self._program.outputs.items()
        }
        return results | {n: everything[n] if n in everything else arrays[n] for n in self._program.updates}

    def _checked(self, value: Value, array: Any) -> Array:
        fits = isinstance(array, Array) and array.shape == value.shape and array.dtype.name == value.dtype
        if not fits or not array.contiguous or not array.aligned or array.device is not self._gpu:
            found = f"{getattr(array, 'dtype', type(array).__name__)}{list(getattr(array, 'shape', ()))}"
            place = "" if not fits or array.aligned else ", which begins in between"
            message = (
                f"{value.name} is a contiguous array of numba_cuda {value.spec} on {self._gpu}, at a multiple of 16 "
                f"bytes. Received: {found}{place}. Convert it with backend.asarray."
            )
            raise ValueError(message)
        made: Array = array
        return made

    # Memory -------------------------------------------------------------------------------------

    def _grow(self, steps: int) -> None:
        if steps > self._capacity:
            self._capacity = steps
            self._queue |= {v.name: empty((steps, *v.shape), np.dtype(v.dtype), self._gpu) for v in self._queued}
            self._bindings.clear()

    def _fill(self, value: Value, given: Any, steps: int, *, each: bool = False) -> None:
        rows = self._queue[value.name]
        if each and not isinstance(given, Array) and _repeats(given):  # one row, which the device repeats
            self._check(value, given, steps, each=each)
            given = from_numpy(np.ascontiguousarray(given[0], value.dtype), self._gpu)
            assign(rows[:steps], given)
        elif isinstance(given, Array):
            self._check(value, given, steps, each=each)
            assign(rows[:steps], given)
        else:
            rows.memory.write(0, self._host(value, given, steps, each=each))

    def _host(self, value: Value, given: Any, steps: int, *, each: bool) -> np.ndarray[Any, Any]:
        """Rows of the queue as an array of the host."""
        self._check(value, given, steps, each=each)
        return np.ascontiguousarray(np.broadcast_to(given, (steps, *value.shape)), value.dtype)

    def _check(self, value: Value, given: Any, steps: int, *, each: bool) -> None:
        shape = (steps, *value.shape) if each else value.shape
        if tuple(given.shape) != shape:
            message = f"{value.name} has shape {shape}. Received: {tuple(given.shape)}. Give one row for each step."
            raise ValueError(message)

    def send(self, late: Mapping[str, np.ndarray[Any, Any]], first: int, count: int) -> None:
        """Send so many rows to the queue, beside the steps that run."""
        for name, rows in late.items():
            self._gpu.send(self._queue[name].memory, first * rows[0].nbytes, rows[first : first + count])

    def _array(self, value: Value, arrays: Mapping[str, Array]) -> Array:
        """The array of a value, in the shape that it has in the Program."""
        root = self._plan.root(value)
        root = self._placement.in_place.get(id(root), root)
        if id(root) in self._placement.offsets:
            return wrap(self._arena, self._placement.offsets[id(root)], value.shape, value.dtype)
        if root.kind == "constant":
            if id(root) not in self._constants:
                self._constants[id(root)] = from_numpy(np.asarray(root.data, root.dtype), self._gpu)
            found = self._constants[id(root)]
        elif root.name in self._queue:
            found = self._queue[root.name]
        else:
            found = arrays[root.name]
        return wrap(found.memory, found.start * found.itemsize, value.shape, value.dtype)

    # Launching ----------------------------------------------------------------------------------

    def _binding(self, arrays: Mapping[str, Array]) -> _Binding:
        """The launches on the given arrays, prepared if they are new."""
        key = tuple((id(a.memory), a.start) for a in arrays.values())
        if key not in self._bindings:
            self._bindings[key] = _Binding(self, dict(arrays))
        self._bindings[key] = self._bindings.pop(key)  # the last one used comes last
        while len(self._bindings) > BINDINGS:
            del self._bindings[next(iter(self._bindings))]
        return self._bindings[key]

    def launches(self, arrays: Mapping[str, Array], offset: int) -> list[Launch]:
        """What a step launches, on the rows of the queue at the cursor plus an offset."""
        made: list[Launch] = []
        for source, kernel in zip(self._sources, self._kernels, strict=True):
            if not isinstance(source, Source) or kernel is None:
                made.append(self._reference(source, arrays))  # type: ignore[arg-type]
                continue
            queue = self._queue
            given: list[Any] = [
                (queue[v.name] if v.name in queue else self._array(v, arrays)).pointer for v in source.arguments
            ]
            given += [self._cursor.pointer, offset] if source.queued else []
            made.append(self._gpu.prepare(kernel, source.blocks, source.threads, given))
        for old, value in self._placement.copies:
            made.append(partial(assign, arrays[old.name], self._array(value, arrays)))
        return made

    def advance(self, steps: int) -> Launch:
        """What moves the cursor."""
        return self._gpu.prepare(_ADVANCE, 1, 1, [self._cursor.pointer, steps])

    def _reference(self, group: FusionGroup, arrays: Mapping[str, Array]) -> Callable[[], None]:
        """Runs a node's reference and puts the results where the kernels expect them."""
        node = group.anchor
        function = partial(node.op.reference, xp=self._backend.xp, **node.attrs)

        def run() -> None:
            row = int(self._cursor.numpy()[0])
            inputs = [
                self._queue[v.name][row if v.name in EACH_STEP else 0]
                if v.name in self._queue
                else self._array(v, arrays)
                for v in node.inputs
            ]
            made = function(*inputs)
            for value, array in zip(node.outputs, made if len(node.outputs) > 1 else (made,), strict=True):
                assign(self._array(value, arrays), array)

        return run


def _repeats(rows: np.ndarray[Any, Any]) -> bool:
    """Whether rows are one row again and again."""
    return rows.ndim > 1 and rows.strides[0] == 0


class _Binding:
    """The launches of a step on one set of arrays, and their graphs."""

    def __init__(self, executable: StepExecutable, arrays: dict[str, Array]) -> None:
        self._executable, self._arrays = executable, arrays
        self._graphs: dict[int, Launch] = {}
        self._plain = [*executable.launches(arrays, 0), executable.advance(1)]

    def run(self, steps: int, late: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """So many steps, on a queue to which some rows are only sent on the way."""
        executable = self._executable
        if not executable._captures:
            for _ in range(steps):
                for launch in self._plain:
                    launch()
            return
        (many, single), done = divmod(steps, STEPS), 0
        for count, size in ((many, STEPS), (single, 1)):
            if count and size not in self._graphs:
                launches = [one for k in range(size) for one in executable.launches(self._arrays, k)]
                self._graphs[size] = executable._gpu.capture([*launches, executable.advance(size)])
            for _ in range(count):
                executable.send(late, done, size)
                self._graphs[size]()
                done += size
