"""Inlining: nodes whose elements are computed where they are read, so that they never go to memory."""

from __future__ import annotations

from minicnn.backends._gpu.fusion_groups import PARTIAL_SUMS, adds_partial_sums
from minicnn.backends._gpu.tiles import Tiles
from minicnn.kernels.elements import same_index, widens
from minicnn.kernels.expressions import SHORT
from minicnn.program.graph import ITEMSIZE, Node, Program, Value

# Operations whose result element is one element of an input, or none.
MOVES = frozenset({"take", "broadcast_to", "permute", "slice_", "pad", "concat", "repeat", "one_hot"})
SCATTER = "max_pool2d_scatter"
TILED = frozenset({"conv2d", "conv2d_input_gradient", "matmul"})
# Operations that look at each element of their first input only once, or at most a few times.
ONCE = MOVES | {"reduce_partial_sums", "sum", "max"}
COSTLY = 8  # FLOPs of an element beyond which it is not computed twice
_WHOLE = {"conv2d", "conv2d_input_gradient"}
CONVOLUTIONS = frozenset({*_WHOLE, *(f"{name}_partial_sums" for name in (*_WHOLE, "conv2d_weight_gradient"))})
_GATHERS = ("take", "broadcast_to", "one_hot")
_ROWS = frozenset({"softmax_cross_entropy", "softmax_cross_entropy_gradient", "argmax"})


