"""Row-wise regions: what a step does to each sample by itself, and sums of that over the batch, as one operation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from minicnn import ops
from minicnn.backends._gpu import row_products
from minicnn.backends._gpu.device import Gpu
from minicnn.backends._gpu.region_layout import SOFTMAX, Layout, RowRegion, StoredRows, adds_product_sums
from minicnn.backends._gpu.row_tiles import RowTile
from minicnn.backends._gpu.tiles import Tiles
from minicnn.ops.checks import normalize_axes, normalize_axis
from minicnn.ops.primitive import Array, Namespace, Primitive
from minicnn.program.graph import Node, Program, Spec, Value
from minicnn.program.readers import Readers

THREADS = 256  # of a block whose region does not begin with rows in memory
MOST_COLUMNS = 1024  # of a value that a block keeps for each of its rows
MOST_WEIGHTS = 4096  # elements of a matrix that every block reads
MOST_PRODUCTS = 100_000  # multiply-adds that the threads of a multiprocessor do one by one
SHORT_ROW = 64  # terms of a sum within a row
ROW_BYTES = 24 * 1024  # of shared memory for what a region keeps of its rows, where the batch leaves a choice


def kernel_only(name: str) -> Primitive:
    """An operation that rewriting makes where there is a kernel for it: no reference of it ever runs."""

    def reference(*inputs: Array, xp: Namespace, **attrs: Any) -> Array:
        raise NotImplementedError(name)

    reference.__name__ = name
    return Primitive(reference)


# A row-wise region: some of its values, and partial sums along a new first axis.
ROW_REGION = kernel_only("row_region")


@dataclass(frozen=True)
class _Scope:
    """Scope of regions, which decides on their nodes: the tiles, the products with rows in memory, the batch's rows."""

    tiles: Tiles
    streams: Mapping[int, StoredRows]
    batch: int

    def reads(self, weights: int) -> bool:
        """True if threads may do a product with so many weights one by one."""
        return weights <= MOST_WEIGHTS and weights * self.batch <= MOST_PRODUCTS * self.tiles.gpu.multiprocessors


# Which nodes ------------------------------------------------------------------------------------------------


def find(program: Program, tiles: Tiles) -> list[RowRegion]:
    """The regions of a Program, each with the nodes that it shall have.

    Args:
        program: The Program.
        tiles: The GPU that they are for, and what the engine's kernels can do there.
    """
    # Products that read rows in memory are so long that each may begin a region; the rest of it costs nothing beside
    # them.
    streams = row_products.find(program, tiles)
    apart = row_products.of_bytes(program) - set(streams)
    batches = {
        n.outputs[0].shape[0]
        for n in program.nodes
        if (n.op.name == "matmul" and not n.attrs["transpose_a"]) or n.op.name == "softmax_cross_entropy"
    }
    regions: list[RowRegion] = []
    taken: set[int] = set()
    # The largest batch first: heads of a network have as many rows as samples, and pieces within samples have more.
    for batch in sorted(batches, reverse=True):
        scope = _Scope(tiles, streams, batch)
        nodes = [n for n in program.nodes if id(n) not in taken | apart]
        for part in _components(_members(program, nodes, scope)):
            one = RowRegion(batch, part)
            one.sums = {id(n) for n in part if _sums_rows(n, scope)}
            if _choose(one, streams, tiles.gpu):
                regions.append(one)
                taken |= {id(n) for n in part}
    return regions


def _members(program: Program, nodes: Sequence[Node], scope: _Scope) -> list[Node]:
    """Nodes that belong to regions of so many rows, in order."""
    streams = scope.streams
    inside = {id(n): n for n in nodes if _row_wise(n, scope) or _sums_rows(n, scope)}
    # Rows in memory are gathered and converted where they are read.
    for node in list(inside.values()):
        if id(node) in streams:
            inside = {key: n for key, n in inside.items() if key not in row_products.conversions(node.inputs[0])}
    size = -1
    # Each rule may take away what another relied on, until none does any more.
    while size != len(inside):
        size = len(inside)
        values = {id(v) for n in inside.values() if not _sums_rows(n, scope) for v in n.outputs}
        inside = {key: n for key, n in inside.items() if _keeps_to_rows(n, scope, values)}
        inside = _near_products(inside, streams)
        inside = _convex(program, inside, scope)
    return list(inside.values())


