"""Steps of ranks with a GPU each: sums that the GPU takes, and all of a step in one CUDA graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from minicnn import ops
from minicnn.backends._gpu.executable import BINDINGS, one_by_one
from minicnn.backends._gpu.runtime import Launch, stored
from minicnn.backends._gpu.staging import Upload
from minicnn.backends.base import Executable
from minicnn.distribution.nccl import NcclCommunicator
from minicnn.distribution.running import RankStep
from minicnn.distribution.schedule import Add, Arrays, Collective, Piece, Rows, Schedule, updated
from minicnn.distribution.writing import ProgramWriter
from minicnn.ops.groups import Group
from minicnn.program.graph import Program, Spec, Value
from minicnn.program.memory import Buffer, assign

if TYPE_CHECKING:
    from minicnn.backends._gpu.backend import GpuBackend


def rank_step(schedule: Schedule, backend: GpuBackend) -> Executable:
    """The step of a rank, as much of it on the GPU as can be; one rank needs no communicator."""
    group = schedule.group
    communicator = group.communicator if isinstance(group.communicator, NcclCommunicator) else None
    # A graph reads weights where they are: each has to be overwritten there.
    whole = all(schedule.results.get(name) == updated(name) for name in schedule.program.updates)
    whole &= all(isinstance(each, Piece | Rows | Add | Collective) for each in schedule.instructions)
    if backend.reference_only or not (fits(group) and (communicator or group.ranks == 1)):
        return RankStep(schedule, backend)
    # The simplest form that does it is the fastest: one Program, one graph of several, or parts with the host in
    # between.
    if communicator is not None and group.shards == group.ranks and not group.deterministic and whole:
        return _whole(schedule, backend, communicator)
    if whole:
        return GraphStep(schedule, backend, communicator)
    # Where kernels are split, some collectives are the host's.
    return RankStep(schedule, backend) if communicator is None else DeviceStep(schedule, backend, communicator)


def fits(group: Group) -> bool:
    """True if each rank makes one sum by itself, so that all give arrays of one size."""
    return all(len(group.spans(r)) == 1 for r in range(group.ranks))


def summed(values: Sequence[Value], group: Group) -> list[Value]:
    """Sums over all ranks, by collectives that only move elements, and additions.

    Each rank gets everybody's share of the elements, adds in the order of the tree, and gives the result to all; in
    the fast mode the communication library adds.

    Args:
        values: What this rank adds to each sum; of one dtype.
        group: Who has which shards; each rank has one sum.
    """
    flat = ops.concat(*(ops.reshape(v, shape=(v.size,)) for v in values), axis=0)
    if group.deterministic:
        # NCCL moves equal pieces.
        rest = -flat.size % group.ranks
        padded = ops.pad(flat, widths=((0, rest),)) if rest else flat
        pieces = ops.reshape(padded, shape=(group.ranks, -(-flat.size // group.ranks)))
        taken = ops.all_to_all(pieces, split=0, join=0, group=group)
        share_total = group.total({group.spans(r)[0]: taken[r] for r in range(group.ranks)}, lambda a, b: a + b)
        whole = ops.all_gather(share_total, axis=0, group=group)
    else:
        whole = ops.all_reduce(flat, group=group)
    totals, start = [], 0
    for value in values:
        totals.append(ops.reshape(whole[start : start + value.size], shape=value.shape))
        start += value.size
    return totals


class DeviceStep(RankStep):
    """A `RankStep` whose sums are Programs of the GPU, with their collectives.

    Args:
        schedule: See `RankStep`.
        backend: See `RankStep`.
        communicator: What connects the GPUs; None for one rank.
    """

    overlaps = False  # a GPU does what it is given in one order

    def __init__(self, schedule: Schedule, backend: GpuBackend, communicator: NcclCommunicator | None) -> None:
        super().__init__(schedule, backend)
        self._communicator, self._runtime = communicator, backend.runtime
        sums: list[Collective] = []
        if communicator is not None:
            # NCCL allocates when it is first used, which a capture does not allow.
            connect(communicator, backend)
            sums = [each for each in schedule.instructions if isinstance(each, Collective) and not each.exchanges]
        compiled = backend.compile_each([_sums(each) for each in sums])
        self._sums = {id(each): run for each, run in zip(sums, compiled, strict=True)}

    def __call__(self, arrays: Mapping[str, Any]) -> Arrays:
        """See `RankStep`."""
        results = super().__call__(arrays)
        self._finish()
        return results

    def _finish(self) -> None:
        """Wait for the device, and with it for the other ranks."""
        if self._communicator is not None:
            with self._runtime.active():
                self._communicator.finish(self._runtime)

    def _total(self, collective: Collective, arrays: list[Any]) -> Sequence[Any]:
        if self._communicator is None:
            return arrays
        results = self._call(self._sums[id(collective)], {str(i): a for i, a in enumerate(arrays)})
        return [results[name] for name in collective.writes]


class GraphStep(DeviceStep):
    """A `DeviceStep` as one CUDA graph: the parts of all shards and the sums, the same kernels in the same order.

    Weights, state and data sets are read, or overwritten, where they are; all else is copied to where the graph finds
    it. See `DeviceStep` for the arguments.
    """

    def __init__(self, schedule: Schedule, backend: GpuBackend, communicator: NcclCommunicator | None) -> None:
        super().__init__(schedule, backend, communicator)
        adds = [each for each in schedule.instructions if isinstance(each, Add) and not isinstance(each, Collective)]
        specs = list(dict.fromkeys(each.specs for each in adds))
        additions = backend.compile_each([_additions(each) for each in specs])
        self._additions = dict(zip(specs, additions, strict=True))
        runs: list[Any] = list(self._compiled.values())
        names = {v.name for v in schedule.program.inputs}
        self._moved = {v.name: v.spec for run in runs for v in run.inputs.moved if v.name in names}
        self._stays = sorted({v.name for run in runs for v in run.inputs.bound if v.name in names})
        self._in_place = schedule.program.updates.keys() & {*self._stays}
        self._captures = all(run.captures for run in (*runs, *self._sums.values(), *additions))
        self._arena, self._allocation = backend.arena(), 0  # of the arena, for which there are graphs
        self._fixed: dict[str, Any] = {}
        # The schedule runs once with placeholders; what it would have run is captured afterwards.
        self._tape: list[tuple[Any, Arrays, Arrays]] = []  # an Executable, what it is given, and what it makes
        self._places: dict[int, Any] = {}  # of results, by id
        self._graphs: dict[tuple[Any, ...], tuple[Launch, Arrays]] = {}
        self._uploads = [Upload(self._runtime), Upload(self._runtime)]  # one is filled while the device copies

    def __call__(self, arrays: Mapping[str, Any]) -> Arrays:
        """See `RankStep`."""
        runtime = self._runtime
        with runtime.active(), self._arena.lock:
            self._bring(arrays)
            run, arrays_of_graph = self._graph(arrays)
            run()
            results = {
                name: arrays[name] if name in self._in_place else array for name, array in arrays_of_graph.items()
            }
            # Copies, since the next step overwrites them.
            results |= {name: self._copy(arrays_of_graph[name]) for name in self._schedule.program.outputs}
            self._finish()
        return results

    def _copy(self, array: Any) -> Any:
        target = self._runtime.empty(array.shape, str(array.dtype))
        self._runtime.copy(array, target)
        return target

    def _bring(self, arrays: Mapping[str, Any]) -> None:
        """Copy what lies somewhere else in each step, of the shards their rows."""
        self._uploads.reverse()
        upload, runtime = self._uploads[0], self._runtime
        upload.begin()
        for name, spec in self._moved.items():
            if name not in arrays:  # the numbers of the rows, which are always the same
                continue
            data, cut = self._schedule.own(name, arrays[name]), name in self._schedule.cut
            if name not in self._fixed:
                self._fixed[name] = runtime.empty(data.shape if cut else spec.shape, spec.dtype)
            target = self._fixed[name]
            row = runtime.view(target, 0, (1, *target.shape), str(target.dtype))
            upload.bring(name, data, row, 1, self._backend.owns(data))
        upload.end()

    def _graph(self, arrays: Mapping[str, Any]) -> tuple[Launch, Arrays]:
        """Graph of a step on arrays that begin where these do, and the arrays in which it leaves the results."""
        if not self._tape:
            self._record()
        allocation = self._arena.reserve(0)
        if allocation != self._allocation:
            self._graphs.clear()
            self._allocation = allocation
        addresses = tuple(self._runtime.address(arrays[name]) for name in self._stays)
        graph = self._graphs.pop(addresses, None) or self._bound(arrays)
        self._graphs[addresses] = graph  # the last one used comes last
        while len(self._graphs) > BINDINGS:
            del self._graphs[next(iter(self._graphs))]
        return graph

    def _record(self) -> None:
        """Write down what a step runs on what, and find a place for what one hands to another."""
        stays = {name: _Given(name) for name in self._stays}
        self._returned = super(DeviceStep, self).__call__(stays | self._fixed)
        used: dict[int, list[Any]] = {}  # by id a result, the call that makes it, and the last that reads it
        for at, (_, operands, results) in enumerate(self._tape):
            used |= {id(each): [each, at, at] for each in results.values()}
            for each in operands.values():
                if id(each) in used:
                    used[id(each)][2] = at
        # Results live to the end of the step.
        for each in self._returned.values():
            if id(each) in used:
                used[id(each)][2] = len(self._tape)
        buffers = assign([Buffer(str(key), "", each.spec.nbytes, *lives) for key, (each, *lives) in used.items()])
        self._memory = self._runtime.empty((max((b.offset + b.nbytes for b in buffers), default=1),), "uint8")
        for buffer in buffers:
            results = used[int(buffer.name)][0].spec
            view = self._runtime.view(self._memory, buffer.offset, results.shape, stored(results.dtype))
            self._places[int(buffer.name)] = view

    def _bound(self, arrays: Mapping[str, Any]) -> tuple[Launch, Arrays]:
        def there(recorded: Mapping[str, Any]) -> Arrays:
            return {
                name: arrays[each.name] if isinstance(each, _Given) else self._places.get(id(each), each)
                for name, each in recorded.items()
            }

        launches = [
            launch for run, recorded, results in self._tape for launch in run.bind(there(recorded), there(results))
        ]
        run = self._runtime.capture(launches) if self._captures else partial(one_by_one, launches)
        return run, there(self._returned)

    def _call(self, run: Any, arrays: Arrays) -> Arrays:
        """Write it down instead."""
        results: Arrays = {name: _Result(spec) for name, spec in run.outputs.items()}
        self._tape.append((run, arrays, results))
        return results | run.updated(arrays)

    def _add(self, addition: Add, a: list[Any], b: list[Any]) -> list[Any]:
        operands = {f"{side} {n}": x for side, xs in (("a", a), ("b", b)) for n, x in enumerate(xs)}
        results = self._call(self._additions[addition.specs], operands)
        return [results[str(n)] for n in range(len(a))]


@dataclass(frozen=True)
class _Given:
    """An array that a step reads, or overwrites, where it is."""

    name: str


@dataclass(frozen=True, eq=False)
class _Result:
    """An array that a part of a step makes."""

    spec: Spec


def _sums(collective: Collective) -> Program:
    """The Program that adds up what the ranks give."""
    program = Program("sums")
    summands = [program.input(str(i), s.shape, s.dtype) for i, s in enumerate(collective.specs)]
    program.outputs = dict(zip(collective.writes, summed(summands, collective.group), strict=True))
    return program


def _additions(specs: Sequence[Spec]) -> Program:
    """The Program that adds what two shards give."""
    program = Program("additions")
    a, b = ([program.input(f"{side} {n}", s.shape, s.dtype) for n, s in enumerate(specs)] for side in "ab")
    program.outputs = {str(n): x + y for n, (x, y) in enumerate(zip(a, b, strict=True))}
    return program


def _whole(schedule: Schedule, backend: GpuBackend, communicator: NcclCommunicator) -> Executable:
    """The schedule of a rank with one shard as one Program: one CUDA graph, the collectives among its launches."""
    connect(communicator, backend)
    program = ProgramWriter(schedule, total=summed).write(watched=True)
    names, run, runtime = [v.name for v in program.inputs], backend.compile(program), backend.runtime

    def step(arrays: Mapping[str, Any]) -> Arrays:
        results = run({name: schedule.own(name, arrays[name]) for name in names})
        with runtime.active():
            communicator.finish(runtime)
        return results

    return step


def connect(communicator: NcclCommunicator, backend: GpuBackend) -> None:
    """Connect the ranks before anything is captured."""
    with backend.runtime.active():
        arrays = [backend.runtime.empty((communicator.size,), "float32") for _ in range(2)]
        for array in arrays:
            backend.runtime.clear(array)
        communicator.prepare(arrays, backend.runtime)
        backend.runtime.synchronize()  # one rank alone waits for nobody, and the arrays end here
