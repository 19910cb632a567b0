"""Sums over ranks with a GPU each: in the tree by moves and additions, or as NCCL takes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any

from minicnn import ops
from minicnn.backends._gpu.device import Gpu
from minicnn.backends._gpu.runtime import Launch, Runtime
from minicnn.distribution.passes import FINITE
from minicnn.distribution.prediction.links import known
from minicnn.distribution.schedule import Arrays, Collective, Piece, RankSchedule
from minicnn.ops.groups import Group
from minicnn.program.graph import Program, Spec, Value
from minicnn.program.memory import ALIGNMENT


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


@dataclass(frozen=True)
class Between:
    """A launch that moves elements between ranks, or waits for them, and its name."""

    name: str
    launch: Launch

    def __call__(self) -> None:
        """Launch it."""
        self.launch()


class Sum:
    """The sum over all ranks of one array, as an Executable that is a part of something longer.

    Each rank gets everybody's share of the elements, adds in the order of the tree, and gives the result to all; of a
    small array everybody gets everything. What the communicator adds is one call.

    Args:
        group: Who has which shards; each rank has one sum.
        spec: The array, with one axis, of which each rank has as large a share.
        add: Adds what the ranks give: see `addition`; None if the communicator does.
        runtime: The device.
    """

    captures = True

    def __init__(self, group: Group, spec: Spec, add: Any, runtime: Runtime) -> None:
        self._group, self._add, self._runtime = group, add, runtime
        communicator, in_memory = group.communicator, in_peers(group, spec)
        # Whether its arrays lie where all ranks reach them; and whether it is one kernel of microseconds.
        self.is_shared = in_memory and communicator.in_shares(spec.nbytes, spec.dtype)  # type: ignore[union-attr]
        self.is_short = in_memory and not self.is_shared
        self._at_once = not self.is_shared and at_once(group, spec, runtime.gpu)
        taken = Spec((group.ranks * spec.size,), spec.dtype) if self._at_once else spec
        self.outputs = {"sum": spec} | ({"taken": taken} if add else {})

    @property
    def titles(self) -> list[str]:
        """See `StepExecutable.titles`."""
        return [] if self._add is None else list(self._add.titles)

    @property
    def is_alone(self) -> bool:
        """See `StepExecutable.is_alone`."""
        return self._add is None or bool(self._add.is_alone)

    def updated(self, arrays: Arrays) -> Arrays:
        """See `StepExecutable.updated`."""
        return {}

    def bind(self, arrays: Arrays, outputs: Arrays, *, beside: bool = False) -> list[Launch]:
        """See `StepExecutable.bind`; `beside`: see `NcclCommunicator.enqueue`."""
        group, flat, total = self._group, arrays["flat"], outputs["sum"]
        moved = partial(self._moved, beside=beside)
        if self._add is None:
            return [moved("all_reduce", flat, total)]
        rows = [self._part(outputs["taken"], r) for r in range(group.ranks)]
        if self.is_shared:
            rows[group.rank] = self._part(flat, group.rank)
        operands = {str(r): row for r, row in enumerate(rows)}
        if self._at_once:
            return [moved("all_gather", flat, outputs["taken"]), *self._add.bind(operands, {"sum": total})]
        share = self._part(total, group.rank)  # where it is sent from and, by this rank, awaited
        if self.is_shared:
            communicator: Any = group.communicator
            bring, give = communicator.launches_of_shares(flat, outputs["taken"], total, self._runtime, beside=beside)
            return [*bring, *self._add.bind(operands, {"sum": share}), *give]
        launches = [moved("all_to_all", flat, outputs["taken"]), *self._add.bind(operands, {"sum": share})]
        return [*launches, moved("all_gather", share, total)]

    def _moved(self, collective: str, source: Any, target: Any, *, beside: bool) -> Launch:
        enqueue = self._group.communicator.enqueue  # type: ignore[union-attr]
        return Between(collective, partial(enqueue, collective, source, target, self._runtime, beside=beside))

    def _part(self, array: Any, rank: int) -> Any:
        """A rank's part of an array."""
        count = array.size // self._group.ranks
        return self._runtime.view(array, rank * count * array.itemsize, (count,), str(array.dtype))


def at_once(group: Group, spec: Spec, gpu: Gpu | None) -> bool:
    """True if one message that brings everything to everybody takes no longer than two of shares.

    It saves the latency of the other; but each rank then sends and adds all elements rather than a share of them.
    """
    if gpu is None:
        return True
    return messages(gpu, group.ranks, spec.nbytes, once=True) <= messages(gpu, group.ranks, spec.nbytes, once=False)


def messages(gpu: Gpu, ranks: int, nbytes: float, *, once: bool) -> float:
    """Seconds of a sum by NCCL's messages and a kernel that adds: one of everything to everybody, or two of shares."""
    links = known()[gpu.links]
    count, each = (1, nbytes) if once else (2, nbytes / ranks)
    return count * (ranks - 1) * (links.latency + each / links.bandwidth) + (ranks + 1) * each / gpu.bandwidth


