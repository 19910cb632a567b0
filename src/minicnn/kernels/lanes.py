"""Sums and maxima of terms that neighbouring threads share, each of which gets the result."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from minicnn.kernels.blocks import NUMBER
from minicnn.kernels.expressions import PLACE, Array, Call, Expr, Load, Name, Number, R
from minicnn.kernels.statements import (
    Assign,
    Barrier,
    Block,
    If,
    Join,
    Loop,
    Statement,
    Store,
    Variable,
    loop,
    when,
)

LANE = Name("lane", PLACE)
_TOGETHER = 16  # terms that are under way together


def joined(join: str, x: Expr, y: Expr, dtype: str) -> Expr:
    """Two numbers joined: "sum" or "max"."""
    return Call("maximum", (x, y), dtype) if join == "max" else x + y


def shared_terms(total: Name, join: str, count: int, lanes: int, term: Expr) -> list[Statement]:
    """Statements that join terms r of a sum or a maximum; `LANE` of so many threads side by side has every such one."""
    dtype, u = str(total.dtype), Name("u", PLACE)

    def add(r: Expr) -> Statement:
        return Assign(total, joined(join, total, term.replaced({R: r}), dtype))

    lane: Expr = LANE if lanes > 1 else Number(0, PLACE)
    whole, rest = divmod(count, lanes)
    neutral = -math.inf if join == "max" else 0
    return [
        Variable(total, Number(neutral, dtype)),
        *loop(u, whole, lambda u: [add(u * lanes + LANE if lanes > 1 else u)], min(_TOGETHER, whole)),
        *(when([lane < rest], [add(lane + whole * lanes)]) if rest else ()),
        *[Join(total, join, lanes)] * (lanes > 1),
    ]


def exchanged(statements: Iterable[Statement], exchange: Callable[[str], Array]) -> Iterator[Statement]:
    """Statements whose threads join what they have through shared memory, as not every device hands on registers.

    Args:
        statements: The statements.
        exchange: Shared memory with a number of a type for each thread of the block.
    """
    for one in statements:
        if isinstance(one, Join):
            yield from _through_memory(one, exchange(str(one.variable.dtype)))
        elif isinstance(one, Loop | If | Block):
            yield replace(one, body=tuple(exchanged(one.body, exchange)))
        else:
            yield one


def _through_memory(x: Join, array: Array) -> Iterator[Statement]:
    total, k = x.variable, Name("other", PLACE)
    first = NUMBER - NUMBER % x.far + (NUMBER % x.near if x.near > 1 else 0)
    number = Load(array, first + k * x.near)
    yield Store(array, NUMBER, total)
    yield Barrier()
    # Each of them joins all numbers in the same order, so that nothing has to hand the result on.
    yield Assign(total, Load(array, first))
    count = x.far // x.near
    yield Loop(k, count, (Assign(total, joined(x.join, total, number, str(total.dtype))),), count - 1, 1)
    yield Barrier()
