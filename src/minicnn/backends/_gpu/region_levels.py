"""Row-wise regions as statements: a loop over tiles of rows, in it the levels of the region, each behind a barrier.

Beside the place i of an element, trees name its number e in the tile, which is in row q of the tile and in column c.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import cast

from minicnn.backends._gpu.operands import operand
from minicnn.backends._gpu.region_elements import AT, ROW0, C, E, K, O, Q, moved, rounds, softmax_element
from minicnn.backends._gpu.region_layout import SOFTMAX, ElementLoop, Layout, RowRegion, adds_product_sums, logits
from minicnn.backends._gpu.row_steps import ROWS, TILE, TURN, Early
from minicnn.backends._gpu.writer import Writer
from minicnn.kernels.blocks import BLOCK, NUMBER, PART, filled
from minicnn.kernels.elements import element
from minicnn.kernels.expressions import (
    PLACE,
    SHARED,
    ZERO,
    Array,
    Call,
    Element,
    Expr,
    I,
    Load,
    Name,
    Number,
    R,
    Select,
)
from minicnn.kernels.lanes import LANE, shared_terms
from minicnn.kernels.products import Term
from minicnn.kernels.row_sums import WARP, RowProducts, RowSums
from minicnn.kernels.statements import Barrier, Block, Let, Loop, Shared, Statement, Store, replaced, when
from minicnn.ops.checks import normalize_axes
from minicnn.program.graph import Node, Value

_REAL = Name("real", "bool")
Computed = tuple[list[Statement], list[tuple[Value, Name]]]  # statements, and variables that hold values' elements


class Levels:
    """Statements of a region's blocks, level by level.

    Args:
        writer: The writer of the kernel.
        node: The region's node.
    """

    def __init__(self, writer: Writer, node: Node) -> None:
        self.writer = writer
        self.layout: Layout = writer.plan.tiles.layout(node.attrs["region"])
        self.region: RowRegion = self.layout.region
        self.stored = {id(v) for v in node.outputs}
        self.partial_sums: dict[int, Value] = node.attrs["partial_sums"]
        self.slots: dict[int, Array] = {}
        self.tops: dict[int, tuple[Array, Array]] = {}  # maxima and sums of exponentials of a matrix's rows
        self.of_row: dict[int, tuple[Name, Name, Name]] = {}  # the same of a thread's row, and one by the latter
        self.columns = 0  # of the loop that is written
        self.start = 0  # thread that begins the next loop of a level
        product = self.region.product
        self.gradient = product.gradient if product is not None else None
        part = self.partial_sums[id(self.gradient)] if self.gradient is not None else None
        self.steps = writer.row_steps(writer, self.layout, part) if product is not None else None
        self.sums = [n for n in self.region.nodes if id(n) in self.region.sums and n is not self.gradient]

    def statements(self) -> list[Statement]:
        """The whole."""
        region, steps = self.region, self.steps
        begin = self._begin()
        first = list(self.layout.levels[0].loops.values())
        few = [one for one in first if self._is_early(one)]
        early = self._early(few) if few else Early(lambda tile: [], [])
        rows: Expr = Number(region.tile.rows, PLACE)
        if region.batch % region.tile.rows:
            rest = Number(region.batch, PLACE) - ROW0
            rows = Select(rest < region.tile.rows, rest, rows)
        body: list[Statement] = [
            Let(TILE, BLOCK + TURN * region.tile.blocks),
            Let(ROW0, TILE * region.tile.rows),
            Let(ROWS, rows),
        ]
        if steps is not None:
            begin += steps.begin(early)
            body += steps.head(early)
        else:
            body += early.loads(TILE)
        body += self.tile(few, early)
        body += steps.tail(early) if steps is not None else []
        # The last turn of some blocks may be one less.
        turns: int | Expr = region.tiles // region.tile.blocks
        if region.tiles % region.tile.blocks:
            turns = (Number(region.tiles + region.tile.blocks - 1, PLACE) - BLOCK) // region.tile.blocks
        self.writer.kept.clear()
        return [*begin, Loop(TURN, turns, tuple(body), 1), *self._end()]

    # Before and after the tiles -------------------------------------------------------------------

    def _begin(self) -> list[Statement]:
        region, layout, writer = self.region, self.layout, self.writer
        statements: list[Statement] = [Let(PART, BLOCK)]
        for k, (value, at) in enumerate(layout.staged):
            array, source = Array(f"staged{k}", value.dtype, value.size, memory=SHARED), operand(writer, value)
            fill = filled(
                f"fetched{k}", array, value.size, region.tile.threads, source, Term, lambda place: place,
                source.run(value.size),
            )  # fmt: skip
            statements += [Shared(array, at), Block(fill)]
            writer.kept[id(writer.plan.root(value))] = partial(Load, array)
        first = [
            n for one in layout.levels[0].loops.values() for n in one.nodes if self.steps is None or layout.early(n)
        ]
        # Staged matrices must be there before the first level reads them; otherwise a barrier lies in between.
        if any(v is value for n in first for v in n.inputs for value, _ in layout.staged):
            statements.append(Barrier())
        for k, value in enumerate(v for n in region.nodes for v in n.outputs if id(v) in layout.slots):
            columns = value.size // region.batch
            array = Array(f"values{k}", value.dtype, region.tile.rows * columns, title=f"{value.spec}", memory=SHARED)
            statements.append(Shared(array, layout.slots[id(value)]))
            self._keep(value, array)
        for k, (value_id, at) in enumerate(layout.statistics.items()):
            arrays = [Array(f"{name}{k}", "float32", region.tile.rows, memory=SHARED) for name in ("tops", "totals")]
            statements += [Shared(array, at + 4 * region.tile.rows * j) for j, array in enumerate(arrays)]
            self.tops[value_id] = arrays[0], arrays[1]
        for node in self.sums:
            statements += layout.totals[id(node)].begin(layout.scratch[id(node)])
        return statements

    def _keep(self, value: Value, array: Array) -> None:
        """Have a value of the tile read from shared memory."""
        self.slots[id(value)] = array
        self.writer.kept[id(value)] = lambda place: Load(array, self._in_tile(value, place))

    def _in_tile(self, value: Value, place: Expr) -> Expr:
        """Place in the tile of an element of the batch."""
        columns = value.size // self.region.batch
        if place == I and columns == self.columns:
            return E
        places: dict[Expr, Expr] = {ROW0 + Q: Q, ROW0 + R: R, ROW0 * columns + R: R, AT: K}
        return moved(place, ROW0, columns, places)

    def _end(self) -> list[Statement]:
        leave, finish = list[Statement](), list[Statement]()
        for node in (n for n in self.region.nodes if id(n) in self.region.sums):
            array = self.writer.array(self.partial_sums[id(node)])
            first = PART * node.outputs[0].size
            if node is self.gradient:
                leave += self.steps.leave() if self.steps is not None else []
                finish += self.steps.store() if self.steps is not None else []
                continue
            total = self.layout.totals[id(node)]
            leave += [Block(tuple(total.leave()))] * bool(total.left)
            finish.append(Block(tuple(total.finish(partial(_stored, array, first)))))
        return [*[Barrier()] * (self.steps is not None and bool(leave)), *leave, *[Barrier()] * bool(leave), *finish]

    # Levels ---------------------------------------------------------------------------------------

    def _is_early(self, one: ElementLoop) -> bool:
        if self.steps is not None:
            return self.steps.is_early(one)
        sums = any(n.op.name == "matmul" or adds_product_sums(n) for n in one.nodes)
        return one.lanes == 1 and one.columns == 1 and not sums

    def tile(self, few: Sequence[ElementLoop], early: Early) -> list[Statement]:
        """Statements of a tile: all levels, with a barrier behind each, less the loops that are done early."""
        levels = list[list[Statement]]()
        for number, level in enumerate(self.layout.levels):
            self.start = 0
            text = [self._loop(one) for one in level.loops.values() if number or one not in few]
            if number == 0 and self.steps is None:
                text += early.stores
            text += [self._statistics(value) for value in level.statistics]
            if number == 0 and self.steps is not None:
                text += self.steps.behind_product()
            if level.splits and self.steps is not None and self.gradient is not None:
                text += self.steps.split(self.slots[id(self.gradient.inputs[1])])
            others = [self._sum(node) for node in level.sums if node is not self.gradient]
            gradient = any(node is self.gradient for node in level.sums)
            text += self.steps.summed(others) if self.steps is not None and gradient else others
            if text:
                levels.append([*text, Barrier()])
        before = self.steps.before_last(early) if self.steps is not None else []
        return [one for level in levels[:-1] for one in level] + before + levels[-1]

    def _thread(self, items: int) -> Expr:
        """Number of a thread in a loop over so many items; loops between two barriers begin in different warps."""
        threads, start = self.region.tile.threads, self.start
        # Loops between two barriers are independent: those with few items then run in different warps at the same time.
        self.start = (start + -(-items // WARP) * WARP) % threads
        return (NUMBER + (threads - start)) % threads if start else NUMBER

    def _loop(self, one: ElementLoop) -> Statement:
        """Loop over the elements of values with so many columns."""
        region, columns, lanes = self.region, one.columns, one.lanes
        total, step = region.tile.rows * columns, region.tile.threads // lanes
        self.columns, number = columns, self._thread(total * lanes) // lanes
        names: dict[Expr, Expr] = {I: ROW0 + Q, C: ZERO}
        if columns > 1:
            names = {I % columns: C, I // columns: ROW0 + Q}
        trees = ((n, *self._element(n, ROW0 + Q, lanes)) for n in one.nodes)
        computed, results = self._compute((n, replaced(before, names), x.replaced(names)) for n, before, x in trees)
        stores = [store for y, local in results for store in self._stores(y, local, E, I)]
        # Lanes have the same sum after sharing it; one of them stores.
        stored = when([_REAL, *[LANE.equals(0)] * (lanes > 1)], stores)
        self.columns = 0
        return rounds(-(-total // step), lambda turn: (
            Let(K, turn * step + number), Let(_REAL, ROWS * columns > K), Let(E, Select(_REAL, K, Number(0, PLACE))),
            Let(Q, E // columns), *[Let(C, E % columns)] * (columns > 1), Let(I, ROW0 * columns + E),
            *[Let(LANE, NUMBER % lanes)] * (lanes > 1), *computed, *stored,
        ), 4)  # fmt: skip

    def _stores(self, y: Value, x: Expr, e: Expr, i: Expr) -> list[Statement]:
        """Statements that put element e of the tile, which is i of the batch, where it is read."""
        stores: list[Statement] = [Store(self.slots[id(y)], e, x)] if id(y) in self.slots else []
        stores += [Store(self.writer.array(y), i, x)] if id(y) in self.stored else []
        if self.gradient is not None and y is self.gradient.inputs[1] and self.steps is not None:
            stores += self.steps.note(C, x)
        return stores

    def _compute(self, trees: Iterable[tuple[Node, Sequence[Statement], Expr]]) -> Computed:
        """Statements that compute an element of each node's result."""
        statements, results = list[Statement](), list[tuple[Value, Name]]()
        for node, before, tree in trees:
            (y,) = node.outputs
            lines, local = self.writer.let(y, self.writer.resolved(node, tree))
            statements += [*before, *lines]
            self.writer.locals[id(y)] = local
            results.append((y, local))
        self.writer.locals.clear()  # variables end with the loop
        return statements, results

    def _early(self, loops: Sequence[ElementLoop]) -> Early:
        """Elements whose loads nothing behind them waits for, as they are stored later."""
        region, pieces, stores = self.region, list[tuple[Name, Name, int, Expr]](), list[Statement]()
        computed = list[list[Statement]]()
        for one in loops:
            total = region.tile.rows * one.columns
            for first in range(0, total, region.tile.threads):
                number = self.writer.new()
                k, i = Name(f"k_{number}", PLACE), Name(f"i_{number}", PLACE)
                thread = self._thread(min(region.tile.threads, total - first)) + first
                count = region.batch * one.columns
                pieces.append((k, i, total, thread))
                # Behind the last row element 0 is read, where a branch would keep loads from being under way together.
                beyond = (region.tiles - 1) * total + first + region.tile.threads > count
                place = Select(i < count, i, Number(0, PLACE)) if beyond else i
                lines, results = self._compute((n, [], element(n, 0).replaced({I: place})) for n in one.nodes)
                computed.append(lines)
                real = [k < total] * (first + region.tile.threads > total)
                real += [i < count] * (count < region.tiles * total)
                for y, local in results:
                    stores += when(real, self._stores(y, local, k, i))

        def loads(tile: Expr) -> list[Statement]:
            statements = list[Statement]()
            for (k, i, total, thread), lines in zip(pieces, computed, strict=True):
                statements += [Let(k, thread), Let(i, tile * total + k), *lines]
            return statements

        return Early(loads, stores)

    # Elements -------------------------------------------------------------------------------------

    def _element(self, node: Node, row: Expr, lanes: int) -> tuple[list[Statement], Expr]:
        """Expression of an element in column c of a row, and statements before it."""
        y, product = node.outputs[0], self.region.product
        if node.op.name in SOFTMAX:
            top, total = (Load(array, Q) for array in self.tops[id(logits(node))])
            return [], softmax_element(node, row, top, total)
        if product is not None and node is product.node and self.steps is not None:
            return [], self.steps.element(E) * Number(product.scale, "float32")
        if node.op.name == "matmul":
            n, k = y.shape[1], node.inputs[0].shape[1]
            right = C * k + R if node.attrs["transpose_b"] else R * n + C
            count, term = k, Element(0, row * k + R) * Element(1, right)
        elif adds_product_sums(node):
            count, term = node.inputs[0].shape[0], Element(0, R * y.size + I)
        else:
            return [], element(node, 0)
        shared = Name(self.writer.new("sum"), y.dtype)
        return shared_terms(shared, "sum", count, lanes, self.writer.resolved(node, term)), shared

    def _statistics(self, value: Value) -> Statement:
        """Loop over rows whose maxima and sums of exponentials are taken."""
        tile, (tops, totals), columns = self.region.tile, self.tops[id(value)], value.shape[1]
        lanes = 1
        # Threads without a row of their own share the rows of others.
        while self.layout.shuffles and tile.rows * lanes * 2 <= tile.threads and lanes < min(WARP, columns):
            lanes *= 2
        step, number = tile.threads // lanes, self._thread(tile.rows * lanes) // lanes
        top, total, r = Name("top", "float32"), Name("total", "float32"), Name("row_of_tile", PLACE)
        term = self.writer.at(value, (ROW0 + Q) * columns + R)
        # The maximum is taken off before: exp of a large number would be infinite.
        below = Call("exp", (term - top,), "float32")
        stores = Store(tops, Q, top), Store(totals, Q, total)
        return rounds(-(-tile.rows // step), lambda turn: (
            Let(r, turn * step + number), Let(Q, Select(r < ROWS, r, Number(0, PLACE))),
            *[Let(LANE, NUMBER % lanes)] * (lanes > 1), *shared_terms(top, "max", columns, lanes, term),
            *shared_terms(total, "sum", columns, lanes, below),
            *when([r < ROWS, *[LANE.equals(0)] * (lanes > 1)], stores),
        ))  # fmt: skip

    # Sums over rows -------------------------------------------------------------------------------

    def _sum(self, node: Node) -> Statement:
        """Statements that add a tile's rows to a sum."""
        region, layout, x = self.region, self.layout, node.inputs[0]
        total, columns = layout.totals[id(node)], x.size // region.batch
        early = [n for n in region.nodes if id(n) not in region.sums and layout.early(n)]
        # Rows behind the batch hold zeros, but for what is read early.
        zeros = layout.thread_per_row and not any(v is n.outputs[0] for v in node.inputs for n in early)
        rows: int | Expr = region.tile.rows if zeros or region.batch % region.tile.rows == 0 else ROWS

        def taken(tree: Expr) -> Callable[[Expr, Expr], Expr]:
            resolved = self.writer.resolved(node, tree)
            return lambda r, o: resolved.replaced({R: r, O: o})

        if isinstance(total, RowProducts):
            sides = (Element(k, (ROW0 + R) * v.shape[1] + O) for k, v in enumerate(node.inputs))
            return Block(tuple(total.add(rows, *map(taken, sides))))
        fold, term = 1, cast(Expr, Element(0, (ROW0 + R) * columns + O))
        if node.op.name == "matmul":
            m = node.inputs[1].shape[1]
            term = Element(0, (ROW0 + R) * columns + O // m) * Element(1, (ROW0 + R) * m + O % m)
        elif len(normalize_axes("sum", node.attrs["axes"], x.ndim)) == x.ndim:
            fold, term = columns, Element(0, ROW0 * columns + R)
        if not isinstance(total, RowSums):
            raise TypeError("A thread adds up its own sums as it goes.")
        return Block(tuple(total.add(rows * fold, region.tile.rows * fold, taken(term))))


def _stored(array: Array, first: Expr, o: Expr, x: Expr) -> Statement:
    return Store(array, first + o, x)
