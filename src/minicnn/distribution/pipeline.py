"""Pipeline: each rank has some of the layers, and the parts of a batch go from rank to rank."""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from minicnn.distribution.data_parallel import DataParallel
from minicnn.distribution.passes import Shard
from minicnn.distribution.segments import Segments
from minicnn.distribution.stages import FREE, Piece, Stages, stays
from minicnn.layers.cell import Parts
from minicnn.ops.groups import Communicator, Group, Span, rows
from minicnn.program.graph import Program, Value

if TYPE_CHECKING:
    from minicnn.backends.base import Backend
    from minicnn.loop.tracing import Feed

Array = Any
Arrays = dict[str, Array]
Host = np.ndarray[Any, Any]


class Pipeline(DataParallel):
    """Training in which each rank has some of the layers: GPipe (Y. Huang et al., arXiv:1811.06965).

    The layers are cut into stages. A batch is cut into shards, which go through the stages one after the other, all
    forward and then all backward, so that ranks compute different shards at the same time. What is summed over shards,
    and batch normalisation, is as in `DataParallel`. A rank updates the weights of its layers alone; they are put
    together where they are read or saved: let all ranks call `get_weights`, `save` and `predict` at the same time.

    The bits depend on shards and stages, and not on the number of ranks, from one to as many as there are stages.

    Args:
        stages: Names of the layers with which the second stage begins, the third, and so on.
        shards: Parts of each batch; the more there are, the less the ranks wait for each other.
        timeout: See `DataParallel`.
        communicator: See `DataParallel`.

    Raises:
        ValueError: If an argument is out of range, or there are more ranks than stages; in training if there is no
            layer of such a name, or the stages are not in the order of the layers.

    Example:
        >>> Pipeline(["flatten", "dense_1"], shards=8)
        Pipeline(['flatten', 'dense_1'], shards=8, timeout=300)
    """

    def __init__(
        self, stages: Sequence[str], *, shards: int, timeout: float = 300.0, communicator: Communicator | None = None
    ) -> None:
        self.stages = list(stages)
        super().__init__(shards, timeout=timeout, communicator=communicator)

    def _check_ranks(self) -> None:
        if isinstance(self.stages, str) or self.ranks > len(self.stages) + 1:
            message = (
                f"Every rank computes at least one stage. Received: stages={self.stages!r}, which are "
                f"{len(self.stages) + 1}, for {self.ranks} ranks. Name more layers, or start fewer processes."
            )
            raise ValueError(message)

    @property
    def alone(self) -> bool:
        """See `DataParallel`: bits depend on the stages, even where one rank has all of them."""
        return False

    def describe(self) -> dict[str, Any]:
        """See `DataParallel`."""
        return {**super().describe(), "stages": self.stages}

    def __reduce__(self) -> Any:
        return partial(Pipeline, self.stages, shards=self.shards, timeout=self.timeout), ()

    def _group(self, batch: int) -> Group:
        return Group(min(self.shards, batch))  # every rank meets all shards

    def _step(
        self, programs: Mapping[int, Program], feed: Feed, data: Collection[str], cut: Collection[str], backend: Backend
    ) -> Any:
        return PipelineStep(programs, self._shards(feed.batch), self, data, cut, backend)

    def __repr__(self) -> str:
        return f"Pipeline({self.stages}, shards={self.shards}, timeout={self.timeout:g})"


