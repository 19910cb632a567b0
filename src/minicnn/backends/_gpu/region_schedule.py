"""What a row-wise region does, in no language: elements of its values and terms of its sums as expression trees.

Beside the place i, trees name the element by its number e in the tile of rows, which is in row q of the tile and in
column c, and the first row of the tile in the batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from minicnn.backends._gpu.elements import element
from minicnn.backends._gpu.region_layout import SOFTMAX, Layout, Loop, RowRegion, adds_partial_sums
from minicnn.backends._gpu.trees import Call, Cast, Element, Expr, I, Name, Number, OfRow, R, Select, both
from minicnn.ops.checks import normalize_axes
from minicnn.program.graph import Node, Value

E, Q, C, O = Name("e"), Name("q"), Name("c"), Name("o")  # noqa: E741 - as in the text
FIRST_ROW = Name("row0")  # of the tile, in the batch
WARP = 32


@dataclass(frozen=True)
class OfRows(Expr):
    """An element of the product with rows in memory, by its number in the tile."""

    e: Expr


@dataclass(frozen=True)
class Statistic(Expr):
    """The "top" or the "total" of row q of the tile: its maximum, and the sum of exponentials of what lies below it.

    Attributes:
        name: Which of them.
        at: Offset of the maxima in shared memory.
    """

    name: str
    at: int


@dataclass(frozen=True)
class SharedSum(Expr):
    """The sum of `count` terms, term r by thread r % lanes of some neighbouring threads, in a type."""

    dtype: str
    count: int
    lanes: int
    term: Expr


@dataclass(frozen=True)
class Row:
    """The row of the batch that an element is in, and what is known of it.

    Attributes:
        number: Its number.
        top: Its maximum, for a softmax.
        total: The sum of the exponentials of what lies below it.
        inverse: One divided by that, if a thread has all of the row in registers, where no number chooses an element.
    """

    number: Expr
    top: Expr
    total: Expr
    inverse: Expr | None = None


@dataclass(frozen=True)
class Result:
    """A value of a loop: what its element is, and where that goes.

    Attributes:
        value: The value.
        tree: The element.
        slot: Offset of the value in shared memory, if other loops read it.
        stored: Whether it goes to memory.
    """

    value: Value
    tree: Expr
    slot: int | None
    stored: bool


@dataclass(frozen=True)
class RowSum:
    """A sum over the rows of all tiles.

    Attributes:
        node: Its node.
        size: How many such sums there are, with numbers o.
        fold: Terms of a row of the tile.
        term: Term r of sum o, the terms of all rows counted.
        partial_sums: Where each block leaves its sums.
        number: That of the node in the region.
    """

    node: Node
    size: int
    fold: int
    term: Expr
    partial_sums: Value
    number: int


class Schedule:
    """What the blocks of a region do.

    Args:
        node: The region's node.
        layout: The order of what is done, and the places of values in shared memory.
    """

    def __init__(self, node: Node, layout: Layout) -> None:
        self.layout, self.region = layout, layout.region
        self.stored = {id(v) for v in node.outputs}
        self.partial_sums: dict[int, Value] = node.attrs["partial_sums"]
        self.start = 0  # thread that begins the next loop of a level

    def first_thread(self, items: int) -> int:
        """What is added to a thread's number in a loop, so that loops between two barriers begin in different warps."""
        threads, start = self.region.threads, self.start
        self.start = (start + -(-items // WARP) * WARP) % threads
        return threads - start if start else 0

    def is_of_rows(self, node: Node | None, *, back: bool = False) -> bool:
        """Whether a node is the product with rows in memory; `back`: that with their transpose."""
        product = self.region.product
        return product is not None and node is (product.gradient if back else product.node)

    def results(self, loop: Loop) -> Iterator[Result]:
        """The values of a loop, in order."""
        for node in loop.nodes:
            yield self.result(node, self.element(node, loop.lanes))

    def result(self, node: Node, tree: Expr) -> Result:
        """A node's result, of which that is an element."""
        (y,) = node.outputs
        return Result(y, tree, self.layout.slots.get(id(y)), id(y) in self.stored)

    def element(self, node: Node, lanes: int = 1) -> Expr:
        """What one element of a node's result is, in a loop whose threads share sums so."""
        number = FIRST_ROW + Q
        if node.op.name not in SOFTMAX:
            return row_element(self.region, node, number, OfRows(E), lanes)
        at = self.layout.statistics[id(logits(node))]
        return softmax_element(node, Row(number, Statistic("top", at), Statistic("total", at)))

    def sum_of(self, node: Node) -> RowSum:
        """One of the sums over rows."""
        x, fold, y = node.inputs[0], 1, node.outputs[0]
        columns = x.size // self.region.batch
        if node.op.name == "matmul":
            m = node.inputs[1].shape[1]
            term = Element(0, (FIRST_ROW + R) * columns + O // m) * Element(1, (FIRST_ROW + R) * m + O % m)
        elif len(normalize_axes("sum", node.attrs["axes"], x.ndim)) == x.ndim:
            fold, term = columns, Element(0, FIRST_ROW * columns + R)
        else:
            term = Element(0, (FIRST_ROW + R) * columns + O)
        return RowSum(node, y.size, fold, term, self.partial_sums[id(node)], self.region.nodes.index(node))


def logits(node: Node) -> Value:
    """The matrix whose rows have a softmax."""
    return node.inputs[_logits(node)]


def _logits(node: Node) -> int:
    return 1 if node.op.name == "softmax_cross_entropy_gradient" else 0


def row_element(region: RowRegion, node: Node, row: Expr, of_rows: Expr, lanes: int) -> Expr:
    """What an element in column c of a row of the batch is, where it is none of a softmax.

    Args:
        region: The region.
        node: The node.
        row: Number of the row.
        of_rows: An element of the product with rows in memory.
        lanes: Neighbouring threads that share a sum.
    """
    y = node.outputs[0]
    if region.product is not None and node is region.product.node:
        return of_rows * Number(region.product.scale, "float32")
    if node.op.name == "matmul":
        n, k = y.shape[1], node.inputs[0].shape[1]
        right = C * k + R if node.attrs["transpose_b"] else R * n + C
        return SharedSum(y.dtype, k, lanes, Element(0, row * k + R) * Element(1, right))
    if adds_partial_sums(node):
        return SharedSum(y.dtype, node.inputs[0].shape[0], lanes, Element(0, R * y.size + I))
    return element(node, 0)


def softmax_element(node: Node, row: Row) -> Expr:
    """What an element in column c of a row of a softmax, of its logarithm, of a loss or of its gradient is."""
    name, k, dtype = node.op.name, _logits(node), node.outputs[0].dtype
    classes = node.inputs[k].shape[1]
    share: Expr = Call("exp", (Element(k, I) - row.top,), dtype)
    share = share / row.total if row.inverse is None else share * row.inverse

    def logarithm(x: Expr) -> Expr:
        return x - row.top - Call("log", (row.total,), dtype)

    if name in ("softmax", "log_softmax"):
        return share if name == "softmax" else logarithm(Element(k, I))
    label, zero = Cast(Element(k + 1, row.number), "int32"), Number(0, dtype)
    real = both(label >= Number(0, "int32"), label < Number(classes, "int32"))
    if name == "softmax_cross_entropy":
        chosen: Expr = Element(k, row.number * classes + Cast(label, "place"))
        if row.inverse is not None:
            chosen = OfRow("pick", dtype, classes, Element(k, row.number * classes + R), (label,))
        return Select(real, -logarithm(chosen), zero)
    hit = Cast(label.equals(Cast(C, "int32")), dtype, "bool")
    return Select(real, share - hit, zero) * Element(0, row.number)
