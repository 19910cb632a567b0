"""Sums and maxima whose terms several threads share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

from minicnn.kernels.blocks import BLOCK, NUMBER, PART, TOTAL
from minicnn.kernels.expressions import PLACE, SHARED, Array, Call, Expr, I, Load, Name, Number, Select, both
from minicnn.kernels.statements import Assign, Barrier, If, Let, Loop, Shared, Statement, Store, Variable, when

RESULT = Name("o", PLACE)
_FEW_LANES = 8  # threads of a sum of which one adds up what all of them have


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
    sums, here = Array("sums", dtype, threads, memory=SHARED), Name("joined", dtype)
    # Neighbouring threads read neighbouring numbers.
    mine = (NUMBER % s.lanes, NUMBER // s.lanes) if s.terms_first else (NUMBER // s.side, NUMBER % s.side)
    step = 1 if s.terms_first else s.side
    inside = [s.results > RESULT] * (s.results % s.side > 0 or s.side * s.lanes < threads)
    inside += [beside < s.side] * (s.terms_first and s.side * s.lanes < threads)
    inside += [lane < s.lanes] * (not s.terms_first and s.side * s.lanes < threads)

    def joined(x: Expr, y: Expr) -> Expr:
        return Call("maximum", (x, y), dtype) if join == "max" else x + y

    r, last, rounds = Name("r", PLACE), Name("last", PLACE), Name("rounds", PLACE)
    add = (Let(r, PART * run + (k * s.lanes + lane)), Assign(here, joined(here, term)))
    # A loop without conditions, so that several loads are under way at once.
    end = PART * run + run
    ends = Select(end < s.terms, end, Number(s.terms, PLACE)) if run * s.splits > s.terms else end
    empty = [PART * run < s.terms] * (run * (s.splits - 1) > s.terms)  # of the last parts some may have no term
    whole = run % s.lanes == 0 and run * s.splits == s.terms
    count = [] if whole else [
        Let(last, ends), Let(rounds, (last + (s.lanes - 1) - (PART * run + lane)) // s.lanes),
    ]  # fmt: skip
    first = Variable(here, Number(_neutral(join, dtype), dtype))
    statements: list[Statement] = [
        Let(PART, BLOCK // columns), Let(lane, mine[0]), Let(beside, mine[1]),
        Let(RESULT, BLOCK % columns * s.side + beside), first,
        *when([*inside, *empty], (*count, Loop(k, run // s.lanes if whole else rounds, add, 8))),
        Shared(sums), Store(sums, NUMBER, here), Barrier(),
    ]  # fmt: skip
    working = [*inside, lane.equals(0)]
    if s.lanes <= _FEW_LANES:
        # Fewer barriers than rounds of halves would take.
        others = [Assign(here, joined(here, Load(sums, NUMBER + other * step))) for other in range(1, s.lanes)]
        return [*statements, If(reduce(both, working), (*others, Let(I, RESULT), Let(total, here), *finish))]
    half = s.lanes // 2
    while half:
        pair = Assign(here, joined(here, Load(sums, NUMBER + half * step)))
        final = half == 1
        upper = [*inside, lane < half]
        statements.append(If(reduce(both, upper), (pair, *[Store(sums, NUMBER, here)] * (not final))))
        statements += [Barrier()] * (not final)
        half //= 2
    return [*statements, If(reduce(both, working), (Let(I, RESULT), Let(total, here), *finish))]


def _neutral(join: str, dtype: str) -> float:
    """The number that changes no result."""
    if join == "sum":
        return 0
    bits = int("".join(filter(str.isdigit, dtype)) or 1)
    return -math.inf if dtype.startswith("float") else -(2 ** (bits - 1)) if dtype.startswith("int") else 0
