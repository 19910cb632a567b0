"""CUDA C++ of a launch: the groups' function objects around the templates of `kernels/`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from minicnn.backends._gpu.elements import images, reduced_place, same_index
from minicnn.backends._gpu.fusing import SCATTER, Plan
from minicnn.backends._gpu.fusion_groups import FusionGroup, named
from minicnn.backends._gpu.source import Source
from minicnn.backends._gpu.tiling import phases
from minicnn.backends._gpu.trees import Image, Name, R
from minicnn.backends.cupy.cpp import Cpp, c_type, expression, image_type, literal
from minicnn.backends.cupy.region_text import region_text
from minicnn.backends.cupy.tile_types import geometry, tile_type
from minicnn.ops.windows import Axes
from minicnn.program.graph import Node, Value

LANES = 32

_T = TypeVar("_T")


def generate(plan: Plan, launch: Sequence[FusionGroup], queued: set[int], threads: int = 256) -> Source:
    """The kernel of one launch.

    Args:
        plan: The plan that the launch is of.
        launch: Groups that run side by side.
        queued: Ids of inputs of which there is one row a step.
        threads: Threads of a block, unless a tile says otherwise.
    """
    writer = Writer(plan, queued, next(k for k, other in enumerate(plan.launches) if other is launch))
    bodies, blocks = [], 0
    sizes = [_blocks(group, threads) for group in launch]
    threads = max(own for _, own in sizes)
    for group, (count, own) in zip(launch, sizes, strict=True):
        body = writer.group(group, own)
        guard = f"if (blockIdx.x < {blocks + count}u) " if len(launch) > 1 else ""
        if not group.on_tensor_cores:  # those templates load before they wait
            body = f"    wait_for_previous();\n{body}"
        spare = f"    if (spare({own})) return;\n" if own < threads else ""
        bodies.append(f"  {guard}{{\n{spare}    const int block = blockIdx.x - {blocks};\n{body}    return;\n  }}\n")
        blocks += count
    resident = max(group.tile.resident if group.tile else 1 for group in launch)
    bounds = f"{threads}, {resident}" if resident > 1 else f"{threads}"
    text = (
        f'#include "{"regions" if any(u.anchor.op.name == "row_region" for u in launch) else "kernels"}.cuh"\n\n'
        f'extern "C" __global__ void __launch_bounds__({bounds}) kernel({", ".join(writer.parameters())}) {{\n'
        f"{writer.prologue()}{''.join(bodies)}}}\n"
    )
    shared = max(group.tile.shared if group.tile else 0 for group in launch)
    return Source(text, tuple(writer.values), writer.reads_queue, blocks, threads, named(launch), shared)


def _blocks(group: FusionGroup, threads: int) -> tuple[int, int]:
    if group.tile is not None:
        return group.tile.blocks, group.tile.threads
    if group.slices > 1:
        return -(-group.size // LANES), LANES * group.slices
    return -(-group.size // threads), threads


class Writer:
    """Text of one kernel; values become p0, p1 ..., function objects x0, x1 ..., whatever the Program calls them."""

    def __init__(self, plan: Plan, queued: set[int], launch: int) -> None:
        self.plan, self.queued, self.launch = plan, queued, launch
        self.values: list[Value] = []
        self.reads_queue = False
        self.written: set[int] = set()
        self.read_late: set[int] = set()  # when sums are finished
        self._count = 0
        self.names: dict[int, str] = {}
        self._lines: list[str] = []
        self._wide_loads = False

    def parameters(self) -> list[str]:
        """Declarations of the parameters."""
        both = {id(v) for v in self.values}
        carried = {id(self.plan.program.value(n)) for n, v in self.plan.program.updates.items() if id(v) in both}
        result = []
        for k, value in enumerate(self.values):
            read_only = id(value) not in self.written and id(value) not in carried
            kind = f"const {c_type(value)}*" if read_only else f"{c_type(value)}*"
            kind += " __restrict__" * (read_only and id(value) not in self.read_late)
            result.append(f"{kind} p{k}")
        return result + (["const int* __restrict__ cursor", "const int offset"] if self.reads_queue else [])

    def prologue(self) -> str:
        """Statements before all groups; the first launch of a step may read what has just been brought or updated."""
        wait = "" if self.launch else "  wait_for_previous();\n"
        return wait + ("  const uint32 row = uint32(cursor[0] + offset);\n" if self.reads_queue else "")

    def parameter(self, value: Value) -> str:
        """Name of the parameter that points to a value in memory."""
        for k, known in enumerate(self.values):
            if known is value:
                return f"p{k}"
        self.values.append(value)
        return f"p{len(self.values) - 1}"

    def new(self) -> str:
        """A name that is not in use."""
        self._count += 1
        return f"x{self._count - 1}"

    def functor(self, value: Value) -> str:
        """Name of the function object that gives a value's elements."""
        root = self.plan.root(value)
        if id(root) in self.names:
            return self.names[id(root)]
        name = self.new()
        if root.kind == "constant" and root.data is not None and _uniform(root.data):
            number = literal(root.data.flat[0], c_type(root))
            self._lines.append(f"auto {name} = [](uint32) {{ return {number}; }};")
        elif id(root) in self.plan.virtual and root.node is not None:
            inputs = [self.functor(v) for v in root.node.inputs]
            if root.node.op.name == SCATTER:
                types = ", ".join([c_type(root), *geometry(root.node)])
                types += "".join(f", decltype({x})" for x in inputs)
                self._lines.append(f"const Scattered<{types}> {name} = {{{', '.join(inputs)}}};")
            else:
                text = expression(root.node, 0, inputs)
                self._lines.append(f"auto {name} = [&](uint32 i) {{ return {text}; }};")
        else:
            parameter = self.parameter(root)
            if id(root) in self.queued:
                self.reads_queue = True
                self._lines.append(f"auto {name} = [&](uint32 i) {{ return {parameter}[row * {root.size}u + i]; }};")
            elif not self._wide_loads or root.kind == "input":  # which may begin anywhere
                self._lines.append(f"auto {name} = [&](uint32 i) {{ return {parameter}[i]; }};")
            else:
                self._lines.append(f"const Plain<{c_type(root)}> {name} = {{{parameter}}};")
        self.names[id(root)] = name
        return name

    def _matrix(self, value: Value, columns: int) -> str:
        """Name of a function object that gives elements by row and column, which spares gathers a division."""
        root = self.plan.root(value)
        node = root.node if id(root) in self.plan.virtual and id(root) not in self.names else None
        name = self.new()
        if node is not None and node.op.name == "take" and math.prod(node.outputs[0].shape[1:]) == columns:
            source, index = (self.functor(v) for v in node.inputs)
            text = f"return {source}(uint32({index}(r)) * {columns}u + c);"
        elif node is not None and node.op.elementwise:
            names, text = [], f"const uint32 i = r * {columns}u + c; "
            for operand in node.inputs:
                if same_index(node, operand):
                    matrix, local = self._matrix(operand, columns), self.new()
                    text += f"auto {local} = [&](uint32) {{ return {matrix}(r, c); }}; "
                    names.append(local)
                else:
                    names.append(self.functor(operand))
            text += f"return {expression(node, 0, names)};"
        else:
            array = self.functor(value)
            self._lines.append(f"const Matrix<{columns}, decltype({array})> {name} = {{{array}}};")
            return name
        self._lines.append(f"auto {name} = [&](uint32 r, uint32 c) {{ {text} }};")
        return name

    def group(self, group: FusionGroup, threads: int) -> str:
        """Statements of one group, which see `block` and threadIdx.x."""
        self.names, self._lines = {}, []
        self._wide_loads = group.on_tensor_cores
        if group.anchor.op.name == "row_region":
            body = region_text(self, group.anchor)
        elif group.tile is None:
            body = self._elements(group, threads)
        else:
            body = getattr(self, f"_{group.anchor.op.name}")(group)
        return "".join(f"    {line}\n" for line in self._lines) + body

    # Elementwise groups --------------------------------------------------------------------------

    def _elements(self, group: FusionGroup, threads: int) -> str:
        if group.slices == 1:
            inner = self._follow(group.nodes, group)
            place = f"    const uint32 i = block * {threads}u + threadIdx.x;\n"
            return f"{place}    if (i < {group.size}u) {{\n{inner}    }}\n"
        total, parts = group.anchor, group.anchor.inputs[0].shape[0]
        source, kind = self.functor(total.inputs[0]), c_type(total.outputs[0])
        term = f"[&](uint32 r) {{ return i < {group.size}u ? {source}(r * {group.size}u + i) : {kind}(0); }}"
        head = (
            f"    const uint32 lane = threadIdx.x % {LANES}u, slice = threadIdx.x / {LANES}u;\n"
            f"    const uint32 i = block * {LANES}u + lane;\n"
            f"    const {kind} total = sliced_sum<{kind}, {parts}, {group.slices}>(lane, slice, {term});\n"
        )
        inner = self._follow(group.nodes, group, given="total")
        return f"{head}    if (slice == 0 && i < {group.size}u) {{\n{inner}    }}\n"

    def _follow(self, nodes: Sequence[Node], group: FusionGroup, given: str | None = None) -> str:
        """Statements that compute nodes at element i and store what is stored; see `_computed`."""
        text, stored = self._computed(nodes, group, given)
        return text + "".join(f"      {self.parameter(value)}[i] = {local};\n" for value, local in stored)

    def _computed(
        self, nodes: Sequence[Node], group: FusionGroup, given: str | None, index: str | None = None
    ) -> tuple[str, list[tuple[Value, str]]]:
        """Statements that compute nodes at element i; values that are stored, and what holds them.

        Args:
            nodes: The nodes.
            group: Their group.
            given: What holds the result of the first node, if that is computed already.
            index: What holds the result of the pooling's index node, likewise.
        """
        text, made_of_all = "", []
        stored = {id(v) for v in group.stored}
        for k, node in enumerate(nodes):
            made = []
            for j, value in enumerate(node.outputs):
                if given is not None and k == 0:
                    now = given
                elif index is not None and node.op.name == "max_pool2d_index":
                    now = index
                else:
                    now = expression(node, j, [self.functor(v) for v in node.inputs])
                local, name = f"v{self.new()}", self.new()
                text += f"      const {c_type(value)} {local} = {now};\n"
                text += f"      auto {name} = [&](uint32) {{ return {local}; }};\n"
                made.append((id(value), name))
                if id(value) in stored:
                    self.written.add(id(value))
                    made_of_all.append((value, local))
            self.names.update(made)  # not before all results are written down: none reads another
        return text, made_of_all

    def _finish_and_store(self, group: FusionGroup) -> str:
        """Function objects `finish` and `store` for the sums of a group's tile: `finish_and_store` of `results.cuh`."""
        node, kind = group.anchor, c_type(group.anchor.outputs[0])
        if node.op.name.endswith("_partial_sums") and node.outputs[0].shape[0] > 1:
            self.written.add(id(node.outputs[0]))
            text, stored = "", [(node.outputs[0], "sum")]
        elif group.pool is None:
            text, stored = self._late(lambda: self._computed(group.nodes, group, "sum"))
        else:
            text, stored = self._late(lambda: self._computed(group.nodes, group, "sum.top", "uint8(sum.tap)"))
            kind = f"Pooled<{kind}>"
        fields = "".join(f" {c_type(value)} {local};" for value, local in stored)
        stores = ""
        updates = {id(v) for v in self.plan.program.updates.values()}
        for value, local in stored:  # an update may be in memory that begins anywhere
            aligned = literal(id(value) not in updates, "bool")
            given = f"{self.parameter(value)} + i, [=](int e) {{ return made[e].{local}; }}"
            stores += f"      store_neighbours<decltype(width)::N, {aligned}>({given});\n"
        return (
            f"    struct Made {{{fields} }};\n    const auto finish = [&](uint32 i, {kind} sum) {{\n{text}"
            f"      return Made{{{', '.join(local for _, local in stored)}}};\n    }};\n"
            f"    const auto store = [&](uint32 i, const Made* made, auto width) {{\n{stores}    }};\n"
        )

    def _late(self, write: Callable[[], _T]) -> _T:
        """What `write` returns; the values that it is the first to ask for are read when sums are finished."""
        known = {id(v) for v in self.values}
        result = write()
        self.read_late |= {id(v) for v in self.values} - known
        return result

    # Tiles --------------------------------------------------------------------------------------

    def _conv2d(self, group: FusionGroup) -> str:
        node = group.anchor
        attrs, kind = node.attrs, c_type(node.outputs[0])
        axes, groups = Axes.of(attrs["data_format"]), attrs["groups"]
        x, w = (self.functor(v) for v in node.inputs)
        back, (sh, sw) = node.op.name == "conv2d_input_gradient", attrs["strides"]
        image_x, image_y = map(image_type, images(node))
        c, f = node.inputs[0].shape[axes.c] // groups, node.outputs[0].shape[axes.c] // groups
        kh, kw = node.inputs[1].shape[:2]
        rows, columns = phases(node)
        phased = rows * columns > 1
        image = f"Padded<{kind}, {image_y if back else image_x}, decltype({x})>"
        if back and not phased and sh * sw > 1:
            image = f"Spread<{kind}, {image_y}, {sh}, {sw}, decltype({x})>"
        if back:
            (top, _), (left, _) = attrs["padding"]
            sizes = f"typename A::S, {kh}, {kw}, {c}, {f}, {groups}, {rows}, {columns}, {top}, {left}"
        else:
            sizes = f"{kw}, {c}, {f}, {groups}"
        filters = f"{'Flipped' * back}Filters<{kind}, {sizes}, decltype({w})>"
        head = (
            f"    using A = {_tile_type(group)};\n    const int group = block / A::BLOCKS;\n"
            f"    const {image} in = {{{x}, group * {c}}};\n    const {filters} weight = {{{w}, group}};\n"
        )
        out, given = f"each<{kind}, A>", "filter, sum"
        if group.pool is not None:
            before = self._late(lambda: self._follow(group.before, group, "sum"))
            last = self.names[id(self.plan.root(group.pool.inputs[0]))]
            head += f"    const auto before = [&](uint32 i, {kind} sum) {{\n{before}      return {last}(i);\n    }};\n"
            ph, pw = group.pool.attrs["kernel"]
            image = image_type(Image.of(group.pool.outputs[0].shape, attrs["data_format"]))
            out, given = f"each_pooled<{kind}, A, {image}, {ph}, {pw}>", "filter, sum, before"
        elif phased:
            out = f"each_of_phases<{kind}, A, {image_x}, {f}, {rows}, {columns}>"
        return (
            f"{head}{self._finish_and_store(group)}"
            f"    {self._template(group, 'convolve', *node.inputs)}(\n"
            "      block % A::BLOCKS, in, weight, [&](int n, int h, int w, auto filter, auto sum) {\n"
            f"      {out}(n, h, w, group * {f}, {given}, finish, store);\n    }});\n"
        )

    _conv2d_input_gradient = _conv2d

    def _conv2d_weight_gradient_partial_sums(self, group: FusionGroup) -> str:
        dy, x = group.anchor.inputs
        return self._summed(group, "correlate", (x, dy), [self.functor(v) for v in (x, dy)])

    def _matmul(self, group: FusionGroup) -> str:
        operands = group.anchor.inputs
        return self._summed(group, "multiply", operands, [self._matrix(v, v.shape[1]) for v in operands])

    _matmul_partial_sums = _matmul

    def _summed(self, group: FusionGroup, name: str, operands: Sequence[Value], given: Sequence[str]) -> str:
        """The template `name` for the two operands of a group, of which function objects are given."""
        tile = f"    using A = {_tile_type(group)};\n"
        call = self._template(group, name, *operands)
        return f"{tile}{self._finish_and_store(group)}    {call}(block, {', '.join(given)}, finish, store);\n"

    def _template(self, group: FusionGroup, name: str, left: Value, right: Value) -> str:
        """The template for a group's tile, on tensor cores or not, and its arguments."""
        kind = c_type(group.anchor.outputs[0])
        if not group.on_tensor_cores:
            return f"{name}<{kind}, A>"
        early = (literal(self.plan.is_early(v, self.launch), "bool") for v in (left, right))
        return f"tensor_{name}<{kind}, A, Early<{', '.join(early)}>>"

    def _reduce_partial_sums(self, group: FusionGroup) -> str:
        node = group.anchor
        _, place = reduced_place(node, Name("o"), R)
        return self._reduced(group, f"{self.functor(node.inputs[0])}({Cpp(()).text(place)})")

    def _depthwise_conv2d_weight_gradient_partial_sums(self, group: FusionGroup) -> str:
        node = group.anchor
        types = ", ".join([c_type(node.outputs[0]), *geometry(node)])
        dy, x = (self.functor(v) for v in node.inputs)
        return self._reduced(group, f"depthwise_conv2d_weight_term<{types}>({dy}, {x}, o, r)")

    def _reduced(self, group: FusionGroup, term: str) -> str:
        """The template for sums or maxima of terms r of results o."""
        kind = c_type(group.anchor.outputs[0])
        return (
            f"{self._finish_and_store(group)}    reduce<{kind}, {_tile_type(group)}>(\n"
            f"      block, [&](uint32 o, uint32 r) {{ return {term}; }},\n"
            f"      [&](uint32 i, {kind} sum) {{ const auto made = finish(i, sum); store(i, &made, Width<1>()); }});\n"
        )


def _tile_type(group: FusionGroup) -> str:
    return tile_type(group.anchor, group.tile) if group.tile is not None else ""


def _uniform(data: np.ndarray[Any, Any]) -> bool:
    return bool(data.size) and bool((data == data.flat[0]).all())
