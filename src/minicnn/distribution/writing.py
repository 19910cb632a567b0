"""A rank's step as one Program: its schedule, run on Values."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np

from minicnn import ops
from minicnn.distribution.passes import Shard
from minicnn.distribution.schedule import Collective, Columns, Piece, RankSchedule, ShardRows, Transfer
from minicnn.distribution.segments import Segments
from minicnn.distribution.sharding import sharded
from minicnn.ops.groups import Group
from minicnn.program.graph import MOST_NODES, Node, Program, Value
from minicnn.program.passes import remove_dead_nodes


def merge(programs: Sequence[Program], group: Group, cut: Collection[str] = ()) -> Program:
    """The Program of a rank from those of its shards: what a step of that rank runs, in the same order.

    Between two collectives the shards come one after the other, so that the memory of one is free for the next. Sums
    over shards are taken as soon as both summands are there. What does not depend on a shard's own data is computed
    once. With one rank all collectives are sums, joins and slices of what its shards have.

    Args:
        programs: Programs of the shards that `group` holds, in order; the collectives of each are of a group with as
            many ranks as there are shards, and come in the same order in all.
        group: The shards of this rank.
        cut: Names of the inputs that belong to a shard; of the rank's Program they are joined along the first axis.
            All other inputs are the same for all shards.

    Raises:
        ValueError: If the Programs do not belong together, or a result differs from shard to shard.
    """
    every: dict[int, Segments] = {}
    shards, start = list[Shard](), 0
    for number, program in zip(group.held(), programs, strict=True):
        samples = next((v.shape[0] for v in program.inputs if v.name in cut), 1)
        every[number] = Segments(program, cut, samples, group.shards)
        shards.append(Shard(number, group.shards, start, samples, 0))
        start += samples
    shards = [replace(shard, batch=start) for shard in shards]
    return ProgramWriter(sharded(every, shards, group, cut, by="number")).write()


class ProgramWriter:
    """Operations that write a schedule as a Program.

    Args:
        schedule: The list.
    """

    def __init__(self, schedule: RankSchedule) -> None:
        self._schedule = schedule
        pieces = sum(isinstance(each, Piece) for each in schedule.instructions)
        self._program = Program(schedule.program.name, most_nodes=MOST_NODES * max(1, pieces))
        self._constants: dict[tuple[bytes, object], Value] = {}

    def write(self) -> Program:
        """The Program: inputs that are cut have this rank's rows, split kernels its columns."""
        schedule, program = self._schedule, self._program
        slots: dict[str, Any] = {slot: self._constant(v.data, v.dtype) for slot, v in schedule.constants.items()}
        read = {slot for each in schedule.instructions for slot in each.reads}
        parts = [name for name, (held, _) in schedule.kept.items() if held]
        read |= {*schedule.results, *schedule.results.values(), *parts}
        for value in schedule.program.inputs:
            name, rows = value.name, schedule.rows
            if name == "rows" and name in schedule.cut:
                slots[name] = self._constant(np.arange(rows.start, rows.stop, dtype=np.int32), "int32")
            elif name in read:
                slots[name] = program.input(name, self._shape(value), value.dtype, kind=value.kind)
        schedule.run(slots, self._perform)
        first = schedule.program
        for name, slot in schedule.results.items():
            (program.outputs if name in first.outputs else program.updates)[name] = slots[slot]
        for name, (parts, _) in schedule.kept.items():
            values = [slots[slot] for slot in parts]
            if values:
                program.updates[name] = values[0] if len(values) == 1 else ops.concat(*values, axis=-1)
        program.parts, program.counted = dict(first.parts), first.counted
        remove_dead_nodes(program)  # tokens that nobody reads
        return program

    def _shape(self, value: Value) -> tuple[int, ...]:
        """The shape of what this rank has of an input."""
        schedule = self._schedule
        if value.name in schedule.cut:
            return (len(schedule.rows), *value.shape[1:])
        held = len(schedule.group.held()) if value.name in schedule.program.parts else 1
        return value.shape if held == 1 else (*value.shape[:-1], held * value.shape[-1])

    def _constant(self, data: Any, dtype: str | None) -> Value:
        """A constant, one for equal numbers, however many shards read it."""
        array = np.asarray(data)
        key = array.tobytes(), (array.shape, dtype)
        if key not in self._constants:
            self._constants[key] = self._program.constant(array, dtype)
        return self._constants[key]

    def _within(self, node: Node | None) -> AbstractContextManager[None]:
        return nullcontext() if node is None else self._program.scope_of(node, node.phase)

    def _perform(self, instruction: Any, operands: list[Value]) -> Sequence[Value]:
        match instruction:
            case Piece():
                return self._piece(instruction, operands)
            case ShardRows():
                (x,) = operands
                whole = instruction.stop - instruction.start == x.shape[0]
                return [x if whole else replace(instruction, batch=x.shape[0] + 1).of(x)]
            case Columns():
                held = len(self._schedule.group.held())
                return [_pieces(operands[0], -1, held)[instruction.number]] if held > 1 else operands
            case Transfer():
                with self._within(instruction.value.node):
                    return self._transferred(instruction, operands)
        half = len(operands) // 2
        with self._within(instruction.node):
            if not isinstance(instruction, Collective):
                return [x + y for x, y in zip(operands[:half], operands[half:], strict=True)]
            if instruction.exchanges:
                return self._exchanged(instruction, operands)
            totals = ops.all_reduce(*operands, group=instruction.group)
            return totals if isinstance(totals, tuple) else [totals]

    def _piece(self, piece: Piece, operands: Sequence[Value]) -> list[Value]:
        program = piece.program
        new = {id(v): operand for v, operand in zip(program.inputs, operands, strict=True)}
        for node in program.nodes:
            inputs = [new[id(v)] if v.data is None else self._constant(v.data, v.dtype) for v in node.inputs]
            with self._within(node):
                results = self._program.append(node.op, inputs, [v.spec for v in node.outputs], node.attrs).outputs
            new |= {id(old): value for old, value in zip(node.outputs, results, strict=True)}
        return [new[id(v)] for v in (*program.outputs.values(), *program.updates.values())]

    def _transferred(self, transfer: Transfer, operands: Sequence[Value]) -> list[Value]:
        value, about = transfer.value, {"tag": transfer.tag, "group": transfer.group}
        if operands:
            ops.send(*operands, to=transfer.rank, **about)
            return []
        token = self._constant(np.empty(0), value.dtype)
        return [ops.receive(token, shape=value.shape, source=transfer.rank, **about)]

    def _exchanged(self, collective: Collective, operands: Sequence[Value]) -> list[Value]:
        """A collective that is no sum: with one rank on all shards, else as if each shard had a rank of its own."""
        node, group, count = collective.node, collective.group, len(collective.writes)
        each: Group = node.attrs["group"]
        attrs = {name: value for name, value in node.attrs.items() if name != "group"}
        if group.ranks == 1 and not each.stride:
            return _LOCALLY[node.op.name](operands, attrs)[:count]
        numbers = group.held()
        ranks = [each.peers(number).index(number) if each.stride else number for number in numbers]
        communicator = group.communicator if group.ranks == group.shards and not each.stride else None
        return [
            node.op(x, **attrs, group=replace(each, rank=rank, communicator=communicator))
            for x, rank in zip(operands, ranks, strict=True)
        ][:count]


