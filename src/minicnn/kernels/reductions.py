"""Sums and maxima whose terms several threads share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

from minicnn.kernels.expressions import PLACE, Array, Call, Expr, I, Load, Name, Number, R, both
from minicnn.kernels.statements import Assign, Barrier, If, Let, Loop, Shared, Statement, Store, Variable, when
from minicnn.kernels.tiles import BLOCK, PART, THREAD, TOTAL

RESULT = Name("o", PLACE)


@dataclass(frozen=True)
class Sharing:
    """Division of the terms of sums among threads.

    Attributes:
        results: Sums.
        terms: Terms of each.
        side: Sums of a block.
        lanes: Threads of each sum, a power of two.
        splits: Partial sums that each sum consists of, made by as many blocks.
        terms_first: Whether terms, rather than results, are neighbours in memory.
    """

    results: int
    terms: int
    side: int
    lanes: int
    splits: int = 1
    terms_first: bool = True


def shared_sum(
    sharing: Sharing, join: str, dtype: str, term: Expr, finish: Sequence[Statement], threads: int
) -> list[Statement]:
    """Statements of a block whose threads join the terms of some results.

    Args:
        sharing: Who does what.
        join: "sum" or "max".
        dtype: Type of the results.
        term: Term r of result `RESULT`.
        finish: What is done with each result, called "total": element i of part `PART` of the sums.
        threads: Threads of the block, of which as many work as are needed.
    """
    s, columns = sharing, -(-sharing.results // sharing.side)
    run, total, lane, beside, k = -(-s.terms // s.splits), *(
        Name(name, kind) for name, kind in ((TOTAL, dtype), ("lane", PLACE), ("beside", PLACE), ("k", PLACE))
    )  # fmt: skip
    sums, here = Array("sums", dtype, threads), Name("joined", dtype)
    # Neighbouring threads read neighbouring numbers.
    mine = (THREAD % s.lanes, THREAD // s.lanes) if s.terms_first else (THREAD // s.side, THREAD % s.side)
    step = 1 if s.terms_first else s.side
    inside = [s.results > RESULT] * (s.results % s.side > 0 or s.side * s.lanes < threads)
    inside += [beside < s.side] * (s.terms_first and s.side * s.lanes < threads)
    inside += [lane < s.lanes] * (not s.terms_first and s.side * s.lanes < threads)

    def joined(x: Expr, y: Expr) -> Expr:
        return Call("maximum", (x, y), dtype) if join == "max" else x + y

    at = k * s.lanes + lane
    within = [at < run] * (run % s.lanes > 0) + [s.terms > R] * (run * s.splits > s.terms)
    add = (Let(Name("r", PLACE), PART * run + at), *when(within, (Assign(here, joined(here, term)),)))
    first = Variable(here, Number(_neutral(join, dtype), dtype))
    statements: list[Statement] = [
        Let(PART, BLOCK // columns), Let(lane, mine[0]), Let(beside, mine[1]),
        Let(RESULT, BLOCK % columns * s.side + beside), first,
        *when(inside, (Loop(k, -(-run // s.lanes), add, 4),)),
        Shared(sums), Store(sums, THREAD, here), Barrier(),
    ]  # fmt: skip
    half = s.lanes // 2
    while half:
        pair = joined(Load(sums, THREAD), Load(sums, THREAD + half * step))
        working = [*inside, lane < half]
        statements += [If(reduce(both, working), (Store(sums, THREAD, pair),)), Barrier()]
        half //= 2
    last = (Let(I, RESULT), Let(total, Load(sums, THREAD)), *finish)
    return [*statements, If(reduce(both, [*inside, lane.equals(0)]), last)]


def _neutral(join: str, dtype: str) -> float:
    """The number that changes no result."""
    if join == "sum":
        return 0
    bits = int("".join(filter(str.isdigit, dtype)) or 1)
    return -math.inf if dtype.startswith("float") else -(2 ** (bits - 1)) if dtype.startswith("int") else 0
