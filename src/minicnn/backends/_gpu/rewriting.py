"""Rewriting a Program for CUDA: into operations that have kernels, and into sums that many blocks can share."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from functools import partial

from minicnn import ops
from minicnn.backends._gpu import row_regions
from minicnn.backends._gpu.depthwise_tiling import DEPTHWISE
from minicnn.backends._gpu.region_layout import RowRegion
from minicnn.backends._gpu.row_regions import kernel_only
from minicnn.backends._gpu.tiles import Tiles
from minicnn.kernels.elements import widens
from minicnn.kernels.expressions import SHORT
from minicnn.ops.checks import normalize_axes
from minicnn.ops.decompositions import decompose as decomposed
from minicnn.ops.normalization import in_units
from minicnn.ops.windows import Axes
from minicnn.program.graph import Node, Program, Spec, Value
from minicnn.program.passes import PRODUCTS, remove_dead_nodes, scatters
from minicnn.program.readers import Readers

# Partial sums of an operation along a new first axis, one of each block; of `reduce` the results are flat.
CONV_PARTIAL_SUMS = {name: kernel_only(f"{name}_partial_sums") for name in ("conv2d", "conv2d_input_gradient")}
WEIGHT_GRADIENT_PARTIAL_SUMS = kernel_only("conv2d_weight_gradient_partial_sums")
DEPTHWISE_WEIGHT_GRADIENT_PARTIAL_SUMS = kernel_only("depthwise_conv2d_weight_gradient_partial_sums")
MATMUL_PARTIAL_SUMS = kernel_only("matmul_partial_sums")
REDUCE_PARTIAL_SUMS = kernel_only("reduce_partial_sums")
POOL_INDEX = kernel_only("max_pool2d_index")  # number of the tap that holds the maximum of each window, as uint8
POOL_SCATTER = kernel_only("max_pool2d_scatter")  # max_pool2d_gradient from such numbers


# Rules ------------------------------------------------------------------------------------------------------


def decompose(program: Program, *, one_pass: bool = False) -> Program:
    """Normalisation, gradients of maxima, long rows of softmax as reductions and elementwise operations, which fuse.

    Args:
        program: The Program.
        one_pass: Whether the variance of what is stored in 16 bits comes from the sum of squares, which does not wait
            for the mean. What float32 loses there, some 2^-24 of the squared mean, is less than what storing lost.
    """
    if one_pass:
        program.replace(_normalized_in_one_pass)
    for names in (_COMPOSITE, ("mean",)):  # of which composite ones consist
        program.replace(partial(_decomposed, names))
    return program


_COMPOSITE = (
    "normalize", "normalize_gradient", "max_gradient", "softmax", "log_softmax", "softmax_cross_entropy",
    "softmax_cross_entropy_gradient",
)  # fmt: skip
# Terms of a softmax that one thread, or a few, hold at once: a row-wise region does it in one go.
_SHORT_ROW = 64


def _decomposed(names: Sequence[str], node: Node) -> Sequence[Value] | None:
    if node.op.name not in names:
        return None
    x = node.inputs[1 if node.op.name == "softmax_cross_entropy_gradient" else 0]
    long = "softmax" not in node.op.name or x.shape[node.attrs.get("axis", -1)] > _SHORT_ROW
    return decomposed(node) if long else None


def _normalized_in_one_pass(node: Node) -> Sequence[Value] | None:
    x = node.inputs[0] if node.inputs else None
    if node.op.name != "normalize" or x is None or not widens(x.node):
        return None
    _, scale, offset = node.inputs
    small, epsilon = in_units(node)
    average, squares = (ops.mean(one, axes=node.attrs["axes"], keepdims=True) for one in (x, ops.square(small(x))))
    # E[x^2] - E[x]^2 may come out below zero, where sqrt gives NaN.
    variance = ops.maximum(squares - ops.square(small(average)), 0.0)
    return [(x - average) * (small(scale) / ops.sqrt(variance + epsilon)) + offset, average, variance]


def products_in(program: Program) -> str | None:
    """The shorter format that `lower_precision` gave a Program's products, if it did."""
    dtypes = {v.dtype for node in program.nodes if node.op.name in PRODUCTS for v in node.inputs}
    return next((name for name in SHORT if name in dtypes), None)


