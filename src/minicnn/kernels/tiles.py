"""A plain tile: a block brings parts of two matrices to shared memory, and each thread makes some results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce

from minicnn.kernels.blocks import BLOCK, NUMBER, PART, TOTAL
from minicnn.kernels.expressions import PLACE, SHARED, Array, Binary, Expr, I, Load, Name, Number, Select, both
from minicnn.kernels.products import GROUP, Product, Term
from minicnn.kernels.statements import (
    Assign,
    Barrier,
    If,
    Let,
    Loop,
    Procedure,
    Run,
    Shared,
    Statement,
    Store,
    Variable,
    when,
)


@dataclass(frozen=True)
class TileShape:
    """Sizes of a plain tile.

    Attributes:
        rows: Rows of a block.
        columns: Columns of a block.
        thread_rows: Rows of a thread.
        thread_columns: Columns of a thread.
        depth: Terms of a sum that shared memory holds.
        splits: Partial sums that each sum consists of, made by as many blocks.
    """

    rows: int
    columns: int
    thread_rows: int
    thread_columns: int
    depth: int
    splits: int = 1

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.rows // self.thread_rows * (self.columns // self.thread_columns)

    def numbers(self, product: Product) -> int:
        """Numbers in the shared memory of a block."""
        return self.depth * (self.rows + product.left_runs + self.columns + product.right_runs)

    def tiles(self, product: Product) -> tuple[int, int]:
        """Tiles of rows and of columns of a product."""
        return -(-product.rows // self.rows), -(-product.columns // self.columns)

    def blocks(self, product: Product) -> int:
        """Blocks for a product, with all groups and partial sums."""
        down, across = self.tiles(product)
        return down * across * product.groups * self.splits

    def run(self, product: Product) -> int:
        """Terms of a partial sum, a multiple of `depth`."""
        return -(-product.terms // (self.splits * self.depth)) * self.depth


def tiled(
    product: Product, shape: TileShape, dtype: str, resolved: Callable[[Expr], Expr], finish: Sequence[Statement]
) -> list[Statement]:
    """Statements of a block that makes a tile of a product.

    Args:
        product: The product.
        shape: The sizes.
        dtype: Type in which it computes.
        resolved: An expression of the node's inputs in terms of arrays and functions.
        finish: What is done with each result, called "total": element i of part `PART` of the sums.
    """
    (down, across), run = shape.tiles(product), shape.run(product)
    row, column, first = Name("row0", PLACE), Name("column0", PLACE), Name("term0", PLACE)
    lets: list[Statement] = [
        Let(column, BLOCK % across * shape.columns),
        Let(row, BLOCK // across % down * shape.rows),
        Let(GROUP, BLOCK // (across * down) % product.groups),
        Let(PART, BLOCK // (across * down * product.groups)),
    ]
    left, right = (
        Array(name, dtype, shape.depth * (size + runs), memory=SHARED)
        for name, size, runs in (
            ("left", shape.rows, product.left_runs), ("right", shape.columns, product.right_runs),
        )
    )  # fmt: skip
    sums = [[Name(f"s{i}_{j}", dtype) for j in range(shape.thread_columns)] for i in range(shape.thread_rows)]
    begin = [Variable(name, Number(0, dtype)) for line in sums for name in line]
    step = Name("step", PLACE)
    here = Let(first, PART * run + step * shape.depth)
    whole = run * shape.splits == product.terms  # no block goes beyond the last term

    def fill(array: Array, size: int, most: int, origin: Name, runs: bool, term: Callable[[Expr, Expr], Term]) -> Loop:
        """Each thread brings every `threads`-th element, neighbours in memory one after the other."""
        e, at, t, turn = (Name(name, PLACE) for name in ("e", "at", "t", "turn"))
        element = term(origin + at, first + t)
        conditions = [*[origin + at < most] * (most % size > 0), *[first + t < product.terms] * (not whole)]
        value: Expr = resolved(element.value)
        conditions += element.conditions
        if conditions:
            value = Select(reduce(both, conditions), value, Number(0, dtype))
        outer, inner = (e // shape.depth, e % shape.depth) if runs else (e % size, e // size)
        body = (
            Let(e, turn * shape.threads + NUMBER), Let(at, outer), Let(t, inner), *element.lets,
            Store(array, t * (size + runs) + at, value),
        )  # fmt: skip
        rounds, rest = divmod(size * shape.depth, shape.threads)
        inside = (body[0], If(e < size * shape.depth, body[1:])) if rest else body
        return Loop(turn, rounds + (rest > 0), inside, rounds)

    lanes = shape.columns // shape.thread_columns, shape.rows // shape.thread_rows
    x, y, k = Name("x", PLACE), Name("y", PLACE), Name("k", PLACE)
    a = [Name(f"a{i}", dtype) for i in range(shape.thread_rows)]
    b = [Name(f"b{j}", dtype) for j in range(shape.thread_columns)]
    # Neighbouring threads have neighbouring columns: they read and write side by side.
    multiply = Loop(k, shape.depth, (
        *(Let(name, Load(left, k * (shape.rows + product.left_runs) + (y + i * lanes[1]))) for i, name in enumerate(a)),
        *(Let(name, Load(right, k * (shape.columns + product.right_runs) + (x + j * lanes[0])))
          for j, name in enumerate(b)),
        *(Assign(s, Binary("+", s, a[i] * b[j])) for i, line in enumerate(sums) for j, s in enumerate(line)),
    ), shape.depth)  # fmt: skip
    fills = (
        fill(left, shape.rows, product.rows, row, product.left_runs, product.left),
        fill(right, shape.columns, product.columns, column, product.right_runs, lambda at, t: product.right(t, at)),
    )
    work = Loop(step, run // shape.depth, (here, *fills, Barrier(), multiply, Barrier()))
    threads = Let(x, NUMBER % lanes[0]), Let(y, NUMBER // lanes[0])
    results = [
        Run("finish", (row + (y + i * lanes[1]), column + (x + j * lanes[0]), GROUP, PART, s))
        for i, line in enumerate(sums)
        for j, s in enumerate(line)
    ]
    finished = _finished(product, Name(TOTAL, dtype), finish)
    return [finished, *lets, Shared(left), Shared(right), *threads, *begin, work, *results]


def _finished(product: Product, total: Name, finish: Sequence[Statement]) -> Procedure:
    """Procedure for the result in row r and column c, if there is one."""
    r, c = Name("r", PLACE), Name("c", PLACE)
    place = product.place(r, c)
    body = when([r < product.rows, c < product.columns], (*place.lets, Let(I, place.value), *finish))
    return Procedure("finish", (r, c, GROUP, PART, total), body)