def _row_wise(node: Node, scope: _Scope) -> bool:
    """True if row r of each result may come from row r of the inputs."""
    y, name, batch = node.outputs[0], node.op.name, scope.batch
    if scope.tiles.unsupported(node) or node.phase == "update" or not y.shape or y.shape[0] != batch:
        return False
    if any("float" in v.dtype and v.dtype != "float32" for v in (*node.inputs, *node.outputs)):
        return False
    # A block keeps rows in shared memory, of which wide ones would leave room for too few.
    if y.size // batch > MOST_COLUMNS:
        return False
    if name == "matmul":
        if node.attrs["transpose_a"]:
            return False
        # Every block reads all weights: a large matrix is better left to tiles, which share what they load.
        return id(node) in scope.streams or scope.reads(node.inputs[1].size)
    if name in ("sum", "max", "mean"):
        x = node.inputs[0]
        axes = normalize_axes(name, node.attrs["axes"], x.ndim)
        return x.shape[0] == batch and 0 not in axes and x.size // y.size <= SHORT_ROW
    if name in ("softmax", "log_softmax", "argmax"):
        x = node.inputs[0]
        return x.ndim == 2 and normalize_axis(name, node.attrs["axis"], 2) == 1
    if name.startswith("softmax_cross_entropy"):
        return node.inputs[name.endswith("gradient")].ndim == 2
    if name == "take":
        return node.inputs[1].shape == (batch,)
    return node.op.elementwise or name in ("reshape", "one_hot", "broadcast_to", "random_uniform")


def _sums_rows(node: Node, scope: _Scope) -> bool:
    """True if a node sums over the rows of the batch what a region may have made."""
    y, x = node.outputs[0], node.inputs[0] if node.inputs else None
    if x is None or scope.tiles.unsupported(node) or y.dtype != "float32" or x.dtype != "float32":
        return False
    batch = scope.batch
    if not x.shape or x.shape[0] != batch or node.phase == "update":
        return False
    if node.op.name == "sum":
        axes = normalize_axes("sum", node.attrs["axes"], x.ndim)
        return x.size // batch <= MOST_COLUMNS and (len(axes) == x.ndim or axes == (0,))
    if node.op.name != "matmul" or not node.attrs["transpose_a"] or node.attrs["transpose_b"]:
        return False
    return id(node) in scope.streams or scope.reads(y.size)


def _keeps_to_rows(node: Node, scope: _Scope, region_values: set[int]) -> bool:
    """True if a node reads, of the values that the region makes, its own row alone."""
    region_inputs = [k for k, v in enumerate(node.inputs) if id(v) in region_values]
    y, name = node.outputs[0], node.op.name
    if _sums_rows(node, scope):
        return region_inputs == [1] if id(node) in scope.streams else bool(region_inputs)
    for k in region_inputs:
        x = node.inputs[k]
        if x.shape[:1] != (scope.batch,) or (name in ("matmul", "take") and (k == 1) != (name == "take")):
            return False
        if (node.op.elementwise or name == "broadcast_to") and x.ndim != y.ndim:
            return False
        # Its input is a key, which has no rows.
        if name == "random_uniform":
            return False
    return True


