"""Pipeline: each rank has some of the layers, and the parts of a batch go from rank to rank."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from minicnn.distribution.data_parallel import DataParallel
from minicnn.distribution.passes import Shard
from minicnn.distribution.pipeline_schedule import PipelineSchedule, Places
from minicnn.distribution.schedule import RankSchedule
from minicnn.distribution.segments import Segments
from minicnn.distribution.stages import Stages
from minicnn.ops.groups import Communicator, Group
from minicnn.program.graph import Program

if TYPE_CHECKING:
    from minicnn.loop.tracing import Feed


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

    def schedule(self, trace: Callable[[Feed, Shard], Program], feed: Feed) -> RankSchedule:
        """See `DataParallel`."""
        programs, cut = self._programs(trace, feed)
        group = self._group(feed.batch)
        stages = self._cut(programs, cut, group.shards)
        ranks = self._shards(feed.batch), group, self._places, self._ranks
        return PipelineSchedule(stages, *ranks, frozenset(cut)).written()

    def __repr__(self) -> str:
        return f"Pipeline({self.stages}, shards={self.shards}, timeout={self.timeout:g})"
