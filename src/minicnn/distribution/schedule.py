"""Schedule of a rank's step: pieces of Programs and collectives in one order, and the loop that goes through it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from minicnn.distribution.passes import Shard
from minicnn.distribution.segments import Segments, is_sum
from minicnn.layers.cell import Parts
from minicnn.ops.groups import Group, RunningSums
from minicnn.program.graph import Node, Program, Spec, Value

Array = Any
Arrays = dict[str, Array]
Slot = str  # name of an array, or of a Value where the schedule becomes a Program


@dataclass(frozen=True, eq=False)
class Instruction:
    """One entry of a schedule: slots of its operands, and of its results."""

    reads: tuple[Slot, ...]
    writes: tuple[Slot, ...]


@dataclass(frozen=True, eq=False)
class Piece(Instruction):
    """A part of a shard's Program without collectives, the same object for all shards of one size.

    Attributes:
        program: The part.
        inputs: Names of its inputs, in the order of `reads`.
        results: Names of its outputs and then of its updates, in the order of `writes`.
    """

    program: Program
    inputs: tuple[str, ...]
    results: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class ShardRows(Instruction):
    """Some rows of an array of so many, or of an array that only has those from the first row of the rank on."""

    start: int
    stop: int
    batch: int
    first: int

    def of(self, array: Array) -> Array:
        """The rows of an array."""
        before = self.first if array.shape[0] < self.batch else 0
        return array[slice(self.start - before, self.stop - before), ...]


@dataclass(frozen=True, eq=False)
class Columns(Instruction):
    """A shard's columns of a kernel: the shard's number on this rank, and which of so many parts they are."""

    number: int
    place: int
    count: int


@dataclass(frozen=True, eq=False)
class ShardSum(Instruction):
    """An inner node of the tree within a rank: the first half of its operands plus the second.

    Attributes:
        sums: Sums over shards in the Program of one.
    """

    sums: tuple[Value, ...]

    @property
    def node(self) -> Node:
        """The node of the first sum."""
        return self.sums[0].node  # type: ignore[return-value]

    @property
    def specs(self) -> tuple[Spec, ...]:
        """Shapes and dtypes of the sums."""
        return tuple(value.spec for value in self.sums)


@dataclass(frozen=True, eq=False)
class Collective(ShardSum):
    """A collective between ranks: sums, which one rank alone gives back as they are, or an exchange between all shards.

    Attributes:
        group: The ranks.
    """

    group: Group

    @property
    def exchanges(self) -> bool:
        """True if it is no sum over all shards."""
        return not is_sum(self.node)


@dataclass(frozen=True, eq=False)
class Transfer(Instruction):
    """A value of a shard's Program that goes to another rank if it is read, or comes from one.

    Attributes:
        value: The value.
        rank: The other rank.
        tag: Number under which it asks for the value.
        group: The ranks.
    """

    value: Value
    rank: int
    tag: int
    group: Group


@dataclass
class RankSchedule:
    """One rank's step: a list of instructions, each of which reads and writes named slots.

    Attributes:
        program: Program of a shard, by whose names arrays come and go.
        group: Assignment of shards to ranks.
        batch: Samples of the whole batch.
        rows: Those of this rank.
        cut: Names of the inputs of which each shard takes its rows; "rows" are their numbers.
        instructions: The list.
        written: Slots that are written so far.
        constants: Constants in slots of their own.
        results: Slot of each output and update, by name.
        kept: By the name of an update of which this rank has parts their slots, and what joins the parts' arrays.
        watched: Slots of what this rank has added to sums, by the name under which a step hands them back.
        overlaps: Whether sums may go on while the rank computes.
    """

    program: Program
    group: Group
    batch: int
    rows: range
    cut: frozenset[str]
    instructions: list[Instruction] = field(default_factory=list)
    written: set[Slot] = field(default_factory=set)
    constants: dict[Slot, Value] = field(default_factory=dict)
    results: dict[str, Slot] = field(default_factory=dict)
    kept: dict[str, tuple[list[Slot], Callable[[list[Array], Any], Parts]]] = field(default_factory=dict)
    watched: dict[str, Slot] = field(default_factory=dict)
    overlaps: bool = False

    # Building -----------------------------------------------------------------------------------

    def slot(self, name: str, shard: int | None = None) -> Slot:
        """The slot of a shard's value, or else of what all shards have in common."""
        of_shard = f"{name}@{shard}"
        return of_shard if of_shard in self.written else name

    def append(self, instruction: Instruction) -> None:
        """Append an instruction."""
        self.instructions.append(instruction)
        self.written.update(instruction.writes)

    def piece(self, program: Program, shard: int | None = None) -> None:
        """Append a piece of all shards or of one; nothing if it computes nothing."""
        if not program.nodes:
            return
        inputs = tuple(value.name for value in program.inputs)
        results = (*program.outputs, *map(updated, program.updates))
        after = "" if shard is None else f"@{shard}"
        reads, writes = tuple(self.slot(n, shard) for n in inputs), tuple(f"{n}{after}" for n in results)
        self.append(Piece(reads, writes, program, inputs, (*program.outputs, *program.updates)))

    def take_rows(self, name: str, shard: Shard) -> None:
        """Append a shard's rows of an input."""
        at = shard.start, shard.start + shard.samples, shard.batch, self.rows.start
        self.append(ShardRows((name,), (f"{name}@{shard.number}",), *at))

    def source(self, value: Value, segments: Segments, shard: int | None = None) -> Slot:
        """The slot of a value of a shard's Program, which may be a constant."""
        if value.data is None:
            return self.slot(segments.names[id(value)], shard)
        self.constants.setdefault(slot := f"constant {id(value)}", value)
        return slot

    def result(self, name: str, value: Value, segments: Segments, shard: int | None = None) -> Slot:
        """The slot of an output or update of a shard's Program."""
        in_place = self.slot(updated(name), shard)  # of a piece that may overwrite the input
        return in_place if in_place in self.written else self.source(value, segments, shard)

    def running(self, sums: Sequence[Value]) -> RunningSums:
        """Sums of this rank's shards, the additions of which are instructions."""

        def plus(a: list[Slot], b: list[Slot]) -> list[Slot]:
            totals = [f"sum {len(self.instructions)}.{i}" for i in range(len(a))]
            self.append(ShardSum((*a, *b), tuple(totals), tuple(sums)))
            return totals

        return RunningSums(self.group, plus)

    def own(self, name: str, array: Array) -> Array:
        """This rank's rows of an input that is cut; others as they are."""
        rows = self.rows
        return ShardRows((), (), rows.start, rows.stop, self.batch, rows.start).of(array) if name in self.cut else array

    # Running ------------------------------------------------------------------------------------

    @cached_property
    def _timeline(self) -> list[tuple[Instruction, frozenset[Slot]]]:
        """Each instruction, with the slots that nobody reads behind it."""
        last = {slot: i for i, each in enumerate(self.instructions) for slot in (*each.reads, *each.writes)}
        for slot in (
            *self.results.values(),
            *self.watched.values(),
            *(s for slots, _ in self.kept.values() for s in slots),
        ):
            last.pop(slot, None)
        done: list[set[Slot]] = [set() for _ in self.instructions]
        for slot, i in last.items():
            done[i].add(slot)
        return [(each, frozenset(slots)) for each, slots in zip(self.instructions, done, strict=True)]

    def run(self, slots: Arrays, perform: Callable[[Any, list[Any]], Sequence[Any]]) -> Arrays:
        """Go through the list.

        Args:
            slots: Inputs and constants by their slots; it is changed.
            perform: Gives the results of an instruction on its operands: arrays, or Values, which writes a Program.

        Returns:
            The slots: those of results are in it.
        """
        for instruction, done in self._timeline:
            operands = [slots[slot] for slot in instruction.reads]
            # Before it runs, so that memory of operands can become that of results.
            for slot in done:
                slots.pop(slot, None)
            results = perform(instruction, operands)
            slots |= {s: r for s, r in zip(instruction.writes, results, strict=True) if s not in done}
        return slots


def described(instruction: Instruction) -> str:
    """Description of an instruction, for people."""
    match instruction:
        case Piece():
            nodes = instruction.program.nodes
            scopes = dict.fromkeys(n.scope for n in (nodes[0], nodes[-1]) if n.scope)
            where = f", {' to '.join(scopes)}" if scopes else ""
            return f"{nodes[0].phase}: {len(nodes)} operations{where}"
        case Collective():
            return f"{instruction.node.op.name} of {sum(s.nbytes for s in instruction.specs):,} bytes"
        case ShardSum():
            return f"adds two shards: {sum(s.nbytes for s in instruction.specs):,} bytes"
        case Transfer():
            return f"{'to' if instruction.reads else 'from'} rank {instruction.rank}: {instruction.value.spec}"
        case _:
            return "takes columns" if isinstance(instruction, Columns) else "takes rows"


def updated(name: str) -> str:
    """Slot of an update by a piece that may overwrite its input."""
    return f"{name}'"