def _near_products(inside: dict[int, Node], streams: Mapping[int, StoredRows]) -> dict[int, Node]:
    """Keep products and softmax, what leads there from other products, and what follows any of these."""
    # An elementwise chain alone is left to fusion, which does it without barriers.
    core = {key for key, n in inside.items() if n.op.name in SOFTMAX or n.op.name == "matmul"}
    leading = set(core)
    wanted = {id(v) for key in core for v in inside[key].inputs}
    for key, node in reversed(inside.items()):
        if any(id(v) in wanted for v in node.outputs):
            leading.add(key)
            wanted |= {id(v) for v in node.inputs}
    kept: set[int] = set()
    reached: set[int] = set()
    for key, node in inside.items():
        sources = [v.node for v in node.inputs if v.node is not None]
        follows = any(id(v) in reached for v in node.inputs)
        starts = bool(sources) or node.op.name == "take"  # conversions of inputs are written where they are read
        if not (key in core or follows or (key in leading and starts and all(s.op.name == "matmul" for s in sources))):
            continue
        kept.add(key)
        reached |= {id(v) for v in node.outputs}
    # A product with the transpose of rows in memory needs that with the rows themselves.
    left = {key: n for key, n in inside.items() if key in kept}
    stored = {id(streams[key].stored) for key, n in left.items() if key in streams and not n.attrs["transpose_a"]}
    return {key: n for key, n in left.items() if key not in streams or id(streams[key].stored) in stored}


def _convex(program: Program, inside: dict[int, Node], scope: _Scope) -> dict[int, Node]:
    """Drop nodes that wait for others outside which wait for the region."""
    # A region is one launch: it cannot wait in its middle for a launch that waits for its beginning.
    late: set[int] = set()  # values made outside from what the region makes
    before: set[int] = set()
    kept = dict(inside)
    for node in program.nodes:
        if id(node) in kept and not any(id(v) in late for v in node.inputs):
            (late if _sums_rows(node, scope) else before).update(id(v) for v in node.outputs)
            continue
        kept.pop(id(node), None)
        if any(id(v) in before or id(v) in late for v in node.inputs):
            late |= {id(v) for v in node.outputs}
    return kept


def _components(nodes: Sequence[Node]) -> list[list[Node]]:
    """Nodes that hang together, in order; those that do something that is worth a kernel."""
    group = {id(n): k for k, n in enumerate(nodes)}
    maker = {id(v): n for n in nodes for v in n.outputs}
    for node in nodes:
        for value in node.inputs:
            if id(value) in maker:
                old, new = group[id(node)], group[id(maker[id(value)])]
                for key, number in group.items():
                    if number == old:
                        group[key] = new
    parts: dict[int, list[Node]] = {}
    for node in nodes:
        parts.setdefault(group[id(node)], []).append(node)
    return [p for p in parts.values() if len(p) > 2 and any(n.op.name in SOFTMAX or n.op.name == "matmul" for n in p)]


# Sizes ------------------------------------------------------------------------------------------------------


