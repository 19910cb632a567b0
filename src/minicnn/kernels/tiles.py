"""A plain tile: a block brings parts of two matrices to shared memory, and each thread makes some results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import chain

from minicnn.kernels.blocks import BLOCK, NUMBER, PART, TOTAL
from minicnn.kernels.expressions import (
    PLACE,
    SHARED,
    Apply,
    Array,
    Binary,
    Body,
    Call,
    Expr,
    I,
    Load,
    Name,
    Number,
    Select,
    both,
    changed,
    parts_of,
)
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


def padding(depth: int) -> int:
    """Numbers between those of two terms in shared memory, where 32 neighbouring threads store those of a row.

    Then each of them stores in another of the 32 banks.
    """
    return max(1, 32 // depth)


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
        beside = padding(self.depth) * (product.left_runs + product.right_runs)
        return self.depth * (self.rows + self.columns + beside)

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
    product: Product,
    shape: TileShape,
    dtype: str,
    resolved: Callable[[Expr], Expr],
    define: Callable[[tuple[Name, ...], Expr, str], str],
    finish: Sequence[Statement],
) -> list[Statement]:
    """Statements of a block that makes a tile of a product.

    Args:
        product: The product.
        shape: The sizes.
        dtype: Type in which it computes.
        resolved: An expression of the node's inputs in terms of arrays and functions.
        define: Name of a new function, of some places, that gives an expression; with a title.
        finish: What is done with each result, called "total": element i of part `PART` of the sums.
    """
    (down, across), run = shape.tiles(product), shape.run(product)
    row, column, first = Name("row0", PLACE), Name("column0", PLACE), Name("term0", PLACE)
    lets: list[Statement] = [
        Let(column, BLOCK % across * shape.columns),
        Let(row, BLOCK // across % down * shape.rows),
        Let(GROUP, BLOCK // (across * down) % product.groups),
        Let(PART, BLOCK // (across * down * product.groups)),
        Let(first, PART * run),
    ]
    steps, step = run // shape.depth, Name("step", PLACE)
    whole = run * shape.splits == product.terms  # no block goes beyond the last term
    loads = [
        _Loads("left", shape.rows, product.left_runs, product.rows, row, product.left),
        _Loads("right", shape.columns, product.right_runs, product.columns, column, lambda at, t: product.right(t, at)),
    ]
    pitches = [one.size + one.runs * padding(shape.depth) for one in loads]
    arrays = [
        Array(one.name, dtype, shape.depth * pitch, memory=SHARED) for one, pitch in zip(loads, pitches, strict=True)
    ]
    functions = [one.function(None if whole else product.terms, dtype, resolved, define) for one in loads]

    def read(term: Expr) -> list[tuple[Name, Expr]]:
        """The numbers that a thread brings from the step that begins with a term."""
        return [
            (Name(f"{one.name}{k}", dtype), Apply(function, (one.origin + at, term + t, GROUP)))
            for one, function in zip(loads, functions, strict=True)
            for k, (at, t, _) in enumerate(one.places(shape))
        ]

    stores = [
        when(inside, (Store(array, t * pitch + at, Name(f"{one.name}{k}", dtype)),))
        for one, array, pitch in zip(loads, arrays, pitches, strict=True)
        for k, (at, t, inside) in enumerate(one.places(shape))
    ]
    lanes = shape.columns // shape.thread_columns, shape.rows // shape.thread_rows
    x, y, k = Name("x", PLACE), Name("y", PLACE), Name("k", PLACE)
    a = [Name(f"a{i}", dtype) for i in range(shape.thread_rows)]
    b = [Name(f"b{j}", dtype) for j in range(shape.thread_columns)]
    sums = [[Name(f"s{i}_{j}", dtype) for j in range(shape.thread_columns)] for i in range(shape.thread_rows)]
    left, right = arrays
    # Neighbouring threads have neighbouring columns: they read and write side by side.
    multiply = Loop(k, shape.depth, (
        *(Let(name, Load(left, k * pitches[0] + (y + i * lanes[1]))) for i, name in enumerate(a)),
        *(Let(name, Load(right, k * pitches[1] + (x + j * lanes[0]))) for j, name in enumerate(b)),
        *(Assign(s, Binary("+", s, a[i] * b[j])) for i, line in enumerate(sums) for j, s in enumerate(line)),
    ), shape.depth)  # fmt: skip
    # What the next step needs is on its way while this one multiplies.
    following = [Assign(name, value) for name, value in read(first + (step + 1) * shape.depth)]
    ahead = [If(step < steps - 1, tuple(following))] * (steps > 1)
    work = Loop(step, steps, (*chain(*stores), Barrier(), *ahead, multiply, Barrier()))
    threads = Let(x, NUMBER % lanes[0]), Let(y, NUMBER // lanes[0])
    begin = [Variable(name, Number(0, dtype)) for line in sums for name in line]
    begin += [Variable(name, value) for name, value in read(first)]
    results = [
        Run("finish", (row + (y + i * lanes[1]), column + (x + j * lanes[0]), GROUP, PART, s))
        for i, line in enumerate(sums)
        for j, s in enumerate(line)
    ]
    finished = _finished(product, Name(TOTAL, dtype), finish)
    return [finished, *lets, Shared(left), Shared(right), *threads, *begin, work, *results]


@dataclass(frozen=True)
class _Loads:
    """How the threads of a block bring an operand's numbers to shared memory.

    Attributes:
        name: The operand.
        size: Its rows or columns in a block.
        runs: Whether terms, rather than those, are neighbours in memory.
        most: Its rows or columns in the product.
        origin: The first of the block.
        term: Its element in a row or column, and term.
    """

    name: str
    size: int
    runs: bool
    most: int
    origin: Name
    term: Callable[[Expr, Expr], Term]

    def places(self, shape: TileShape) -> Iterator[tuple[Expr, Expr, list[Expr]]]:
        """Row or column and term of each number that a thread brings, neighbours in memory by neighbouring threads.

        With each comes the condition for it. All sizes are powers of two, so that a thread has one term, or one row.
        """
        inner, outer = (shape.depth, self.size) if self.runs else (self.size, shape.depth)
        few = inner * outer < shape.threads
        thread: Expr = NUMBER % (inner * outer) if few else NUMBER  # what is beyond the tile is read nowhere
        across = max(1, inner // shape.threads)
        for k in range(max(1, inner * outer // shape.threads)):
            near: Expr = thread + k % across * shape.threads if across > 1 else thread % inner
            far: Expr = Number(k // across, PLACE)
            if inner < shape.threads:
                far = thread // inner + k * (shape.threads // inner)
            inside = [inner * outer > NUMBER] * few
            yield (far, near, inside) if self.runs else (near, far, inside)

    def function(
        self,
        terms: int | None,
        dtype: str,
        resolved: Callable[[Expr], Expr],
        define: Callable[[tuple[Name, ...], Expr, str], str],
    ) -> str:
        """Name of a function that gives the element in a row or column, and a term, of a group; 0 beyond the last."""
        at, t = Name("at", PLACE), Name("t", PLACE)
        element = self.term(at, t)
        value: Expr = resolved(element.value)
        conditions = [at < self.most] * (self.most % self.size > 0) + ([] if terms is None else [t < terms])
        if conditions := [*conditions, *element.conditions]:
            value = _if_all(conditions, value, dtype)
        return define((at, t, GROUP), Body(tuple(element.lets), value, dtype), f"{self.name} operand")


def _if_all(conditions: Sequence[Expr], x: Expr, dtype: str) -> Expr:
    """An element if some conditions hold, else 0.

    In a branch each load would wait for the one before it: instead all are made, from places that exist, unless a place
    has to be read itself.
    """
    condition, zero = reduce(both, conditions), Number(0, dtype)
    places = [one.place if isinstance(one, Load) else one.arguments for one in parts_of(x, Load | Apply)]
    if not places or any(parts_of((*places,), Load | Apply)) or any(parts_of(x, Body)):
        return Select(condition, x, zero)

    def moved(one: Expr) -> Expr | None:
        match one:
            case Load(array, place):
                return Load(array, Select(condition, place, Number(0, PLACE)))
            case Apply(function, arguments):
                return Apply(function, tuple(Select(condition, place, Number(0, PLACE)) for place in arguments))
        return None

    return Call("choose", (condition, changed(x, moved), zero), dtype)


def _finished(product: Product, total: Name, finish: Sequence[Statement]) -> Procedure:
    """Procedure for the result in row r and column c, if there is one."""
    r, c = Name("r", PLACE), Name("c", PLACE)
    place = product.place(r, c)
    body = when([r < product.rows, c < product.columns], (*place.lets, Let(I, place.value), *finish))
    return Procedure("finish", (r, c, GROUP, PART, total), body)
