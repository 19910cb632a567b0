"""C++ of a tile: its type, which has all that was chosen by name, what it reads, what follows it, and its template."""

from __future__ import annotations

from collections.abc import Sequence
from functools import singledispatch

from minicnn.backends._gpu.base_tile import Tile
from minicnn.backends._gpu.depthwise_tiling import RUN, DepthwiseTile, DepthwiseWeightGradientTile
from minicnn.backends._gpu.fusion_groups import FusionGroup, whole
from minicnn.backends._gpu.pipelined_tiling import PipelinedTile, PipelinedWeightGradientTile
from minicnn.backends._gpu.tensor_families import TensorConvolutionTile, TensorProductTile, TensorWeightGradientTile
from minicnn.backends._gpu.tiling import ReductionTile
from minicnn.backends.cupy.cpp import C_TYPES, Cpp, c_type, sizes_type
from minicnn.backends.cupy.neighbours import NeighbourWriter
from minicnn.kernels.expressions import Cast, Name
from minicnn.kernels.geometry import Geometry, phases
from minicnn.kernels.statements import Statement
from minicnn.kernels.windows import Image, images, window
from minicnn.ops.windows import Axes
from minicnn.program.graph import Node, Value

# Types of the operands of tensor cores.
_OPERANDS = {"float32": "Float32", "bfloat16": "Bfloat16", "float16": "Float16"}
_ONE_BY_ONE = "const auto made = finish(i, sum); store(i, &made, Width<1>());"  # how results are finished
_FEW_RUNS = 3  # of 16 bytes, of which a thread has registers for four at a time


@singledispatch
def tile_text(tile: Tile | None, writer: NeighbourWriter, group: FusionGroup) -> str:
    """C++ of a group whose tile has a template; a class of tiles registers its own.

    Args:
        tile: The group's tile.
        writer: The writer of the group.
        group: The group.
    """
    raise NotImplementedError(f"Each tile that the kernel language does not print has a template. Received: {tile}.")


# Products on tensor cores ---------------------------------------------------------------------------


@tile_text.register
def _(tile: TensorProductTile, writer: NeighbourWriter, group: FusionGroup) -> str:
    node = group.anchor
    transposed = node.attrs["transpose_a"], node.attrs["transpose_b"]
    k = node.inputs[0].shape[0 if transposed[0] else 1]
    kind = _type(tile, _operands(tile), *node.outputs[0].shape[-2:], k, *transposed)
    functions = [writer.matrix(v, v.shape[1]) for v in node.inputs]
    return _summed(writer, group, kind, "multiply", node.inputs, functions)


@tile_text.register
def _(tile: TensorWeightGradientTile, writer: NeighbourWriter, group: FusionGroup) -> str:
    dy, x = group.anchor.inputs
    functions = [writer.function(v) for v in (x, dy)]
    return _summed(writer, group, _weight_gradient_type(tile, group.anchor), "weight_gradient", (x, dy), functions)


