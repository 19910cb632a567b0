"""Rules for products and convolutions in bfloat16 by tiles, and the choice of that way."""

from __future__ import annotations

from minicnn.backends.numba import cpus, tile_products, tile_sums
from minicnn.backends.numba.correlate import Line, Operands
from minicnn.backends.numba.filter_lanes import LaneShape
from minicnn.backends.numba.lowering import BLOCKED, PLAIN, Key, Lowering, Task, blocks_of
from minicnn.backends.numba.products import Ending, ends_of, paired
from minicnn.backends.numba.tile_products import TileShape
from minicnn.backends.numba.tile_sums import SumShape
from minicnn.backends.numba.widening import rounded_from, stored
from minicnn.program.graph import Node, Value

PINNED = "tiles"


def tile_name(name: str) -> str:
    """Name of the kernel of a product, for `explain`."""
    return f"{name} in bfloat16 by {'tdpbf16ps' if cpus.host().tiles else 'tiles of multiply-adds'}"


def _chosen(to: Lowering, cost: float, other: float) -> bool:
    """True if tiles are taken: where the CPU has them and they are faster, unless the user has pinned a way."""
    if to.convolution is not None:
        return to.convolution == PINNED
    return cpus.host().tiles is not None and cost < other


def correlated(
    to: Lowering, node: Node, rows: list[Line], columns: list[Line], operands: Operands, ending: Ending
) -> bool:
    """Lower a product, a convolution or its input gradient to tiles; False if it takes another way."""
    if not operands.paired or operands.groups > 1:
        return False
    (x, w), y = node.inputs, node.outputs[0]
    shape = TileShape(rows, columns, operands, blocks_of(x))
    if not _chosen(to, tile_products.cost(shape), tile_products.direct_cost(shape)):
        return False
    tiles = _weights(to, node, w, shape)
    parts = to.scratch(node, "parts", shape.part_bytes * to.threads)
    source = tile_products.tile_correlate(tile_name(node.op.name), shape, to.threads)
    reads = [to.need(stored(x), BLOCKED), tiles, *ends_of(to, ending)]
    to.add(node, source, reads, [parts, to.buffer(y, BLOCKED)], to.threads)
    return True


def _weights(to: Lowering, node: Node, w: Value, shape: TileShape) -> Key:
    """The weights in tiles."""
    source, items = tile_products.tiled_weights(shape)
    if shape.whole:
        read = to.need(rounded_from(w), PLAIN)
    else:
        *taps, channels, filters = w.shape
        read = paired(to, node, w, (taps[0] * taps[1] if taps else 1, channels, filters, 1), shape.operands)
    key = to.scratch(node, "tiles", shape.weight_bytes)
    to.tasks.append(Task(node, [read], [key], source, items))
    return key


def summed(to: Lowering, node: Node, dy: Value, x: Value, lanes: LaneShape) -> bool:
    """Lower a weight gradient to tiles; False if it takes another way."""
    if not lanes.paired or lanes.groups > 1:
        return False
    shape, dw = SumShape(lanes), node.outputs[0]
    if not _chosen(to, tile_sums.cost(shape), tile_sums.direct_cost(shape)):
        return False
    panel = to.scratch(node, "panel", shape.panel_bytes)
    to.tasks.append(Task(node, [to.clean(dy)], [panel], tile_sums.panels(shape), shape.pairs))
    sums = to.buffer(dw, PLAIN) if shape.exact else to.scratch(node, "sums", shape.sum_bytes * shape.ranges)
    source = tile_sums.weight_gradient(tile_name("conv2d_weight_gradient"), shape)
    to.add(node, source, [panel, to.clean(x)], [sums], shape.chunks * shape.ranges)
    if not shape.exact:
        join, items = tile_sums.joined(shape)
        to.tasks.append(Task(node, [sums], [to.buffer(dw, PLAIN)], join, items))
    return True
