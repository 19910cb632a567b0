"""Schedule of a rank in a step of a pipeline: stages of its shards, and what it sends and receives in between."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from minicnn.distribution.passes import Shard
from minicnn.distribution.stages import FREE, Piece, Stages, stays
from minicnn.ops.collectives import communicator_of
from minicnn.ops.groups import Communicator, Group, RunningSums, rows
from minicnn.program.graph import Node, Program, Value

Array = Any
Arrays = dict[str, Array]
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


class StageExecutor(Protocol):
    """Executor of a schedule: it computes arrays, or writes down how they are computed.

    Attributes:
        group: All ranks, with what connects them.
    """

    group: Group

    def compile(self, program: Program) -> Callable[[Mapping[str, Array]], Mapping[str, Array]]:
        """Compile a piece to a function that gives its outputs and updates by name."""
        ...

    def constant(self, data: Any, dtype: str) -> Array:
        """An array of numbers."""
        ...

    def send(self, array: Array, value: Value, to: int, tag: int) -> None:
        """Give what a Value stands for to another rank."""
        ...

    def receive(self, value: Value, source: int, tag: int) -> Array:
        """Take it from another rank."""
        ...

    def total(self, arrays: Sequence[Array], group: Group) -> list[Array]:
        """Sums over several pipelines: see `minicnn.ops.all_reduce`."""
        ...

    def within(self, node: Node | None) -> AbstractContextManager[None]:
        """Context in which everything belongs to a node of a shard's Program."""
        ...


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
    """Schedule of one rank's steps.

    On each level, which ends with sums over the shards, a shard goes through the stages in waves. Of several shards the
    wave w of shard i comes at the time 2 i + w, so that a stage goes back with a shard as soon as it can: one forward,
    one backward (D. Narayanan et al., PipeDream, SOSP 2019), within one batch (arXiv:2104.04473).

    Args:
        stages: For each number of samples that a shard has, its Program in stages.
        shards: The shards of this rank's pipeline.
        group: Which pipeline has which shards.
        places: Which rank has which stages.
        cut: Names of the inputs of which each shard is given its rows.
        executor: What computes, or writes a Program.

    Attributes:
        program: Program of a shard.
        carried: Weights and what an optimizer keeps of them, by name.
        read: Names of the inputs that this rank reads.
    """

    def __init__(
        self, stages: Mapping[int, Stages], shards: Sequence[Shard], group: Group, places: Places,
        cut: frozenset[str], executor: StageExecutor,
    ) -> None:  # fmt: skip
        self._shards, self._group, self._places, self._cut, self._executor = shards, group, places, cut, executor
        self._holders = places.holders(places.pipeline)
        held = {shard.samples for shard in shards}
        self._plans = {n: _Plan(each, self.mine, executor) for n, each in stages.items() if n in held}
        self._first = first = next(iter(self._plans.values()))
        self.program = first.program
        self.carried = {v.name: v for v in self.program.inputs if stays(v)}
        asked = {v.name for pieces in first.compiled.values() for piece, _ in pieces for v in piece.program.inputs}
        asked |= {v.name for bucket in first.buckets for k in bucket.places for v in [first.sums[bucket.level][k][0]]}
        # Results are read by everybody, as each rank hands them back.
        asked |= {v.name for v in self.program.results}
        self.read = [
            v.name for v in self.program.inputs
            if (self.mine(first.stage[id(v)]) if v.name in self.carried else v.name in asked)
        ]  # fmt: skip

    def mine(self, stage: int) -> bool:
        """True if this rank computes a stage."""
        return stage == FREE or self._holders[stage] == self._places.rank

    def stage_of(self, name: str) -> int:
        """The stage that has a weight."""
        return max(self._first.stage[id(self.carried[name])], 0)

    def run(self, arrays: Mapping[str, Array], results: Arrays) -> Iterator[None]:
        """Take one step after the other; what the whole gives is then in `results`, of the weights those of this rank.

        Args:
            arrays: Inputs by name: at least those in `read`.
            results: Takes outputs and updates by name.
        """
        first = self._first
        known = {name: arrays[name] for name in self.read if name not in self._cut}
        for name, value in self.carried.items():
            if name in known:
                self._send(first, id(value), known[name], 0)
        yield
        by_shard: list[Arrays] = [{} for _ in self._shards]
        if self._group.shards == 1:  # what it is given is the same for all there are
            known |= self._inputs_of(self._shards[0], arrays)
        updated: Arrays = {}
        for level in range(len(first.sums)):
            sums = [RunningSums(self._group) for bucket in first.buckets if bucket.level == level]
            for wave in first.waves[level, True]:
                self._run(first, (level, True, wave), known, {}, 0, updated)
                # Between pieces, so that one process can write the steps of several ranks in turns.
                yield
            waves = first.waves[level, False]
            last = max((w for w in waves if (level, False, w) in first.compiled), default=None)
            # One forward, one backward: of two shards the earlier one's backward wave comes first, so that its
            # activations go.
            times = sorted((2 * i + wave, wave, i) for wave in waves for i in range(len(by_shard)))
            for _, wave, i in times:
                shard = self._shards[i]
                plan = self._plans[shard.samples]
                if level == 0 and wave == waves[0]:
                    by_shard[i] |= self._inputs_of(shard, arrays)
                self._run(plan, (level, False, wave), known, by_shard[i], shard.number + 1, updated)
                if wave == last:
                    self._add(level, shard, sums, known, by_shard[i])
                yield
            if last is None:
                for shard, values in zip(self._shards, by_shard, strict=True):
                    self._add(level, shard, sums, known, values)
            self._total(level, sums, known)
            yield
        self._results(known, updated, results)

    def _inputs_of(self, shard: Shard, arrays: Mapping[str, Array]) -> Arrays:
        samples = slice(shard.start, shard.start + shard.samples)
        inputs = {name: arrays[name][samples, ...] for name in self.read if name in self._cut and name != "rows"}
        if "rows" in self._cut and "rows" in self.read:
            inputs["rows"] = self._executor.constant(np.arange(samples.start, samples.stop, dtype=np.int32), "int32")
        return inputs

    def _run(self, plan: _Plan, at: At, known: Arrays, of_shard: Arrays, number: int, updated: Arrays) -> None:
        """This rank's pieces of one wave, for all shards or, with the number of one and what it has found, for that."""
        for piece, compiled in plan.compiled.get(at, ()):
            operands: Arrays = {}
            for value in piece.program.inputs:
                name = value.name
                if name not in of_shard and name not in known:
                    (known if name in plan.shared else of_shard)[name] = self._receive(plan, name, number)
                operands[name] = of_shard[name] if name in of_shard else known[name]
            # Before the piece runs, so that its memory can be used by the results.
            for name in plan.drops.get(piece.order, ()):
                of_shard.pop(name, None)
            results = dict(compiled(operands))
            for name in piece.program.updates:
                updated[name] = results.pop(name)
            for name, array in results.items():
                self._send(plan, plan.ids[name], array, number)
                if not number:
                    known[name] = array
                elif name in plan.last:
                    of_shard[name] = array

    def _add(self, level: int, shard: Shard, sums: Sequence[RunningSums], known: Arrays, of_shard: Arrays) -> None:
        """Take up what a shard adds to the sums that end a level."""
        plan = self._plans[shard.samples]
        for running, bucket in zip(sums, plan.on(level), strict=True):
            summands = []
            for k in bucket.places:
                value = plan.sums[level][k][0]
                name = plan.names.get(id(value), "")
                if value.data is not None:
                    summands.append(self._executor.constant(value.data, value.dtype))
                else:
                    summands.append(of_shard[name] if name in of_shard else known[name])
            with self._executor.within(bucket.node):
                running.add(shard.number, summands)
        for name in plan.drops.get((level,), ()):
            of_shard.pop(name, None)

    def _total(self, level: int, sums: Sequence[RunningSums], known: Arrays) -> None:
        """The sums that end a level: on each pipeline one rank has all shards of a stage."""
        places, first = self._places, self._first
        for running, bucket in zip(sums, first.on(level), strict=True):
            totals = running.arrays
            with self._executor.within(bucket.node):
                if places.pipelines > 1:
                    ranks = [places.holders(p)[bucket.stage] for p in range(places.pipelines)]
                    pipelines = SubCommunicator(communicator_of("all_reduce", self._executor.group), ranks)
                    totals = self._executor.total(totals, replace(self._group, communicator=pipelines))
            for k, total in zip(bucket.places, totals, strict=True):
                out = first.sums[level][k][1]
                known[first.names[id(out)]] = total
                self._send(first, id(out), total, 0)

    def _tag(self, plan: _Plan, key: int, number: int) -> int:
        # Each value of each shard has a tag of its own: messages may overtake each other.
        return 1 + SUMS + plan.numbers[key] * (self._group.shards + 1) + number

    def _send(self, plan: _Plan, key: int, array: Array, number: int) -> None:
        """Give what was made to the ranks that read it."""
        # Every rank computes it: nobody needs to be told.
        if plan.stage[key] == FREE:
            return
        stages = plan.readers.get(key, set()) - {FREE}
        for rank in sorted({self._holders[stage] for stage in stages} - {self._places.rank}):
            self._executor.send(array, plan.values[key], rank, self._tag(plan, key, number))

    def _receive(self, plan: _Plan, name: str, number: int) -> Array:
        # What all shards share was sent once, under the number of the first.
        if name in plan.shared:
            plan, number = self._first, 0
        key = plan.ids[name]
        return self._executor.receive(plan.values[key], self._holders[plan.stage[key]], self._tag(plan, key, number))

    def _results(self, known: Arrays, updated: Arrays, results: Arrays) -> None:
        """Outputs and updates: weights stay where they are, all else is told to all."""
        first = self._first
        for name, value in (self.program.outputs | self.program.updates).items():
            if name in self.carried and not self.mine(first.stage[id(self.carried[name])]):
                continue
            if value.data is not None:
                results[name] = self._executor.constant(value.data, value.dtype)
            elif name in updated:
                results[name] = updated[name]
            else:
                source = first.names[id(value)]
                if source not in known:
                    known[source] = self._receive(first, source, 0)
                results[name] = known[source]


