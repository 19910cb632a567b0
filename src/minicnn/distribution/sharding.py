"""Schedules of ranks that have all layers: shards one after the other, level by level, and sums as soon as they can."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial

from minicnn.distribution import passes
from minicnn.distribution.parts import KernelParts
from minicnn.distribution.passes import ADDED, Shard, summed_loss
from minicnn.distribution.schedule import Collective, Columns, RankSchedule
from minicnn.distribution.segments import Segments, each_its_own, is_sum
from minicnn.ops.groups import Group, RunningSums
from minicnn.program.graph import Node


def sharded(
    every: Mapping[int, Segments], shards: Sequence[Shard], group: Group, cut: Collection[str], *, by: str = "samples"
) -> RankSchedule:
    """The schedule of a rank that computes some of the shards.

    Args:
        every: Segments of the Programs of all shards, on whatever rank, each by what `by` says.
        shards: The shards of this rank.
        group: Assignment of shards to ranks.
        cut: Names of the inputs of which each shard is given its rows.
        by: "samples" if shards of one size have one Program, "number" if each has its own.

    Raises:
        ValueError: If the Programs of the shards do not compute alike.
    """
    first = next(iter(every.values()))
    _check_alike(every.values())
    mine = [(shard, every[getattr(shard, by)]) for shard in shards]
    rank_rows = range(shards[0].start, shards[-1].start + shards[-1].samples)
    schedule = RankSchedule(first.program, group, shards[0].batch, rank_rows, frozenset(cut))
    parts = {id(segments): segments.parts() for _, segments in mine}
    common, _ = next(iter(parts.values()))
    for level, alike in enumerate(common):
        for program in alike:
            schedule.piece(program)
        buckets = [bucket for bucket in first.buckets(level) if bucket]
        sums = [schedule.running([v for node in bucket for v in node.outputs]) for bucket in buckets]
        # Shards one after the other: activations of one at a time are in memory.
        for shard, segments in mine:
            if level == 0 and group.shards > 1:
                _take(schedule, segments, shard)
            pieces = parts[id(segments)][1][level]
            for i, piece in enumerate(pieces):
                schedule.piece(piece, shard.number)
                if i == len(buckets):  # a level without sums
                    break
                values = [v for node in segments.buckets(level)[i] for v in node.inputs]
                sums[i].add(shard.number, [schedule.source(v, segments, shard.number) for v in values])
                # With the last shard a sum is complete on this rank, and others may be waiting for it.
                if shard is shards[-1]:
                    _sum(schedule, first, level, buckets[i], sums[i])
        for k in [k for k, node in enumerate(first.collectives[level]) if not is_sum(node)]:
            _exchange(schedule, mine, level, k)
        schedule.overlaps |= len(buckets) > 1 or any(first.needed(bucket) > level + 1 for bucket in buckets)
    program = first.program
    for name, value in (program.outputs | program.updates).items():
        if name in program.parts:
            slots = [schedule.result(name, s.program.updates[name], s, shard.number) for shard, s in mine]
            schedule.kept[name] = slots, partial(KernelParts, group=group, count=program.parts[name])
        else:
            schedule.results[name] = schedule.result(name, value, first)
    return schedule


def _check_alike(every: Collection[Segments]) -> None:
    first = next(iter(every))
    for other in every:
        different = first.differs(other)
        if different is not None:
            raise ValueError(
                "Shards of any size compute the same with what they have in common. Received: layers that do "
                f"otherwise for {first.samples} than for {other.samples} samples: {different:.200}. Choose a batch "
                "size that the number of shards divides, and last_batch='drop'."
            )


def _take(schedule: RankSchedule, segments: Segments, shard: Shard) -> None:
    """A shard's rows of the batch, and its columns of kernels."""
    program = segments.program
    for name in [v.name for v in program.inputs if v.name in schedule.cut]:
        schedule.take_rows(name, shard)
    held = schedule.group.held()
    for name, count in program.parts.items():
        at_columns = shard.number - held.start, shard.number % count, count
        schedule.append(Columns((name,), (f"{name}@{shard.number}",), *at_columns))


def _sum(schedule: RankSchedule, first: Segments, level: int, bucket: Sequence[Node], sums: RunningSums) -> None:
    """Sum over ranks; this rank's share of the loss, and of what comes before it, is kept.

    NaN of one rank reaches all, by batch normalisations even before the loss: the shares tell which one it comes from.
    """
    group, outputs = schedule.group, tuple(v for node in bucket for v in node.outputs)
    names, loss = tuple(first.names[id(v)] for v in outputs), summed_loss(first.program)
    before = loss is None or first.names[id(loss)] not in schedule.written
    schedule.append(Collective(tuple(sums.arrays), names, outputs, group))
    if group.ranks > 1 and group.held() and before:
        few = sum(v.nbytes for v in outputs) < passes.BUCKET
        for value in [v for v in outputs if v is loss] or (outputs if few else ()):
            for i, (_, slots) in enumerate(sums.partial_sums):
                slot = slots[next(k for k, v in enumerate(outputs) if v is value)]
                schedule.watched[f"{ADDED}{level}.{i}.{first.names[id(value)]}"] = slot


def _exchange(schedule: RankSchedule, mine: Sequence[tuple[Shard, Segments]], level: int, k: int) -> None:
    """A collective that is no sum: what shards gather, or give each other."""
    nodes = [segments.collectives[level][k] for _, segments in mine]
    reads = [schedule.source(node.inputs[0], s, shard.number) for node, (shard, s) in zip(nodes, mine, strict=True)]
    writes = [s.names[id(node.outputs[0])] for node, (_, s) in zip(nodes, mine, strict=True)]
    if each_its_own(nodes[0]):
        writes = [f"{name}@{shard.number}" for name, (shard, _) in zip(writes, mine, strict=True)]
    schedule.append(Collective(tuple(reads), tuple(dict.fromkeys(writes)), nodes[0].outputs, schedule.group))