class PipelineStep:
    """An Executable that computes the stages of this rank.

    Args:
        programs: For each number of samples that a shard of the batch has, its Program.
        shards: All shards.
        pipeline: Says which rank has which stages.
        data: Names of the inputs that belong to a shard.
        cut: Of them those of which each shard is given its rows.
        backend: What runs the pieces.

    Raises:
        ValueError: If shards of different sizes do not compute alike.
    """

    def __init__(
        self, programs: Mapping[int, Program], shards: Sequence[Shard], pipeline: Pipeline, data: Iterable[str],
        cut: Iterable[str], backend: Backend,
    ) -> None:  # fmt: skip
        self._shards, self._cut, self._backend = shards, frozenset(cut), backend
        self._rank, self._ranks, self._communicator = pipeline.rank, pipeline.ranks, pipeline.communicator
        self._tree = Group(len(shards))
        count = len(pipeline.stages) + 1
        self._holders = [next(r for r in range(self._ranks) if s in rows(count, self._ranks, r)) for s in range(count)]
        made = {n: Stages(Segments(p, frozenset(data), n, len(shards)), pipeline.stages) for n, p in programs.items()}
        self._plans = {n: _Plan(stages, self._mine, backend) for n, stages in made.items()}
        self._first = next(iter(self._plans.values()))
        if any(plan.orders != self._first.orders for plan in self._plans.values()):
            message = (
                "Shards of any size go through the stages alike. Received: layers that do otherwise for other "
                "numbers of samples. Choose a batch size that the number of shards divides, and last_batch='drop'."
            )
            raise ValueError(message)
        self._carried = {v.name: v for v in self._first.program.inputs if stays(v)}

    def _mine(self, stage: int) -> bool:
        return stage == FREE or self._holders[stage] == self._rank

    def __call__(self, arrays: Mapping[str, Array]) -> Arrays:
        """Outputs and updates by name; inputs that are updated are donated."""
        known = {n: a for n, a in arrays.items() if n not in self._cut and n not in self._carried}
        first = self._first
        for name, value in self._carried.items():
            array = arrays[name]
            if self._mine(first.stage[id(value)]):
                known[name] = array.array if isinstance(array, StageParts) else array
                self._send(first, id(value), known[name], 0)
        found = [self._given(shard, arrays) for shard in self._shards]
        updated: Arrays = {}
        for level, shared, wave in first.steps:
            if wave is None:
                self._sum(level, known, found)
            elif shared:
                self._run(first, (level, shared, wave), known, {}, 0, updated)
            else:
                for i, (shard, own) in enumerate(zip(self._shards, found, strict=True)):
                    self._run(self._plans[shard.samples], (level, shared, wave), known, own, i + 1, updated)
        return self._results(known, updated)

    def _given(self, shard: Shard, arrays: Mapping[str, Array]) -> Arrays:
        own = slice(shard.start, shard.start + shard.samples)
        given = {name: arrays[name][own, ...] for name in self._cut if name in arrays}
        if "rows" in self._cut:
            given["rows"] = self._backend.asarray(np.arange(own.start, own.stop, dtype=np.int32))
        return given

    def _run(self, plan: _Plan, at: Any, known: Arrays, own: Arrays, number: int, updated: Arrays) -> None:
        """This rank's pieces of one wave, for all shards or, with the number of one and what it has found, for that."""
        made = own if number else known
        for piece, compiled in plan.compiled.get(at, ()):
            given: Arrays = {}
            for value in piece.program.inputs:
                name = value.name
                if name not in own and name not in known:
                    self._receive(plan, name, known if name in plan.shared else own, number)
                given[name] = own[name] if name in own else known[name]
            results = dict(compiled(given))
            for name in piece.program.updates:
                updated[name] = results.pop(name)
            made |= results
            for name, array in results.items():
                self._send(plan, plan.ids[name], array, number)

    def _sum(self, level: int, known: Arrays, found: Sequence[Arrays]) -> None:
        """The sums that end a level: all shards of a stage are on one rank."""
        for k, (_, out) in enumerate(self._first.sums[level]):
            if not self._mine(self._first.stage[id(out)]):
                continue
            parts: dict[Span, Array] = {}
            for s, (shard, own) in enumerate(zip(self._shards, found, strict=True)):
                plan = self._plans[shard.samples]
                value, _ = plan.sums[level][k]
                name = plan.names[id(value)] if value.data is None else ""
                constant = None if value.data is None else self._backend.asarray(value.data, value.dtype)
                parts[s, s + 1] = constant if constant is not None else own[name] if name in own else known[name]
            known[self._first.names[id(out)]] = total = self._tree.total(parts, lambda a, b: a + b)
            self._send(self._first, id(out), total, 0)

    # Between ranks ------------------------------------------------------------------------------

    def _tag(self, plan: _Plan, key: int, number: int) -> int:
        return 1 + plan.numbers[key] * (len(self._shards) + 1) + number

    def _send(self, plan: _Plan, key: int, array: Array, number: int) -> None:
        """Give what was made to the ranks that read it."""
        stages = plan.readers.get(key, set()) - {FREE}
        if plan.stage[key] == FREE:
            return
        for rank in sorted({self._holders[stage] for stage in stages} - {self._rank}):
            host = np.array(self._backend.to_numpy(array)).reshape(-1)  # it may be overwritten here
            self._communicator.send(host, rank, self._tag(plan, key, number))

    def _receive(self, plan: _Plan, name: str, made: Arrays, number: int) -> None:
        key = plan.ids[name]
        value = plan.values[key]
        host = np.empty(value.size, "float32" if value.dtype == "bfloat16" else value.dtype)  # NumPy has no bfloat16
        if name in plan.shared:
            tag = self._tag(self._first, self._first.ids[name], 0)
        else:
            tag = self._tag(plan, key, number)
        self._communicator.receive(host, self._holders[plan.stage[key]], tag)
        made[name] = self._backend.asarray(host.reshape(value.shape), value.dtype)

    def _results(self, known: Arrays, updated: Arrays) -> Arrays:
        """Outputs and updates: weights stay where they are, all else is told to all."""
        first, made, told = self._first, dict[str, Array](), dict[str, Host]()
        wanted = []
        for name, value in (first.program.outputs | first.program.updates).items():
            stage = first.stage[id(value)]
            array = updated[name] if name in updated else known.get(first.names[id(value)])
            if name in self._carried:
                made[name] = StageParts(array, value, max(stage, 0), self._holders, self._communicator, self._backend)
            elif stage == FREE or self._ranks == 1:
                made[name] = array
            else:
                wanted.append((name, self._holders[stage]))
                if self._mine(stage):
                    told[name] = self._backend.to_numpy(array)
        if wanted:
            buffer = io.BytesIO()
            np.savez(buffer, *told.values())
            every = [np.load(io.BytesIO(data)) for data in self._communicator.share(buffer.getvalue())]
            left = [iter([each[name] for name in each.files]) for each in every]
            made |= {name: self._backend.asarray(next(left[rank])) for name, rank in wanted}
        return made


