"""Schedule of a rank in a step of a pipeline: stages of its shards, and what it sends and receives in between."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from minicnn.distribution.parts import StageParts
from minicnn.distribution.passes import Shard
from minicnn.distribution.schedule import Collective, RankSchedule, Slot, Transfer, updated
from minicnn.distribution.stages import FREE, StagePiece, Stages, stays
from minicnn.ops.collectives import communicator_of
from minicnn.ops.groups import Communicator, Group, RunningSums, rows
from minicnn.program.graph import Node, Value

Host = np.ndarray[Any, Any]
At = tuple[int, bool, int]  # level, whether all shards share it, and wave
SUMS = 1  # tag of what sums send; values have greater ones


@dataclass(frozen=True)
class Places:
    """Assignment of stages to ranks: so many pipelines side by side that every rank has a stage.

    Attributes:
        stages: Stages of each pipeline.
        ranks: Ranks of all pipelines together.
        rank: This one.
    """

    stages: int
    ranks: int
    rank: int

    @property
    def pipelines(self) -> int:
        """Number of pipelines; each has some of the shards."""
        return -(-self.ranks // self.stages)

    @property
    def pipeline(self) -> int:
        """That of this rank."""
        return next(p for p in range(self.pipelines) if self.rank in rows(self.ranks, self.pipelines, p))

    def holders(self, pipeline: int) -> list[int]:
        """The rank of each stage of a pipeline."""
        ranks = rows(self.ranks, self.pipelines, pipeline)
        return [ranks[i] for i in range(len(ranks)) for _ in rows(self.stages, len(ranks), i)]


class SubCommunicator:
    """Some ranks of a communicator, numbered anew.

    Args:
        communicator: Of all ranks.
        ranks: Those of this one, in the order of their new numbers.
    """

    def __init__(self, communicator: Communicator, ranks: Sequence[int]) -> None:
        self._communicator, self._ranks = communicator, ranks
        self.rank, self.size = ranks.index(communicator.rank), len(ranks)

    def exchange(self, outgoing: Sequence[Host], incoming: Sequence[Host]) -> None:
        """See `Communicator`."""
        others = [r for r in range(self.size) if r != self.rank]
        for r in others:
            if outgoing[r].size:
                # A copy, as a send does not wait, and the sum goes on in the same memory.
                self.send(outgoing[r].copy(), r, SUMS)
        if incoming[self.rank] is not outgoing[self.rank]:
            incoming[self.rank][...] = outgoing[self.rank]
        for r in others:
            if incoming[r].size:
                self.receive(incoming[r], r, SUMS)

    def gather(self, outgoing: Host, incoming: Sequence[Host]) -> None:
        """See `Communicator`."""
        self.exchange([outgoing] * self.size, incoming)

    def add(self, array: Host) -> None:
        """See `Communicator`."""
        summands = [np.empty_like(array) for _ in self._ranks]
        self.gather(array, summands)
        np.sum(summands, axis=0, out=array)

    def share(self, data: bytes) -> list[bytes]:
        """See `Communicator`."""
        lengths = [np.zeros(1, np.int64) for _ in self._ranks]
        self.gather(np.array([len(data)]), lengths)  # ranks must know how much to receive
        texts = [np.empty(int(length[0]), np.uint8) for length in lengths]
        self.gather(np.frombuffer(data, np.uint8), texts)
        return [text.tobytes() for text in texts]

    def send(self, array: Host, rank: int, tag: int) -> None:
        """See `Communicator`."""
        self._communicator.send(array, self._ranks[rank], tag)

    def receive(self, array: Host, rank: int, tag: int) -> None:
        """See `Communicator`."""
        self._communicator.receive(array, self._ranks[rank], tag)

    def fail(self, error: BaseException) -> None:
        """See `Communicator`."""
        self._communicator.fail(error)


class PipelineSchedule:
    """The writing of the schedule of a rank that has some of the stages.

    On each level, which ends with sums over the shards, a shard goes through the stages in waves. Of several shards the
    wave w of shard i comes at the time 2 i + w, so that a stage goes back with a shard as soon as it can: one forward,
    one backward (D. Narayanan et al., PipeDream, SOSP 2019), within one batch (arXiv:2104.04473).

    Args:
        stages: For each number of samples that a shard has, its Program in stages.
        shards: The shards of this rank's pipeline.
        group: Assignment of shards to pipelines.
        places: Assignment of stages to ranks.
        ranks: All ranks, with what connects them.
        cut: Names of the inputs of which each shard is given its rows.
    """

    def __init__(
        self, stages: Mapping[int, Stages], shards: Sequence[Shard], group: Group, places: Places, ranks: Group,
        cut: frozenset[str],
    ) -> None:  # fmt: skip
        self._shards, self._group, self._places, self._ranks = shards, group, places, ranks
        self._holders = places.holders(places.pipeline)
        held = {shard.samples for shard in shards}
        self._plans = {n: _Plan(each, self._mine) for n, each in stages.items() if n in held}
        self._first = first = next(iter(self._plans.values()))
        self._program = first.segments.program
        self._carried = {v.name: v for v in self._program.inputs if stays(v)}
        rows = range(shards[0].start, shards[-1].start + shards[-1].samples)
        self._schedule = RankSchedule(self._program, group, shards[0].batch, rows, cut)
        self._schedule.written.update(self._read() - (cut if group.shards > 1 else set()))
        self._cut = self._read() & cut if group.shards > 1 else set()

    def _mine(self, stage: int) -> bool:
        """True if this rank computes a stage."""
        return stage == FREE or self._holders[stage] == self._places.rank

    def _read(self) -> set[str]:
        """Names of the inputs that this rank reads."""
        first = self._first
        asked = {v.name for pieces in first.pieces.values() for piece in pieces for v in piece.program.inputs}
        asked |= {value.name for buckets in first.buckets for bucket in buckets for value, _ in bucket}
        # Results are read by everybody, as each rank hands them back.
        asked |= {v.name for v in self._program.results}
        return {
            v.name for v in self._program.inputs
            if (self._mine(first.stage[id(v)]) if v.name in self._carried else v.name in asked)
        }  # fmt: skip

    def written(self) -> RankSchedule:
        """The schedule."""
        first, schedule = self._first, self._schedule
        for name, value in self._carried.items():
            if name in schedule.written:
                self._send(first, id(value), name, 0)
        for level, buckets in enumerate(first.buckets):
            sums = [schedule.running([total for _, total in bucket]) for bucket in buckets]
            for wave in first.waves[level, True]:
                self._pieces(first, (level, True, wave))
            waves = first.waves[level, False]
            last = max((w for w in waves if (level, False, w) in first.pieces), default=None)
            # One forward, one backward: of two shards the earlier one's backward wave comes first, so that its
            # activations go.
            times = sorted((2 * i + wave, wave, i) for wave in waves for i in range(len(self._shards)))
            for _, wave, i in times:
                shard = self._shards[i]
                plan = self._plans[shard.samples]
                if level == 0 and wave == waves[0]:
                    for name in sorted(self._cut):
                        schedule.take_rows(name, shard)
                self._pieces(plan, (level, False, wave), shard.number)
                if wave == last:
                    self._add(level, shard, sums)
            if last is None:
                for shard in self._shards:
                    self._add(level, shard, sums)
            for running, bucket in zip(sums, buckets, strict=True):
                self._total(running, tuple(total for _, total in bucket))
        self._results()
        return schedule

    def _pieces(self, plan: _Plan, at: At, shard: int | None = None) -> None:
        """This rank's pieces of one wave, for all shards or for one."""
        schedule, number = self._schedule, 0 if shard is None else shard + 1
        for piece in plan.pieces.get(at, ()):
            program = piece.program
            for value in program.inputs:
                if schedule.slot(value.name, shard) not in schedule.written:
                    self._receive(plan, value.name, shard)
            schedule.piece(program, shard)
            sent = {name: plan.ids[name] for name in program.outputs}
            sent |= {updated(name): id(plan.segments.program.updates[name]) for name in program.updates}
            for name, key in sent.items():
                if plan.segments.names[key] == name or plan.segments.names[key] not in program.outputs:
                    self._send(plan, key, schedule.slot(name, shard), number)

    def _add(self, level: int, shard: Shard, sums: Sequence[RunningSums]) -> None:
        """Take up what a shard adds to the sums that end a level."""
        plan, schedule = self._plans[shard.samples], self._schedule
        for running, bucket in zip(sums, plan.buckets[level], strict=True):
            running.add(shard.number, [schedule.source(v, plan.segments, shard.number) for v, _ in bucket])

    def _total(self, running: RunningSums, totals: tuple[Value, ...]) -> None:
        """The sums that end a level: on each pipeline one rank has all shards of a stage."""
        places, first, group = self._places, self._first, self._group
        if places.pipelines > 1:
            stage = first.stage[id(totals[0])]
            ranks = [places.holders(p)[stage] for p in range(places.pipelines)]
            pipelines = SubCommunicator(communicator_of("all_reduce", self._ranks), ranks)
            group = replace(group, communicator=pipelines)
        names = tuple(first.segments.names[id(v)] for v in totals)
        self._schedule.append(Collective(tuple(running.arrays), names, totals, group))
        for name, value in zip(names, totals, strict=True):
            self._send(first, id(value), name, 0)

    def _tag(self, plan: _Plan, key: int, number: int) -> int:
        # Each value of each shard has a tag of its own: messages may overtake each other.
        return 1 + SUMS + plan.numbers[key] * (self._group.shards + 1) + number

    def _send(self, plan: _Plan, key: int, slot: Slot, number: int) -> None:
        """Give what was made to the ranks that read it."""
        # Every rank computes it: nobody needs to be told.
        if plan.stage[key] == FREE:
            return
        stages = plan.readers.get(key, set()) - {FREE}
        for rank in sorted({self._holders[stage] for stage in stages} - {self._places.rank}):
            tag = self._tag(plan, key, number)
            self._schedule.append(Transfer((slot,), (), plan.values[key], rank, tag, self._ranks))

    def _receive(self, plan: _Plan, name: str, shard: int | None = None) -> None:
        slot, number = (name, 0) if shard is None else (f"{name}@{shard}", shard + 1)
        # What all shards share was sent once, under the number of the first.
        if name in plan.shared:
            plan, slot, number = self._first, name, 0
        key = plan.ids[name]
        source, tag = self._holders[plan.stage[key]], self._tag(plan, key, number)
        self._schedule.append(Transfer((), (slot,), plan.values[key], source, tag, self._ranks))

    def _results(self) -> None:
        """Outputs and updates: weights stay where they are, all else is told to all."""
        first, schedule, holders = self._first, self._schedule, self._places.holders(0)
        for name, value in (self._program.outputs | self._program.updates).items():
            carried = self._carried.get(name)
            stage = FREE if carried is None else first.stage[id(carried)]
            slots = [schedule.result(name, value, first.segments)] if self._mine(stage) else []
            for slot in slots:
                if slot not in schedule.written and slot not in schedule.constants:
                    self._receive(first, slot)
            if carried is None or self._ranks.ranks == 1:
                (schedule.results[name],) = slots
            else:
                holder = holders[max(stage, 0)]
                schedule.kept[name] = slots, partial(StageParts, spec=carried.spec, holder=holder, group=self._ranks)