@dataclass(frozen=True)
class _Bucket:
    """Sums that are taken together: of one level, one stage and one dtype.

    Attributes:
        level: The level.
        stage: The stage.
        places: Which of the level's sums.
        node: Where they are in the Program of a shard.
    """

    level: int
    stage: int
    places: list[int]
    node: Node | None


class _Plan:
    """The Program of a shard in pieces, of which those of this rank are compiled.

    Attributes:
        compiled: By level and wave.
        sums: What ends each level: summands and sums.
        buckets: This rank's of them.
        waves: Of each level those of what all shards share, and those of the shards.
        last: Where a shard's values are read last.
        drops: Names of what is not needed any more, by the piece or the sums that read it last.
        numbers: A number for each value, for tags.
        shared: Names of what all shards have in common.
    """

    def __init__(self, stages: Stages, mine: Callable[[int], bool], executor: StageExecutor) -> None:
        segments = stages.segments
        self.program, self.names = segments.program, segments.names
        self.stage, self.readers = stages.stage, stages.readers
        self.compiled: dict[At, list[tuple[Piece, Any]]] = {}
        self.last: dict[str, tuple[int, ...]] = {}
        self.sums = [[pair for n in nodes for pair in zip(n.inputs, n.outputs, strict=True)]
                     for nodes in segments.collectives]  # fmt: skip
        self.buckets = [
            bucket for level, nodes in enumerate(segments.collectives) for bucket in self._buckets(level, nodes, mine)
        ]
        levels = range(len(self.sums))
        self.waves = {
            (level, shared): sorted({p.wave for p in stages.pieces if p.level == level and p.shared == shared})
            for level in levels for shared in (True, False)
        }  # fmt: skip
        for piece in stages.pieces:
            if mine(piece.stage):
                at = (piece.level, piece.shared, piece.wave)
                self.compiled.setdefault(at, []).append((piece, executor.compile(piece.program)))
                self.last |= {v.name: piece.order for v in piece.program.inputs}
        for bucket in self.buckets:
            for k in bucket.places:
                name = self.names.get(id(self.sums[bucket.level][k][0]), "")
                if self.last.get(name, ())[:1] <= (bucket.level,):
                    self.last[name] = (bucket.level,)
        self.drops: dict[tuple[int, ...], list[str]] = {}
        for name, order in self.last.items():
            self.drops.setdefault(order, []).append(name)
        results = [v for node in self.program.nodes for v in node.outputs]
        self.values: dict[int, Value] = {id(v): v for v in (*self.program.inputs, *results)}
        self.ids = {self.names[key]: key for key in self.values}
        self.numbers = {key: i for i, key in enumerate(self.values)}
        common = [v for nodes in (*segments.common, *segments.collectives) for n in nodes for v in n.outputs]
        self.shared = {self.names[id(v)] for v in (*self.program.inputs, *common)}

    def _buckets(self, level: int, nodes: Sequence[Node], mine: Callable[[int], bool]) -> list[_Bucket]:
        buckets: dict[tuple[int, str], _Bucket] = {}
        outs = [(out, node) for node in nodes for out in node.outputs]
        for k, (out, node) in enumerate(outs):
            stage = self.stage[id(out)]
            if mine(stage):
                buckets.setdefault((stage, out.dtype), _Bucket(level, stage, [], node)).places.append(k)
        return [buckets[key] for key in sorted(buckets)]

    def on(self, level: int) -> list[_Bucket]:
        """The sums of this rank that end a level."""
        return [bucket for bucket in self.buckets if bucket.level == level]
