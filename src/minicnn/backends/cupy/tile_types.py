"""C++ types of tiles: the templates of `kernels/` with what was chosen for a node."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from minicnn.backends._gpu.fusion_groups import whole
from minicnn.backends._gpu.region_layout import RowRegion
from minicnn.backends._gpu.tile_families import DepthwiseTile, DepthwiseWeightGradientTile, PipelinedTile, Tile
from minicnn.backends.cupy.cpp import C_TYPES, Cpp
from minicnn.kernels.geometry import Geometry
from minicnn.kernels.windows import images, window
from minicnn.ops.windows import Axes
from minicnn.program.graph import Node

# Types of the operands of tensor cores.
_OPERANDS = {"float32": "Float32", "bfloat16": "Bfloat16", "float16": "Float16"}


def tile_type(node: Node, tile: Tile) -> str:
    """The type of a node's tile; of reductions, whose template has no such type, its arguments."""
    if node.op.name.startswith(("conv2d_partial", "conv2d_input_gradient_partial")):
        node = whole(node)
    if isinstance(tile, DepthwiseTile):
        return _depthwise(node, tile)
    template, fixed = _FIXED[node.op.name](node)
    if isinstance(tile, PipelinedTile) and tile.precision is not None:
        back = node.op.name == "conv2d_input_gradient"
        if template == "ConvTile":
            one, (x, y) = Geometry.of(node, phased=False), map(Cpp.image, images(node))
            fixed = (*((y, x) if back else (x, y)), Cpp.window(window(node)), one.c, one.f, back)
        operands = _OPERANDS[tile.precision]
        template, fixed = f"Pipelined{template}", (f"Warpgroups<{operands}>" if tile.warpgroups else operands, *fixed)
    elif tile.precision is not None:
        template, fixed = f"Tensor{template}", (_OPERANDS[tile.precision], *fixed)
    arguments = ", ".join(map(_argument, (*fixed, *tile.arguments)))
    return f"{template}<{arguments}>" if template else arguments


def _depthwise(node: Node, tile: DepthwiseTile) -> str:
    """The type of a tile of a depthwise convolution or of one of its gradients."""
    x, y = map(Cpp.image, images(node))
    back, short = node.op.name == "depthwise_conv2d_input_gradient", node.inputs[0].node
    kind = C_TYPES[short.inputs[0].dtype] if short is not None else ""
    sides = (y, x) if back else (x, y)
    arguments: tuple[str | int, ...] = (kind, *sides, Cpp.window(window(node)), back, *tile.arguments)
    template = "DepthwiseWeightTile" if isinstance(tile, DepthwiseWeightGradientTile) else "DepthwiseTile"
    return f"{template}<{', '.join(map(_argument, arguments))}>"


def _argument(argument: str | int) -> str:
    return str(argument).lower() if isinstance(argument, bool) else str(argument)


def _convolution(node: Node) -> tuple[str, tuple[str | int, ...]]:
    g = Geometry.of(node, phased=True)
    return "ConvTile", (Cpp.image(g.image), Cpp.window(g.window), g.c, g.f)


def _weight_gradient(node: Node) -> tuple[str, tuple[str | int, ...]]:
    c, groups = Axes.of(node.attrs["data_format"]).c, node.attrs["groups"]
    return "WeightTile", (Cpp.geometry(node), *(node.inputs[k].shape[c] // groups for k in (1, 0)))


def _product(node: Node) -> tuple[str, tuple[str | int, ...]]:
    transposed = (node.attrs["transpose_a"], node.attrs["transpose_b"])
    return "ProductTile", (*node.outputs[0].shape[-2:], node.inputs[0].shape[0 if transposed[0] else 1], *transposed)


def _reduction(node: Node) -> tuple[str, tuple[str | int, ...]]:
    return "", ("Largest" if node.attrs.get("join") == "max" else "Plus",)


_FIXED: Mapping[str, Callable[[Node], tuple[str, tuple[str | int, ...]]]] = {
    "conv2d": _convolution,
    "conv2d_input_gradient": _convolution,
    "conv2d_weight_gradient_partial_sums": _weight_gradient,
    "depthwise_conv2d_weight_gradient_partial_sums": _reduction,
    "matmul": _product,
    "matmul_partial_sums": _product,
    "reduce_partial_sums": _reduction,
}


def rows_type(region: RowRegion, what: str) -> str:
    """Name of a type of the product with rows in memory, with which a region begins: with rows of bytes or not."""
    stored = region.product.stored.dtype if region.product is not None else ""
    return f"{'Byte' if stored == 'uint8' else 'Float'}{what}"


def rows_tile_type(region: RowRegion) -> str:
    """The type of the tile of that product."""
    one = region.sizes
    numbers = (region.batch, one.k, one.m, one.rows, one.threads, one.stages, one.slices, one.back)
    return f"{rows_type(region, 'Tile')}<{', '.join(map(_argument, numbers))}>"
