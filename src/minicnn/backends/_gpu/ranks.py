"""Steps of ranks with a GPU each: sums that the GPU takes, and all of a step in one CUDA graph."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from minicnn.backends._gpu.device_step import DeviceStep, connect
from minicnn.backends._gpu.executable import BINDINGS
from minicnn.backends._gpu.rank_joining import join
from minicnn.backends._gpu.rank_pooling import remember_maxima
from minicnn.backends._gpu.rank_rows import RowQueues
from minicnn.backends._gpu.rank_sums import (
    Between,
    Sum,
    addition,
    additions_of,
    side_by_side,
    taken_at_once,
    tell_finite,
)
from minicnn.backends._gpu.rank_tape import BoundStep, Call, Copy, Given, Result, beside_others, lives_of, updates_early
from minicnn.backends._gpu.runtime import Beside, Launch, one_by_one, stored
from minicnn.backends._gpu.staging import Upload
from minicnn.backends.base import Executable, Span, State
from minicnn.distribution.nccl import NcclCommunicator
from minicnn.distribution.passes import FINITE
from minicnn.distribution.running import RankStep
from minicnn.distribution.schedule import Arrays, Collective, Piece, RankSchedule, ShardRows, ShardSum, updated
from minicnn.ops.groups import Group
from minicnn.program.graph import Spec
from minicnn.program.memory import ALIGNMENT, Buffer, assign

if TYPE_CHECKING:
    from minicnn.backends._gpu.backend import GpuBackend

NODES = 512  # of a graph, at most, beyond those of one step: what is between graphs is little beside so many
_FIRST: Arrays = {}  # of a step whose rows are where one alone has them
PLUG, PLUGS = 1 << 28, 200  # copies of so many bytes, which take some 40 ms together


def rank_step(schedule: RankSchedule, backend: GpuBackend) -> Executable:
    """The step of a rank, as much of it on the GPU as can be; one rank needs no communicator."""
    group = schedule.group
    communicator = group.communicator if isinstance(group.communicator, NcclCommunicator) else None
    # A graph reads weights where they are: each has to be overwritten there.
    whole = all(schedule.results.get(name) == updated(name) for name in schedule.program.updates)
    whole &= all(isinstance(each, Piece | ShardRows | ShardSum | Collective) for each in schedule.instructions)
    if backend.reference_only or not (fits(group) and (communicator or group.ranks == 1)):
        return RankStep(schedule, backend)
    if communicator is not None:
        # NCCL allocates when it is first used, which a capture does not allow.
        connect(communicator, backend.runtime)
    fused = backend.options.fused and backend.gpu is not None and backend.gpu.has_cuda
    if whole:
        joins = fused and backend.options.tiled and backend.exchanges and communicator is not None
        taken = taken_at_once(schedule) if joins else frozenset[Collective]()
        if group.ranks > 1:
            tell_finite(schedule)
    if fused:
        remember_maxima(schedule)
    if whole:
        return GraphStep(schedule, backend, communicator, join(schedule, taken) if taken else ())
    # Where kernels are split, some collectives are the host's.
    return RankStep(schedule, backend) if communicator is None else DeviceStep(schedule, backend, communicator)


def fits(group: Group) -> bool:
    """True if each rank makes one sum by itself, so that all give arrays of one size."""
    return all(len(group.spans(r)) == 1 for r in range(group.ranks))


class GraphStep(DeviceStep):
    """A `DeviceStep` as one CUDA graph: the parts of all shards and the sums, the same kernels in the same order.

    Weights, state and data sets are read, or overwritten, where they are; all else is copied to where the graph finds
    it. What goes into one sum is made side by side, where it is sent from, and sums that are read later are taken
    beside what comes next.

    Args:
        schedule: See `DeviceStep`.
        backend: Likewise.
        communicator: Likewise.
        sums: What its kernels sum themselves: see `join`.
    """

    def __init__(
        self, schedule: RankSchedule, backend: GpuBackend, communicator: NcclCommunicator | None, sums: Sequence[Spec]
    ) -> None:
        super().__init__(schedule, backend, communicator)
        self._within_kernels = sums  # that are none of its calls
        self._of_sums: Arrays = {}  # arrays that these need
        adds = [
            each for each in schedule.instructions if isinstance(each, ShardSum) and not isinstance(each, Collective)
        ]
        specs = list(dict.fromkeys(each.specs for each in adds))
        additions = backend.compile_each([additions_of(each) for each in specs])
        self._additions = dict(zip(specs, additions, strict=True))
        runs: list[Any] = list(self._compiled.values())
        names = {v.name for v in schedule.program.inputs} - self._constants.keys()
        self._moved = {v.name: v.spec for run in runs for v in run.inputs.moved if v.name in names}
        self._stays = sorted({v.name for run in runs for v in run.inputs.bound if v.name in names})
        self._in_place = schedule.program.updates.keys() & {*self._stays}
        self._captures = all(run.captures for run in (*runs, *self._sums.values(), *additions))
        self._arena, self._allocation = backend.arena(), 0  # of the arena, for which there are graphs
        self._fixed: dict[str, Any] = {}
        for name in self._moved:
            values = [v for run in runs for v in run.inputs.moved if v.name == name]
            if len(values) == 1 and (name not in schedule.cut or len(schedule.rows) == values[0].shape[0]):
                # One part alone reads it, where it has room for it.
                self._fixed[name] = next(r for r in runs if values[0] in r.inputs.moved).place(values[0])
        # Rows of all steps that are asked for at once, and of those of a graph.
        self._queues, self._nearest = RowQueues(self._runtime), RowQueues(self._runtime)
        # The schedule runs once with placeholders; what it would have run is captured afterwards.
        self._tape: list[Call] = []
        self._places: dict[Result, Any] = {}
        self._shared: Any = None  # memory of large sums, which all ranks reach
        self._graphs: dict[tuple[Any, ...], BoundStep] = {}
        # Steps that the host may be ahead of the device: each rank's deadline is that of some of them.
        self._ahead = 1 if backend.gpu is None else backend.gpu.ahead
        self._uploads = [Upload(self._runtime), Upload(self._runtime)]  # one is filled while the device copies

    def _compile_sums(self, sums: Sequence[Collective]) -> dict[Any, Any]:
        group = self._schedule.group
        whole = {each.specs: side_by_side(each)[1] for each in sums}
        distinct = list(dict.fromkeys(whole.values()))
        programs = {spec: addition(group, spec, self._runtime.gpu) for spec in distinct}
        adds = {spec: program for spec, program in programs.items() if program is not None}
        compiled = dict(zip(adds, self._backend.compile_each(list(adds.values())), strict=True))
        taken = {spec: Sum(group, spec, compiled.get(spec), self._runtime) for spec in distinct}
        return {specs: taken[spec] for specs, spec in whole.items()}

    def __call__(self, arrays: Mapping[str, Any]) -> Arrays:
        """See `RankStep`."""
        return self.many(arrays, {}, 1)

    def many(
        self, arrays: Mapping[str, Any], rows: Mapping[str, Any], steps: int, state: State | None = None
    ) -> Arrays:
        """See `ManySteps`; `FINITE` tells of each step what `tell_finite` says, until the next ones."""
        runtime, operands = self._runtime, {**(state or {}), **arrays}
        with runtime.active(), self._arena.lock:
            self._bring(operands, rows, steps)
            step = self._graph(operands)
            under_way: deque[Any] = deque()  # events of some steps each
            most = max(1, min(self._ahead // 2, NODES // len(step.launches))) if self._captures else 1
            first = 0
            while first < steps:
                count = most if first + most <= steps else 1
                self._begin(operands, step, first, count, tuple(rows), steps)
                first += count
                under_way.append(self._mark())
                if len(under_way) > max(1, self._ahead // most):
                    self._wait(under_way.popleft())
            results = {name: operands[name] if name in self._in_place else a for name, a in step.results.items()}
            # Copies, since the next step overwrites them.
            results |= {name: self._copy(step.results[name]) for name in self._schedule.program.outputs}
            if FINITE in results:
                shape = steps, *results[FINITE].shape
                results[FINITE] = runtime.view(self._queues.whole(FINITE), 0, shape, str(results[FINITE].dtype))
            self._finish()
        return results

    def _begin(
        self, operands: Mapping[str, Any], step: BoundStep, first: int, count: int, new: tuple[str, ...], steps: int
    ) -> None:
        """Begin so many of all steps from the first one on, of which some names have new rows."""
        copy, told = self._runtime.copy, [FINITE] if FINITE in step.results else []
        for name in told:
            self._queues.make(name, steps, step.results[name])
        if (count, new) not in step.runs:
            launches = step.launches if count == 1 else self._repeated(operands, step, count, new)
            step.runs[count, new] = self._runtime.capture(launches) if self._captures else partial(one_by_one, launches)
        for name in new:
            copy(self._queues.some(name, first, count), self._nearest.whole(name) if count > 1 else self._fixed[name])
        step.runs[count, new]()
        for name in told:
            near = self._nearest.whole(name) if count > 1 else step.results[name]
            copy(near, self._queues.some(name, first, count))

    def _repeated(self, operands: Mapping[str, Any], step: BoundStep, count: int, new: Sequence[str]) -> list[Launch]:
        """Launches of so many steps, each of which reads rows of its own where they are, and tells one."""
        like = {name: self._fixed[name] for name in new}
        like |= {name: array for name, array in step.results.items() if name == FINITE}
        rows = {name: self._nearest.make(name, count, array) for name, array in like.items()}
        of_steps = ({name: rows[name][k] for name in like} for k in range(count))
        return [launch for step_rows in of_steps for launch in self._in_turn(self._launches(operands, step_rows))]

    def release(self) -> None:
        """See `Captured`."""
        self._graphs.clear()
        # What ranks share ends with their connection: a step finds its places anew.
        self._tape, self._shared = [], None
        self._places.clear()

    def _copy(self, array: Any) -> Any:
        target = self._runtime.empty(array.shape, str(array.dtype))
        self._runtime.copy(array, target)
        return target

    def _bring(self, arrays: Mapping[str, Any], rows: Mapping[str, Any], steps: int) -> None:
        """Copy what lies somewhere else in each step, of the shards their rows; and rows for each step to a queue."""
        self._uploads.reverse()
        upload, runtime, schedule = self._uploads[0], self._runtime, self._schedule
        upload.begin()
        for name, spec in self._moved.items():
            cut = name in schedule.cut
            if name in rows:
                share = rows[name]
                if cut and share.shape[1] == schedule.batch:
                    share = share[:, schedule.rows.start : schedule.rows.stop]
                self._fix(name, share.shape[1:], spec.dtype)
                self._queues.make(name, steps, self._fixed[name])
                upload.bring(f"rows of {name}", share, self._queues.whole(name), steps, self._backend.owns(share))
            elif arrays[name] is not self._fixed.get(name):
                share = schedule.own(name, arrays[name])
                self._fix(name, share.shape if cut else spec.shape, spec.dtype)
                target = self._fixed[name]
                row = runtime.view(target, 0, (1, *target.shape), str(target.dtype))
                upload.bring(name, share, row, 1, self._backend.owns(share))
        upload.end()

    def _fix(self, name: str, shape: tuple[int, ...], dtype: str) -> None:
        """Have a place for an input that is moved."""
        if name not in self._fixed:
            self._fixed[name] = self._runtime.empty(shape, dtype)

    def _graph(self, arrays: Mapping[str, Any]) -> BoundStep:
        """The step on arrays that begin where these do."""
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
        stays = {name: Given(name) for name in self._stays}
        if self._within_kernels and self._communicator is not None:
            self._of_sums = self._communicator.within_kernels(self._within_kernels, self._runtime)
            stays |= {name: Given(name) for name in self._of_sums}
        self._returned = super(DeviceStep, self).__call__(stays | self._fixed)
        self._tape = updates_early(self._tape)
        self._awaited = beside_others(self._tape)
        # Sums for which all wait do not wait for those beside, which one connection would do in one order.
        sums = {at in self._awaited for at, call in enumerate(self._tape) if isinstance(call.run, Sum)}
        self._has_both = self._communicator is not None and len(sums) > 1
        if self._communicator is not None and self._has_both:
            connect(self._communicator, self._runtime, beside=True)
        lives = lives_of(self._tape, self._awaited, self._returned.values())
        # Sums in memory that all ranks reach lie as far from its beginning on each.
        sums_shared = [call for call in self._tape if isinstance(call.run, Sum) and call.run.is_shared]
        shared = {each: 0 for call in sums_shared for each in (call.operands["flat"], call.results["sum"])}
        end = 0
        for each in shared:
            shared[each], end = end, end + -(-each.spec.nbytes // ALIGNMENT) * ALIGNMENT
        if end and self._communicator is not None:
            self._shared = self._communicator.shared(end, self._runtime)
        holders = [each for each in lives if each not in shared]
        buffers = assign([Buffer(str(n), "", each.spec.nbytes, *lives[each]) for n, each in enumerate(holders)])
        self._memory = self._runtime.empty((max((b.offset + b.nbytes for b in buffers), default=1),), "uint8")
        offsets = shared | {holders[int(buffer.name)]: buffer.offset for buffer in buffers}
        for each in (*(each for call in self._tape for each in call.all), *self._returned.values()):
            if isinstance(each, Result):
                at, spec = offsets[each.holder] + each.offset, each.spec
                memory = self._shared if each.holder in shared else self._memory
                self._places[each] = self._runtime.view(memory, at, spec.shape, stored(spec.dtype))

    def _bound(self, arrays: Mapping[str, Any]) -> BoundStep:
        launches = self._launches(arrays)
        results = {name: self._where(each, arrays) for name, each in self._returned.items()}
        return BoundStep(launches, self._in_turn(launches), results)

    def _launches(self, arrays: Mapping[str, Any], rows: Arrays = _FIRST) -> list[list[Launch]]:
        """Launches of each call of a step, which has rows by name of what is new in it, and for what it tells."""
        launches = []
        for at, call in enumerate(self._tape):
            about = {"beside": self._has_both and at in self._awaited} if isinstance(call.run, Sum) else {}
            operands, results = (
                {name: self._where(each, arrays, rows) for name, each in recorded.items()}
                for recorded in (call.operands, call.results)
            )
            launches.append(call.run.bind(operands, results, **about))
        return launches

    def _where(self, recorded: Any, arrays: Mapping[str, Any], rows: Arrays = _FIRST) -> Any:
        """The array of what is recorded; see `_launches`."""
        if isinstance(recorded, Given):
            return self._of_sums[recorded.name] if recorded.name in self._of_sums else arrays[recorded.name]
        if isinstance(recorded, Result):
            return rows[FINITE] if FINITE in rows and recorded is self._returned[FINITE] else self._places[recorded]
        for name, row in rows.items():
            if name in self._fixed and (within := self._offset(recorded, self._fixed[name])) is not None:
                return self._runtime.view(row, within, recorded.shape, str(recorded.dtype))
        return recorded

    def _offset(self, array: Any, whole: Any) -> int | None:
        """Bytes between the beginning of an array and of one of which it may be a part; None if it is none."""
        offset = (self._runtime.address(array) or 0) - (self._runtime.address(whole) or 0)
        return offset if 0 <= offset < whole.nbytes else None

    def _in_turn(self, bound: Sequence[Sequence[Launch]]) -> list[Launch]:
        """The launches of all calls, those of some sums beside the others."""
        launches: list[Launch] = []
        waits = defaultdict[int, list[Launch]](list)  # by the call that they come before
        begun: dict[int, Launch] = {}  # by a call beside others, what waits for it
        for at, own in enumerate(bound):
            launches += waits[at]
            if at in self._awaited:
                call = self._tape[at]
                # An update waits for its sum, and the next sum for neither.
                ahead = [wait for k, wait in begun.items() if call.waits_for(self._tape[k])]
                kind: Beside = "sums" if isinstance(call.run, Sum) else "updates"
                begin, begun[at] = self._runtime.beside([*ahead, *own], kind=kind)
                launches.append(begin)
                waits[self._awaited[at]].append(begun[at])
            else:
                launches += own
        return launches + waits[len(bound)]

    def timeline(self, arrays: Mapping[str, Any]) -> tuple[Arrays, list[Span]]:
        """See `TimedStep`: launches follow each other without a graph, behind something that gives the host time."""
        runtime, named = self._runtime, list[tuple[str, str, bool, Any, Any]]()
        results = self(arrays)  # from here on all is where it stays
        with runtime.active(), self._arena.lock:
            self._bring(arrays, {}, 1)
            calls = self._graph(arrays).calls
            timed = [list(self._events(at, own, named)) for at, own in enumerate(calls)]
            begun, plug = runtime.event(timed=True), runtime.empty((2, PLUG), "uint8")
            for _ in range(PLUGS):
                runtime.copy(plug[0, ...], plug[1, ...])
            runtime.record(begun)
            one_by_one(self._in_turn(timed))
            self._finish()
            runtime.synchronize()
            spans = [
                Span(name, lane, runtime.seconds(begun, first), runtime.seconds(first, last), between)
                for name, lane, between, first, last in named
            ]
        return results, sorted(spans, key=lambda span: span.start)

    def _events(
        self, at: int, launches: Sequence[Launch], named: list[tuple[str, str, bool, Any, Any]]
    ) -> Iterator[Launch]:
        """A call's launches with events around each, which are noted with its name and lane."""
        titles, lane = iter(self._tape[at].run.titles), self._lane(at)
        for launch in launches:
            first, last = (self._runtime.event(timed=True) for _ in range(2))
            is_copy = isinstance(launch, partial) and launch.func == self._runtime.copy
            between = isinstance(launch, Between)
            name = launch.name if isinstance(launch, Between) else "copy" if is_copy else next(titles)
            named.append((name, lane, between, first, last))
            yield from (partial(self._runtime.record, first), launch, partial(self._runtime.record, last))

    def _lane(self, at: int) -> str:
        if at not in self._awaited:
            return "computing"
        return "sums" if isinstance(self._tape[at].run, Sum) else "updates"

    def _call(self, run: Any, arrays: Arrays) -> Arrays:
        """Write it down instead."""
        results: Arrays = {name: Result(spec) for name, spec in run.outputs.items()}
        self._tape.append(Call(run, arrays, results))
        return results | run.updated(arrays)

    def _add(self, addition: ShardSum, a: list[Any], b: list[Any]) -> list[Any]:
        operands = {f"{side} {n}": x for side, xs in (("a", a), ("b", b)) for n, x in enumerate(xs)}
        results = self._call(self._additions[addition.specs], operands)
        return [results[str(n)] for n in range(len(a))]

    def _total(self, collective: Collective, arrays: list[Any]) -> Sequence[Any]:
        if self._communicator is None:
            return arrays
        offsets, spec = side_by_side(collective)
        flat = Result(spec)
        for array, offset, each in zip(arrays, offsets, collective.specs, strict=True):
            part = array
            # What lies elsewhere already, such as a gradient of two weights, is copied.
            if not isinstance(array, Result) or array.within:
                part = Result(each)
                self._tape.append(Call(Copy(self._runtime), {"x": array}, {"x": part}))
            part.within, part.offset = flat, offset
        total = self._call(self._sums[collective.specs], {"flat": flat})["sum"]
        return [Result(each, total, offset) for each, offset in zip(collective.specs, offsets, strict=True)]
