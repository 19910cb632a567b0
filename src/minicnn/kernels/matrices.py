"""Matrix products by tiles: a block brings pieces of both matrices to shared memory, the next ones ahead of time."""

from __future__ import annotations

import math
from collections.abc import Sequence

from minicnn.kernels.blocks import BLOCK, NUMBER, PART, Finish, Operand, copied, loops, results
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
)
from minicnn.kernels.products import Term
from minicnn.kernels.statements import Barrier, Copy, Let, Local, Loop, Shared, Statement, Store, when
from minicnn.kernels.tiles import TileShape
from minicnn.program.graph import Node

_PAD = 4  # numbers between columns of shared memory, so that these begin in different banks


def multiplied(node: Node, shape: TileShape, operands: Sequence[Operand], finish: Finish) -> list[Statement]:
    """Statements of a block that makes a tile of a matrix product.

    Args:
        node: The product, or one that makes partial sums of it.
        shape: The sizes.
        operands: Its operands, as matrices that they are stored as.
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
    left = _Side("left", dtype, m, s.rows, terms, s, transposed[0], operands[0], row)
    right = _Side("right", dtype, n, s.columns, terms, s, transposed[1], operands[1], column)
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

    # The last parts may have fewer terms than others, or none.
    steps: int | Expr = run // s.depth
    if run * s.splits - terms >= s.depth:
        steps = Select(first < last, (last + (s.depth - 1) - first) // s.depth, Number(0, PLACE))
    body = tuple(work(step if run > s.depth else Number(0, PLACE)))
    zeros = Loop(e, sums.size, (Store(sums, e, Number(0, dtype)),), sums.size)
    width = s.thread_columns if n % s.thread_columns == 0 else 1

    def place(k: Expr) -> Term:
        r, c = Name("r", PLACE), Name("c", PLACE)
        names = [
            Let(r, row + (y * s.thread_rows + k // s.thread_columns)),
            Let(c, column + (x * s.thread_columns + k % s.thread_columns)),
        ]
        return Term(r * n + c, names, [*[r < m] * (m % s.rows > 0), *[c < n] * (n % s.columns > 0)])

    return [
        *lets, Shared(left.array), Shared(right.array), Local(left.next), Local(right.next), Local(sums), zeros,
        Local(a), Local(b), *left.load(first, last), *right.load(first, last),
        *([Loop(step, steps, body)] if run > s.depth else body),
        *results(sums.size, width, place, lambda k: ([], Load(sums, k)), finish),
    ]  # fmt: skip


class _Side:
    """How a block brings its piece of a matrix to shared memory; `along`: results are neighbours in memory."""

    def __init__(
        self, name: str, dtype: str, limit: int, size: int, terms: int, shape: TileShape, along: bool, operand: Operand,
        origin: Expr,
    ) -> None:  # fmt: skip
        self.limit, self.size, self.depth, self.along, self.threads = limit, size, shape.depth, along, shape.threads
        self.operand, self.origin, self.stride = operand, origin, -(-size // _PAD) * _PAD + _PAD
        self.array = Array(name, dtype, shape.depth * self.stride, memory=SHARED)
        self.run = operand.run(limit, size) if along else operand.run(terms, shape.depth)
        self.loads = shape.depth * size // self.run
        self.each = -(-self.loads // shape.threads)
        self.next = Array(f"next_{name}", dtype, self.each * self.run, memory=THREAD)

    def _number(self, u: Expr) -> tuple[list[Let], Expr, Expr, list[Expr]]:
        """Load u of a thread: names that it takes, its result and its term, and whether it is one."""
        e = Name("e", PLACE)
        length = (self.size if self.along else self.depth) // self.run
        near, far = e % length * self.run, e // length
        result, term = (near, far) if self.along else (far, near)
        inside = [e < self.loads] * (self.loads % self.threads > 0)
        return [Let(e, NUMBER + u * self.threads)], result, term, inside

    def load(self, first: Expr, last: Expr) -> list[Statement]:
        """Statements that ask for the piece from a term on, of those before the last."""
        u, m, k = (Name(name, PLACE) for name in ("u", "m", "k"))
        lets, result, term, inside = self._number(u)
        conditions = [*[m < self.limit] * (self.limit % self.size > 0), k < last, *inside]
        body = (
            *lets, Let(m, self.origin + result), Let(k, first + term),
            *self.operand.loaded((k, m) if self.along else (m, k), conditions, self.next, u * self.run, self.run),
        )  # fmt: skip
        return [Loop(u, self.each, body, self.each)]

    def store(self) -> list[Statement]:
        """Statements that put what has come into shared memory."""
        u, q, step = Name("u", PLACE), Name("q", PLACE), 1 if self.along else self.stride
        lets, result, term, inside = self._number(u)
        place = term * self.stride + result
        put: Statement = Copy(self.run, self.array, place, self.next, u * self.run)
        if self.run == 1 or step > 1:
            one = Store(self.array, place + q * step, Load(self.next, u * self.run + q))
            put = Loop(q, self.run, (one,), self.run)
        return [Loop(u, self.each, (*lets, *when(inside, [put])), self.each)]

    def of_thread(self, target: Array, k: Expr, number: Expr) -> Statement:
        """Statement that brings what a thread needs of term k to registers."""
        place = k * self.stride + number * target.size
        return copied(target.size, target, self.array, place, math.gcd(self.stride, target.size))
