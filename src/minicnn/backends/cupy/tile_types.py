"""C++ of tiles: the templates of `kernels/` by the names of their classes, and what was chosen, by name, as a type."""

from __future__ import annotations

from collections.abc import Mapping

from minicnn.backends._gpu.base_tile import Tile
from minicnn.backends._gpu.depthwise_tiling import DepthwiseTile
from minicnn.backends._gpu.fusion_groups import whole
from minicnn.backends._gpu.pipelined_tiling import PipelinedTile, PipelinedWeightGradientTile
from minicnn.backends._gpu.tensor_families import TensorConvolutionTile, TensorWeightGradientTile
from minicnn.backends.cupy.cpp import C_TYPES, Cpp
from minicnn.kernels.geometry import Geometry
from minicnn.kernels.windows import images, window
from minicnn.ops.windows import Axes
from minicnn.program.graph import Node

# Types of the operands of tensor cores.
_OPERANDS = {"float32": "Float32", "bfloat16": "Bfloat16", "float16": "Float16"}


def sizes_type(sizes: Mapping[str, int | bool]) -> str:
    """Definition of the type `Sizes`, whose members templates read by name."""
    return f"struct Sizes {{ enum {{ {', '.join(f'{name} = {int(size)}' for name, size in sizes.items())} }}; }};"


def tile_type(node: Node, tile: Tile) -> str:
    """The type of a node's tile, given its operation and `Sizes`."""
    if node.op.name.startswith(("conv2d_partial", "conv2d_input_gradient_partial")):
        node = whole(node)
    operation = ", ".join(map(_argument, _operation(node, tile)))
    return f"{type(tile).__name__}<{operation}, Sizes>"


def _operation(node: Node, tile: Tile) -> tuple[str | int, ...]:
    """Arguments of a template that tell the operation."""
    operands = _OPERANDS.get(tile.precision or "", "")
    if tile.warpgroups:
        operands = f"Warpgroups<{operands}>"
    if isinstance(tile, DepthwiseTile):
        short, back = node.inputs[0].node, node.op.name == "depthwise_conv2d_input_gradient"
        kind = C_TYPES[short.inputs[0].dtype] if short is not None else ""
        return kind, *_sides(node, back=back), Cpp.window(window(node)), back
    if isinstance(tile, TensorWeightGradientTile | PipelinedWeightGradientTile):
        c, groups = Axes.of(node.attrs["data_format"]).c, node.attrs["groups"]
        return operands, Cpp.geometry(node), *(node.inputs[k].shape[c] // groups for k in (1, 0))
    if isinstance(tile, PipelinedTile):
        one, back = Geometry.of(node, phased=False), node.op.name == "conv2d_input_gradient"
        return operands, *_sides(node, back=back), Cpp.window(window(node)), one.c, one.f, back
    if isinstance(tile, TensorConvolutionTile):
        g = Geometry.of(node, phased=True)
        return operands, Cpp.image(g.image), Cpp.window(g.window), g.c, g.f
    turned = (node.attrs["transpose_a"], node.attrs["transpose_b"])
    return operands, *node.outputs[0].shape[-2:], node.inputs[0].shape[0 if turned[0] else 1], *turned


def _sides(node: Node, *, back: bool) -> tuple[str, str]:
    """The image that is summed over, and the result."""
    x, y = map(Cpp.image, images(node))
    return (y, x) if back else (x, y)


def _argument(argument: str | int) -> str:
    return str(argument).lower() if isinstance(argument, bool) else str(argument)
