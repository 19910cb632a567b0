"""A kernel's text for each launch of a plan: the groups' functions around the families of `kernels/`."""

from __future__ import annotations

from collections.abc import Sequence

from minicnn.backends._gpu.fusing import Plan
from minicnn.backends._gpu.fusion_groups import FusionGroup, named
from minicnn.backends._gpu.lowering import group_statements
from minicnn.backends._gpu.source import Source
from minicnn.backends._gpu.writer import Writer
from minicnn.backends.numba_cuda.printer import CudaPython
from minicnn.backends.numba_cuda.row_steps import PythonRowSteps
from minicnn.kernels.elements import MOST_ELEMENTS
from minicnn.kernels.expressions import Expr, Name
from minicnn.program.graph import Node, Value


def generate(plan: Plan, launch: Sequence[FusionGroup], queued: set[int], threads: int) -> Source:
    """The kernel of a launch: see `Generate`."""
    writer = PythonWriter(plan, launch, queued)
    # Groups of a launch take one range of block numbers each: one launch is cheaper than several, and no block has to
    # know of another.
    calls, start = "", 0
    for group in launch:
        count = writer.blocks(group, threads)
        if group.tile is not None:
            threads = group.tile.threads
        name = writer.group(group, threads)
        place = f"number - {start}" if start else "number"
        calls += f"    {'el' if start else ''}if number < {start + count}:\n        {name}(p, {place})\n"
        start += count
    # Parameters are one tuple, so that functions of all groups have the same parameters.
    names = [*(f"p{k}" for k in range(len(writer.values))), *(["cursor", "offset"] if writer.reads_queue else [])]
    row = ["read(cursor, 0) + offset"] if writer.reads_queue else []
    arguments = ", ".join([*names[: len(writer.values)], *row]) + ("" if len(writer.values) + len(row) > 1 else ",")
    definitions = "".join(writer.definitions)
    text = (
        f"# {named(launch)}\n{definitions}\n\n"
        f"def kernel({', '.join(names)}):\n    number = cuda.blockIdx.x\n    p = ({arguments})\n{calls}"
    )
    shared = max((u.tile.shared for u in launch if u.tile is not None and u.anchor.op.name == "row_region"), default=0)
    values, settled = tuple(writer.values), writer.settled
    return Source(text, values, writer.reads_queue, start, threads, named(launch), shared, settled)


class PythonWriter(Writer):
    """Text of one kernel in Python: its functions take a tuple p of all parameters, p[0], p[1] ..."""

    printer = CudaPython
    row_steps = PythonRowSteps
    POINTER, DEPTH = "p[{0}]", 1

    def __init__(self, plan: Plan, launch: Sequence[FusionGroup], queued: set[int]) -> None:
        super().__init__(plan, launch, queued)
        self.definitions: list[str] = []

    def define(self, text: str) -> str:
        """See `Writer.define`."""
        name = self.new()
        before = self.definitions[-1].lstrip() if self.definitions else ""
        apart = before.startswith("@") or (before and text.startswith("@"))
        self.definitions.append(("\n\n" if apart else "") + text.replace("{name}", name))
        return name

    def define_function(self, parameters: tuple[Name, ...], result: Expr, value: Value, title: str = "") -> str:
        """See `Writer.define_function`."""
        return self.define(CudaPython(self.define).function(parameters, result, value.dtype))

    def device(self, arguments: str, body: str) -> str:
        """Name of a function of the device with these arguments and this body."""
        return self.define(f"@device\ndef {{name}}({arguments}):\n{body}")

    def gathers(self, node: Node, columns: int) -> bool:
        """See `Writer.gathers`; rows of so many elements that places are wide are gathered one by one."""
        return super().gathers(node, columns) and node.inputs[0].size <= MOST_ELEMENTS

    def group(self, group: FusionGroup, threads: int) -> str:
        """Name of the function of (p, number of the block) that computes a group."""
        self.locals, self.kept = {}, {}
        lines = self.lines(group_statements(self, group, threads))
        return self.define(f"@block\ndef {{name}}(p, number):\n{lines}")
