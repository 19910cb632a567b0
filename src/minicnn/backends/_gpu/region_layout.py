"""In which order a block does what a region consists of, and where in shared memory it keeps its values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from minicnn.backends._gpu.fusion_groups import added_up
from minicnn.backends._gpu.row_tiles import RowProductTile, RowTile
from minicnn.kernels.elements import same_index
from minicnn.kernels.row_sums import OwnSums, RowProducts, RowSums, Totals
from minicnn.program.graph import ITEMSIZE, Node, Value

THREAD_COLUMNS = 16  # columns up to which a thread takes a row by itself, in registers
STAGED = 16 * 1024  # bytes of a matrix that is copied into shared memory first
SOFTMAX = frozenset({"softmax", "log_softmax", "softmax_cross_entropy", "softmax_cross_entropy_gradient"})


@dataclass(frozen=True)
class StoredRows:
    """A matrix that consists of rows in memory.

    Attributes:
        stored: All rows in memory, uint8 or float32.
        index: Which of them the matrix has, if not all.
        scale: What they are multiplied by.
    """

    stored: Value
    index: Value | None
    scale: float


@dataclass(frozen=True)
class RowProduct(StoredRows):
    """A product whose left side is rows in memory; bytes are converted, and scaled, where they are read.

    Attributes:
        node: The product with the weights.
        gradient: That of the transposed rows with the gradient, if the region takes it.
    """

    node: Node
    gradient: Node | None


@dataclass(eq=False)
class RowRegion:
    """Row-wise region: operations on some rows of a batch that one block does in one launch.

    Attributes:
        batch: Rows of the batch.
        nodes: The nodes in order, sums included.
        sums: Those that sum over the rows of the batch.
        product: The product with rows in memory with which it begins, if it does.
        tile: Its sizes.
    """

    batch: int
    nodes: list[Node]
    sums: set[int] = field(default_factory=set)
    product: RowProduct | None = None
    tile: RowTile = field(default_factory=RowTile)

    @property
    def tiles(self) -> int:
        """Tiles of rows that all blocks have together."""
        # Rounded up: the last tile may have fewer rows.
        return -(-self.batch // self.tile.rows)

    @property
    def thread_per_row(self) -> bool:
        """True if a thread takes a row by itself through everything behind such a product."""
        columns = [v.size // self.batch for n in self.nodes if id(n) not in self.sums for v in n.outputs]
        return self.product is not None and max(columns) <= THREAD_COLUMNS


@dataclass
class ElementLoop:
    """Nodes whose results have so many columns, computed element by element by one loop.

    Attributes:
        columns: Elements of a row.
        nodes: The nodes in order.
        lanes: Neighbouring threads that share the sum of a product.
    """

    columns: int
    nodes: list[Node]
    lanes: int = 1


@dataclass
class Level:
    """Level of a region: the work between two barriers, which reads earlier levels and writes for later ones.

    Attributes:
        loops: Loops over elements.
        statistics: Matrices whose rows' maxima and sums of exponentials are taken.
        sums: Sums over rows.
        splits: Whether the gradient is written as fragments for tensor cores.
    """

    loops: dict[int, ElementLoop] = field(default_factory=dict)
    statistics: list[Value] = field(default_factory=list)
    sums: list[Node] = field(default_factory=list)
    splits: bool = False


class Layout:
    """The levels of a region and the places of its values.

    Attributes:
        levels: What is done, in order.
        thread_per_row: Whether a thread does all of that to a row by itself, with no barrier in between.
        slots: Byte offset of each value that other loops read, by its id.
        statistics: Offset of the maxima of a matrix's rows, by its id; their sums of exponentials lie behind.
        staged: Matrices that are copied into shared memory, and the offsets.
        totals: Sums over the rows, but for products with those in memory, by the node's id.
        scratch: Offset of what threads leave of such a sum.
        exchange: Where threads join what they have, if not by shuffles.
        shared: Bytes of all.
        shuffles: Whether threads of a warp hand on registers.
        overlaid: Whether arrays that are not needed at the same time share memory.
    """

    shuffles: ClassVar[bool] = True
    overlaid: ClassVar[bool] = True

    def __init__(self, region: RowRegion) -> None:
        self.region = region
        self.levels: list[Level] = []
        self._level: dict[int, int] = {}
        self._sorted()
        self.thread_per_row = region.thread_per_row
        self.slots: dict[int, int] = {}
        self.statistics: dict[int, int] = {}
        self.staged: list[tuple[Value, int]] = []
        self.totals: dict[int, Totals] = {}
        self.scratch: dict[int, int] = {}
        self.exchange = self.shared = 0
        self._placed()

    def _at(self, level: int) -> Level:
        while len(self.levels) <= level:
            self.levels.append(Level())
        return self.levels[level]

    def _sorted(self) -> None:
        region, level = self.region, self._level
        product = region.product
        known: set[int] = set()
        for node in region.nodes:
            region_inputs = [v for v in node.inputs if id(v) in level]
            if id(node) in region.sums:
                # A sum reads rows of other threads, behind a barrier.
                at = max(level[id(v)] for v in region_inputs) + 1
                if product is not None and node is product.gradient:
                    self._at(at).splits = True
                    at += 1
                self._at(at).sums.append(node)
                continue
            y = node.outputs[0]
            columns = y.size // region.batch
            if product is not None and node is product.node:
                at = 0
            elif node.op.name in SOFTMAX:
                x = logits(node)
                # Each element of a softmax needs its row's maximum and sum, which take a level of their own, once for
                # all readers.
                before = level.get(id(x), -1) + 1
                if id(x) not in known:
                    known.add(id(x))
                    self._at(before).statistics.append(x)
                at = max([before, *(level[id(v)] for v in region_inputs)]) + 1
            else:
                at = 0
                for value in region_inputs:
                    # At its own element a thread goes on without a barrier, as it has just computed the operand itself.
                    along = same_index(node, value) and value.size == y.size
                    at = max(at, level[id(value)] + (not along))
            loop = self._at(at).loops.setdefault(columns, ElementLoop(columns, []))
            loop.nodes.append(node)
            parted = adds_product_sums(node)
            if parted or (node.op.name == "matmul" and (product is None or node is not product.node)):
                terms = node.inputs[0].shape[0 if parted else 1]
                # Threads that have no element of their own share the sums of others.
                tile, most = region.tile, min(32, terms // 2)
                while tile.rows * columns * loop.lanes * 2 <= tile.threads and loop.lanes < most:
                    loop.lanes *= 2
            for value in node.outputs:
                level[id(value)] = at

    def early(self, node: Node) -> bool:
        """True if a node, no sum, waits for nothing in a region that begins with rows in memory."""
        product, y = self.region.product, node.outputs[0]
        if product is None or self._level[id(y)]:
            return False
        return product.node not in self.levels[0].loops[y.size // self.region.batch].nodes

    def summed(self, value: Value) -> bool:
        """True if a sum over the rows reads a value from shared memory."""
        sums = [n for n in self.region.nodes if id(n) in self.region.sums and not self.own_sum(n)]
        return any(v is value for n in sums for v in n.inputs)

    def own_sum(self, node: Node) -> bool:
        """True if threads that take rows by themselves add up a sum over the rows as they go."""
        producer = node.inputs[0].node
        return self.thread_per_row and node.op.name == "sum" and producer is not None and not self.early(producer)

    def _total(self, number: int, node: Node) -> Totals:
        """A sum over the rows, in registers."""
        name, threads, y = str(number), self.region.tile.threads, node.outputs[0]
        if self.own_sum(node):
            return OwnSums(name, y.size, threads)
        if self.thread_per_row and node.op.name == "matmul":
            return RowProducts(name, (y.shape[0], y.shape[1]), threads)
        return RowSums(name, y.size, threads, shuffles=self.shuffles)

    def needs_slot(self, value: Value) -> bool:
        """True if another loop than the one that makes a value reads it."""
        home = self._level[id(value)]
        columns = value.size // self.region.batch
        for node in self.region.nodes:
            if not any(v is value for v in node.inputs):
                continue
            if id(node) in self.region.sums or node.op.name in SOFTMAX or not same_index(node, value):
                return True
            if self._level[id(node.outputs[0])] != home or node.outputs[0].size // self.region.batch != columns:
                return True
        return False

    def _place(self, nbytes: int) -> int:
        at = self.shared
        self.shared += -(-nbytes // 16) * 16
        return at

    def product_space(self) -> tuple[int, int]:
        """Bytes that the product with rows in memory takes, and where among them threads leave sums at the end."""
        tile = self.region.tile
        return (tile.nbytes, tile.products) if isinstance(tile, RowProductTile) else (0, 0)

    def _placed(self) -> None:
        region = self.region
        product = region.product
        before, left = self.product_space()
        self._place(before)
        for node in region.nodes:
            if id(node) in region.sums:
                continue
            for value in node.outputs:
                early = self.thread_per_row and self.early(node)
                # A thread that has a whole row keeps it in registers; only sums over rows read what other threads have.
                if self.needs_slot(value) and (not self.thread_per_row or early or self.summed(value)):
                    itemsize = ITEMSIZE[value.dtype]
                    self.slots[id(value)] = self._place(region.tile.rows * value.size // region.batch * itemsize)
        for level in self.levels:
            for value in level.statistics if not self.thread_per_row else ():
                self.statistics[id(value)] = self._place(8 * region.tile.rows)
        for value in _staged(region):
            # Larger matrices are read through the cache, rather than take the place of rows.
            if value.nbytes <= STAGED:
                self.staged.append((value, self._place(value.nbytes)))
        if not self.shuffles:
            self.exchange = self._place(4 * region.tile.threads)
        # Sums are left when all tiles are done: over the memory of the rows, which nobody reads any more.
        left = left if self.overlaid else self.shared
        for number, node in enumerate(region.nodes):
            if id(node) in region.sums and (product is None or node is not product.gradient):
                self.totals[id(node)] = self._total(number, node)
                self.scratch[id(node)] = left
                left += 4 * self.totals[id(node)].left
        self.shared = max(self.shared, left)


def logits(node: Node) -> Value:
    """The matrix whose rows have a softmax."""
    return node.inputs[node.op.name == "softmax_cross_entropy_gradient"]


def adds_product_sums(node: Node) -> bool:
    """True if a node adds up a product's partial sums of an earlier kernel's blocks."""
    return added_up(node) == "matmul_partial_sums"


def _staged(region: RowRegion) -> Sequence[Value]:
    """Right sides of the products that threads do one by one; with a thread per row also biases and the like."""
    matrices: dict[int, Value] = {}
    region_values = {id(v) for n in region.nodes for v in n.outputs}
    for node in region.nodes:
        if id(node) in region.sums or (region.product is not None and node is region.product.node):
            continue
        if node.op.name == "matmul":
            matrices[id(node.inputs[1])] = node.inputs[1]
        elif region.thread_per_row and node.op.elementwise:
            for value in node.inputs:
                if (
                    id(value) not in region_values
                    and value.kind != "constant"
                    and value.size <= THREAD_COLUMNS < region.batch
                ):
                    matrices[id(value)] = value
    return list(matrices.values())