class _Plan:
    """The Program of a shard in pieces, of which those of this rank are compiled."""

    def __init__(self, stages: Stages, mine: Callable[[int], bool], backend: Backend) -> None:
        segments = stages.segments
        self.program, self.names = segments.program, segments.names
        self.stage, self.readers = stages.stage, stages.readers
        self.orders = [piece.order for piece in stages.pieces]
        self.compiled: dict[Any, list[tuple[Piece, Any]]] = {}
        for piece in stages.pieces:
            if mine(piece.stage):
                at = (piece.level, piece.shared, piece.wave)
                self.compiled.setdefault(at, []).append((piece, backend.compile(piece.program)))
        self.sums = [[pair for n in nodes for pair in zip(n.inputs, n.outputs, strict=True)]
                     for nodes in segments.collectives]  # fmt: skip
        # Each change of the wave on each level, and at the end of a level its sums.
        self.steps: list[tuple[int, bool, int | None]] = []
        for level in range(len(self.sums)):
            waves = {(p.shared, p.wave) for p in stages.pieces if p.level == level}
            self.steps += [(level, *at) for at in sorted(waves, key=lambda at: (not at[0], at[1]))]
            self.steps.append((level, True, None))
        made = [v for node in self.program.nodes for v in node.outputs]
        self.values: dict[int, Value] = {id(v): v for v in (*self.program.inputs, *made)}
        self.ids = {self.names[key]: key for key in self.values}
        self.numbers = {key: i for i, key in enumerate(self.values)}
        common = [v for nodes in (*segments.common, *segments.collectives) for n in nodes for v in n.outputs]
        self.shared = {self.names[id(v)] for v in (*self.program.inputs, *common)}


class StageParts(Parts):
    """A weight of a layer, or what an optimizer keeps of it, which one rank has.

    Args:
        array: The array; None on the other ranks.
        value: Its shape and dtype.
        stage: The stage.
        holders: The rank of each stage.
        communicator: Connects the ranks.
        backend: Whose array it is.
    """

    def __init__(
        self, array: Array, value: Value, stage: int, holders: Sequence[int], communicator: Communicator,
        backend: Backend,
    ) -> None:  # fmt: skip
        self.array, self._spec, self._root = array, value.spec, holders[stage]
        self._communicator, self._backend = communicator, backend

    def whole(self) -> Host:
        """See `Parts`."""
        size, rank, nothing = self._communicator.size, self._communicator.rank, np.empty(0, self._spec.dtype)
        own = nothing
        if rank == self._root:
            own = np.ascontiguousarray(self._backend.to_numpy(self.array)).reshape(-1)
        made = np.empty(self._spec.size, self._spec.dtype)
        taken = [made if r == self._root else nothing.copy() for r in range(size)]
        self._communicator.exchange([own] * size, taken)
        return made.reshape(self._spec.shape)