def widen_products(program: Program, *, every: bool = False) -> Program:
    """Products of float32 in place of those in a shorter format: tensor cores round operands where they load them.

    Images are stored in that format; if `every`, so are filters and scattered gradients with multiples of 8 channels.
    """

    def rule(node: Node) -> Sequence[Value] | None:
        if node.op.name in PRODUCTS and any(v.dtype in SHORT for v in node.inputs):  # others are made by products
            return program.emit(node.op, [_as_float32(v, every) for v in node.inputs], node.attrs).outputs
        if node.op.name == "cast" and node.inputs[0].dtype == node.attrs["dtype"]:
            return node.inputs
        return None

    program.replace(rule)
    return program


def _as_float32(operand: Value, every: bool) -> Value:
    """An operand of a product as it was before it was rounded, if that was float32 and it is not stored so."""
    if operand.dtype == "float32":
        return operand
    cast = operand.node
    if cast is None or cast.op.name != "cast" or cast.inputs[0].dtype != "float32":
        return ops.cast(operand, dtype="float32")
    before = cast.inputs[0]
    # Matrices are small beside images: rounding them as they are loaded costs less than storing them twice.
    if operand.ndim != 4:
        return before
    channels = operand.shape[2:] if before.node is None else operand.shape[3:]
    ahead = every and all(n % 8 == 0 for n in channels)
    # An image is read by several convolutions: half the bytes for each outweigh one rounding. What a pooling scatters
    # is computed where it is read, so that there is nothing to store.
    stored = ahead or (before.node is not None and not scatters(before.node))
    return ops.cast(operand, dtype="float32") if stored else before


def round_pooled(program: Program, dtype: str, tiles: Tiles) -> Program:
    """Convolutions are stored in 16 bits, as products are, where a max-pooling reads them from memory."""
    readers = Readers(program)

    def rule(node: Node) -> Sequence[Value] | None:
        if node.op.name != "conv2d" or node.outputs[0].shape[-1] % 8:
            return None
        read = readers.of(node.outputs[0])
        pools = [n for n in read if n.op.name == "max_pool2d"]
        tile = tiles.convolution(node)
        if len(pools) != 1 or any(n.op.name != "max_pool2d_gradient" for n in read if n not in pools):
            return None
        if tile is None or not tile.stages or tiles.pooled(node, pools[0]) is not None:
            return None
        (y,) = program.emit(node.op, node.inputs, node.attrs).outputs
        return [ops.cast(ops.cast(y, dtype=dtype), dtype=y.dtype)]

    program.replace(rule)
    return program


def round_branches(program: Program, dtype: str) -> Program:
    """Of two input gradients that are added, the first, which waits in memory for the other, is stored in 16 bits."""
    readers, places = Readers(program), {id(node): k for k, node in enumerate(program.nodes)}

    def rule(node: Node) -> Sequence[Value] | None:
        y = node.outputs[0]
        add = readers.only(y) if node.op.name == "conv2d_input_gradient" and y.shape[-1] % 8 == 0 else None
        if add is None or add.op.name != "add" or add.inputs[0].shape != add.inputs[1].shape:
            return None
        other = add.inputs[add.inputs[0] is y].node
        if other is None or other.op.name != node.op.name or places[id(other)] < places[id(node)]:
            return None
        (first,) = program.emit(node.op, node.inputs, node.attrs).outputs
        return [ops.cast(ops.cast(first, dtype=dtype), dtype=y.dtype)]

    program.replace(rule)
    return program


def remember_maxima(program: Program) -> Program:
    """Max-pooling also hands out where its maxima are, so that its gradient need not read the image again."""
    # The image and the window decide; the maxima themselves may have been rounded in between.
    index: dict[Hashable, Value] = {}
    wanted = {_pooling_of(n, 1) for n in program.nodes if n.op.name == "max_pool2d_gradient"}

    def rule(node: Node) -> Sequence[Value] | None:
        if node.op.name == "max_pool2d" and (key := _pooling_of(node, 0)) in wanted - index.keys() and has_byte(node):
            # `replace` drops a node for which a rule returns values; here the pooling stays, and another node
            # follows it.
            program.nodes.append(node)
            y = node.outputs[0]
            spec = Spec(y.shape, "uint8")
            (index[key],) = program.append(POOL_INDEX, [node.inputs[0], y], [spec], node.attrs).outputs
            return node.outputs
        if node.op.name == "max_pool2d_gradient" and (key := _pooling_of(node, 1)) in index:
            operands = [node.inputs[0], index[key]]
            return program.append(POOL_SCATTER, operands, [node.outputs[0].spec], node.attrs).outputs
        if node.op.name == "sum" and node.inputs[0].node is not None:
            return _sum_before_scatter(node)
        return None

    program.replace(rule)
    return program


