"""Tiles without tensor cores as statements of the kernel language, with whatever follows their results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from minicnn.backends._gpu.fusion_groups import FusionGroup
from minicnn.backends._gpu.operands import matrix, operand
from minicnn.backends._gpu.plain_tiling import PlainTile
from minicnn.backends._gpu.tiling import ConvolutionTile, ProductTile, ReductionTile, WeightGradientTile
from minicnn.backends._gpu.writer import Writer
from minicnn.kernels.blocks import PART, TOTAL, Finish
from minicnn.kernels.convolutions import Pooled, convolved
from minicnn.kernels.elements import reduced_place
from minicnn.kernels.expressions import Apply, Cast, Element, Expr, I, Name, R, parts_of
from minicnn.kernels.matrices import multiplied
from minicnn.kernels.products import Product, Term, product_of
from minicnn.kernels.reductions import RESULT, Sharing, shared_sum, totals
from minicnn.kernels.statements import Shared, Statement
from minicnn.kernels.tiles import tiled
from minicnn.kernels.weight_gradients import weight_gradient
from minicnn.kernels.windows import Image, Windows
from minicnn.program.graph import ITEMSIZE, Node, Value


def shared_bytes(statements: Sequence[Statement]) -> int:
    """Bytes of the arrays that have shared memory of their own; each begins at a multiple of 16."""
    arrays = [one.array for one in parts_of(tuple(statements), Shared) if one.first is None]
    return sum(-(-a.size * ITEMSIZE[a.dtype] // 16) * 16 for a in arrays)


def plain_tile(writer: Writer, group: FusionGroup, threads: int) -> Sequence[Statement]:
    """Statements of a group's sums, and what follows each of them.

    Args:
        writer: The writer of the group.
        group: The group, which has such a tile, or a sum that threads share.
        threads: Threads of a block.
    """
    node, tile, dtype = group.anchor, group.tile, group.anchor.outputs[0].dtype
    resolved = partial(writer.resolved, node)
    match tile:
        case ConvolutionTile():
            return convolved(node, tile, [operand(writer, v) for v in node.inputs], *_pooled(writer, group))
        case WeightGradientTile():
            operands = [operand(writer, v) for v in node.inputs]
            return weight_gradient(node, tile, tile.splits, operands, _finish(writer, group))
        case PlainTile():
            return tiled(
                _by_rows(writer, node, product_of(node)), tile.shape, dtype, resolved,
                lambda places, x, title: writer.define_function(places, x, node.outputs[0], title),
                _finish(writer, group).lines,
            )  # fmt: skip
        case ProductTile():
            return multiplied(node, tile.shape, [matrix(writer, v) for v in node.inputs], _finish(writer, group))
    if isinstance(tile, ReductionTile):
        finish = _finish(writer, group).lines
        return shared_sum(tile.sharing, node.attrs.get("join", "sum"), dtype, [resolved(_term(node))], finish, threads)
    terms = [writer.resolved(one, _term(one)) for one in group.totals]
    first, *others = totals(len(terms), dtype)
    known = {id(one): total for one, total in zip(group.totals[1:], others, strict=True)}
    statements, stored = writer.compute(group.nodes, group, first, known=known)
    finish = [*statements, *(writer.store(value, name) for value, name in stored)]
    sharing = Sharing(group.size, node.inputs[0].shape[0], threads // group.slices, group.slices, terms_first=False)
    return shared_sum(sharing, "sum", dtype, terms, finish, threads)


def _by_rows(writer: Writer, node: Node, product: Product) -> Product:
    """A product of matrices whose elements, where they are computed as they are read, are told by row and column.

    That spares two divisions for each element of rows that are gathered.
    """
    if not node.op.name.startswith("matmul"):
        return product
    turned = node.attrs["transpose_a"], node.attrs["transpose_b"]
    left, right = (
        usual if writer.inlined(value) is None else _by_row(writer, value, turned=across)
        for value, across, usual in zip(node.inputs, turned, (product.left, product.right), strict=True)
    )
    return replace(product, left=left, right=right)


def _by_row(writer: Writer, value: Value, *, turned: bool) -> Callable[[Expr, Expr], Term]:
    function = writer.matrix(value, value.shape[1])

    def term(a: Expr, b: Expr) -> Term:
        return Term(Apply(function, (b, a) if turned else (a, b)))

    return term


def _finish(writer: Writer, group: FusionGroup) -> Finish:
    """Computation that follows each sum of a group, or each part of one."""
    node, total = group.anchor, Name(TOTAL, group.anchor.outputs[0].dtype)
    if node.op.name.endswith("_partial_sums") and (parts := node.outputs[0].shape[0]) > 1:
        place = PART * (node.outputs[0].size // parts) + I
        return Finish(total, (), [(writer.array(node.outputs[0]), place, total)])
    statements, stored = writer.compute(group.nodes, group, total)
    arrays = [(writer.array(value), I, name) for value, name in stored]
    return Finish(total, statements, arrays, in_place=bool(writer.plan.carried(group)))


def _pooled(writer: Writer, group: FusionGroup) -> tuple[Finish, Pooled | None]:
    """Computation that follows a convolution, and its pooling, if it has one."""
    pool, dtype = group.pool, group.anchor.outputs[0].dtype
    if pool is None:
        return _finish(writer, group), None
    total, top, tap = Name(TOTAL, dtype), Name("top", dtype), Name("winner", "int32")
    statements, stored = writer.compute(group.before, group, total)
    before = Finish(total, statements, [(writer.array(value), I, name) for value, name in stored])
    of = writer.locals[id(writer.plan.root(pool.inputs[0]))]
    image = Image.of(pool.outputs[0].shape, pool.attrs["data_format"])
    statements, stored = writer.compute(group.nodes, group, Name("maximum", dtype), Cast(tap, "uint8", "int32"))
    finish = Finish(Name("maximum", dtype), statements, [(writer.array(value), I, name) for value, name in stored])
    return finish, Pooled(image, pool.attrs["kernel"], before, of, top, tap)


def _term(node: Node) -> Expr:
    """Term r of result o of a sum."""
    if node.op.name.startswith("depthwise"):
        return Windows(node).depthwise_conv2d_weight_gradient_term().replaced({I: RESULT})
    source, dtype = node.inputs[0].dtype, node.outputs[0].dtype
    _, place = reduced_place(node, RESULT, R)
    return Element(0, place) if source == dtype else Cast(Element(0, place), dtype, source)