def _tree_sum(values: Sequence[Value]) -> Value:
    return Group(len(values)).total({(s, s + 1): v for s, v in enumerate(values)}, lambda a, b: a + b)


def _pieces(x: Value, axis: int, count: int) -> list[Value]:
    n = x.shape[axis] // count
    key: list[Any] = [slice(None)] * x.ndim
    return [x[(*key[: axis % x.ndim], slice(i * n, i * n + n), ...)] for i in range(count)]


def _gathered(values: Sequence[Value], attrs: Mapping[str, Any]) -> list[Value]:
    return [ops.concat(*values, axis=attrs["axis"])] * len(values)


def _scattered(values: Sequence[Value], attrs: Mapping[str, Any]) -> list[Value]:
    return _pieces(_tree_sum(values), attrs["axis"], len(values))


def _swapped(values: Sequence[Value], attrs: Mapping[str, Any]) -> list[Value]:
    pieces = [_pieces(x, attrs["split"], len(values)) for x in values]
    return [ops.concat(*each, axis=attrs["join"]) for each in zip(*pieces, strict=True)]


def _broadcast(values: Sequence[Value], attrs: Mapping[str, Any]) -> list[Value]:
    return [values[attrs["root"]]] * len(values)


# What a collective is where all shards are in one Program: from the array of each shard to the result of each.
_LOCALLY: dict[str, Callable[[Sequence[Value], Mapping[str, Any]], list[Value]]] = {
    "all_gather": _gathered, "reduce_scatter": _scattered, "all_to_all": _swapped, "broadcast": _broadcast,
}  # fmt: skip
