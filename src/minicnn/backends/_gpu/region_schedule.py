"""Schedule of a row-wise region, in no language: elements of values and terms of sums as expression trees.

Beside the place i, trees name the element by its number e in the tile of rows, which is in row q of the tile and in
column c, and the first row of the tile in the batch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from minicnn.backends._gpu.region_layout import SOFTMAX, ElementLoop, Layout, RowRegion, adds_product_sums, logits
from minicnn.backends._gpu.writer import Writer
from minicnn.kernels.elements import element
from minicnn.kernels.expressions import Call, Cast, Element, Expr, I, Name, Number, R, Select, both
from minicnn.kernels.printing import Printer
from minicnn.kernels.rows import pick
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


class Schedule(ABC):
    """Schedule of a region's blocks.

    Args:
        writer: The text that it becomes part of.
        node: The region's node.
        layout: The order of what is done, and the places of values in shared memory.
    """

    def __init__(self, writer: Writer, node: Node, layout: Layout) -> None:
        self.writer, self.layout, self.region = writer, layout, layout.region
        self.stored = {id(v) for v in node.outputs}
        self.partial_sums: dict[int, Value] = node.attrs["partial_sums"]
        self.start = 0  # thread that begins the next loop of a level

    @property
    @abstractmethod
    def shown(self) -> Printer:
        """Printer that knows the names of a region, too."""

    def _show(self, node: Node, x: Expr) -> str:
        """Text of an expression of a node's inputs."""
        return self.shown.text(self.writer.resolved(node, x))

    @abstractmethod
    def _slot(self, value: Value, k: str) -> str:
        """Place of element k of a tile of a value in shared memory."""

    def _first_thread(self, items: int) -> int:
        """Offset of a thread's number in a loop, so that loops between two barriers begin in different warps."""
        threads, start = self.region.threads, self.start
        # Loops between two barriers are independent: those with few items then run in different warps at the same time.
        self.start = (start + -(-items // WARP) * WARP) % threads
        return threads - start if start else 0

    def _trees(self, loop: ElementLoop) -> Iterator[tuple[Node, Expr]]:
        return ((node, self._element(node, loop.lanes)) for node in loop.nodes)

    def _compute(self, trees: Iterable[tuple[Node, Expr]]) -> tuple[str, list[tuple[Value, str]]]:
        """Statements that compute an element of each node's result; the results, and the variables that hold them."""
        text, results = "", []
        for node, tree in trees:
            (y,) = node.outputs
            lines, self.writer.locals[id(y)] = self.writer.let(y, self.writer.resolved(node, tree))
            text += self.shown.lines(lines, self.writer.DEPTH)
            results.append((y, self.writer.locals[id(y)].name))
        # Variables end with the loop.
        self.writer.locals.clear()
        return text, results

    def _places(self, value: Value, k: str, i: str) -> list[str]:
        """Targets of element k of a tile and i of the batch: shared memory, if others read it there, and memory."""
        slot = [self._slot(value, k)] if id(value) in self.layout.slots else []
        return slot + ([f"{self.writer.parameter(value)}[{i}]"] if id(value) in self.stored else [])

    def _element(self, node: Node, lanes: int) -> Expr:
        """Expression of one element of a node's result, in a loop whose threads share sums so."""
        number = FIRST_ROW + Q
        if node.op.name not in SOFTMAX:
            return row_element(self.region, node, number, OfRows(E), lanes)
        at = self.layout.statistics[id(logits(node))]
        return softmax_element(node, number, Statistic("top", at), Statistic("total", at))

    def _terms(self, node: Node) -> tuple[int, Expr]:
        """Terms that a row has in a sum over rows; term r of sum o, those of all rows of the tile counted."""
        x = node.inputs[0]
        columns = x.size // self.region.batch
        if node.op.name == "matmul":
            m = node.inputs[1].shape[1]
            return 1, Element(0, (FIRST_ROW + R) * columns + O // m) * Element(1, (FIRST_ROW + R) * m + O % m)
        if len(normalize_axes("sum", node.attrs["axes"], x.ndim)) == x.ndim:
            return columns, Element(0, FIRST_ROW * columns + R)
        return 1, Element(0, (FIRST_ROW + R) * columns + O)


def row_element(region: RowRegion, node: Node, row: Expr, of_rows: Expr, lanes: int) -> Expr:
    """Expression of an element in column c of a row of the batch, where it is none of a softmax.

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
    if adds_product_sums(node):
        return SharedSum(y.dtype, node.inputs[0].shape[0], lanes, Element(0, R * y.size + I))
    return element(node, 0)


def softmax_element(node: Node, row: Expr, top: Expr, total: Expr, inverse: Expr | None = None) -> Expr:
    """Expression of an element in column c of a row of a softmax, of its logarithm, of a loss or of its gradient.

    Args:
        node: The node.
        row: Number of the row in the batch.
        top: Its maximum.
        total: The sum of the exponentials of what lies below it.
        inverse: One divided by that, if a thread has all of the row in registers, where no number chooses an element.
    """
    name, dtype = node.op.name, node.outputs[0].dtype
    k = int(name == "softmax_cross_entropy_gradient")
    classes = node.inputs[k].shape[1]
    # The maximum is taken off before: exp of a large logit would be infinite.
    share: Expr = Call("exp", (Element(k, I) - top,), dtype)
    share = share / total if inverse is None else share * inverse

    def logarithm(x: Expr) -> Expr:
        return x - top - Call("log", (total,), dtype)

    if name in ("softmax", "log_softmax"):
        return share if name == "softmax" else logarithm(Element(k, I))
    label, zero = Cast(Element(k + 1, row), "int32"), Number(0, dtype)
    # A label outside has no class: its loss and gradient are zero, as in the reference, rather than memory beyond the
    # row.
    real = both(label >= Number(0, "int32"), label < Number(classes, "int32"))
    if name == "softmax_cross_entropy":
        chosen: Expr = Element(k, row * classes + Cast(label, "place"))
        # Registers have no address, so that a loop picks the label's logit by comparison.
        if inverse is not None:
            chosen = pick(dtype, classes, Element(k, row * classes + R), label)
        return Select(real, -logarithm(chosen), zero)
    hit = Cast(label.equals(Cast(C, "int32")), dtype, "bool")
    return Select(real, share - hit, zero) * Element(0, row)
