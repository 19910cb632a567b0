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
_KEPT = 64  # bytes of results that a thread finishes before it stores the first


@dataclass(frozen=True)
class Finish:
    """What follows each result of a tile.

    Attributes:
        total: The result.
        statements: What is computed of it at its place `I`.
        stored: Arrays, the places there, and what is stored.
    """

    total: Name
    statements: Sequence[Statement]
    stored: Sequence[tuple[Array, Expr, Name]]

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


def existing(term: Term, dtype: str, resolved: Callable[[Expr], Expr]) -> tuple[list[Statement], Expr]:
    """Statements for an element that is zero where its conditions do not hold, and the element.

    `term.value` is the element at `I`, whose place is computed by the last of `term.lets`.
    """
    if not term.conditions:
        return list(term.lets), resolved(term.value)
    *lets, last = term.lets
    real, value = Name("real", "bool"), Name("value", dtype)
    # What is not there is read at element 0 and masked: a branch would keep loads from being under way together.
    place = Let(last.name, Select(real, last.value, Number(0, PLACE)))
    statements = [*lets, Let(real, reduce(both, term.conditions)), place, Let(value, resolved(term.value))]
    return statements, chosen(real, value, Number(0, dtype), dtype)


def filled(
    name: str,
    array: Array,
    total: int,
    threads: int,
    load: Callable[[Expr], tuple[list[Statement], Expr]],
    place: Callable[[Expr], Expr],
) -> tuple[Statement, ...]:
    """Statements by which the threads of a block bring numbers to shared memory.

    Args:
        name: Name of those that a thread has on the way.
        array: Where they go.
        total: How many they are.
        threads: Threads of the block.
        load: Statements for number k, and the number.
        place: Where it goes.
    """
    steps = -(-total // threads)
    run = min(_AT_ONCE, steps)
    rounds = -(-steps // run)
    values = Array(name, array.dtype, run, memory=THREAD)
    u, k = Name("turn", PLACE), Name("k", PLACE)
    outside = [k < total] * (rounds * run * threads > total)

    def one(step: Expr) -> tuple[Statement, ...]:
        number = NUMBER + (u + step * run) * threads
        at = Name("e", PLACE)
        statements, value = load(at)
        first = Let(at, Select(k < total, k, Number(0, PLACE)) if outside else k)
        return (
            Local(values),
            Loop(u, run, (Let(k, number), first, *statements, Store(values, u, value)), run),
            Loop(u, run, (Let(k, number), *when(outside, [Store(array, place(k), Load(values, u))])), run),
        )

    return loop(Name("step", PLACE), rounds, one)


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
        at = Select(reduce(both, term.conditions), term.value, Number(0, PLACE)) if term.conditions else term.value
        statements, total = value(k + number * together)
        finished = (
            *term.lets, *statements, Let(I, at), Let(finish.total, total), *finish.statements,
            *(Store(array, k, name) for array, (_, _, name) in zip(kept, finish.stored, strict=True)),
        )  # fmt: skip
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
