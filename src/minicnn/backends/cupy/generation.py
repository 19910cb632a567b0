"""CUDA C++ of a launch: the groups' function objects around the templates of `kernels/`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from textwrap import indent
from typing import TypeVar

from minicnn.backends._gpu.depthwise_tiling import RUN
from minicnn.backends._gpu.fusing import Plan
from minicnn.backends._gpu.fusion_groups import FusionGroup, named
from minicnn.backends._gpu.inlining import SCATTER
from minicnn.backends._gpu.plain import is_lowered, plain_tile, shared_bytes
from minicnn.backends._gpu.regions import region_statements
from minicnn.backends._gpu.source import Source
from minicnn.backends._gpu.tiling import ReductionTile
from minicnn.backends.cupy.cpp import Cpp, c_type, of_lanes
from minicnn.backends.cupy.neighbours import NeighbourWriter
from minicnn.backends.cupy.row_steps import CppRowSteps
from minicnn.backends.cupy.tile_types import sizes_type, tile_type
from minicnn.kernels.elements import element, widens
from minicnn.kernels.expressions import Apply, Cast, Element, Expr, I, Name, changed
from minicnn.kernels.geometry import Geometry, phases
from minicnn.kernels.statements import Statement
from minicnn.kernels.windows import Image, images
from minicnn.program.graph import Node, Value

_ONE_BY_ONE = "const auto made = finish(i, sum); store(i, &made, Width<1>());"  # how results are finished
_FEW_RUNS = 3  # of 16 bytes, of which a thread has registers for four at a time
_IN_A_ROW = 8  # groups of a launch that are looked through one after the other

_T = TypeVar("_T")


def generate(plan: Plan, launch: Sequence[FusionGroup], queued: set[int], threads: int = 256) -> Source:
    """The kernel of one launch.

    Args:
        plan: The plan that the launch is of.
        launch: Groups that run side by side.
        queued: Ids of inputs of which there is one row a step.
        threads: Threads of a block, unless a tile says otherwise.
    """
    writer = CppWriter(plan, launch, queued)
    bodies, starts, blocks = list[str](), list[int](), 0
    sizes = [_blocks(group, threads, writer.width(group)) for group in launch]
    threads = max(group_threads for _, group_threads in sizes)
    for group, (count, group_threads) in zip(launch, sizes, strict=True):
        body = writer.group(group, group_threads)
        if not group.on_tensor_cores:  # those templates load before they wait
            # The next launch is put in place meanwhile: its blocks get what is left when all of these are there.
            body = f"    wait_for_previous();\n    let_next_begin();\n{body}"
        # Groups of a launch may need fewer threads than its largest: the others leave before any barrier.
        spare = f"    if (spare({group_threads})) return;\n" if group_threads < threads else ""
        bodies.append(f"{{\n{spare}    const int block = blockIdx.x - {blocks};\n{body}    return;\n  }}\n")
        starts.append(blocks)
        blocks += count
    resident = max(group.tile.resident if group.tile else 1 for group in launch)
    # Registers are what the compiler must leave for so many blocks; without a bound it takes what it likes.
    bounds = f"{threads}, {resident}" if resident > 1 else f"{threads}"
    text = (
        f'#include "{"regions" if any(u.anchor.op.name == "row_region" for u in launch) else "kernels"}.cuh"\n\n'
        f'extern "C" __global__ void __launch_bounds__({bounds}) kernel({", ".join(writer.parameters())}) {{\n'
        f"{writer.prologue()}{_dispatch(bodies, [*starts, blocks])}}}\n"
    )
    shared = max(writer.shared, *(group.tile.shared if group.tile else 0 for group in launch))
    return Source(text, tuple(writer.values), writer.reads_queue, blocks, threads, named(launch), shared)


def _dispatch(bodies: Sequence[str], starts: Sequence[int]) -> str:
    """Statements that lead a block to its body, by halves if there are many: body k is for blocks from starts[k] on."""
    if len(bodies) == 1:
        return f"  {bodies[0]}"
    if len(bodies) <= _IN_A_ROW:
        return "".join(f"  if (blockIdx.x < {end}u) {body}" for body, end in zip(bodies, starts[1:], strict=True))
    # A tree of comparisons: the updates of a deep network are hundreds of groups, and a block looks for its own.
    half = len(bodies) // 2
    first, rest = _dispatch(bodies[:half], starts[: half + 1]), _dispatch(bodies[half:], starts[half:])
    return f"  if (blockIdx.x < {starts[half]}u) {{\n{first}  }} else {{\n{rest}  }}\n"


def _blocks(group: FusionGroup, threads: int, width: int) -> tuple[int, int]:
    if group.tile is not None:
        return group.tile.blocks, group.tile.threads
    if width > 1:
        return -(-group.size // (threads * width)), threads
    return -(-group.size // (threads // group.slices)), threads


class CppWriter(NeighbourWriter):
    """Text of one kernel in C++: its parameters are p0, p1 ..., its functions objects in the scope of their group."""

    row_steps = CppRowSteps

    def __init__(self, plan: Plan, launch: Sequence[FusionGroup], queued: set[int]) -> None:
        super().__init__(plan, launch, queued)
        self.read_late: set[int] = set()  # when sums are finished
        self.shared = 0  # bytes of shared memory that tiles in the kernel language ask for
        self._lines: list[str] = []
        self._wide_loads = False

    def parameters(self) -> list[str]:
        """Declarations of the parameters."""
        result = []
        for k, value in enumerate(self.values):
            kind = f"{c_type(value)}*" if id(value) in self.written else f"const {c_type(value)}*"
            # Restricted pointers go through the read-only cache; what is read behind a barrier must not.
            kind += " __restrict__" * (id(value) not in self.written | self.read_late)
            result.append(f"{kind} p{k}")
        return result + (["const int* __restrict__ cursor", "const int offset"] if self.reads_queue else [])

    def prologue(self) -> str:
        """Statements before all groups; the first launch of a step may read what has just been brought or updated."""
        # The first launch reads what the step before has written; all others wait in their groups, as late as they can.
        wait = "" if self.launch else "  wait_for_previous();\n"
        return wait + ("  const uint32 row = uint32(cursor[0] + offset);\n" if self.reads_queue else "")

    def define(self, text: str) -> str:
        """See `Writer.define`."""
        name = self.new()
        self._lines.append(text.replace("{name}", name))
        return name

    def define_function(self, parameters: tuple[Name, ...], result: Expr, value: Value, title: str = "") -> str:
        """See `Writer.define_function`."""
        return self.define(Cpp().function(parameters, result))

    def define_elements(self, root: Value) -> str:
        """See `Writer.define_elements`; templates load several elements at once of what they see is in memory."""
        node = self.inlined(root)
        image = images(node)[0] if self._wide_loads and node is not None and node.op.name == SCATTER else None
        # Four neighbouring channels have one window: its tap is looked up once for all.
        if node is not None and image is not None and image.data_format == "NHWC" and image.c % 4 == 0:
            one, four = super().define_elements(root), self._fours(node)
            types = f"{c_type(root)}, decltype({one}), decltype({four})"
            return self.define(f"const Fours<{types}> {{name}} = {{{one}, {four}}};")
        short = self._stored_short(root)
        if self._wide_loads and short is not None:
            return self.define(f"const Widened<{c_type(short)}> {{name}} = {{{self.parameter(short)}}};")
        in_memory = node is None and self.number(root) is None and id(root) not in self.queued
        if self._wide_loads and in_memory:
            return self.define(f"const Plain<{c_type(root)}> {{name}} = {{{self.parameter(root)}}};")
        return super().define_elements(root)

    def _fours(self, node: Node) -> str:
        """Name of a new function that gives four neighbouring channels of the result of a node with windows."""
        loads = {k: f"load_lanes<{c_type(v)}>" for k, v in enumerate(node.inputs)}
        names = {k: Name(self.function(v)) for k, v in enumerate(node.inputs)}

        def four(x: Expr) -> Expr | None:
            return Apply(loads[x.k], (names[x.k], x.place)) if isinstance(x, Element) else None

        return self.define(of_lanes(4)().function((I,), changed(element(node, 0), four)))

    def _stored_short(self, root: Value) -> Value | None:
        """The numbers of 16 bits in memory that a value is made of, if that is all that is done to them."""
        node = self.inlined(root)
        short = self.plan.root(node.inputs[0]) if node is not None and widens(node) else None
        return short if short is not None and self.inlined(short) is None else None

    def matrix(self, value: Value, columns: int) -> str:
        """See `Writer.matrix`; what is stored in 16 bits is loaded as it is."""
        # Wide loads take runs of elements, for which a matrix need only say where a row begins.
        if self._stored_short(self.plan.root(value)) is not None:
            return self.define_plain_matrix(value, columns)
        return super().matrix(value, columns)

    def define_plain_matrix(self, value: Value, columns: int) -> str:
        """See `Writer.define_plain_matrix`; templates load several columns at once."""
        array = self.function(value)
        return self.define(f"const Matrix<{columns}, decltype({array})> {{name}} = {{{array}}};")

    def group(self, group: FusionGroup, threads: int) -> str:
        """Statements of one group, which see `block` and threadIdx.x."""
        self.functions, self.locals, self.kept, self._lines = {}, {}, {}, []
        self._wide_loads = group.on_tensor_cores
        if group.anchor.op.name == "row_region":
            body = self.lines(region_statements(self, group.anchor), 2)
        elif is_lowered(self, group) and not self.lanes(group):
            statements = plain_tile(self, group, threads)
            self.shared = max(self.shared, shared_bytes(statements))
            body = self.lines(statements, 2)
        elif group.tile is None:
            body = self._elements(group, threads)
        else:
            body = getattr(self, f"_{group.anchor.op.name}")(group)
        return "".join(indent(f"{line}\n", "    ", lambda one: True) for line in self._lines) + body

    # Elementwise groups --------------------------------------------------------------------------

    def _elements(self, group: FusionGroup, threads: int) -> str:
        if (width := self.width(group)) > 1:
            return self.neighbours(group, threads, width)
        return self.lines(self.elements(group, threads), 2)

    def _finish_and_store(self, group: FusionGroup) -> str:
        """Function objects `finish` and `store` for the sums of a group's tile: `finish_and_store` of `results.cuh`."""
        node, kind = group.anchor, c_type(group.anchor.outputs[0])
        if node.op.name.endswith("_partial_sums") and node.outputs[0].shape[0] > 1:
            statements, stored = list[Statement](), [(node.outputs[0], Name("sum"))]
        elif group.pool is None:
            statements, stored = self._late(lambda: self.compute(group.nodes, group, Name("sum")))
        else:
            tap = Cast(Name("sum.tap"), "uint8")
            statements, stored = self._late(lambda: self.compute(group.nodes, group, Name("sum.top"), tap))
            kind = f"Pooled<{kind}>"
        types = {local.name: c_type(value) for value, local in stored}
        for one in (n.inputs[0] for n in group.sums):
            types[self.locals[id(self.plan.root(one))].name] = c_type(one)
        fields = "".join(f" {kept} {local};" for local, kept in types.items())
        stores = ""
        for value, local in stored:
            arguments = f"{self.parameter(value)} + i, [=](int e) {{ return made[e].{local.name}; }}"
            stores += f"      store_neighbours<decltype(width)::N>({arguments});\n"
        return (
            f"    struct Made {{{fields} }};\n    const auto finish = [&](uint32 i, {kind} sum) {{\n"
            f"{self.lines(statements)}      return Made{{{', '.join(types)}}};\n    }};\n"
            f"    const auto store = [&](uint32 i, const Made* made, auto width) {{\n{stores}    }};\n"
        )

    def _late(self, write: Callable[[], _T]) -> _T:
        """Call `write`; the values that it is the first to ask for are read when sums are finished."""
        known = {id(v) for v in self.values}
        result = write()
        self.read_late |= {id(v) for v in self.values} - known
        return result

    # Tiles --------------------------------------------------------------------------------------

    def _conv2d(self, group: FusionGroup) -> str:
        if group.tile is not None and group.tile.stages:
            return self._pipelined_convolution(group)
        node = group.anchor
        attrs, kind, one = node.attrs, c_type(node.outputs[0]), Geometry.of(node, phased=False)
        c, f, kh, kw, groups = one.c, one.f, one.kh, one.kw, one.groups
        x, w = (self.function(v) for v in node.inputs)
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
            f"{self._tile(group)}    const int group = block / A::BLOCKS;\n"
            f"    const {image} in = {{{x}, group * {c}}};\n    const {filters} weight = {{{w}, group}};\n"
        )
        out, arguments = f"each<{kind}, A>", "filter, sum"
        if group.pool is not None:
            before = self.lines(self._late(lambda: self.follow(group.before, group, Name("sum"))))
            last = self.locals[id(self.plan.root(group.pool.inputs[0]))].name
            head += f"    const auto before = [&](uint32 i, {kind} sum) {{\n{before}      return {last};\n    }};\n"
            ph, pw = group.pool.attrs["kernel"]
            image = Cpp.image(Image.of(group.pool.outputs[0].shape, attrs["data_format"]))
            out, arguments = f"each_pooled<{kind}, A, {image}, {ph}, {pw}>", "filter, sum, before"
        elif phased:
            out = f"each_of_phases<{kind}, A, {image_x}, {f}, {rows}, {columns}>"
        return (
            f"{head}{self._finish_and_store(group)}"
            f"    {self._template(group, 'convolve', *node.inputs)}(\n"
            "      block % A::BLOCKS, in, weight, [&](int n, int h, int w, auto filter, auto sum) {\n"
            f"      {out}(n, h, w, group * {f}, {arguments}, finish, store);\n    }});\n"
        )

    _conv2d_input_gradient = _conv2d_partial_sums = _conv2d_input_gradient_partial_sums = _conv2d

    def _conv2d_weight_gradient_partial_sums(self, group: FusionGroup) -> str:
        dy, x = group.anchor.inputs
        if group.tile is not None and group.tile.stages:
            arguments = f"block, {self.function(x)}.p, {self.function(dy)}.p, ends"
            ends, together = self._run_ends(group)
            return f"{self._tile(group)}{ends}    pipelined_weight_gradient<A, {together}>({arguments});\n"
        return self._summed(group, "weight_gradient", (x, dy), [self.function(v) for v in (x, dy)])

    def _matmul(self, group: FusionGroup) -> str:
        operands = group.anchor.inputs
        return self._summed(group, "multiply", operands, [self.matrix(v, v.shape[1]) for v in operands])

    _matmul_partial_sums = _matmul

    def _pipelined_convolution(self, group: FusionGroup) -> str:
        """The template for operands that are in memory in 16 bits; sums over positions are taken of what is stored."""
        x, w = (f"{self.function(v)}.p" for v in group.anchor.inputs)
        ends, together = self._run_ends(group)
        ahead, fetched = self.run_fetches()
        return (
            f"{self._tile(group)}{ends}{ahead}    pipelined_convolve<A, {len(group.sums)}, {together}, {fetched}>(\n"
            f"      block % A::BLOCKS, block / A::BLOCKS, {x}, {w}, ahead, ends, {self._totals_of(group)});\n"
        )

    def _run_ends(self, group: FusionGroup) -> tuple[str, int]:
        """The function `ends` of a group's tile, and for how many runs a thread loads at a time what follows them."""
        ends = self._late(lambda: self.run_ends(group, RUN))
        # As many as registers are left for: answers of memory that are waited for together cost as much as one.
        return ends, 4 if self.fetched_runs <= _FEW_RUNS else 2

    def _summed(self, group: FusionGroup, name: str, operands: Sequence[Value], functions: Sequence[str]) -> str:
        """The template `name` for the two operands of a group, of which function objects are given."""
        call = self._template(group, name, *operands)
        ends = self._finish_and_store(group)
        return f"{self._tile(group)}{ends}    {call}(block, {', '.join(functions)}, finish, store);\n"

    def _tile(self, group: FusionGroup) -> str:
        """The type of a group's tile, with that of its sizes."""
        if group.tile is None:
            return ""
        return f"    {sizes_type(group.tile.sizes)}\n    using A = {tile_type(group.anchor, group.tile)};\n"

    def _template(self, group: FusionGroup, name: str, left: Value, right: Value) -> str:
        """The template for a group's tile on tensor cores, and its arguments."""
        kind = c_type(group.anchor.outputs[0])
        # An operand that is there before the launch ahead has ended is loaded while that still runs.
        early = (Cpp.literal(self.plan.is_early(v, self.launch), "bool") for v in (left, right))
        return f"tensor_{name}<{kind}, A, Early<{', '.join(early)}>>"

    def _reduce_partial_sums(self, group: FusionGroup) -> str:
        """The template for sums or maxima of terms r of neighbouring results from o on."""
        kind, width = c_type(group.anchor.outputs[0]), self.lanes(group)
        term, before = self.lane_terms(group.anchor, width)
        join = "Largest" if group.anchor.attrs.get("join") == "max" else "Plus"
        sizes = sizes_type(group.tile.sizes if group.tile is not None else {})
        return (
            f"    {sizes}\n{self._finish_and_store(group)}    reduce_lanes<{kind}, {join}, Sizes, {width}>(\n"
            f"      block, [&](uint32 o, uint32 r) {{ {before}return {term}; }},\n"
            f"      [&](uint32 i, {kind} sum) {{ {_ONE_BY_ONE} }});\n"
        )

    def _depthwise_conv2d_weight_gradient_partial_sums(self, group: FusionGroup) -> str:
        if isinstance(group.tile, ReductionTile):
            return self._reduce_partial_sums(group)
        (dy, x), functions = self._depthwise_runs(group, group.anchor.inputs)
        out = f"[&](uint32 i, float sum) {{ {_ONE_BY_ONE} }}"
        return f"{self._finish_and_store(group)}{functions}    depthwise_weights<A>(block, {x}, {dy}, {out});\n"

    def _depthwise_conv2d(self, group: FusionGroup) -> str:
        weight = self.function(group.anchor.inputs[1])
        (x,), functions = self._depthwise_runs(group, group.anchor.inputs[:1])
        ends = self.run_ends(group, RUN)
        arguments = f"block, {x}, {weight}, ends, {self._totals_of(group)}"
        return f"{functions}{ends}    depthwise<A, {len(group.sums)}>({arguments});\n"

    _depthwise_conv2d_input_gradient = _depthwise_conv2d

    def _depthwise_runs(self, group: FusionGroup, values: Sequence[Value]) -> tuple[list[str], str]:
        """Functions that give runs of the channels of images for a depthwise tile, and statements that define them."""
        names, functions = self.run_functions(values, RUN)
        return names, f"{self._tile(group)}    const uint32 first = A::channel(block);\n{functions}"

    def _totals_of(self, group: FusionGroup) -> str:
        """The function that stores what a block leaves of sums over positions."""
        places = [self.parameter(n.outputs[0]) for n in group.sums]
        return f"[&](int s, uint32 i, float sum) {{ ({_one_of(places)})[i] = sum; }}" if places else "0"


def _one_of(texts: Sequence[str]) -> str:
    """Text of number s of some."""
    return " : ".join([*(f"s == {k} ? {text}" for k, text in enumerate(texts[:-1])), *texts[-1:]])
