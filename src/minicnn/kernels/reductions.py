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
_FEW_LANES = 8  # threads of a sum, a power of two, of which one adds up what all of them have


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


def totals(count: int, dtype: str) -> list[Name]:
    """Names of so many results that `shared_sum` makes side by side."""
    return [Name(TOTAL if k == 0 else f"{TOTAL}{k}", dtype) for k in range(count)]


def shared_sum(
    sharing: Sharing, join: str, dtype: str, terms: Sequence[Expr], finish: Sequence[Statement], threads: int
) -> list[Statement]:
    """Statements of a block whose threads join the terms of some results.

    Args:
        sharing: Who does what.
        join: "sum" or "max".
        dtype: Type of the results.
        terms: Term r of result `RESULT`, of each of several arrays of results that have as many terms.
        finish: What is done with each result, of `totals`: element i of part `PART` of the sums.
        threads: Threads of the block, of which as many work as are needed.
    """
    s, columns = sharing, -(-sharing.results // sharing.side)
    run, lane, beside, k = -(-s.terms // s.splits), *(Name(name, PLACE) for name in ("lane", "beside", "k"))
    # One array for all sums, so that one barrier is enough.
    sums = Array("sums", dtype, threads * len(terms), memory=SHARED)
    here = [Name(f"joined{n or ''}", dtype) for n in range(len(terms))]
    places = [NUMBER + n * threads if n else NUMBER for n in range(len(terms))]
    # Neighbouring threads read neighbouring numbers.
    mine = (NUMBER % s.lanes, NUMBER // s.lanes) if s.terms_first else (NUMBER // s.side, NUMBER % s.side)
    inside = [s.results > RESULT] * (s.results % s.side > 0 or s.side * s.lanes < threads)
    inside += [beside < s.side] * (s.terms_first and s.side * s.lanes < threads)
    inside += [lane < s.lanes] * (not s.terms_first and s.side * s.lanes < threads)

    def joined(x: Expr, y: Expr) -> Expr:
        return Call("maximum", (x, y), dtype) if join == "max" else x + y

    r, last, rounds = Name("r", PLACE), Name("last", PLACE), Name("rounds", PLACE)
    add = (
        Let(r, PART * run + (k * s.lanes + lane)),
        *(Assign(one, joined(one, term)) for one, term in zip(here, terms, strict=True)),
    )
    # A loop without conditions, so that several loads are under way at once.
    end = PART * run + run
    ends = Select(end < s.terms, end, Number(s.terms, PLACE)) if run * s.splits > s.terms else end
    empty = [PART * run < s.terms] * (run * (s.splits - 1) > s.terms)  # of the last parts some may have no term
    # Where all parts are as long, rounds are known to the compiler: what it unrolls loads all of them side by side.
    known = run * s.splits == s.terms
    count = [] if known else [
        Let(last, ends), Let(rounds, (last + (s.lanes - 1) - (PART * run + lane)) // s.lanes),
    ]  # fmt: skip
    loop = [Loop(k, run // s.lanes if known else rounds, add, 8)] * (not known or run >= s.lanes)
    over = [If(lane < run % s.lanes, (Let(k, Number(run // s.lanes, PLACE)), *add))] * (known and run % s.lanes > 0)
    first = [Variable(one, Number(_neutral(join, dtype), dtype)) for one in here]
    stores = [Store(sums, place, one) for place, one in zip(places, here, strict=True)]
    statements: list[Statement] = [
        Let(PART, BLOCK // columns), Let(lane, mine[0]), Let(beside, mine[1]),
        Let(RESULT, BLOCK % columns * s.side + beside), *first,
        *when([*inside, *empty], (*count, *loop, *over)),
        Shared(sums), *stores, Barrier(),
    ]  # fmt: skip

    def others(step: int) -> list[Statement]:
        """Statements by which a thread joins what another has, so many lanes on."""
        far = step * (1 if s.terms_first else s.side)
        return [Assign(one, joined(one, Load(sums, place + far))) for one, place in zip(here, places, strict=True)]

    last_of_all: list[Statement] = [
        Let(I, RESULT), *(Let(total, one) for total, one in zip(totals(len(terms), dtype), here, strict=True)), *finish
    ]  # fmt: skip
    left = s.lanes
    while left > _FEW_LANES:  # several at a time, as each round takes a barrier
        left //= _FEW_LANES
        joins = [one for other in range(1, _FEW_LANES) for one in others(other * left)]
        statements += [If(reduce(both, [*inside, lane < left]), (*joins, *stores)), Barrier()]
    joins = [one for other in range(1, left) for one in others(other)]
    return [*statements, If(reduce(both, [*inside, lane.equals(0)]), (*joins, *last_of_all))]


def _neutral(join: str, dtype: str) -> float:
    """The number that changes no result."""
    if join == "sum":
        return 0
    bits = int("".join(filter(str.isdigit, dtype)) or 1)
    return -math.inf if dtype.startswith("float") else -(2 ** (bits - 1)) if dtype.startswith("int") else 0
