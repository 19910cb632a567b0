"""Row-wise regions of few columns behind a product with rows in memory: a thread takes a row by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from minicnn.backends._gpu.region_elements import AT, ROW0, C, K, moved, softmax_element
from minicnn.backends._gpu.region_layout import SOFTMAX, ElementLoop, logits
from minicnn.backends._gpu.region_levels import Levels
from minicnn.backends._gpu.row_steps import ROWS, Early
from minicnn.kernels.blocks import NUMBER
from minicnn.kernels.expressions import PLACE, THREAD, Array, Call, Expr, I, Load, Name, Number, R
from minicnn.kernels.lanes import shared_terms
from minicnn.kernels.statements import Barrier, Let, Local, Loop, Statement, Store, when
from minicnn.program.graph import Node, Value


class ThreadRows(Levels):
    """Statements of a region whose threads have rows of their own. See `Levels`."""

    def tile(self, few: Sequence[ElementLoop], early: Early) -> list[Statement]:
        """See `Levels.tile`: all that a thread does to a row by itself, in registers; then the sums over rows."""
        region, layout, steps = self.region, self.layout, self.steps
        if steps is None:
            raise TypeError("A thread takes a row by itself behind a product with rows in memory.")
        in_row: list[Statement] = [Let(K, NUMBER), Let(AT, ROW0 + NUMBER)]
        for number, node in enumerate(region.nodes):
            if id(node) not in region.sums and not layout.early(node):
                in_row += self._in_row(number, node)
        self.writer.kept |= {id(v): self._of_tile(v) for n in region.nodes for v in n.outputs if id(v) in self.slots}
        statements = [*when([NUMBER < ROWS], in_row), *self._no_rows(), *steps.behind_product(), Barrier()]
        others = [self._sum(n) for n in self.sums if not layout.own_sum(n)]
        if self.gradient is None:
            statements += others
        else:
            statements += [*steps.split(self.slots[id(self.gradient.inputs[1])]), Barrier(), *steps.summed(others)]
        sums = [n for n in region.nodes if id(n) not in region.sums and layout.early(n)]
        # Otherwise the next turn has a barrier soon enough.
        return [*statements, *[Barrier()] * any(layout.summed(n.outputs[0]) for n in sums)]

    def _of_tile(self, value: Value) -> Callable[[Expr], Expr]:
        return lambda place: Load(self.slots[id(value)], self._in_tile(value, place))

    def _in_row(self, number: int, node: Node) -> list[Statement]:
        """Statements that compute row `at` of a node's result."""
        region, layout, steps, (y,) = self.region, self.layout, self.steps, node.outputs
        product = region.product
        columns, statements = y.size // region.batch, list[Statement]()
        dtype = "float32"
        top, total, share = (Name(f"{name}{number}", dtype) for name in ("top", "total", "share"))
        if node.op.name in SOFTMAX:
            x = logits(node)
            if id(x) not in self.of_row:
                terms = self.writer.at(x, AT * x.shape[1] + R)
                statements += shared_terms(top, "max", x.shape[1], 1, terms)
                statements += shared_terms(total, "sum", x.shape[1], 1, Call("exp", (terms - top,), dtype))
                statements.append(Let(share, Number(1, dtype) / total))
                self.of_row[id(x)] = top, total, share
            before, tree = list[Statement](), softmax_element(node, AT, *self.of_row[id(x)])
        elif product is not None and steps is not None and node is product.node:
            before, tree = [], steps.element(K * columns + C) * Number(product.scale, dtype)
        else:
            before, tree = self._element(node, AT, 1)
        # Element i is in column c of row `at`.
        places: dict[Expr, Expr] = {I % columns: C, I // columns: AT} if columns > 1 else {I: AT}
        array = Array(f"row{number}", y.dtype, columns, memory=THREAD)
        value = Name(self.writer.new("v"), y.dtype)
        tree = self.writer.resolved(node, tree.replaced(places))
        body: list[Statement] = [Let(I, AT * columns + C), *before, Let(value, tree), Store(array, C, value)]
        body += self._stores(y, value, K * columns + C, I)
        for one in self.sums:
            if layout.own_sum(one) and one.inputs[0] is y:
                column = C if one.outputs[0].size == columns else Number(0, PLACE)
                body.append(layout.totals[id(one)].added(column, value))
        self.writer.kept[id(y)] = lambda place: Load(array, self._of_row(columns, place))
        return [*statements, Local(array), Loop(C, columns, tuple(body), columns)]

    @staticmethod
    def _of_row(columns: int, place: Expr) -> Expr:
        """Place in row `at` of an element of the batch."""
        if place == I:
            return C
        if place == AT and columns == 1:
            return Number(0, PLACE)
        return moved(place, AT, columns, {AT * columns + R: R})

    def _no_rows(self) -> Sequence[Statement]:
        """Zeros where sums read what belongs to rows behind the last of the batch."""
        region, zeros = self.region, list[Statement]()
        if region.batch % region.tile.rows == 0:
            return zeros
        for y in (n.outputs[0] for n in region.nodes if id(n) not in region.sums and not self.layout.early(n)):
            if self.layout.summed(y):
                columns = y.size // region.batch
                zero = Store(self.slots[id(y)], NUMBER * columns + C, Number(0, y.dtype))
                zeros.append(Loop(C, columns, (zero,), columns))
        return when([NUMBER >= ROWS, region.tile.rows > NUMBER], zeros)
