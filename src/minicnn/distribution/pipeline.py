"""Pipeline: each rank has some of the layers, and the parts of a batch go from rank to rank."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from minicnn.distribution.data_parallel import DataParallel
from minicnn.distribution.executors import ArrayExecutor, ProgramWriter
from minicnn.distribution.passes import Shard
from minicnn.distribution.pipeline_schedule import PipelineSchedule, Places
from minicnn.distribution.segments import Segments
from minicnn.distribution.stages import Stages
from minicnn.layers.cell import Parts
from minicnn.ops.groups import Communicator, Group
from minicnn.program.graph import MOST_NODES, Program, Spec, Value
from minicnn.program.passes import remove_dead_nodes

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
        if isinstance(stages, str) or not isinstance(stages, Sequence):
            raise ValueError(
                f'stages is a list of names of layers, such as ["flatten"]. Received: stages={stages!r:.60}. Give one.'
            )
        self.stages = list(stages)
        super().__init__(shards, timeout=timeout, communicator=communicator)

    def _check_ranks(self) -> None:
        # More ranks than stages make several pipelines, each of which needs a shard at least.
        count = len(self.stages) + 1
        if self.ranks > count * self.shards:
            raise ValueError(
                f"Every rank computes at least one stage of one shard. Received: stages={self.stages!r}, which are "
                f"{count}, and shards={self.shards} for {self.ranks} ranks. Name more layers, or start fewer processes."
            )

    @property
    def alone(self) -> bool:
        """See `DataParallel`: bits depend on the stages, even where one rank has all of them."""
        return False

    def describe(self) -> dict[str, Any]:
        """See `DataParallel`."""
        return {**super().describe(), "stages": self.stages}

    def __reduce__(self) -> Any:
        return partial(Pipeline, self.stages, shards=self.shards, timeout=self.timeout), ()

    @property
    def _places(self) -> Places:
        return Places(len(self.stages) + 1, self.ranks, self.rank)

    @property
    def _ranks(self) -> Group:
        return Group(self.ranks, self.rank, self.ranks, self.communicator)

    def _group(self, batch: int) -> Group:
        places = self._places  # every rank meets all shards of its pipeline
        return Group(min(self.shards, batch), places.pipeline, places.pipelines)

    def _cut(self, programs: Mapping[int, Program], data: Collection[str], shards: int) -> dict[int, Stages]:
        stages_by_size = {n: Stages(Segments(p, frozenset(data), n, shards), self.stages) for n, p in programs.items()}
        # One schedule is made for all shards of a step, and it names pieces by their order.
        if len({tuple(piece.order for piece in stages.pieces) for stages in stages_by_size.values()}) > 1:
            raise ValueError(
                "Shards of any size go through the stages alike. Received: layers that do otherwise for other "
                "numbers of samples. Choose a batch size that the number of shards divides, and last_batch='drop'."
            )
        return stages_by_size

    def _step(
        self, programs: Mapping[int, Program], feed: Feed, data: Collection[str], cut: Collection[str], backend: Backend
    ) -> Any:
        group, places = self._group(feed.batch), self._places
        executor = ArrayExecutor(backend, self._ranks)
        stages = self._cut(programs, data, group.shards)
        schedule = PipelineSchedule(stages, self._shards(feed.batch), group, places, frozenset(cut), executor)
        return PipelineStep(schedule, places, self.communicator, backend)

    def program(self, trace: Callable[[Feed, Shard], Program], feed: Feed) -> Program:
        """See `DataParallel`: with all shards of this rank; on one rank, as if each stage had a rank of its own."""
        programs, data, cut = self._programs(trace, feed)
        group, places = self._group(feed.batch), [self._places]
        # On one rank the Program shows what each of several would do: that is what readers ask for.
        if self.ranks == 1:
            places = [Places(places[0].stages, places[0].stages, s) for s in range(places[0].stages)]
        first, stages = next(iter(programs.values())), self._cut(programs, data, group.shards)
        program = Program(first.name, most_nodes=MOST_NODES * group.shards)
        ranks, tokens = self._ranks, dict[tuple[int, int, int], Value]()
        schedules = [
            PipelineSchedule(
                stages, self._shards(feed.batch), group, place, frozenset(cut),
                ProgramWriter(program, ranks, place.rank, tokens),
            )
            for place in places
        ]  # fmt: skip
        read = {name for schedule in schedules for name in schedule.read}
        read |= first.updates.keys() - schedules[0].carried.keys()
        arrays: Arrays = {}
        for value in first.inputs:
            if value.name in read - {"rows"}:  # these are constants here
                shape = (feed.batch, *value.shape[1:]) if value.name in cut else value.shape
                arrays[value.name] = program.input(value.name, shape, value.dtype, kind=value.kind)
        results: Arrays = {}
        # Schedules run side by side, a step of each in turn, so that what one sends is there when another takes it.
        for _ in zip(*[schedule.run(arrays, results) for schedule in schedules], strict=True):
            pass
        program.outputs = {name: results[name] for name in first.outputs}
        program.updates = {name: results[name] for name in first.updates if name in results}
        # Tokens that nobody reads, and inputs that only other ranks use.
        remove_dead_nodes(program)
        return program

    def __repr__(self) -> str:
        return f"Pipeline({self.stages}, shards={self.shards}, timeout={self.timeout:g})"


class PipelineStep:
    """An Executable that computes the stages of this rank.

    Args:
        schedule: What the rank does.
        places: Which rank has which stages.
        communicator: Connects the ranks.
        backend: What runs the pieces.
    """

    def __init__(
        self, schedule: PipelineSchedule, places: Places, communicator: Communicator, backend: Backend
    ) -> None:
        self._schedule, self._communicator, self._backend = schedule, communicator, backend
        self._holders = places.holders(0)

    def __call__(self, arrays: Mapping[str, Array]) -> Arrays:
        """Outputs and updates by name; inputs that are updated are donated."""
        schedule, results = self._schedule, dict[str, Array]()
        held = {name: a.array if isinstance(a, StageParts) else a for name, a in arrays.items()}
        for _ in schedule.run(held, results):
            pass
        for name in schedule.program.updates:
            if name in schedule.carried:
                holder = self._holders[schedule.stage_of(name)]
                spec = schedule.carried[name].spec
                results[name] = StageParts(results.get(name), spec, holder, self._communicator, self._backend)
        return results


class StageParts(Parts):
    """A weight of a layer, or what an optimizer keeps of it, which one rank has.

    Args:
        array: The array; None on the other ranks.
        spec: Its shape and dtype.
        holder: The rank that others get it from.
        communicator: Connects the ranks.
        backend: Whose array it is.
    """

    def __init__(self, array: Array, spec: Spec, holder: int, communicator: Communicator, backend: Backend) -> None:
        self.array, self._spec, self._root = array, spec, holder
        self._communicator, self._backend = communicator, backend

    def whole(self) -> Host:
        """See `Parts`."""
        size, rank, nothing = self._communicator.size, self._communicator.rank, np.empty(0, self._spec.dtype)
        outgoing = nothing
        if rank == self._root:
            outgoing = np.ascontiguousarray(self._backend.to_numpy(self.array)).reshape(-1)
        flat = np.empty(self._spec.size, self._spec.dtype)
        incoming = [flat if r == self._root else nothing.copy() for r in range(size)]
        self._communicator.exchange([outgoing] * size, incoming)
        return flat.reshape(self._spec.shape)