def _pooling_of(node: Node, k: int) -> Hashable:
    """The image, which is input k, and the window: they decide where maxima are."""
    return id(node.inputs[k]), tuple(sorted(node.attrs.items()))


def has_byte(node: Node) -> bool:
    """True if a byte says which tap of a max-pooling has the maximum."""
    return math.prod(node.attrs["kernel"]) <= 256


def _sum_before_scatter(node: Node) -> Sequence[Value] | None:
    """The sum over all positions of a scattered gradient is that of the gradient: nothing is lost on the way."""
    scatter = node.inputs[0].node
    if scatter is None or scatter.op is not POOL_SCATTER or node.attrs["keepdims"]:
        return None
    channel = scatter.attrs["data_format"].index("C")
    if normalize_axes("sum", node.attrs["axes"], 4) != tuple(a for a in range(4) if a != channel):
        return None
    return [ops.sum(scatter.inputs[0], axes=node.attrs["axes"])]


def share_sums(program: Program, node: Node, tiles: Tiles, *, joined: bool = False) -> Sequence[Value] | None:
    """Long sums as partial sums, one a block, and the sum of these.

    Args:
        program: The Program that is made.
        node: One of its nodes.
        tiles: Where tiles come from.
        joined: Whether a launch that comes anyway adds up the partial sums.
    """
    name, y = node.op.name, node.outputs[0]
    if name == "conv2d_weight_gradient":
        tile = tiles.weight_gradient(node)
        op = WEIGHT_GRADIENT_PARTIAL_SUMS
        if tile is None:
            return None
    elif name in CONV_PARTIAL_SUMS and tiles.pipelined:
        tile, op = tiles.convolution(node), CONV_PARTIAL_SUMS[name]
        if tile is None or tile.splits == 1:
            return None
    elif name == "depthwise_conv2d_weight_gradient":
        dy, axes = node.inputs[0], Axes.of(node.attrs["data_format"])
        terms = dy.size // dy.shape[axes.c]
        if terms < _LONG_SUM:
            return None
        tile = tiles.depthwise(node) or tiles.reduction(y.size, terms, terms_first=axes.c != dy.ndim - 1)
        op = DEPTHWISE_WEIGHT_GRADIENT_PARTIAL_SUMS
    elif name == "matmul":
        tile, op = tiles.product(node, joined=joined), MATMUL_PARTIAL_SUMS
        if tile.splits == 1:
            return None
    elif name in ("sum", "max"):
        summed = normalize_axes(name, node.attrs["axes"], node.inputs[0].ndim)
        results, terms = y.size, node.inputs[0].size // max(1, y.size)
        if terms < _LONG_SUM or not results:
            return None
        first = node.inputs[0].ndim - 1 in summed
        tile, op = tiles.reduction(results, terms, terms_first=first), REDUCE_PARTIAL_SUMS
        # Asking for partial sums at all lets the tile that makes the image leave one for each of its blocks.
        if tile.splits == 1 and name == "sum" and summed == (0, 1, 2) and _comes_with_sums(node.inputs[0], tiles):
            tile = tile.split(_FEW)
        spec = Spec((tile.splits, results), y.dtype)
        attrs = {"axes": summed, "splits": tile.splits, "tile": tile, "join": name}
        (sums,) = program.append(op, node.inputs, [spec], attrs).outputs
        whole = sums if tile.splits == 1 else ops.REGISTRY[name](sums, axes=0)
        return [ops.reshape(whole, shape=y.shape)]
    else:
        return None
    attrs = {**node.attrs, "splits": tile.splits, "tile": tile}
    (sums,) = program.append(op, node.inputs, [Spec((tile.splits, *y.shape), y.dtype)], attrs).outputs
    return [ops.sum(sums, axes=0) if tile.splits > 1 else ops.reshape(sums, shape=y.shape)]