def in_peers(group: Group, spec: Spec) -> bool:
    """True if such arrays are summed in the peers' memory, where the order of additions is that of a shard a rank."""
    order, of_ranks = (
        each.total({each.spans(r)[0]: str(r) for r in range(group.ranks)}, lambda a, b: f"({a} + {b})")
        for each in (group, Group(group.ranks, 0, group.ranks))
    )
    communicator: Any = group.communicator
    fits = group.ranks > 1 and (order == of_ranks or not group.deterministic)
    return fits and bool(communicator.in_peers(spec.dtype))


def addition(group: Group, spec: Spec, gpu: Gpu | None) -> Program | None:
    """The Program that adds what all ranks have of an array, or of a share of it; None if the communicator adds."""
    in_memory = in_peers(group, spec)
    in_shares = in_memory and group.communicator.in_shares(spec.nbytes, spec.dtype)  # type: ignore[union-attr]
    # NCCL's own sum needs no additions, nor has it a choice of order where a rank is alone.
    if group.ranks == 1 or not (in_shares or (group.deterministic and not in_memory)):
        return None
    size = spec.size // group.ranks if in_shares or not at_once(group, spec, gpu) else spec.size
    program = Program("sums")
    rows = {group.spans(r)[0]: program.input(str(r), (size,), spec.dtype) for r in range(group.ranks)}
    program.outputs["sum"] = group.total(rows, lambda a, b: a + b)
    return program


def side_by_side(collective: Collective) -> tuple[list[int], Spec]:
    """Bytes in front of each summand in one array for all of them, and that array, of which each rank has a share."""
    ends = list(accumulate((-(-s.nbytes // ALIGNMENT) * ALIGNMENT for s in collective.specs), initial=0))
    dtype, whole = collective.specs[0].dtype, ALIGNMENT * collective.group.ranks
    width = Spec((1,), dtype).nbytes
    return ends[:-1], Spec((-(-ends[-1] // whole) * whole // width,), dtype)


def sums_of(collective: Collective) -> Program:
    """The Program that adds up what the ranks give."""
    program = Program("sums")
    summands = [program.input(str(i), s.shape, s.dtype) for i, s in enumerate(collective.specs)]
    program.outputs = {str(i): v for i, v in enumerate(summed(summands, collective.group))}
    return program


def taken_at_once(schedule: RankSchedule) -> frozenset[Collective]:
    """Sums that kernels take in the peers' memory all at once, so that those that make and read them can.

    Ranks meet in the same order: each has one shard, and all of these have one Program.
    """
    group = schedule.group
    if not group.shards == group.ranks > 1 or schedule.batch % group.shards:
        return frozenset()
    sums = [each for each in schedule.instructions if isinstance(each, Collective) and not each.exchanges]
    return frozenset(each for each in sums if _at_once(each))


def _at_once(collective: Collective) -> bool:
    group, spec = collective.group, side_by_side(collective)[1]
    communicator: Any = group.communicator
    return in_peers(group, spec) and not communicator.in_shares(spec.nbytes, spec.dtype)


def tell_finite(schedule: RankSchedule) -> None:
    """Let a schedule end with a part that tells what is finite: the loss, and of each of its sums zero, or NaN."""
    summands = {s: spec for each in schedule.instructions if isinstance(each, Collective)
                for s, spec in zip(each.reads, each.specs, strict=True)}  # fmt: skip
    loss = schedule.program.outputs["loss"].spec
    slots = {"loss": schedule.results["loss"]} | {n: s for n, s in schedule.watched.items() if s in schedule.written}
    program = Program("finite")
    specs = {name: loss if name == "loss" else summands[slot] for name, slot in slots.items()}
    values = {n: program.input(n, spec.shape, spec.dtype) for n, spec in specs.items() if spec.dtype == loss.dtype}
    zeros = [v if name == "loss" else v * 0.0 for name, v in values.items()]
    told = [v if v.size == 1 else ops.sum(v) for v in zeros]  # the usual one is a share of the loss
    program.outputs[FINITE] = ops.concat(*(ops.reshape(v, shape=(1,)) for v in told), axis=0)
    inputs = tuple(v.name for v in program.inputs)
    schedule.append(Piece(tuple(slots[name] for name in inputs), (FINITE,), program, inputs, (FINITE,)))
    schedule.results[FINITE] = FINITE


def additions_of(specs: Sequence[Spec]) -> Program:
    """The Program that adds what two shards give."""
    program = Program("additions")
    a, b = ([program.input(f"{side} {n}", s.shape, s.dtype) for n, s in enumerate(specs)] for side in "ab")
    program.outputs = {str(n): x + y for n, (x, y) in enumerate(zip(a, b, strict=True))}
    return program