class _Plan:
    """The Program of a shard in pieces.

    Attributes:
        pieces: Those of this rank, by level and wave.
        buckets: Of each level the summands and sums that are taken together: this rank's of one stage and dtype.
        waves: Of each level those of what all shards share, and those of the shards.
        numbers: A number for each value, for tags.
        shared: Names of what all shards have in common.
    """

    def __init__(self, stages: Stages, mine: Callable[[int], bool]) -> None:
        self.segments = segments = stages.segments
        self.stage, self.readers = stages.stage, stages.readers
        self.buckets = [self._buckets(nodes, mine) for nodes in segments.collectives]
        self.pieces: dict[At, list[StagePiece]] = {}
        for piece in stages.pieces:
            if mine(piece.stage):
                self.pieces.setdefault((piece.level, piece.shared, piece.wave), []).append(piece)
        self.waves = {
            (level, shared): sorted({p.wave for p in stages.pieces if p.level == level and p.shared == shared})
            for level in range(len(self.buckets)) for shared in (True, False)
        }  # fmt: skip
        results = [v for node in segments.program.nodes for v in node.outputs]
        self.values: dict[int, Value] = {id(v): v for v in (*segments.program.inputs, *results)}
        self.ids = {segments.names[key]: key for key in self.values}
        self.numbers = {key: i for i, key in enumerate(self.values)}
        common = [v for nodes in (*segments.common, *segments.collectives) for n in nodes for v in n.outputs]
        self.shared = {segments.names[id(v)] for v in (*segments.program.inputs, *common)}

    def _buckets(self, nodes: Sequence[Node], mine: Callable[[int], bool]) -> list[list[tuple[Value, Value]]]:
        buckets: dict[tuple[int, str], list[tuple[Value, Value]]] = {}
        for value, total in (pair for node in nodes for pair in zip(node.inputs, node.outputs, strict=True)):
            stage = self.stage[id(total)]
            if mine(stage):
                buckets.setdefault((stage, total.dtype), []).append((value, total))
        return [buckets[key] for key in sorted(buckets)]
