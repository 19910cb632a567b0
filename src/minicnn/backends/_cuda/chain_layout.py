"""In which order a block does what a chain consists of, and where in shared memory it keeps its values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from minicnn.backends._cuda.expressions import same_index
from minicnn.program.graph import ITEMSIZE, Node, Value

SHARED = 227 * 1024  # most dynamic shared memory of a block
NARROW = 16  # columns up to which a thread takes a row by itself, in registers
STAGED = 16 * 1024  # bytes of a matrix that is copied into shared memory first
SOFTMAX = frozenset({"softmax", "log_softmax", "softmax_cross_entropy", "softmax_cross_entropy_gradient"})


@dataclass(frozen=True)
class ByteProduct:
    """A product whose left side is rows of bytes: times `scale`, they are converted where they are read.

    Attributes:
        node: The product with the weights.
        gradient: That of the transposed rows with the gradient, if the chain takes it.
        rows: All rows in memory, uint8.
        index: Which of them a batch has, if not all.
        scale: What the bytes are multiplied by.
    """

    node: Node
    gradient: Node | None
    rows: Value
    index: Value | None
    scale: float


@dataclass(eq=False)
class Chain:
    """What one block does with some rows of a batch.

    Attributes:
        batch: Rows of the batch.
        nodes: The nodes in order, sums included.
        sums: Those that sum over the rows of the batch.
        product: The product with rows of bytes with which it begins, if it does.
        rows: Rows that a block takes at a time.
        threads: Threads of a block.
        stages: Tiles of bytes that are in shared memory or on their way there.
        blocks: Blocks.
        resident: Blocks of a multiprocessor.
    """

    batch: int
    nodes: list[Node]
    sums: set[int] = field(default_factory=set)
    product: ByteProduct | None = None
    rows: int = 1
    threads: int = 256
    stages: int = 1
    blocks: int = 1
    resident: int = 1

    @property
    def tiles(self) -> int:
        """Turns of all blocks together."""
        return -(-self.batch // self.rows)

    @property
    def tile_type(self) -> str:
        """C++ type of the product with bytes."""
        if self.product is None:
            return ""
        (_, m), k = self.product.node.outputs[0].shape, self.product.node.inputs[0].shape[1]
        back = "true" if self.product.gradient is not None else "false"
        return f"ByteTile<{self.batch}, {k}, {m}, {self.rows}, {self.threads}, {self.stages}, {back}>"


@dataclass
class Loop:
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
    """What a block does between two barriers: it reads what was written before, and writes what is read behind.

    Attributes:
        loops: Loops over elements.
        statistics: Matrices whose rows' maxima and sums of exponentials are taken.
        sums: Sums over rows.
        splits: Whether the gradient is written as fragments for tensor cores.
    """

    loops: dict[int, Loop] = field(default_factory=dict)
    statistics: list[Value] = field(default_factory=list)
    sums: list[Node] = field(default_factory=list)
    splits: bool = False


class Layout:
    """The levels of a chain and the places of its values.

    Attributes:
        levels: What is done, in order.
        narrow: Whether a thread does all of that to a row by itself, with no barrier in between.
        slots: Byte offset of each value that other loops read, by its id.
        statistics: Offset of the maxima of a matrix's rows, by its id; their sums of exponentials lie behind.
        staged: Matrices that are copied into shared memory, and the offsets.
        scratch: Offset of what threads leave of a sum, by the node's id.
        shared: Bytes of all.
    """

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        self.levels: list[Level] = []
        self._level: dict[int, int] = {}
        self._sorted()
        columns = [v.size // chain.batch for n in chain.nodes if id(n) not in chain.sums for v in n.outputs]
        self.narrow = chain.product is not None and max(columns) <= NARROW
        self.slots: dict[int, int] = {}
        self.statistics: dict[int, int] = {}
        self.staged: list[tuple[Value, int]] = []
        self.scratch: dict[int, int] = {}
        self.shared = 0
        self._placed()

    def _at(self, level: int) -> Level:
        while len(self.levels) <= level:
            self.levels.append(Level())
        return self.levels[level]

    def _sorted(self) -> None:
        chain, level = self.chain, self._level
        product = chain.product
        known: set[int] = set()
        for node in chain.nodes:
            own = [v for v in node.inputs if id(v) in level]
            if id(node) in chain.sums:
                at = max(level[id(v)] for v in own) + 1
                if product is not None and node is product.gradient:
                    self._at(at).splits = True
                    at += 1
                self._at(at).sums.append(node)
                continue
            y = node.outputs[0]
            columns = y.size // chain.batch
            if product is not None and node is product.node:
                at = 0
            elif node.op.name in SOFTMAX:
                x = node.inputs[node.op.name == "softmax_cross_entropy_gradient"]
                before = level.get(id(x), -1) + 1
                if id(x) not in known:
                    known.add(id(x))
                    self._at(before).statistics.append(x)
                at = max([before, *(level[id(v)] for v in own)]) + 1
            else:
                at = 0
                for value in own:
                    along = same_index(node, value) and value.size == y.size
                    at = max(at, level[id(value)] + (not along))
            loop = self._at(at).loops.setdefault(columns, Loop(columns, []))
            loop.nodes.append(node)
            parted = is_sum_of_parts(node)
            if parted or (node.op.name == "matmul" and (product is None or node is not product.node)):
                terms = node.inputs[0].shape[0 if parted else 1]
                while chain.rows * columns * loop.lanes * 2 <= chain.threads and loop.lanes < min(32, terms // 2):
                    loop.lanes *= 2
            for value in node.outputs:
                level[id(value)] = at

    def early(self, node: Node) -> bool:
        """Whether a node, no sum, waits for nothing in a chain that begins with bytes."""
        product, y = self.chain.product, node.outputs[0]
        if product is None or self._level[id(y)]:
            return False
        return product.node not in self.levels[0].loops[y.size // self.chain.batch].nodes

    def summed(self, value: Value) -> bool:
        """Whether a sum over the rows reads a value."""
        return any(v is value for n in self.chain.nodes if id(n) in self.chain.sums for v in n.inputs)

    def needs_slot(self, value: Value) -> bool:
        """Whether another loop than the one that makes a value reads it."""
        made = self._level[id(value)]
        columns = value.size // self.chain.batch
        for node in self.chain.nodes:
            if not any(v is value for v in node.inputs):
                continue
            if id(node) in self.chain.sums or node.op.name in SOFTMAX or not same_index(node, value):
                return True
            if self._level[id(node.outputs[0])] != made or node.outputs[0].size // self.chain.batch != columns:
                return True
        return False

    def _place(self, nbytes: int) -> int:
        at = self.shared
        self.shared += -(-nbytes // 16) * 16
        return at

    def product_space(self) -> tuple[int, int]:
        """Bytes that the product with rows of bytes takes, and where among them threads leave sums at the end."""
        chain, product = self.chain, self.chain.product
        if product is None:
            return 0, 0
        (_, m), k = product.node.outputs[0].shape, product.node.inputs[0].shape[1]
        return byte_layout(k, m, chain.rows, chain.threads, chain.stages)[:2]

    def _placed(self) -> None:
        chain = self.chain
        product = chain.product
        before, left = self.product_space()
        self._place(before)
        for node in chain.nodes:
            if id(node) in chain.sums:
                continue
            for value in node.outputs:
                early = self.narrow and self.early(node)
                if self.needs_slot(value) and (not self.narrow or early or self.summed(value)):
                    itemsize = ITEMSIZE[value.dtype]
                    self.slots[id(value)] = self._place(chain.rows * value.size // chain.batch * itemsize)
        for level in self.levels:
            for value in level.statistics:
                self.statistics[id(value)] = self._place(8 * chain.rows)
        for value in _matrices(chain):
            if value.nbytes <= STAGED:
                self.staged.append((value, self._place(value.nbytes)))
        for node in chain.nodes:
            if id(node) in chain.sums and (product is None or node is not product.gradient):
                self.scratch[id(node)] = left
                left += 4 * chain.threads
        self.shared = max(self.shared, left)


def is_sum_of_parts(node: Node) -> bool:
    """Whether a node adds up what the blocks of an earlier kernel left of a product."""
    made = node.inputs[0].node if node.op.name == "sum" and node.attrs["axes"] in (0, (0,)) else None
    return made is not None and made.op.name == "matmul_parts"


def _matrices(chain: Chain) -> Sequence[Value]:
    """Right sides of the products that threads do one by one."""
    found: dict[int, Value] = {}
    for node in chain.nodes:
        own = chain.product is not None and node is chain.product.node
        if node.op.name == "matmul" and id(node) not in chain.sums and not own:
            found[id(node.inputs[1])] = node.inputs[1]
    return list(found.values())


def byte_layout(k: int, m: int, rows: int, threads: int, stages: int) -> tuple[int, int, int]:
    """What `ByteTile` takes: bytes of shared memory, those up to the end of the weights, registers of a thread."""
    steps, warps, tiles = -(-k // 16), threads // 32, rows // 16
    groups, half = m // 8 + (m % 8 > 4), int(0 < m % 8 <= 4)
    fragments, pitch = 2 * groups + half, 16 * (steps | 1)
    beside = 4 if tiles % 4 == 0 and warps >= 16 else 2 if tiles % 2 == 0 and warps >= 8 else 1
    weights = stages * (rows * pitch + 16) + steps * fragments * 256
    shared = weights + -(-(warps // beside) * rows * m // 4) * 16 + tiles * fragments * 256 + 128
    own = (k + 32 * warps - 1) // (32 * warps)
    forward = tiles // beside * fragments * 4 + 2 * fragments
    backward = tiles * fragments * 2 + 8 * fragments
    return shared, weights, 8 * own * (groups + half) + max(forward, backward) + 16
