"""Python of groups that have tiles: convolutions, products and reductions, which make many sums in a block."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from minicnn.backends._gpu.fusion_groups import FusionGroup
from minicnn.backends._gpu.inlining import MOVES
from minicnn.backends._gpu.tile_families import (
    ConvolutionTile,
    ProductTile,
    ReductionTile,
    Tile,
    WeightGradientTile,
)
from minicnn.backends.numba_cuda.printer import CudaPython, type_of
from minicnn.kernels.elements import reduced_place
from minicnn.kernels.expressions import Element, Expr, I, Name, R
from minicnn.kernels.geometry import Geometry
from minicnn.kernels.windows import Image, Windows, images
from minicnn.ops.windows import Axes
from minicnn.program.graph import Value

if TYPE_CHECKING:
    from minicnn.backends.numba_cuda.generation import PythonWriter


def tile_text(writer: PythonWriter, group: FusionGroup) -> str:
    """Name of the function of a block that computes the tile of a group, and what follows it."""
    return _TEXTS[type(group.tile)](writer, group, group.tile)


def _convolution(writer: PythonWriter, group: FusionGroup, tile: ConvolutionTile) -> str:
    node = group.anchor
    attrs, kind = node.attrs, type_of(node.outputs[0])
    one, back = Geometry.of(node, phased=False), node.op.name == "conv2d_input_gradient"
    c, f, kh, kw, groups = one.c, one.f, one.kh, one.kw, one.groups
    image_x, image_y = map(CudaPython.image, images(node))
    fb, cc = tile.filters, tile.channels
    wide_x = attrs["data_format"] == "NHWC" and c % 4 == 0 and cc % 4 == 0
    wide_w = c % 4 == 0 and cc % 4 == 0 if back else f % 4 == 0 and fb % 4 == 0
    x, w = (
        writer.four(v) if wide else writer.function(v) for v, wide in zip(node.inputs, (wide_x, wide_w), strict=True)
    )
    widths = f"{4 if wide_x else 1}, {4 if wide_w else 1}"
    if back:
        sh, sw = attrs["strides"]
        source = writer.define(f"{{name}} = spread({kind}, {image_y}, {x}, {sh}, {sw}, {widths[0]})\n")
        place = f"(({kh - 1} - a) * {kw} + {kw - 1} - b) * {f * c * groups} + f * {c * groups} + group * {c} + c"
    else:
        source = writer.define(f"{{name}} = padded({kind}, {image_x}, {x}, {widths[0]})\n")
        place = f"((a * {kw} + b) * {c} + c) * {f * groups} + group * {f} + f"
    where = writer.device("group, a, b, c, f", f"    return {place}\n")
    numbers = ", ".join(map(str, (c, f, *tile.arguments)))
    image, shape = CudaPython.image(one.image), CudaPython.window(one.window)
    tiled = writer.define(f"{{name}} = ConvTile({widths}, {not back}, {image}, {shape}, {numbers})\n")
    if group.pool is None:
        write = writer.device("p, i, total", writer.lines(writer.follow(group.nodes, group, start=Name("total"))))
        finish = writer.define(f"{{name}} = each({tiled}, {write})\n")
    else:
        body = writer.lines(writer.follow(group.before, group, start=Name("total")))
        last = writer.locals[id(writer.plan.root(group.pool.inputs[0]))].name
        before = writer.device("p, i, total", f"{body}    return {last}\n")
        after = writer.follow(group.nodes, group, start=Name("top"), tap=Name("tap"))
        write = writer.device("p, i, top, tap", writer.lines(after))
        pooled = CudaPython.image(Image.of(group.pool.outputs[0].shape, attrs["data_format"]))
        ph, pw = group.pool.attrs["kernel"]
        finish = writer.define(f"{{name}} = each_pooled({kind}, {tiled}, {pooled}, {ph}, {pw}, {before}, {write})\n")
    return writer.define(f"{{name}} = convolve({kind}, {tiled}, {source}, {w}, {where}, {finish})\n")


def _weight_gradient(writer: PythonWriter, group: FusionGroup, tile: WeightGradientTile) -> str:
    node = group.anchor
    attrs = node.attrs
    axes, groups = Axes.of(attrs["data_format"]), attrs["groups"]
    c, f = (node.inputs[k].shape[axes.c] // groups for k in (1, 0))
    near = attrs["data_format"] == "NHWC"
    wide = [near and n % 4 == 0 and block % 4 == 0 for n, block in ((f, tile.filters), (c, tile.channels))]
    dy, x = (writer.four(v) if w else writer.function(v) for v, w in zip(node.inputs, wide, strict=True))
    widths = ", ".join("4" if w else "1" for w in wide[::-1])
    numbers = ", ".join(map(str, tile.arguments))
    tiled = writer.define(f"{{name}} = WeightTile({widths}, {CudaPython.geometry(node)}, {c}, {f}, {numbers})\n")
    kind = type_of(node.outputs[0])
    return writer.define(f"{{name}} = weight_gradient({kind}, {tiled}, {x}, {dy}, {_partial_sums(writer, group)})\n")


def _partial_sums(writer: PythonWriter, group: FusionGroup) -> str:
    """Name of the function that puts away one element of a part of a sum, or of the whole if there is one part."""
    (parts, *rest), anchor = group.anchor.outputs[0].shape, group.anchor
    if group.anchor.op.name == "matmul" or parts == 1:
        body = writer.lines(writer.follow(group.nodes, group, start=Name("total")))
    else:
        body = f"    {writer.parameter(anchor.outputs[0])}[index(part * {math.prod(rest)} + i)] = total\n"
    return writer.device("p, part, i, total", body)


def _product(writer: PythonWriter, group: FusionGroup, tile: ProductTile) -> str:
    node = group.anchor
    m, n = node.outputs[0].shape[-2:]
    ta, tb = node.attrs["transpose_a"], node.attrs["transpose_b"]
    k = node.inputs[0].shape[0 if ta else 1]
    runs = (tile.rows if ta else tile.terms, tile.terms if tb else tile.columns)  # of a row, as it is stored, in a tile
    columns = [v.shape[1] for v in node.inputs]
    widths = [4 if c % 4 == 0 and run % 4 == 0 else 1 for c, run in zip(columns, runs, strict=True)]
    packed = [writer.packed(v, c) if w == 4 else None for v, c, w in zip(node.inputs, columns, widths, strict=True)]
    a, b = (
        writer.neighbours(v, c, w) if pair is None else pair[0]
        for v, c, w, pair in zip(node.inputs, columns, widths, packed, strict=True)
    )
    unpack = "".join(f", {pair and pair[1]}" for pair in packed) if any(packed) else ""
    numbers = ", ".join(map(str, (m, n, k, ta, tb, *widths, *tile.arguments)))
    tiled = writer.define(f"{{name}} = ProductTile({numbers})\n")
    kind = type_of(node.outputs[0])
    return writer.define(f"{{name}} = multiply({kind}, {tiled}, {a}, {b}, {_partial_sums(writer, group)}{unpack})\n")


def _reduction(writer: PythonWriter, group: FusionGroup, tile: ReductionTile) -> str:
    node = group.anchor
    if node.op.name == "depthwise_conv2d_weight_gradient_partial_sums":
        one: Expr = Windows(node).depthwise_conv2d_weight_gradient_term().replaced({I: Name("o")})
    else:
        one = Element(0, reduced_place(node, Name("o"), R)[1])
    # A function of (p, o, r) for term r of result o.
    term = writer.define_function((Name("o"), R), writer.resolved(node, one), node.inputs[0])
    run = 8 if all(_loads(writer, v) for v in node.inputs) else 1
    numbers = ", ".join(map(str, (*tile.arguments, node.attrs.get("join") == "max", run)))
    tiled = writer.define(f"{{name}} = ReduceTile({numbers})\n")
    return writer.define(
        f"{{name}} = reduce({type_of(node.outputs[0])}, {tiled}, {term}, {_partial_sums(writer, group)})\n"
    )


def _loads(writer: PythonWriter, value: Value) -> bool:
    """True if an element of a value takes a few loads, so that several may be under way."""
    node = writer.inlined(value)
    return node is None or (
        (node.op.elementwise or node.op.name in MOVES) and all(_loads(writer, v) for v in node.inputs)
    )


_TEXTS: Mapping[type[Tile] | type[None], Callable[[PythonWriter, FusionGroup, Any], str]] = {
    ConvolutionTile: _convolution,
    WeightGradientTile: _weight_gradient,
    ProductTile: _product,
    ReductionTile: _reduction,
}
