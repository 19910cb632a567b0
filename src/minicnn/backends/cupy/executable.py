"""A compiled Program: its kernels, its memory, and the CUDA graphs of one step and of many."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

import cupy
import numpy as np

from minicnn.backends._gpu.fusion_groups import FusionGroup
from minicnn.backends._gpu.inputs import Inputs
from minicnn.backends._gpu.loading import check
from minicnn.backends._gpu.placement import place
from minicnn.backends._gpu.row_regions import ROW_REGION
from minicnn.backends._gpu.source import Source
from minicnn.backends.base import EACH_STEP, Array
from minicnn.backends.cupy.compiler import compile_all
from minicnn.backends.cupy.cublas import handle
from minicnn.backends.cupy.errors import explained
from minicnn.backends.cupy.generation import generate
from minicnn.backends.cupy.launching import Kernel
from minicnn.backends.cupy.library import LIBRARY
from minicnn.backends.cupy.staging import host_array
from minicnn.program.graph import Node, Program, Value

if TYPE_CHECKING:
    from minicnn.backends.cupy.backend import CupyBackend

STEPS = 16  # in one graph, where many are asked for
BINDINGS = 4  # sets of arrays that graphs are kept for
PINNED_BYTES = 16 * 2**20  # of one input; more is copied as it is
BROADCAST_BYTES = 2**16  # of equal rows; more are copied once

_ADVANCE = """#include "core.cuh"
extern "C" __global__ void kernel(int* cursor, int steps) {
  wait_for_previous();
  cursor[0] += steps;
}
"""

_COLLECT = """#include "core.cuh"
extern "C" __global__ void kernel(
    const {word}* __restrict__ from, {word}* to, unsigned count, const int* __restrict__ cursor, int offset) {{
  wait_for_previous();
  const unsigned i = blockIdx.x * 256u + threadIdx.x;
  if (i < count) to[(unsigned long long)(cursor[0] + offset) * count + i] = from[i];
}}
"""


class StepExecutable:
    """A Program that runs on arrays by name.

    Carried arrays (weights, optimizer state, metric totals) are overwritten where they are; data sets are read where
    they are; what is new in each step comes from a queue with one row a step, so that many steps run without the host.
    Other inputs are copied to where graphs find them.
    """

    def __init__(self, backend: CupyBackend, program: Program) -> None:
        self._backend, self._program = backend, program
        inputs = Inputs.of(program)  # before its plan rewrites it
        self._queued, self._copied = inputs.queued, inputs.copied
        self._totals, self._bound = inputs.totals, inputs.bound
        self._plan = backend.plan(program)
        self._placement = place(self._plan)

        queued = {id(v) for v in self._queued}
        self._sources: list[Source | FusionGroup] = [
            launch[0] if launch[0].reference else generate(self._plan, launch, queued, backend.options.block)
            for launch in self._plan.launches
        ]
        texts = [s.text for s in self._sources if isinstance(s, Source)]
        collect = [] if program.updates else [_COLLECT.format(word="unsigned char"), _COLLECT.format(word="unsigned")]
        made = compile_all([*texts, _ADVANCE, *collect], backend.gpu.architecture)
        for source, code in zip((s for s in self._sources if isinstance(s, Source)), made, strict=False):
            check(backend.gpu, source.title, source.threads, source.shared, code)
        codes = iter(made)
        kernel = partial(Kernel, overlaps=backend.gpu.overlaps)
        self._functions: list[Kernel | Callable[..., None]] = [
            kernel(next(codes), s.shared) if isinstance(s, Source) else self._called(s) for s in self._sources
        ]
        self._advance = kernel(next(codes))
        self._collect = [kernel(code) for code in codes]
        self._captures = backend.options.graph and all(
            isinstance(s, Source) or s.anchor.op is LIBRARY for s in self._sources
        )

        self._arena = cupy.empty(max(self._placement.nbytes, 1), "uint8")
        self._constants = {id(v): cupy.array(v.data, dtype=v.dtype) for v in program.constants}
        self._cursor = cupy.zeros(1, "int32")
        self._static = {v.name: cupy.zeros(v.shape, v.dtype) for v in self._totals}
        self._inputs = {v.name: cupy.empty(v.shape, v.dtype) for v in self._copied}
        self._capacity = 0
        self._queue: dict[str, Any] = {}
        self._collected: dict[str, Any] = {}  # outputs of many steps
        self._graphs: dict[tuple[int, ...], dict[int, Any]] = {}
        self._uploads = [_Upload(), _Upload()]  # one is filled while the device copies from the other
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

    def __call__(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """One step: outputs and updates by name."""
        with explained(), cupy.cuda.Device(self._backend.number):
            self._fill(arrays, {}, 1)
            made = self._run(arrays, 1)
        return {name: array[0] for name, array in made.items()} if self._collected else made

    def many(self, arrays: Mapping[str, Array], rows: Mapping[str, Any], steps: int) -> dict[str, Array]:
        """Several steps, each of which is given one row of each array in `rows`.

        Args:
            arrays: Inputs that are the same in every step, by name.
            rows: Of those of `EACH_STEP` that the Program has, NumPy or CuPy arrays with a further first axis.
            steps: How many; the length of that axis.

        Returns:
            Updates, and the outputs of the last step; of every step, with a further first axis, for a Program
            that carries nothing from one to the next.
        """
        with explained(), cupy.cuda.Device(self._backend.number):
            self._grow(steps)
            self._fill(arrays, rows, steps)
            return self._run(arrays, steps)

    def microseconds(self, arrays: Mapping[str, Array]) -> float:
        """Time of a step, from a few graphs of many."""
        start, end = cupy.cuda.Event(), cupy.cuda.Event()
        self._grow(STEPS)
        times = []
        for _ in range(6):
            start.record()
            self._run(arrays, STEPS)
            end.record()
            end.synchronize()
            times.append(cupy.cuda.get_elapsed_time(start, end) * 1e3 / STEPS)
        return float(np.median(times[1:]))

    def launch_times(self, arrays: Mapping[str, Array], repeats: int) -> list[tuple[list[Node], list[float]]]:
        """The nodes of each launch of a step, and the seconds that it takes in each of several steps.

        The launches of a step follow each other without a graph, with an event between any two; one step before the
        first does not count. Weights are left as no step leaves them.
        """
        times: list[list[float]] = [[] for _ in self._sources]
        with explained(), cupy.cuda.Device(self._backend.number):
            self._fill(arrays, {}, 1)
            everything = self._everything(arrays)
            for number in range(repeats + 1):
                events = [cupy.cuda.Event() for _ in range(len(times) + 1)]
                events[0].record()
                for source, function, event in zip(self._sources, self._functions, events[1:], strict=True):
                    self._launch(source, function, everything, 0)
                    event.record()
                events[-1].synchronize()
                for samples, pair in zip(times, pairwise(events), strict=True):
                    samples += [cupy.cuda.get_elapsed_time(*pair) * 1e-3] if number else []
        found = []
        for launch, samples in zip(self._plan.launches, times, strict=True):
            every = (node for group in launch for node in group.every)
            nodes = [n for node in every for n in (node.attrs["region"].nodes if node.op is ROW_REGION else (node,))]
            found.append((nodes, samples))
        return found

    def _everything(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """The arrays that steps read and overwrite, with the totals set and the queue at its first row."""
        bound = {v.name: self._checked(v, arrays[v.name]) for v in self._bound}
        for value in self._totals:
            if arrays[value.name] is not self._static[value.name]:
                self._static[value.name][...] = arrays[value.name]
        self._cursor.fill(0)
        return {**bound, **self._static}

    def _run(self, arrays: Mapping[str, Array], steps: int) -> dict[str, Array]:
        everything = self._everything(arrays)
        if not self._captures:
            for _ in range(steps):
                self._step(everything, 0)
                self._advance(1, 1, (self._cursor, np.int32(1)))
        else:
            stream = cupy.cuda.get_current_stream()
            many, single = divmod(steps, STEPS)
            for count, size in ((many, STEPS), (single, 1)):
                if count:
                    graph = self._graph(everything, size)
                    for _ in range(count):
                        graph.launch(stream)
        program = self._program
        if self._collected:
            return {name: array[:steps].copy() for name, array in self._collected.items()}
        results = {name: self._array(value, everything).copy() for name, value in program.outputs.items()}
        return results | {name: everything[name] if name in everything else arrays[name] for name in program.updates}

    def _checked(self, value: Value, array: Array) -> Array:
        if (
            not isinstance(array, cupy.ndarray)
            or array.shape != value.shape
            or array.dtype.name != value.dtype
            or not array.flags.c_contiguous
        ):
            found = f"{getattr(array, 'dtype', type(array).__name__)}{list(getattr(array, 'shape', ()))}"
            message = (
                f"{value.name} is a contiguous CuPy array {value.spec}. Received: {found}. "
                "Convert it with backend.asarray."
            )
            raise ValueError(message)
        return array

    # Memory -------------------------------------------------------------------------------------

    def _grow(self, steps: int) -> None:
        if steps > self._capacity:
            self._capacity = steps
            self._queue = {v.name: cupy.empty((steps, *v.shape), v.dtype) for v in self._queued}
            if not self._program.updates:
                self._collected = {n: cupy.empty((steps, *v.shape), v.dtype) for n, v in self._program.outputs.items()}
            self._graphs.clear()

    def _fill(self, arrays: Mapping[str, Array], rows: Mapping[str, Any], steps: int) -> None:
        """Bring the steps' inputs to where graphs find them, without waiting for the device."""
        self._uploads.reverse()
        upload = self._uploads[0]
        upload.begin()
        for value in (*self._queued, *self._copied):
            each = value.name in rows
            given = rows[value.name] if each else arrays[value.name]
            shape = (steps, *value.shape) if each else value.shape
            if tuple(given.shape) != shape or (each and value.name not in EACH_STEP):
                message = (
                    f"{value.name} has shape {shape}, and of {' and '.join(EACH_STEP)} alone there is one row for each "
                    f"step. Received: {tuple(given.shape)}."
                )
                raise ValueError(message)
            target = self._queue[value.name][:steps] if value.name in EACH_STEP else self._inputs[value.name][None]
            if isinstance(given, cupy.ndarray):
                target[...] = given
            else:
                upload.send(value.name, np.broadcast_to(given, target.shape), target)
        upload.end()

    def _array(self, value: Value, arrays: Mapping[str, Array]) -> Array:
        """The array of a value, in the shape that it has in the Program."""
        root = self._plan.root(value)
        root = self._placement.in_place.get(id(root), root)
        if id(root) in self._placement.offsets:
            start = self._placement.offsets[id(root)]
            memory = cupy.cuda.MemoryPointer(
                self._arena.data.mem, self._arena.data.ptr - self._arena.data.mem.ptr + start
            )
            return cupy.ndarray(value.shape, value.dtype, memory)
        if root.kind == "constant":
            return (
                self._constants[id(root)].reshape(value.shape)
                if id(root) in self._constants
                else cupy.array(root.data, dtype=root.dtype)
            )
        if root.name in self._queue:
            return self._queue[root.name][0].reshape(value.shape)
        if root.name in self._inputs:
            return self._inputs[root.name].reshape(value.shape)
        return arrays[root.name].reshape(value.shape)

    # Launching ----------------------------------------------------------------------------------

    def _arguments(self, source: Source, arrays: Mapping[str, Array]) -> list[Any]:
        queue = self._queue
        return [queue[v.name] if v.name in queue else self._array(v, arrays) for v in source.arguments]

    def _step(self, arrays: Mapping[str, Array], offset: int) -> None:
        for source, function in zip(self._sources, self._functions, strict=True):
            self._launch(source, function, arrays, offset)
        for old, value in self._placement.copies:
            made, target = self._array(value, arrays), arrays[old.name]
            stream = cupy.cuda.get_current_stream()
            cupy.cuda.runtime.memcpyAsync(target.data.ptr, made.data.ptr, target.nbytes, 3, stream.ptr)
        for name, all_steps in self._collected.items():
            made, row = self._array(self._program.outputs[name], arrays), all_steps[0]
            if row.nbytes:
                wide = row.nbytes % 4 == 0
                count = row.nbytes // 4 if wide else row.nbytes
                given = made, all_steps, np.uint32(count), self._cursor, np.int32(offset)
                self._collect[wide](-(-count // 256), 256, given)

    def _launch(
        self,
        source: Source | FusionGroup,
        function: Kernel | Callable[..., None],
        arrays: Mapping[str, Array],
        offset: int,
    ) -> None:
        if not isinstance(source, Source):
            cast("Callable[..., None]", function)(arrays)
            return
        arguments = self._arguments(source, arrays)
        arguments += [self._cursor, np.int32(offset)] if source.queued else []
        with explained(f"{source.title} with {source.blocks} blocks of {source.threads} threads"):
            function(source.blocks, source.threads, tuple(arguments))

    def _called(self, group: FusionGroup) -> Callable[..., None]:
        """What computes a node that has no kernel."""
        return self._library(group) if group.anchor.op is LIBRARY else self._reference(group)

    def _library(self, group: FusionGroup) -> Callable[..., None]:
        """Has cuBLAS multiply."""
        node, blas = group.anchor, handle(self._backend.number)

        def run(arrays: Mapping[str, Array]) -> None:
            blas.multiply(node, *(self._array(v, arrays) for v in (*node.inputs, *node.outputs)))

        return run

    def _reference(self, group: FusionGroup) -> Callable[..., None]:
        """Runs a node's reference and puts the results where the kernels expect them."""
        node = group.anchor
        function = partial(node.op.reference, xp=self._backend.xp, **node.attrs)

        def run(arrays: Mapping[str, Array]) -> None:
            queue = {name: q[int(self._cursor[0])] for name, q in self._queue.items()}
            inputs = [queue[v.name] if v.name in queue else self._array(v, arrays) for v in node.inputs]
            made = function(*inputs)
            for value, array in zip(node.outputs, made if len(node.outputs) > 1 else (made,), strict=True):
                self._array(value, arrays)[...] = array

        return run

    def _graph(self, arrays: Mapping[str, Array], steps: int) -> Any:
        """The graph of so many steps on the given arrays, captured if it is new."""
        key = tuple(a.data.ptr for a in arrays.values())
        graphs = self._graphs.setdefault(key, {})
        self._graphs[key] = self._graphs.pop(key)  # the last one used comes last
        while len(self._graphs) > BINDINGS:
            del self._graphs[next(iter(self._graphs))]
        if steps not in graphs:
            stream = cupy.cuda.Stream(non_blocking=True)
            with stream:
                stream.begin_capture()
                try:
                    for step in range(steps):
                        self._step(arrays, step)
                    self._advance(1, 1, (self._cursor, np.int32(steps)))
                except BaseException:
                    with suppress(cupy.cuda.runtime.CUDARuntimeError):  # the capture is void
                        stream.end_capture()
                    raise
                graph = stream.end_capture()
            graphs[steps] = graph
        return graphs[steps]


class _Upload:
    """Pinned memory through which rows go into the queue, so that the host need not wait for the device."""

    def __init__(self) -> None:
        self._memory: dict[str, np.ndarray[Any, Any]] = {}
        self._done = cupy.cuda.Event(disable_timing=True)

    def begin(self) -> None:
        """Wait until the memory may be written again."""
        self._done.synchronize()

    def send(self, name: str, rows: np.ndarray[Any, Any], target: Any) -> None:
        """Begin to copy rows to an array of the device."""
        if (
            len(rows) > 1 and rows.strides[0] == 0 and rows.nbytes > BROADCAST_BYTES
        ):  # one row, which the device repeats
            self.send(name, np.ascontiguousarray(rows[0])[None], target[:1])
            target[1:] = target[:1]
            return
        if rows.nbytes > PINNED_BYTES:
            target.set(np.ascontiguousarray(rows, target.dtype))
            return
        if name not in self._memory or len(self._memory[name]) < len(rows):
            self._memory[name] = host_array(rows.shape, target.dtype, pinned=True)
        memory = self._memory[name][: len(rows)]
        memory[...] = rows
        target.data.copy_from_host_async(memory.ctypes.data, memory.nbytes)

    def end(self) -> None:
        """What comes into the memory later comes after these copies."""
        self._done.record(cupy.cuda.get_current_stream())
