"""Matrix products by tiles: a block brings pieces of both matrices to shared memory, the next ones ahead of time."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce

from minicnn.kernels.blocks import BLOCK, NUMBER, PART, Finish, copied, loops, results
from minicnn.kernels.expressions import (
    PLACE,
    SHARED,
    THREAD,
    Array,
    Binary,
    Expr,
    Load,
    Name,
    Number,
    Select,
    both,
    chosen,
)
from minicnn.kernels.products import Term
from minicnn.kernels.statements import Barrier, Let, Local, Loop, Shared, Statement, Store, when
from minicnn.kernels.tiles import TileShape
from minicnn.program.graph import Node

_PAD = 4  # numbers between columns of shared memory, so that these begin in different banks


def multiplied(
    node: Node, shape: TileShape, operands: tuple[Callable[[Expr, Expr], Expr], Callable[[Expr, Expr], Expr]],
    finish: Finish,
) -> list[Statement]:  # fmt: skip
    """Statements of a block that makes a tile of a matrix product.

    Args:
        node: The product, or one that makes partial sums of it.
        shape: The sizes.
        operands: For each operand, its element in a row and a column of it as it is stored.
        finish: What follows each result of part `PART` of the sums.
    """
    (m, n), s, dtype = node.outputs[0].shape[-2:], shape, node.outputs[0].dtype
    transposed = node.attrs["transpose_a"], not node.attrs["transpose_b"]
    terms = node.inputs[0].shape[0 if transposed[0] else 1]
    across, run = -(-n // s.columns), -(-terms // (s.splits * s.depth)) * s.depth  # terms of a part
    row, column, first, last = (Name(name, PLACE) for name in ("row0", "column0", "first", "last"))
    x, y, step = (Name(name, PLACE) for name in ("x", "y", "step"))
    columns = s.columns // s.thread_columns
    end = first + run
    lets: list[Statement] = [
        Let(PART, BLOCK % s.splits),
        Let(column, BLOCK // s.splits % across * s.columns), Let(row, BLOCK // (s.splits * across) * s.rows),
        Let(x, NUMBER % columns), Let(y, NUMBER // columns), Let(first, PART * run),
        Let(last, Select(end < terms, end, Number(terms, PLACE)) if run * s.splits > terms else end),
    ]  # fmt: skip
    left = _Side("left", dtype, m, s.rows, s, transposed[0], operands[0], row)
    right = _Side("right", dtype, n, s.columns, s, transposed[1], operands[1], column)
    sums = Array("sums", dtype, s.thread_rows * s.thread_columns, memory=THREAD)
    e, k, i, j = (Name(name, PLACE) for name in ("e", "term", "down", "across"))
    a, b = (Array(name, dtype, size, memory=THREAD) for name, size in (("a", s.thread_rows), ("b", s.thread_columns)))
    at = i * s.thread_columns + j
    multiply = Loop(k, s.depth, (
        left.of_thread(a, k, y), right.of_thread(b, k, x),
        *loops([(i, s.thread_rows), (j, s.thread_columns)],
               (Store(sums, at, Binary("+", Load(sums, at), Load(a, i) * Load(b, j))),)),
    ), min(16, s.depth))  # fmt: skip

    def work(step: Expr) -> list[Statement]:
        term = first + step * s.depth
        # The next terms are on their way from memory while those in shared memory are multiplied.
        ahead = [*left.load(term + s.depth, last), *right.load(term + s.depth, last)] if run > s.depth else []
        return [Barrier(), *left.store(), *right.store(), Barrier(), *ahead, multiply]

    # A part may have fewer terms than the others, or none; a whole block skips what is beyond the end.
    steps = run // s.depth
    short = [first + step * s.depth < last] * (run * s.splits - terms >= s.depth)
    body = when(short, work(step)) if steps > 1 else tuple(work(step.replaced({step: Number(0, PLACE)})))
    zeros = Loop(e, sums.size, (Store(sums, e, Number(0, dtype)),), sums.size)
    width = s.thread_columns if n % s.thread_columns == 0 else 1

    def place(k: Expr) -> Term:
        r, c = Name("r", PLACE), Name("c", PLACE)
        own = [
            Let(r, row + (y * s.thread_rows + k // s.thread_columns)),
            Let(c, column + (x * s.thread_columns + k % s.thread_columns)),
        ]
        return Term(r * n + c, own, [*[r < m] * (m % s.rows > 0), *[c < n] * (n % s.columns > 0)])

    return [
        *lets, Shared(left.array), Shared(right.array), Local(left.next), Local(right.next), Local(sums), zeros,
        Local(a), Local(b), *left.load(first, last), *right.load(first, last),
        *([Loop(step, steps, body)] if steps > 1 else body),
        *results(sums.size, width, place, lambda k: ([], Load(sums, k)), finish),
    ]  # fmt: skip


class _Side:
    """How a block brings its piece of a matrix to shared memory; `along`: results are neighbours in memory."""

    def __init__(
        self, name: str, dtype: str, limit: int, size: int, shape: TileShape, along: bool,
        element: Callable[[Expr, Expr], Expr], origin: Expr,
    ) -> None:  # fmt: skip
        self.limit, self.size, self.depth, self.along, self.threads = limit, size, shape.depth, along, shape.threads
        self.element, self.origin, self.dtype, self.stride = element, origin, dtype, -(-size // _PAD) * _PAD + _PAD
        self.array = Array(name, dtype, shape.depth * self.stride, memory=SHARED)
        self.total = shape.depth * size
        self.each = -(-self.total // shape.threads)
        self.next = Array(f"next_{name}", dtype, self.each, memory=THREAD)

    def _number(self, u: Expr) -> tuple[list[Statement], Expr, Expr, list[Expr]]:
        """Number u of a thread: names that it takes, its result and its term, and whether it is one."""
        e = Name("e", PLACE)
        lets: list[Statement] = [Let(e, NUMBER + u * self.threads)]
        at, term = (e % self.size, e // self.size) if self.along else (e // self.depth, e % self.depth)
        return lets, at, term, [e < self.total] * (self.total % self.threads > 0)

    def load(self, first: Expr, last: Expr) -> list[Statement]:
        """Statements that ask for the piece from a term on, of those before the last."""
        u, m, k = (Name(name, PLACE) for name in ("u", "m", "k"))
        lets, at, term, real = self._number(u)
        conditions = [*[m < self.limit] * (self.limit % self.size > 0), k < last, *real]
        there, value, zero = Name("real", "bool"), Name("value", self.dtype), Number(0, PLACE)
        r, c = (Select(there, one, zero) for one in ((k, m) if self.along else (m, k)))
        places = Name("of_row", PLACE), Name("of_column", PLACE)
        body = (
            *lets, Let(m, self.origin + at), Let(k, first + term), Let(there, reduce(both, conditions)),
            Let(places[0], r), Let(places[1], c), Let(value, self.element(*places)),
            Store(self.next, u, chosen(there, value, Number(0, self.dtype), self.dtype)),
        )  # fmt: skip
        return [Loop(u, self.each, body, self.each)]

    def store(self) -> list[Statement]:
        """Statements that put what has come into shared memory."""
        u = Name("u", PLACE)
        lets, at, term, real = self._number(u)
        put = Store(self.array, term * self.stride + at, Load(self.next, u))
        return [Loop(u, self.each, (*lets, *when(real, [put])), self.each)]

    def of_thread(self, target: Array, k: Expr, number: Expr) -> Statement:
        """Statement that brings what a thread needs of term k to registers."""
        place = k * self.stride + number * target.size
        return copied(target.size, target, self.array, place, math.gcd(self.stride, target.size))
