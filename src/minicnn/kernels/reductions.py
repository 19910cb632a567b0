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
    sharing: Sharing, join: str, dtype: str, terms: Sequence[Expr], finish: Sequence[Statement], threads: int
) -> list[Statement]:
    """Statements of a block whose threads join the terms of some results; of several sums at once, if need be.

    Args:
        sharing: Who does what.
        join: "sum" or "max".
        dtype: Type of the results.
        terms: Term r of result `RESULT` of each sum.
        finish: What is done with each result, called as `total_of` says: element i of part `PART` of the sums.
        threads: Threads of the block, of which as many work as are needed.
    """
    s, columns = sharing, -(-sharing.results // sharing.side)
    run, lane, beside, k = -(-s.terms // s.splits), *(Name(name, PLACE) for name in ("lane", "beside", "k"))
    sums = Array("sums", dtype, threads * len(terms), memory=SHARED)
    # Of each sum what this thread has so far, the term that it adds, and its place among the threads'.
    each = [(Name(f"joined{n or ''}", dtype), term, NUMBER + n * threads) for n, term in enumerate(terms)]
    totals = [Let(total_of(n, dtype), here) for n, (here, *_) in enumerate(each)]
    # Neighbouring threads read neighbouring numbers.
    mine = (NUMBER % s.lanes, NUMBER // s.lanes) if s.terms_first else (NUMBER // s.side, NUMBER % s.side)
    step = 1 if s.terms_first else s.side
    inside = [s.results > RESULT] * (s.results % s.side > 0 or s.side * s.lanes < threads)
    inside += [beside < s.side] * (s.terms_first and s.side * s.lanes < threads)
    inside += [lane < s.lanes] * (not s.terms_first and s.side * s.lanes < threads)

    def joined(x: Expr, y: Expr) -> Expr:
        return Call("maximum", (x, y), dtype) if join == "max" else x + y

    r, last, rounds = Name("r", PLACE), Name("last", PLACE), Name("rounds", PLACE)
    add = (Let(r, PART * run + (k * s.lanes + lane)), *(Assign(here, joined(here, term)) for here, term, _ in each))
    # A loop without conditions, so that several loads are under way at once.
    end = PART * run + run
    ends = Select(end < s.terms, end, Number(s.terms, PLACE)) if run * s.splits > s.terms else end
    empty = [PART * run < s.terms] * (run * (s.splits - 1) > s.terms)  # of the last parts some may have no term
    whole = run % s.lanes == 0 and run * s.splits == s.terms
    count = [] if whole else [
        Let(last, ends), Let(rounds, (last + (s.lanes - 1) - (PART * run + lane)) // s.lanes),
    ]  # fmt: skip
    first = [Variable(here, Number(_neutral(join, dtype), dtype)) for here, *_ in each]
    statements: list[Statement] = [
        Let(PART, BLOCK // columns), Let(lane, mine[0]), Let(beside, mine[1]),
        Let(RESULT, BLOCK % columns * s.side + beside), *first,
        *when([*inside, *empty], (*count, Loop(k, run // s.lanes if whole else rounds, add, 8))),
        Shared(sums), *(Store(sums, place, here) for here, _, place in each), Barrier(),
    ]  # fmt: skip
    working = [*inside, lane.equals(0)]
    if s.lanes <= _FEW_LANES:
        # Fewer barriers than rounds of halves would take.
        others = [
            Assign(here, joined(here, Load(sums, place + other * step)))
            for here, _, place in each for other in range(1, s.lanes)
        ]  # fmt: skip
        return [*statements, If(reduce(both, working), (*others, Let(I, RESULT), *totals, *finish))]
    half = s.lanes // 2
    while half:
        pairs = [Assign(here, joined(here, Load(sums, place + half * step))) for here, _, place in each]
        final = half == 1
        upper = [*inside, lane < half]
        halves = [] if final else [Store(sums, place, here) for here, _, place in each]
        statements.append(If(reduce(both, upper), (*pairs, *halves)))
        statements += [Barrier()] * (not final)
        half //= 2
    return [*statements, If(reduce(both, working), (Let(I, RESULT), *totals, *finish))]


def total_of(number: int, dtype: str) -> Name:
    """The result of one of several sums."""
    return Name(f"{TOTAL}{number or ''}", dtype)


def _neutral(join: str, dtype: str) -> float:
    """The number that changes no result."""
    if join == "sum":
        return 0
    bits = int("".join(filter(str.isdigit, dtype)) or 1)
    return -math.inf if dtype.startswith("float") else -(2 ** (bits - 1)) if dtype.startswith("int") else 0