def _choose(one: RowRegion, streams: Mapping[int, StoredRows], gpu: Gpu) -> bool:
    """Choose the sizes of a region; whether there are any that fit."""
    if not row_products.begin(one, streams):
        return False
    if one.product is not None:
        tile = row_products.best(one, gpu)
        if tile is None:
            return False
        one.tile = tile
    else:
        # Shared memory grows linearly with the rows: two layouts, of 1 and of 33 rows, tell what one more row takes.
        few, many = (Layout(replace(one, tile=RowTile(rows=rows, threads=THREADS))).shared for rows in (1, 33))
        rows = min(max(1, ROW_BYTES * 32 // max(1, many - few)), max(1, -(-one.batch // gpu.multiprocessors)))
        # Two blocks hide each other's barriers; more would leave more partial sums to add up afterwards.
        blocks = min(-(-one.batch // rows), 2 * gpu.multiprocessors)
        one.tile = RowTile(rows=rows, threads=THREADS, blocks=blocks)
    return Layout(one).shared <= gpu.shared_block


# The operation ----------------------------------------------------------------------------------------------


def contract(program: Program, regions: Sequence[RowRegion], tiles: Tiles) -> None:
    """Put each region's nodes into one node; sums over the batch become partial sums of the blocks, and their sums."""
    for one in regions:
        alone = list(one.nodes)
        _absorb(program, one)
        # The sums may have taken more shared memory than there is: then they keep a launch of their own.
        if tiles.layout(one).shared > tiles.gpu.shared_block:
            one.nodes = alone
        _contract(program, one, tiles.layout)


def _absorb(program: Program, one: RowRegion) -> None:
    """Take the sums of a product's partial sums into a region that alone reads them."""
    inside = {id(n) for n in one.nodes}
    readers = Readers(program)
    for node in reversed(program.nodes):
        if not adds_product_sums(node):
            continue
        total = node.outputs[0]
        if total.shape[:1] == (one.batch,) and readers.of(total) and not readers.outside(total, inside):
            one.nodes.insert(0, node)
            inside.add(id(node))


def _contract(program: Program, one: RowRegion, layout: type[Layout]) -> None:
    inside = {id(n) for n in one.nodes}
    region_values = {id(v) for n in one.nodes for v in n.outputs}
    readers = Readers(program)
    inputs: dict[int, Value] = {}
    for node in one.nodes:
        for value in _read(node, one):
            if id(value) not in region_values:
                inputs[id(value)] = value
    last = one.nodes[-1]
    whole = Node(ROW_REGION, tuple(inputs.values()), (), {}, last.scope, last.phase)
    outputs: list[Value] = []
    parts: dict[int, Value] = {}
    after: list[Node] = []
    replaced: dict[int, Value] = {}
    for node in one.nodes:
        if id(node) in one.sums:
            y = node.outputs[0]
            value = Value(program, y.name, Spec((one.tile.blocks, *y.shape), y.dtype), y.kind, whole)
            parts[id(node)] = value
            outputs.append(value)
            with program.scope_of(node, node.phase):
                start = len(program.nodes)
                # Blocks cannot wait for each other, so that a later launch adds what they leave; in the order of their
                # numbers, for the same bits every time.
                total = ops.sum(value, axes=0) if one.tile.blocks > 1 else ops.reshape(value, shape=y.shape)
                after += program.nodes[start:]
                del program.nodes[start:]
            replaced[id(y)] = total
            continue
        for value in node.outputs:
            if readers.outside(value, inside):
                value.node = whole
                outputs.append(value)
    whole.outputs = tuple(outputs)
    one.tile = replace(one.tile, splits=one.tile.blocks, shared=layout(one).shared)
    whole.attrs = {"region": one, "partial_sums": parts, "tile": one.tile}
    _reorder(program, inside, [whole, *after], set(inputs))
    program.substitute(replaced)


def _read(node: Node, one: RowRegion) -> Sequence[Value]:
    """Values that a node of a region reads: of rows in memory, these and their index."""
    product = one.product
    if product is not None and node in (product.node, product.gradient):
        return [product.stored, *([product.index] if product.index is not None else []), node.inputs[1]]
    return node.inputs


def _reorder(program: Program, inside: set[int], whole: list[Node], inputs: set[int]) -> None:
    """Put the region behind all that it waits for, and what waits for it behind the region."""
    waiting: list[Node] = []
    before: list[Node] = []
    following = {id(v) for n in program.nodes if id(n) in inside for v in n.outputs}
    for node in program.nodes:
        if id(node) in inside:
            continue
        if any(id(v) in following for v in node.inputs):
            following |= {id(v) for v in node.outputs}
            waiting.append(node)
        else:
            before.append(node)
    last = max((k for k, n in enumerate(before) if any(id(v) in inputs for v in n.outputs)), default=-1)
    program.nodes = [*before[: last + 1], *whole, *_merged(program, before[last + 1 :], waiting)]


def _merged(program: Program, *runs: Sequence[Node]) -> list[Node]:
    """Nodes of several runs in the order in which the Program has them."""
    place = {id(n): k for k, n in enumerate(program.nodes)}
    return sorted((n for run in runs for n in run), key=lambda n: place[id(n)])
