"""CUDA C++ of a launch: the groups' function objects around the templates of `kernels/`."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import indent

from minicnn.backends._gpu.fusing import Plan
from minicnn.backends._gpu.fusion_groups import FusionGroup, named
from minicnn.backends._gpu.inlining import SCATTER
from minicnn.backends._gpu.lowering import group_statements
from minicnn.backends._gpu.peer_nodes import RESIDENT
from minicnn.backends._gpu.pipelined_tiling import PipelinedTile
from minicnn.backends._gpu.plain import shared_bytes
from minicnn.backends._gpu.source import Source
from minicnn.backends.cupy.cpp import Cpp, c_type, of_lanes
from minicnn.backends.cupy.neighbours import NeighbourWriter
from minicnn.backends.cupy.row_steps import CppRowSteps
from minicnn.backends.cupy.tile_texts import tile_text
from minicnn.kernels.elements import element, widens
from minicnn.kernels.expressions import Apply, Element, Expr, I, Name, changed
from minicnn.kernels.windows import images
from minicnn.program.graph import Node, Value

_IN_A_ROW = 8  # groups of a launch that are looked through one after the other


def generate(plan: Plan, launch: Sequence[FusionGroup], queued: set[int], threads: int = 256) -> Source:
    """The kernel of a launch: see `Generate`."""
    writer = CppWriter(plan, launch, queued)
    bodies, starts, blocks = list[str](), list[int](), 0
    sizes = [(writer.blocks(group, threads), group.tile.threads if group.tile else threads) for group in launch]
    threads = max(group_threads for _, group_threads in sizes)
    # Pipelined tiles bring what they need to the cache before they wait, so they are put in place as soon as there is
    # room; blocks of other launches would wait where these could run.
    after = plan.lets_begin(writer.launch)
    following = [] if after is None else plan.launches[after]
    waiting = any(group.waits for group in launch)  # for other ranks, in places that the next launch would take
    pipelined = any(isinstance(group.tile, PipelinedTile) for group in following)
    begin = "    let_next_begin();\n" * (pipelined and not waiting)
    for group, (count, group_threads) in zip(launch, sizes, strict=True):
        body = writer.group(group, group_threads)
        if not group.on_tensor_cores:  # those templates load before they wait
            body = f"    wait_for_previous();\n{begin}{body}"
        # Groups of a launch may need fewer threads than its largest: the others leave before any barrier.
        spare = f"    if (spare({group_threads})) return;\n" if group_threads < threads else ""
        bodies.append(f"{{\n{spare}    const int block = blockIdx.x - {blocks};\n{body}    return;\n  }}\n")
        starts.append(blocks)
        blocks += count
    counts = [group.tile.resident if group.tile else 1 for group in launch]
    resident = max(count * group_threads // threads for count, (_, group_threads) in zip(counts, sizes, strict=True))
    if all(group.is_plain for group in launch) and waiting:
        resident = max(1, RESIDENT // threads)
    exchanges = '#include "rank_sums.cuh"\n' * any(u.exchanges for u in launch)
    # Registers are what the compiler must leave for so many blocks; without a bound it takes what it likes.
    bounds = f"{threads}, {resident}" if resident > 1 else f"{threads}"
    text = (
        f'#include "{"regions" if any(u.anchor.op.name == "row_region" for u in launch) else "kernels"}.cuh"\n'
        f"{exchanges}\n"
        f'extern "C" __global__ void __launch_bounds__({bounds}) kernel({", ".join(writer.parameters())}) {{\n'
        f"{writer.prologue()}{_dispatch(bodies, [*starts, blocks])}}}\n"
    )
    shared = max(writer.shared, *(group.tile.shared if group.tile else 0 for group in launch))
    values, settled = tuple(writer.values), writer.settled
    overlaps = plan.overlaps(writer.launch)
    return Source(text, values, writer.reads_queue, blocks, threads, named(launch), shared, settled, overlaps)


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


class CppWriter(NeighbourWriter):
    """Text of one kernel in C++: its parameters are p0, p1 ..., its functions objects in the scope of their group."""

    row_steps = CppRowSteps

    def __init__(self, plan: Plan, launch: Sequence[FusionGroup], queued: set[int]) -> None:
        super().__init__(plan, launch, queued)
        self.shared = 0  # bytes of shared memory that tiles in the kernel language ask for
        self._lines: list[str] = []
        self._wide_loads = False

    def parameters(self) -> list[str]:
        """Declarations of the parameters."""
        result = []
        for k, (value, settled) in enumerate(zip(self.values, self.settled, strict=False)):  # the cursor comes last
            kind = f"{c_type(value)}*" if id(value) in self.written else f"const {c_type(value)}*"
            # Restricted pointers go through the read-only cache, by loads that the assembler moves ahead of waiting.
            # What the launch ahead writes, and what is read behind a barrier, must not.
            result.append(kind + " __restrict__" * (settled and id(value) not in self.read_late) + f" p{k}")
        cursor = f"const int*{' __restrict__' * self.settled[-1]} cursor" if self.reads_queue else ""
        return result + ([cursor, "const int offset"] if cursor else [])

    def prologue(self) -> str:
        """Statements before all groups; the first kernel of a step may read what has just been brought or updated."""
        # It reads what the step before has written; all others wait in their groups, as late as they can.
        wait = "" if self.plan.follows_kernel(self.launch) else "  wait_for_previous();\n"
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
        if group.tile is not None and (group.has_template or group.width > 1):
            body = tile_text(group.tile, self, group)
        elif group.width > 1:
            body = self.neighbours(group, threads)
        else:
            statements = group_statements(self, group, threads)
            self.shared = max(self.shared, shared_bytes(statements))
            body = self.lines(statements, 2)
        return "".join(indent(f"{line}\n", "    ", lambda one: True) for line in self._lines) + body