class Inlining:
    """Division of a Program's values into those in memory and those that are computed where they are read.

    Args:
        program: Program.
        tiles: Where tiles come from.
        copies_reshapes: Whether a reshape has elements of its own, as for references, which read arrays of its shape.

    Attributes:
        program: The Program.
        tiles: Where tiles come from.
        alias: For the result of a reshape, the value whose elements it has.
        virtual: Values that are made where they are read, by their ids.
    """

    def __init__(self, program: Program, tiles: Tiles, *, copies_reshapes: bool) -> None:
        self.program, self.tiles = program, tiles
        self.alias: dict[int, Value] = {}
        self.virtual: set[int] = set()
        self._leaves: dict[int, list[Value]] = {}  # by node
        self._reached: dict[int, list[int]] = {}  # by value, the nodes that have it as a leaf
        for node in program.nodes:
            if node.op.name == "reshape" and not copies_reshapes:
                self.alias[id(node.outputs[0])] = self.root(node.inputs[0])
        self._readers: dict[int, list[Node]] = {}
        for node in program.nodes:
            if id(node.outputs[0]) not in self.alias:
                for value in {id(r): r for r in map(self.root, node.inputs)}.values():
                    self._readers.setdefault(id(value), []).append(node)
        self._results = {id(self.root(v)) for v in program.results}
        # Such as sums of what several ranks give: nothing looks at an element twice.
        self._elementwise = all(same_index(n, v) for n in program.nodes for v in n.inputs)

    def root(self, value: Value) -> Value:
        """The value in memory that holds a value's elements."""
        return self.alias.get(id(value), value)

    def _readers_of(self, value: Value) -> list[Node]:
        return self._readers.get(id(self.root(value)), [])

    def leaves(self, node: Node) -> list[Value]:
        """Values in memory that a node reads, by itself or through virtual nodes."""
        if id(node) not in self._leaves:
            leaves: dict[int, Value] = {}
            for value in map(self.root, node.inputs):
                producer = value.node if id(value) in self.virtual else None
                leaves |= {id(v): v for v in ([value] if producer is None else self.leaves(producer))}
            self._leaves[id(node)] = list(leaves.values())
            for key in leaves:
                self._reached.setdefault(key, []).append(id(node))
        return self._leaves[id(node)]

    def inline(self, node: Node) -> None:
        """Have a node's elements computed where they are read."""
        self.virtual.add(id(node.outputs[0]))
        for key in self._reached.pop(id(node.outputs[0]), ()):
            self._leaves.pop(key, None)

    def is_virtual(self, node: Node) -> bool:
        """True if a node is computed where its result is read, rather than written to memory."""
        y = node.outputs[0]
        if len(node.outputs) > 1 or id(y) in self._results or node.phase == "update":
            return False
        readers = self._readers_of(y)
        if (
            self.tiles.pipelined
            and y.dtype in SHORT
            and y.shape[-1] % 8 == 0
            and any(map(self._is_multiplied, readers))
        ):
            return False  # so that copies bring it as it is
        if any(r.op.name not in PARTIAL_SUMS and self.tiles.unsupported(r) for r in readers):
            return False  # a reference reads memory
        if self._is_light(node):
            return True
        simple = node.op.elementwise or node.op.name in MOVES or node.op.name in _ROWS
        if len(readers) != 1 or not simple:
            return False
        if self._elementwise:
            return True
        reader = readers[0]
        if self.tiles.pipelined and node.op.elementwise and self._follows(node) and reader.phase != "update":
            return True
        # A reader that looks at each element once computes it as often as a kernel of its own would, without its store
        # and load.
        once = reader.op.name in ONCE and self.root(reader.inputs[0]) is y and not adds_partial_sums(reader)
        return once and (reader.op.name != "broadcast_to" or self._is_light(node))

    def _follows(self, node: Node) -> bool:
        """True if an elementwise operation alone reads a node, at its own place, and is not made several times itself.

        It may follow a group that makes another operand. Depthwise tiles make once what they read; two may read it.
        """
        y = node.outputs[0]
        readers = self._readers_of(y)
        if len(readers) != 1 or not readers[0].op.elementwise:
            return False
        (reader,) = readers
        ends = self._readers_of(reader.outputs[0])
        # Windows read an element several times: what they read is inlined only where a tile brings it to shared memory
        # once.
        once = all(n.op.name.startswith("depthwise") and self._has_tile(n) for n in ends) or self._follows(reader)
        beside = any(self.root(v) is y and same_index(reader, v) for v in reader.inputs)
        return beside and (once or not self._is_light(reader))

    def _has_tile(self, node: Node) -> bool:
        """True if a depthwise convolution or a gradient of it has a tile of its own."""
        tile = node.attrs["tile"] if node.op.name in PARTIAL_SUMS else self.tiles.depthwise(node)
        return tile is not None and tile.stages > 0

    def _is_multiplied(self, node: Node) -> bool:
        """True if a node widens what a convolution reads."""
        readers = self._readers_of(node.outputs[0])
        return widens(node) and any(r.op.name in CONVOLUTIONS for r in readers)

    def _is_light(self, node: Node) -> bool:
        """True if reading what the node reads costs no more than reading its result."""
        if node.op.name == SCATTER:
            kernel, strides = node.attrs["kernel"], node.attrs["strides"]
            readers = self._readers_of(node.outputs[0])
            convolved = all(r.op.name in CONVOLUTIONS for r in readers)
            cheap = len(readers) == 1 or (self.tiles.reads_scattered and convolved)
            if any(size > step for size, step in zip(kernel, strides, strict=True)):
                # An element looks at each window that it is in, and a convolution reads it once for each of its taps.
                cheap = len(readers) == 1 and readers[0].op.elementwise
            return cheap and strides[0] * strides[1] > 1 and id(self.root(node.inputs[0])) not in self.virtual
        if not (node.op.elementwise or node.op.name in _GATHERS) or len(node.outputs) > 1:
            return False
        # Readers that look at it several times would repeat it: exp twice costs more than a load.
        if node.op.elementwise and node.cost.flops > COSTLY * node.outputs[0].size:
            return False
        size, read = node.outputs[0].size, 0.0
        for value in self.leaves(node):
            # Small operands, such as a bias, stay in the cache and are read for nothing.
            if value.size * 4 >= size and value.size > 1:
                read += ITEMSIZE[value.dtype] * min(1.0, value.size / size)
        # Bytes count, since kernels around it wait for memory: bytes of an image are cheaper to read than its floats.
        return read <= ITEMSIZE[node.outputs[0].dtype] and self._all_light(node)

    def _all_light(self, node: Node) -> bool:
        # Small gathers are cheap, but not if they stand in for something that is costly to compute.
        return all(
            id(r) not in self.virtual or (r.node is not None and (r.node.op.elementwise or r.node.op.name in _GATHERS))
            for r in map(self.root, node.inputs)
        )

    def is_only_summed(self, node: Node) -> bool:
        """True if a sum alone needs a node, and what the node computes from is in memory anyway, as others read it.

        Further elementwise nodes may lie between: a scale and a square, of which a sum alone reads the square.
        """
        return node.op.elementwise and self._ends_in_sum(node) and self._begins_in_memory(node)

    def _ends_in_sum(self, node: Node) -> bool:
        y = node.outputs[0]
        readers = self._readers_of(y)
        if len(readers) != 1:
            return False
        (reader,) = readers
        elementwise = reader.op.elementwise and reader.outputs[0].shape == y.shape
        return reader.op.name == "reduce_partial_sums" or (elementwise and self._ends_in_sum(reader))

    def _begins_in_memory(self, node: Node) -> bool:
        size = node.outputs[0].size
        return all(
            v.node is None  # as what one part of a step hands to another
            or len(self._readers_of(v)) > 1
            or (v.node.op.elementwise and self._begins_in_memory(v.node))
            for v in node.inputs
            if v.size == size
        )
