"""Fusion groups: the nodes that one block computes together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from minicnn import ops
from minicnn.backends._gpu.base_tile import Tile
from minicnn.backends._gpu.tiling import ReductionTile
from minicnn.kernels import peers
from minicnn.program.graph import ITEMSIZE, Node, Spec, Value

THREADS = 256  # of a block whose threads share sums of partial sums
_OWN_TERMS = 8  # that a thread adds up, where threads are enough

# Operations whose result is partial sums, one of each block or split.
PARTIAL_SUMS = frozenset(
    {
        "conv2d_partial_sums",
        "conv2d_input_gradient_partial_sums",
        "conv2d_weight_gradient_partial_sums",
        "depthwise_conv2d_weight_gradient_partial_sums",
        "matmul_partial_sums",
        "reduce_partial_sums",
        "row_region",
    }
)


@dataclass(eq=False)
class FusionGroup:
    """Nodes that one block computes together.

    Attributes:
        nodes: The nodes in order. The first, `anchor`, may have a tile; the others follow it element by element.
        tile: Tile of the anchor, if it has one.
        pool: Max-pooling that the anchor's tile does on its way out, with the nodes before it in `before`.
        sums: Sums over all positions of what the group makes, of which each block leaves its own.
        reference: Why the anchor runs as its reference, if so.
        stored: Values that go to memory.
        number: Its place among the groups of its plan, of which some are taken away later.
        width: Neighbouring results that a thread makes, which is known once its launch is.
        late: Whether it is launched no earlier than the groups before it, though it waits for none of them.
        aside: Whether nothing but updates, and what is closing, waits for it: see `second_stream`.
        closing: Whether it is short, for updates alone, and waits for longer ones aside, as updates do.
        fixed: `slices` that it has, with its tile and its width, whatever follows it and shares its launch.
    """

    nodes: list[Node]
    tile: Tile | None = None
    pool: Node | None = None
    before: list[Node] = field(default_factory=list)
    sums: list[Node] = field(default_factory=list)
    reference: str | None = None
    stored: list[Value] = field(default_factory=list)
    number: int = 0
    width: int = 1
    late: bool = False
    aside: bool = False
    closing: bool = False
    fixed: int = 0

    @property
    def anchor(self) -> Node:
        """The first node."""
        return (self.before or self.nodes)[0]

    @property
    def size(self) -> int:
        """Number of elements of each result."""
        return self.nodes[0].outputs[0].size

    @property
    def slices(self) -> int:
        """Threads that share the sum of the partial sums with which a group begins; 1 if it begins otherwise."""
        if self.fixed:
            return self.fixed
        if self.tile is not None or self.reference is not None or not adds_partial_sums(self.anchor):
            return 1
        if self.width > 1:  # a thread that makes neighbours adds up all parts of each
            return 1
        # A thread waits for memory once for every few terms, however little each takes. More than a warp shares sums
        # only where something follows them, as only such blocks are known to be THREADS.
        most = 64 if len(self.nodes) > 1 else 32
        return next((n for n in (8, 16, 32) if self.anchor.inputs[0].shape[0] <= n * _OWN_TERMS), most)

    @property
    def totals(self) -> list[Node]:
        """Sums of partial sums, as many of each, that a group's threads share: the anchor's is the first."""
        terms = self.anchor.inputs[0].spec
        return [n for n in self.nodes if adds_partial_sums(n, 1) and n.inputs[0].spec == terms]

    @property
    def every(self) -> list[Node]:
        """All nodes that it computes, at their own element but for `sums`."""
        return [*self.before, *self.nodes, *self.sums]

    @property
    def exchanges(self) -> bool:
        """True if it gives to other ranks what its threads have, or waits for them."""
        return any(n.op.name in peers.ELEMENTS for n in self.every)

    @property
    def waits(self) -> bool:
        """True if its threads wait for other ranks."""
        return any(n.op.name == "sum_over_ranks" for n in self.nodes)

    @property
    def meeting(self) -> int:
        """Threads of its blocks, which are all in place at a time, as they wait for what the same blocks give."""
        tokens = {id(n.outputs[0]) for n in self.nodes if n.op.name == "give_to_ranks"}
        meets = any(id(v) in tokens for n in self.nodes if n.op.name == "sum_over_ranks" for v in n.inputs)
        if self.tile is not None and meets:
            return self.tile.blocks * self.tile.threads
        return -(-self.size * self.slices // THREADS) * THREADS if meets else 0

    @property
    def is_plain(self) -> bool:
        """True if the group is elementwise or a reduction, which are short."""
        return self.reference is None and (self.tile is None or self.anchor.op.name == "reduce_partial_sums")

    @property
    def shares_sums(self) -> bool:
        """True if the group's threads add up sums together."""
        return self.slices > 1 or isinstance(self.tile, ReductionTile)

    @property
    def shared(self) -> int:
        """Bytes of shared memory that its blocks ask for."""
        if not self.shares_sums:
            return self.tile.shared if self.tile else 0
        if self.width > 1:  # sums of neighbours lie in memory that the text declares
            return 0
        sums = self.tile.threads if self.tile else THREADS * len(self.totals)
        return -(-sums * ITEMSIZE[self.anchor.outputs[0].dtype] // 16) * 16

    @property
    def on_tensor_cores(self) -> bool:
        """True if the group's tile multiplies on tensor cores."""
        return self.tile is not None and self.tile.precision is not None

    @property
    def has_template(self) -> bool:
        """True if the group's tile is not written in the kernel language: an engine has a template for it."""
        return self.tile is not None and self.tile.has_template

    @property
    def described(self) -> str:
        """The kind of the group, for `explain`."""
        name = self.anchor.op.name
        kind = "row-wise region" if name == "row_region" else f"tiles of {name}" if self.tile else "elementwise"
        return f"{kind} on tensor cores" if self.on_tensor_cores else kind

    @property
    def is_product(self) -> bool:
        """True if the group is a matrix product by tiles."""
        return self.tile is not None and self.anchor.op.name in ("matmul", "matmul_partial_sums")


def whole(node: Node) -> Node:
    """The operation whose partial sums a node makes; the node itself, if it makes none."""
    op = ops.REGISTRY.get(node.op.name.removesuffix("_partial_sums"))
    if op is None or op is node.op:
        return node
    y, attrs = node.outputs[0], {k: v for k, v in node.attrs.items() if k not in ("splits", "tile")}
    model = Node(op, node.inputs, (), attrs)
    model.outputs = (Value(y.program, y.name, Spec(y.shape[1:], y.dtype), y.kind, model),)
    return model


def adds_partial_sums(node: Node, least: int = 8) -> bool:
    """True if a node adds up partial sums of an earlier kernel's blocks, at least so many."""
    return added_up(node) in PARTIAL_SUMS and node.inputs[0].shape[0] >= least


def added_up(node: Node) -> str | None:
    """The operation whose results a node adds up along their first axis, if it does."""
    producer = node.inputs[0].node if node.op.name == "sum" and node.attrs["axes"] in (0, (0,)) else None
    return producer.op.name if producer is not None else None


def every_node(nodes: Iterable[Node]) -> Iterator[Node]:
    """Nodes, those of row-wise regions in their place."""
    for node in nodes:
        yield from node.attrs["region"].nodes if node.op.name == "row_region" else (node,)


def covered(groups: Iterable[FusionGroup]) -> list[Node]:
    """The nodes of a Program that some groups compute."""
    return list(every_node(n for u in groups for n in u.every))


def named(groups: Iterable[FusionGroup]) -> str:
    """The operations of some groups as text."""
    return " | ".join("+".join(n.op.name for n in u.every) for u in groups)