# Terms beyond which one thread for a result waits for memory longer than a launch for partial sums takes.
_LONG_SUM = 64
_FEW = 8  # partial sums, where as many as there are blocks will take their place


def _comes_with_sums(value: Value, tiles: Tiles) -> bool:
    """True if a tile makes an image, by elementwise operations, and can take sums over its positions on the way out."""
    node = value.node
    if node is None or value.ndim != 4 or not tiles.pipelined:
        return False
    if node.op.name in CONV_PARTIAL_SUMS:
        tile = tiles.convolution(node)
    elif node.op.name in DEPTHWISE:
        tile = tiles.depthwise(node)
    else:
        same = [v for v in node.inputs if v.shape == value.shape] if node.op.elementwise else []
        joined = node.op.name == "add" and len(same) > 1  # of residual branches, which come from several tiles
        return not joined and any(_comes_with_sums(v, tiles) for v in same)
    return tile is not None and tile.stages > 0


def _joined_anyway(program: Program, regions: Sequence[RowRegion]) -> set[int]:
    """Ids of products that regions or updates alone read, in passing."""
    region = {id(n): k for k, one in enumerate(regions) for n in one.nodes}
    updated = {id(v) for v in program.updates.values()}
    readers = Readers(program)
    ends: set[int] = {id(v) for v in program.outputs.values()}
    update_only: set[int] = set()  # values that elementwise operations take to updates, and nothing else reads
    for node in reversed(program.nodes):
        for y in node.outputs:
            read = readers.of(y)
            further = all(id(v) in update_only for n in read for v in n.outputs)
            passed_on = further and all(n.op.elementwise or n.op.name == "reshape" for n in read)
            if passed_on and id(y) not in ends and (read or id(y) in updated):
                update_only.add(id(y))
    result = set()
    for node in program.nodes:
        y = node.outputs[0]
        where = {region.get(id(n)) for n in readers.of(y)}
        # A region adds partial sums as it loads them, and so does an update: splitting the product then costs no
        # launch.
        by_chain = len(where) == 1 and None not in where and id(y) not in ends | updated
        if node.op.name == "matmul" and (by_chain or id(y) in update_only):
            result.add(id(node))
    return result


def keep_overwritten(program: Program) -> None:
    """Copy inputs that a step overwrites and yet hands out as they were: as outputs, or as others' new values."""
    for results in (program.outputs, program.updates):
        for name, value in results.items():
            root = value
            while root.node is not None and root.node.op.name == "reshape":
                root = root.node.inputs[0]
            if root.node is None and root.name in program.updates and (results is program.outputs or name != root.name):
                # The cheapest operation that makes a new array of equal bits, NaN included.
                results[name] = ops.maximum(value, value)


def rewrite(program: Program, *, fuse: bool, tiled: bool, tiles: Tiles) -> Program:
    """All of the above that the options ask for, in place.

    Args:
        program: The Program.
        fuse: Several operations in one kernel.
        tiled: Sums that many blocks share.
        tiles: Where tiles come from.
    """
    # The order matters: composite operations are taken apart before regions and sums are looked for in what they
    # consist of.
    keep_overwritten(program)
    if short := products_in(program):
        remove_dead_nodes(widen_products(program, every=tiles.pipelined and fuse))
        if tiles.pipelined and fuse:
            round_branches(round_pooled(program, short, tiles), short)
    decompose(program, one_pass=tiles.pipelined and fuse)
    if fuse:
        remember_maxima(program)
    remove_dead_nodes(program)  # regions store what any other node reads
    regions: list[RowRegion] = []
    if fuse and tiled:
        # Before sums are shared, which would take products apart that a region does whole.
        regions = [c for c in row_regions.find(program, tiles) if tiles.size_region(c)]
    if tiled:
        inside, joined = {id(n) for one in regions for n in one.nodes}, _joined_anyway(program, regions)
        program.replace(
            lambda node: None if id(node) in inside else share_sums(program, node, tiles, joined=id(node) in joined)
        )
    row_regions.contract(program, regions, tiles)
    remove_dead_nodes(program)
    return program
