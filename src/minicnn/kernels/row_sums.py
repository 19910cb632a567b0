"""Sums over the rows that a block takes, some at a time: they stay in registers, and threads join theirs at the end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from minicnn.kernels.blocks import NUMBER
from minicnn.kernels.expressions import PLACE, SHARED, THREAD, Array, Binary, Expr, Load, Name, Number, Select
from minicnn.kernels.statements import Assign, Join, Let, Local, Loop, Shared, Statement, Store, Variable, loop, when

WARP = 32
_SIDE = 16  # most sums of a row of a product that a thread has
_U, _E, _K, _SUM = Name("u", PLACE), Name("e", PLACE), Name("k", PLACE), Name("sum", "float32")
Out = Callable[[Expr, Expr], Statement]  # what is done with a sum, given its number
Rows = int | Expr  # how many there are


class Totals(ABC):
    """Sums that the threads of a block have in registers.

    Args:
        name: A name that no others of the kernel have.
        count: How many sums.
        threads: Threads of the block.

    Attributes:
        each: Registers of a thread.
        left: Numbers in shared memory that threads leave at the end.
    """

    each: int
    left: int

    def __init__(self, name: str, count: int, threads: int) -> None:
        self.name, self.count, self.threads = name, count, threads

    @property
    def total(self) -> Array:
        """The registers."""
        return Array(f"total_{self.name}", "float32", self.each, memory=THREAD)

    @property
    def scratch(self) -> Array:
        """Numbers that threads leave."""
        return Array(f"left_{self.name}", "float32", self.left, memory=SHARED)

    def begin(self, first: int) -> list[Statement]:
        """Statements before the rows; what threads leave goes to shared memory from a byte on."""
        zeros = _unrolled(_E, self.each, (Store(self.total, _E, Number(0, "float32")),))
        return [*[Shared(self.scratch, first)] * (self.left > 0), Local(self.total), *zeros]

    def added(self, k: Expr, term: Expr) -> Statement:
        """Statement that adds to register k."""
        return Store(self.total, k, Binary("+", Load(self.total, k), term))

    @abstractmethod
    def leave(self) -> Sequence[Statement]:
        """Statements that leave sums of which others have parts, behind the rows."""

    @abstractmethod
    def finish(self, out: Out) -> Sequence[Statement]:
        """Statements that hand the sums out, behind a barrier."""

    def parts(self, o: Expr, count: int, apart: int, out: Out) -> list[Statement]:
        """Statements that add up the parts of sum o, which lie so far apart, and hand it out."""
        j = Name("j", PLACE)
        add = Assign(_SUM, _SUM + Load(self.scratch, j * apart + o))
        return [Variable(_SUM, Number(0, "float32")), Loop(j, count, (add,), count), out(o, _SUM)]


class RowSums(Totals):
    """Sums of which each is one thread's, if they are many; of few, several threads share each.

    Args:
        shuffles: Whether threads of a warp join what they have in registers.
    """

    def __init__(self, name: str, count: int, threads: int, *, shuffles: bool) -> None:
        super().__init__(name, count, threads)
        self.columns = threads if count >= threads else 1 << (count - 1).bit_length()
        self.slices = threads // self.columns
        self.each = -(-count // self.columns)
        self.warps = shuffles and self.columns < WARP < self.columns * self.slices
        parts = threads // WARP if self.warps else self.slices
        self.left = parts * self.columns if self.slices > 1 else 0

    def add(self, rows: Rows, most: int, term: Callable[[Expr, Expr], Expr]) -> list[Statement]:
        """Statements that add term(r, o) for each of some rows r, at most so many, to sum o."""
        part, o = Name("slice", PLACE), Name("o", PLACE)
        whole, rest = divmod(most, self.slices)
        conditions = [o < self.count] * (self.each * self.columns > self.count)
        conditions += [part < self.slices] * (self.threads % self.columns > 0)

        def one(r: Expr) -> Statement:
            return self.added(_E, term(r, o))

        all_rows = [
            *loop(_U, whole, lambda u: [one(part + u * self.slices)], min(8, whole)),
            *(when([part < rest], [one(part + whole * self.slices)]) if rest else ()),
        ]
        if isinstance(rows, int):
            each: Sequence[Statement] = when(conditions, all_rows)
        else:
            count = Select(part < rows, (rows + (self.slices - 1) - part) // self.slices, Number(0, PLACE))
            some = Loop(_U, count, (one(part + _U * self.slices),), 1)
            # A constant number of rows is unrolled.
            each = [*when([*conditions, rows.equals(most)], all_rows), *when([*conditions, rows < most], [some])]
        columns = _unrolled(_E, self.each, (Let(o, NUMBER % self.columns + _E * self.columns), *each))
        return [Let(part, NUMBER // self.columns), *columns]

    def leave(self) -> Sequence[Statement]:
        """See `Totals.leave`."""
        if self.slices == 1:
            return []
        first = Variable(_SUM, Load(self.total, Number(0, PLACE)))
        if not self.warps:
            spare = [self.slices * self.columns > NUMBER] * (self.threads % self.columns > 0)
            return [first, *when(spare, [Store(self.scratch, NUMBER, _SUM)])]
        place = NUMBER // WARP * self.columns + NUMBER % WARP
        store = when([self.columns > NUMBER % WARP], [Store(self.scratch, place, _SUM)])
        return [first, Join(_SUM, "sum", WARP, self.columns), *store]

    def finish(self, out: Out) -> Sequence[Statement]:
        """See `Totals.finish`."""
        if self.slices > 1:
            return when([self.count > NUMBER], self.parts(NUMBER, self.left // self.columns, self.columns, out))
        o = NUMBER + _E * self.columns
        here = when([o < self.count] * (self.each * self.columns > self.count), [out(o, Load(self.total, _E))])
        return _unrolled(_E, self.each, here)


class OwnSums(Totals):
    """Sums of which each thread has all, from the rows that are its own."""

    def __init__(self, name: str, count: int, threads: int) -> None:
        super().__init__(name, count, threads)
        self.each, self.left = count, threads // WARP * count

    def leave(self) -> Sequence[Statement]:
        """See `Totals.leave`."""
        begin, join = Variable(_SUM, Load(self.total, _E)), Join(_SUM, "sum", WARP)
        first = when([(NUMBER % WARP).equals(0)], [Store(self.scratch, NUMBER // WARP * self.count + _E, _SUM)])
        return _unrolled(_E, self.count, (begin, join, *first))

    def finish(self, out: Out) -> Sequence[Statement]:
        """See `Totals.finish`."""
        return when([self.count > NUMBER], self.parts(NUMBER, self.threads // WARP, self.count, out))


class RowProducts(Totals):
    """Product of the transpose of a matrix with another one: a thread has a run of a row of it, which many share."""

    def __init__(self, name: str, shape: tuple[int, int], threads: int) -> None:
        super().__init__(name, shape[0] * shape[1], threads)
        self.columns = shape[1]
        self.run = next(d for d in range(_SIDE, 0, -1) if self.columns % d == 0)
        self.runs = self.count // self.run
        self.slices, self.turns = max(1, threads // self.runs), -(-self.runs // threads)
        self.each, self.left = self.turns * self.run, self.slices * self.count

    def add(
        self, rows: Rows, left: Callable[[Expr, Expr], Expr], right: Callable[[Expr, Expr], Expr]
    ) -> Sequence[Statement]:
        """Statements that add left(r, i) * right(r, j) for each of some rows r to the sum in row i and column j."""
        part, run, x = Name("slice", PLACE), Name("run", PLACE), Name("x", "float32")
        r: Expr = Name("r", PLACE)
        first = run * self.run
        add = self.added(_E * self.run + _K, x * right(r, first % self.columns + _K))
        body = (Let(x, left(r, first // self.columns)), *_unrolled(_K, self.run, (add,)))
        spare = [run < self.runs] * (self.turns > 1)
        spare += [part < self.slices] * (self.threads % self.runs > 0 and self.slices > 1)
        count: Rows = rows
        if self.slices > 1 and isinstance(rows, int) and rows % self.slices == 0:
            count = rows // self.slices
        elif self.slices > 1:
            last = Number(rows, PLACE) if isinstance(rows, int) else rows
            count = Select(part < last, (last + (self.slices - 1) - part) // self.slices, Number(0, PLACE))
        row = Let(Name("r", PLACE), part + _U * self.slices if self.slices > 1 else _U)
        each = when(spare, [Loop(_U, count, (row, *body), 4)])
        lets = Let(part, NUMBER // self.runs)
        return [lets, *_unrolled(_E, self.turns, (Let(run, NUMBER % self.runs + _E * self.threads), *each))]

    def leave(self) -> Sequence[Statement]:
        """See `Totals.leave`."""
        at = NUMBER + _E * self.threads
        store = Store(self.scratch, at * self.run + _K, Load(self.total, _E * self.run + _K))
        spare = [at < self.runs * self.slices] * (self.turns * self.threads > self.runs * self.slices)
        return _unrolled(_E, self.turns, when(spare, _unrolled(_K, self.run, (store,))))

    def finish(self, out: Out) -> Sequence[Statement]:
        """See `Totals.finish`."""
        o, turns = Name("o", PLACE), -(-self.count // self.threads)
        spare = [o < self.count] * (turns * self.threads > self.count)
        parts = when(spare, self.parts(o, self.slices, self.count, out))
        return loop(_U, turns, lambda u: [Let(o, NUMBER + u * self.threads), *parts])


def _unrolled(variable: Name, count: int, body: Sequence[Statement]) -> tuple[Statement, ...]:
    return loop(variable, count, lambda _: body, count)
