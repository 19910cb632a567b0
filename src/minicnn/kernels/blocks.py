"""Parts of blocks that tiles share: pieces of arrays brought to shared memory, and results on their way out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce

from minicnn.kernels.expressions import PLACE, THREAD, Array, Expr, I, Load, Name, Number, Select, both, chosen
from minicnn.kernels.products import Term
from minicnn.kernels.statements import Copy, Let, Local, Loop, Statement, Store, loop, when
from minicnn.program.graph import ITEMSIZE

BLOCK, NUMBER = Name("block"), Name("thread")
PART, TOTAL = Name("part", PLACE), "total"
_AT_ONCE = 16  # loads of a thread that are under way before the first is stored
_WIDE_AT_ONCE = 6  # likewise, of four numbers each
_KEPT = 64  # bytes of results that a thread finishes before it stores the first


@dataclass(frozen=True)
class Finish:
    """Computation that follows each result of a tile.

    Attributes:
        total: The result.
        statements: What is computed of it at its place `I`.
        stored: Arrays, the places there, and what is stored.
        in_place: Whether it reads what it overwrites there.
    """

    total: Name
    statements: Sequence[Statement]
    stored: Sequence[tuple[Array, Expr, Name]]
    in_place: bool = False

    @property
    def lines(self) -> list[Statement]:
        """Statements that compute and store it."""
        return [*self.statements, *(Store(*one) for one in self.stored)]


def copied(count: int, target: Array, source: Array, begin: Expr, stride: int) -> Statement:
    """Numbers copied to a thread's own array; together, if they begin at multiples of 16 bytes `stride` apart."""
    if count & (count - 1) == 0 and stride % min(count, 16 // ITEMSIZE[source.dtype]) == 0:
        return Copy(count, target, Number(0, PLACE), source, begin)
    e = Name("e", PLACE)
    return Loop(e, count, (Store(target, e, Load(source, begin + e)),), count)


def loops(spans: Sequence[tuple[Name, int]], body: tuple[Statement, ...]) -> tuple[Statement, ...]:
    """Loops within each other, all of them unrolled."""
    for name, count in reversed(spans):
        body = (Loop(name, count, body, count),)
    return body


@dataclass(frozen=True)
class Neighbours:
    """Neighbours of an operand that are made of neighbours in memory.

    Attributes:
        lets: Names that all of them share.
        arrays: Arrays, and the place of the first in each.
        element: Number q of them, of those of the arrays.
    """

    lets: Sequence[Let]
    arrays: Sequence[tuple[Array, Expr]]
    element: Callable[[Expr, Sequence[Expr]], Expr]


@dataclass(frozen=True)
class Operand:
    """An operand of a tile.

    Attributes:
        element: Its element at a place, or in a row and a column.
        neighbours: Those from there on; None if they are not made of neighbours in memory.
    """

    element: Callable[..., Expr]
    neighbours: Callable[..., Neighbours] | None = None

    def run(self, *lengths: int) -> int:
        """Neighbours that are loaded at once, if they are within such lengths: 4 or 1."""
        return 4 if self.neighbours is not None and all(length % 4 == 0 for length in lengths) else 1

    def loaded(self, at: Sequence[Expr], inside: Sequence[Expr], values: Array, to: Expr, run: int) -> list[Statement]:
        """Statements that bring neighbours to a thread's own array, zeros if conditions do not hold.

        Args:
            at: The first one's place, or its row and column.
            inside: The conditions.
            values: The thread's array.
            to: The place there.
            run: How many they are.
        """
        dtype, real, value = values.dtype, Name("real", "bool"), Name("value", values.dtype)
        lets: list[Statement] = [Let(real, reduce(both, inside))] if inside else []
        # What is not there is read at element 0 and masked: a branch would keep loads from being under way together.
        for k, one in enumerate(at):
            place = Name(f"at{k}", PLACE)
            lets.append(Let(place, Select(real, one, Number(0, PLACE)) if inside else one))
        places = [Name(f"at{k}", PLACE) for k, _ in enumerate(at)]

        def masked(value: Expr) -> Expr:
            return chosen(real, value, Number(0, dtype), dtype) if inside else value

        if run == 1 or self.neighbours is None:
            return [*lets, Let(value, self.element(*places)), Store(values, to, masked(value))]
        near, q = self.neighbours(*places), Name("q", PLACE)
        stored = [Array(f"stored{k}", one.dtype, run, memory=THREAD) for k, (one, _) in enumerate(near.arrays)]
        copies = [
            Copy(run, mine, Number(0, PLACE), one, at) for mine, (one, at) in zip(stored, near.arrays, strict=True)
        ]
        each = Let(value, near.element(q, [Load(mine, q) for mine in stored])), Store(values, to + q, masked(value))
        return [*lets, *near.lets, *map(Local, stored), *copies, Loop(q, run, each, run)]


def filled(
    name: str,
    array: Array,
    total: int,
    threads: int,
    operand: Operand,
    term: Callable[[Expr], Term],
    place: Callable[[Expr], Expr],
    run: int = 1,
    step: int = 1,
) -> tuple[Statement, ...]:
    """Statements by which the threads of a block bring numbers to shared memory.

    Args:
        name: Name of those that a thread has on the way.
        array: Where they go.
        total: How many they are.
        threads: Threads of the block.
        operand: What they are of.
        term: Number k of them: `Term.value` is its place in the operand.
        place: Where it goes.
        run: How many are neighbours in memory and loaded at once.
        step: How far apart they go.
    """
    steps = -(-total // (run * threads))
    loads = min(_AT_ONCE if run == 1 else _WIDE_AT_ONCE, steps)
    rounds = -(-steps // loads)
    values = Array(name, array.dtype, loads * run, memory=THREAD)
    u, k, q = Name("turn", PLACE), Name("k", PLACE), Name("q", PLACE)
    outside = [k < total // run] * (rounds * loads * threads * run > total)

    def one(number: Expr) -> tuple[Statement, ...]:
        first, e = NUMBER + (u + number * loads) * threads, Name("e", PLACE)
        load = Let(e, Select(k < total // run, k, Number(0, PLACE)) if outside else k)
        source = term(e * run)
        lets = [Let(k, first), load, *source.lets]
        to = place(k * run)
        put: Statement = Copy(run, array, to, values, u * run)
        if step > 1:
            put = Loop(q, run, (Store(array, to + q * step, Load(values, u * run + q)),), run)
        if run == 1:
            put = Store(array, to, Load(values, u))
        return (
            Local(values),
            Loop(u, loads, (
                *lets, *operand.loaded([source.value], source.conditions, values, u * run, run),
            ), loads),
            Loop(u, loads, (Let(k, first), *when(outside, [put])), loads),
        )  # fmt: skip

    return loop(Name("step", PLACE), rounds, one, 1)


def results(
    count: int,
    run: int,
    place: Callable[[Expr], Term],
    value: Callable[[Expr], tuple[list[Statement], Expr]],
    finish: Finish,
) -> tuple[Statement, ...]:
    """Statements that finish the results of a thread and store them.

    Args:
        count: How many they are.
        run: Of how many, from a multiple of that on, places are neighbours.
        place: Where result k lies, and whether there is one.
        value: Statements for it, and what it is.
        finish: What follows.
    """
    most = max(run, _KEPT // sum(ITEMSIZE[array.dtype] for array, _, _ in finish.stored) // run * run)
    together = max(n for n in range(run, min(count, most) + 1, run) if count % n == 0)
    kept = [Array(f"kept{j}", one.dtype, together, memory=THREAD) for j, (one, _, _) in enumerate(finish.stored)]
    k = Name("k", PLACE)

    def group(number: Expr) -> tuple[Statement, ...]:
        # Some are finished before any of them is stored, so that all answers of memory are waited for together.
        term, first = place(k + number * together), place(k * run + number * together)
        at, conditions = term.value, term.conditions
        # What is not there is computed of element 0, without a branch; but not where another thread overwrites that.
        if conditions and not finish.in_place:
            at, conditions = Select(reduce(both, conditions), at, Number(0, PLACE)), ()
        statements, total = value(k + number * together)
        finished = (*term.lets, *when(conditions, (
            *statements, Let(I, at), Let(finish.total, total), *finish.statements,
            *(Store(array, k, name) for array, (_, _, name) in zip(kept, finish.stored, strict=True)),
        )))  # fmt: skip
        stores = [
            Copy(run, array, to, own, k * run) if run > 1 else Store(array, to, Load(own, k))
            for own, (array, to, _) in zip(kept, finish.stored, strict=True)
        ]
        put = (*first.lets, *when(first.conditions, [Let(I, first.value), *stores]))
        return (
            *map(Local, kept),
            Loop(k, together, finished, together),
            Loop(k, together // run, put, together // run),
        )

    return loop(Name("group_of_results", PLACE), count // together, group, count // together)