def _weight_gradient_type(tile: Tile, node: Node) -> str:
    c, groups = Axes.of(node.attrs["data_format"]).c, node.attrs["groups"]
    return _type(tile, _operands(tile), Cpp.geometry(node), *(node.inputs[k].shape[c] // groups for k in (1, 0)))


@tile_text.register
def _(tile: TensorConvolutionTile, writer: NeighbourWriter, group: FusionGroup) -> str:
    node = group.anchor
    attrs, kind, one, g = node.attrs, c_type(node.outputs[0]), *(Geometry.of(node, phased=p) for p in (False, True))
    c, f, kh, kw, groups = one.c, one.f, one.kh, one.kw, one.groups
    x, w = (writer.function(v) for v in node.inputs)
    back, (sh, sw) = node.op.name == "conv2d_input_gradient", attrs["strides"]
    image_x, image_y = map(Cpp.image, images(node))
    rows, columns = phases(node)
    phased = rows * columns > 1
    image = f"Padded<{kind}, {image_y if back else image_x}, decltype({x})>"
    if back and not phased and sh * sw > 1:
        # Without phases the gradient of a strided convolution reads dy with zeros in between.
        image = f"Spread<{kind}, {image_y}, {sh}, {sw}, decltype({x})>"
    if back:
        (top, _), (left, _) = attrs["padding"]
        sizes = f"typename A::S, {kh}, {kw}, {c}, {f}, {groups}, {rows}, {columns}, {top}, {left}"
    else:
        sizes = f"{kw}, {c}, {f}, {groups}"
    filters = f"{'Flipped' * back}Filters<{kind}, {sizes}, decltype({w})>"
    head = (
        f"{_type(tile, _operands(tile), Cpp.image(g.image), Cpp.window(g.window), g.c, g.f)}"
        f"    const int group = block / A::BLOCKS;\n"
        f"    const {image} in = {{{x}, group * {c}}};\n    const {filters} weight = {{{w}, group}};\n"
    )
    out, arguments = f"each<{kind}, A>", "filter, sum"
    if group.pool is not None:
        before = writer.lines(writer.late(lambda: writer.follow(group.before, group, Name("sum"))))
        last = writer.locals[id(writer.plan.root(group.pool.inputs[0]))].name
        head += f"    const auto before = [&](uint32 i, {kind} sum) {{\n{before}      return {last};\n    }};\n"
        ph, pw = group.pool.attrs["kernel"]
        image = Cpp.image(Image.of(group.pool.outputs[0].shape, attrs["data_format"]))
        out, arguments = f"each_pooled<{kind}, A, {image}, {ph}, {pw}>", "filter, sum, before"
    elif phased:
        out = f"each_of_phases<{kind}, A, {image_x}, {f}, {rows}, {columns}>"
    return (
        f"{head}{_finish_and_store(writer, group)}"
        f"    {_template(writer, group, 'convolve', node.inputs)}(\n"
        "      block % A::BLOCKS, in, weight, [&](int n, int h, int w, auto filter, auto sum) {\n"
        f"      {out}(n, h, w, group * {f}, {arguments}, finish, store);\n    }});\n"
    )


def _summed(
    writer: NeighbourWriter, group: FusionGroup, kind: str, name: str, operands: Sequence[Value],
    functions: Sequence[str],
) -> str:  # fmt: skip
    """The template `name` for two operands, of which function objects are given, and the type of its tile."""
    ends, call = _finish_and_store(writer, group), _template(writer, group, name, operands)
    return f"{kind}{ends}    {call}(block, {', '.join(functions)}, finish, store);\n"


def _template(writer: NeighbourWriter, group: FusionGroup, name: str, operands: Sequence[Value]) -> str:
    """The template for a tile on tensor cores, and its arguments."""
    # An operand that is there before the launch ahead has ended is loaded while that still runs.
    early = (Cpp.literal(writer.plan.is_early(v, writer.launch), "bool") for v in operands)
    return f"tensor_{name}<{c_type(group.anchor.outputs[0])}, A, Early<{', '.join(early)}>>"


# Operands in memory in 16 bits, which come ahead ----------------------------------------------------


@tile_text.register
def _(tile: PipelinedTile, writer: NeighbourWriter, group: FusionGroup) -> str:
    node = whole(group.anchor)  # sums over positions are taken of what is stored
    one, back = Geometry.of(node, phased=False), node.op.name == "conv2d_input_gradient"
    kind = _type(tile, _operands(tile), *_sides(node, back=back), Cpp.window(window(node)), one.c, one.f, back)
    x, w = (f"{writer.function(v)}.p" for v in node.inputs)
    ends, together = _run_ends(writer, group)
    # Of several tiles, what follows the next one is fetched once a tile's sums are there: until it is used, the cache
    # has to keep that of both, and as much again comes.
    at_once = 4 * tile.blocks * tile.rows * tile.columns
    ahead, fetched = writer.run_fetches(group.size if tile.turns == 1 else at_once)
    return (
        f"{kind}{ends}{ahead}    pipelined_convolve<A, {len(writer.totals)}, {together}, {fetched}>(\n"
        f"      block % A::BLOCKS, block / A::BLOCKS, {x}, {w}, ahead, ends, {_totals(writer)});\n"
    )


@tile_text.register
def _(tile: PipelinedWeightGradientTile, writer: NeighbourWriter, group: FusionGroup) -> str:
    dy, x = group.anchor.inputs
    arguments = f"block, {writer.function(x)}.p, {writer.function(dy)}.p, ends"
    ends, together = _run_ends(writer, group)
    kind = _weight_gradient_type(tile, group.anchor)
    return f"{kind}{ends}    pipelined_weight_gradient<A, {together}>({arguments});\n"


def _run_ends(writer: NeighbourWriter, group: FusionGroup) -> tuple[str, int]:
    """The function `ends` of a tile, and for how many runs a thread loads at a time what follows them."""
    ends = writer.late(lambda: writer.run_ends(group, RUN))
    # As many as registers are left for: answers of memory that are waited for together cost as much as one.
    return ends, 4 if writer.fetched_runs <= _FEW_RUNS else 2


# Depthwise convolutions -----------------------------------------------------------------------------


@tile_text.register
def _(tile: DepthwiseTile, writer: NeighbourWriter, group: FusionGroup) -> str:
    x, w = group.anchor.inputs
    weight = writer.function(w)
    (run,), functions = _depthwise_runs(tile, writer, group.anchor, [x])
    ends = writer.run_ends(group, RUN)
    arguments = f"block, {run}, {weight}, ends, {_totals(writer)}"
    return f"{functions}{ends}    depthwise<A, {len(writer.totals)}>({arguments});\n"


@tile_text.register
def _(tile: DepthwiseWeightGradientTile, writer: NeighbourWriter, group: FusionGroup) -> str:
    (dy, x), functions = _depthwise_runs(tile, writer, group.anchor, group.anchor.inputs)
    out = f"[&](uint32 i, float sum) {{ {_ONE_BY_ONE} }}"
    return f"{_finish_and_store(writer, group)}{functions}    depthwise_weights<A>(block, {x}, {dy}, {out});\n"


def _depthwise_runs(tile: Tile, writer: NeighbourWriter, node: Node, values: Sequence[Value]) -> tuple[list[str], str]:
    """Functions that give runs of the channels of images, and statements that define the tile's type and them."""
    short, back = node.inputs[0].node, node.op.name == "depthwise_conv2d_input_gradient"
    kind = C_TYPES[short.inputs[0].dtype] if short is not None else ""
    names, functions = writer.run_functions(values, RUN)
    tile_type = _type(tile, kind, *_sides(node, back=back), Cpp.window(window(node)), back)
    return names, f"{tile_type}    const uint32 first = A::channel(block);\n{functions}"


# Sums and maxima ------------------------------------------------------------------------------------


@tile_text.register
def _(tile: ReductionTile, writer: NeighbourWriter, group: FusionGroup) -> str:
    """The template for terms r of neighbouring results from o on."""
    kind, width = c_type(group.anchor.outputs[0]), group.width
    term, before = writer.lane_terms(group.anchor, width)
    join = "Largest" if group.anchor.attrs.get("join") == "max" else "Plus"
    return (
        f"    {sizes_type(tile.sizes)}\n{_finish_and_store(writer, group)}"
        f"    reduce_lanes<{kind}, {join}, Sizes, {width}>(\n"
        f"      block, [&](uint32 o, uint32 r) {{ {before}return {term}; }},\n"
        f"      [&](uint32 i, {kind} sum) {{ {_ONE_BY_ONE} }});\n"
    )


# Types of tiles -------------------------------------------------------------------------------------


def _type(tile: Tile, *operation: str | int) -> str:
    """Definition of the type A of a tile: the template of its class for an operation, and its sizes."""
    arguments = ", ".join(str(one).lower() if isinstance(one, bool) else str(one) for one in operation)
    return f"    {sizes_type(tile.sizes)}\n    using A = {type(tile).__name__}<{arguments}, Sizes>;\n"


def _operands(tile: Tile) -> str:
    """Type of the operands of tensor cores."""
    kind = _OPERANDS[tile.precision or ""]
    return f"Warpgroups<{kind}>" if tile.warpgroups else kind


def _sides(node: Node, *, back: bool) -> tuple[str, str]:
    """The image that is summed over, and the result."""
    x, y = map(Cpp.image, images(node))
    return (y, x) if back else (x, y)


# What follows a tile's sums -------------------------------------------------------------------------


def _finish_and_store(writer: NeighbourWriter, group: FusionGroup) -> str:
    """Function objects `finish` and `store` for the sums of a group's tile: `finish_and_store` of `results.cuh`."""
    node, kind = group.anchor, c_type(group.anchor.outputs[0])
    if node.op.name.endswith("_partial_sums") and node.outputs[0].shape[0] > 1:
        statements, stored = list[Statement](), [(node.outputs[0], Name("sum"))]
    elif group.pool is None:
        statements, stored = writer.late(lambda: writer.compute(group.nodes, group, Name("sum")))
    else:
        tap = Cast(Name("sum.tap"), "uint8")
        statements, stored = writer.late(lambda: writer.compute(group.nodes, group, Name("sum.top"), tap))
        kind = f"Pooled<{kind}>"
    types = {local.name: c_type(value) for value, local in stored}
    for one in (n.inputs[0] for n in group.sums):
        types[writer.locals[id(writer.plan.root(one))].name] = c_type(one)
    fields = "".join(f" {kept} {local};" for local, kept in types.items())
    stores = ""
    for value, local in stored:
        arguments = f"{writer.parameter(value)} + i, [=](int e) {{ return made[e].{local.name}; }}"
        stores += f"      store_neighbours<decltype(width)::N>({arguments});\n"
    return (
        f"    struct Made {{{fields} }};\n    const auto finish = [&](uint32 i, {kind} sum) {{\n"
        f"{writer.lines(statements)}      return Made{{{', '.join(types)}}};\n    }};\n"
        f"    const auto store = [&](uint32 i, const Made* made, auto width) {{\n{stores}    }};\n"
    )


def _totals(writer: NeighbourWriter) -> str:
    """The function that stores what a block leaves of sums over positions, of the same terms in several places."""
    stores = [
        f"if (s == {k}) {' = '.join(f'{place}[i]' for place in places)} = sum;"
        for k, places in enumerate(writer.totals.values())
    ]
    return f"[&](int s, uint32 i, float sum) {{ {' '.join(stores)} }}" if stores else "0"
