"""A kernel's text for each launch of a plan: the groups' functions around the families of `kernels/`."""

from __future__ import annotations

from collections.abc import Sequence

from minicnn.backends._gpu.fusing import Plan
from minicnn.backends._gpu.fusion_groups import FusionGroup, named
from minicnn.backends._gpu.plain import is_plain, plain_tile
from minicnn.backends._gpu.source import Source
from minicnn.backends._gpu.writer import COLUMN, NodeOperands, Writer
from minicnn.backends.numba_cuda.printer import CudaPython, type_of
from minicnn.backends.numba_cuda.region_text import QUEUE, region_text
from minicnn.backends.numba_cuda.tile_text import tile_text
from minicnn.kernels.elements import MOST_ELEMENTS, element, same_index
from minicnn.kernels.expressions import Apply, Expr, I, Name, R
from minicnn.program.graph import Node, Value


def generate(plan: Plan, launch: Sequence[FusionGroup], queued: set[int], threads: int) -> Source:
    """The kernel of one launch.

    Args:
        plan: The plan that the launch is of.
        launch: Groups that run side by side.
        queued: Ids of inputs of which there is one row a step.
        threads: Threads of a block, unless a tile says otherwise.
    """
    writer = PythonWriter(plan, launch, queued)
    # Groups of a launch take one range of block numbers each: one launch is cheaper than several, and no block has to
    # know of another.
    calls, start = "", 0
    for group in launch:
        count = -(-group.size // (threads // group.slices))
        if group.tile is not None:
            count, threads = group.tile.blocks, group.tile.threads
        name = writer.group(group, threads)
        place = f"number - {start}" if start else "number"
        calls += f"    {'el' if start else ''}if number < {start + count}:\n        {name}(p, {place})\n"
        start += count
    # Parameters are one tuple, so that functions of all groups have the same signature and Numba compiles each once.
    values = [*(f"p{k}" for k in range(len(writer.values))), *(["cursor", "offset"] if writer.reads_queue else [])]
    row = ["read(cursor, 0) + offset"] if writer.reads_queue else []
    arguments = ", ".join([*values[: len(writer.values)], *row]) + ("" if len(writer.values) + len(row) > 1 else ",")
    definitions = "".join(writer.definitions).replace(QUEUE, "p[-1]" if row else "index(0)")
    text = (
        f"# {named(launch)}\n{definitions}\n\n"
        f"def kernel({', '.join(values)}):\n    number = cuda.blockIdx.x\n    p = ({arguments})\n{calls}"
    )
    shared = max((u.tile.shared for u in launch if u.tile is not None and u.anchor.op.name == "row_region"), default=0)
    return Source(text, tuple(writer.values), writer.reads_queue, start, threads, named(launch), shared)


class PythonWriter(Writer):
    """Text of one kernel in Python: its functions take a tuple p of all parameters, p[0], p[1] ..."""

    printer = CudaPython
    POINTER, DEPTH = "p[{0}]", 1

    def __init__(self, plan: Plan, launch: Sequence[FusionGroup], queued: set[int]) -> None:
        super().__init__(plan, launch, queued)
        self.definitions: list[str] = []
        self._fours: dict[int, str] = {}

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

    def four(self, value: Value) -> str:
        """Name of a function of (p, i) for elements i to i + 3 of a value, where i is a multiple of 4."""
        root = self.plan.root(value)
        stored = id(root) not in self.plan.virtual and root.kind != "constant" and id(root) not in self.written
        if stored and id(root) not in self._fours and root.dtype != "bool":
            load = self.load(root, I)
            text = f"read_four({load.array.name}, {CudaPython().place(load.place)})"
        else:
            text = f"({', '.join(f'{self.function(value)}(p, index(i + {k}))' for k in range(4))})"
        if id(root) not in self._fours:
            self._fours[id(root)] = self.device("p, i", f"    return {text}\n")
        return self._fours[id(root)]

    def neighbours(self, value: Value, columns: int, count: int) -> str:
        """Name of a function of (p, row, column) for so many (1 or 4) neighbours of a matrix, from that column on."""
        if count == 1:
            one = self.text(Apply(self.matrix(value, columns), (R, COLUMN)))
            return self.device("p, r, c", f"    return ({one},)\n")
        root, node = self.plan.root(value), self.inlined(value)
        lines = f"    i = index(r * {columns} + c)\n"
        if node is not None and self.gathers(node, columns):
            rows = self.function(node.inputs[1])
            text = f"{self.four(node.inputs[0])}(p, index({rows}(p, r) * {columns} + c))"
        elif node is not None and node.op.elementwise:
            for k, operand in enumerate(node.inputs):
                if same_index(node, operand) and operand.kind != "constant":
                    lines += f"    o{k} = {self.neighbours(operand, columns, 4)}(p, r, c)\n"
            each = []
            for k in range(4):
                lane = element(node, 0).replaced({I: Name(f"index(i + {k})")})
                each.append(self._typed(self.resolved(node, lane, _NeighbourOperands(self, node, k)), root))
            text = f"({', '.join(each)})"
        else:
            text = f"{self.four(value)}(p, i)"
        return self.device("p, r, c", f"{lines}    return {text}\n")

    def packed(self, value: Value, columns: int) -> tuple[str, str] | None:
        """Two functions for a matrix that is made of bytes and constants; None for any other.

        The first, of (p, row, column), gives four bytes as one word, the other, of (word, k), what becomes of the k-th.
        """
        region, root = list[Node](), self.plan.root(value)
        while (node := self.inlined(root)) is not None and node.op.elementwise:
            arrays = [v for v in node.inputs if self.number(v) is None]
            if len(arrays) != 1 or not same_index(node, arrays[0]):
                return None
            region.append(node)
            root = self.plan.root(arrays[0])
        gather = self.inlined(root)
        if gather is not None and not self.gathers(gather, columns):
            return None
        leaf = self.plan.root(gather.inputs[0]) if gather is not None else root
        if leaf.dtype != "uint8" or id(leaf) in self.written | self.plan.virtual | self.queued or leaf.data is not None:
            return None
        row = "r" if gather is None else f"{self.function(gather.inputs[1])}(p, r)"
        place = f"read_word({self.parameter(leaf)}, index({row} * {columns} + c))"
        word = self.device("p, r, c", f"    return ({place},)\n")
        lines = "    e = np.uint8(word >> (8 * k) & 255)\n"
        for node in region[::-1]:
            now = self.expression(node, operands=_PackedOperands(self, node))
            lines += f"    e = {self._typed(now, node.outputs[0])}\n"
        return word, self.device("word, k", f"{lines}    return e\n")

    def _typed(self, x: Expr, value: Value) -> str:
        return CudaPython(self.define).typed(x, value.dtype)

    def group(self, group: FusionGroup, threads: int) -> str:
        """Name of the function of (p, number of the block) that computes a group."""
        self.locals = {}
        if group.tile is not None:
            if group.anchor.op.name == "row_region":
                return region_text(self, group.anchor)
            if not self.plan.tiles.plain:
                return tile_text(self, group)
        if is_plain(group) and self.plan.tiles.plain:
            return self.define(f"@block\ndef {{name}}(p, number):\n{self.lines(plain_tile(self, group, threads))}")
        if group.slices == 1:
            return self.define(f"@block\ndef {{name}}(p, number):\n{self.lines(self.elements(group, threads))}")
        total = group.anchor
        source = self.function(total.inputs[0])
        write = self.device("p, i, total", self.lines(self.follow(group.nodes, group, start=Name("total"))))
        numbers = f"{group.size}, {total.inputs[0].shape[0]}, {group.slices}, {threads // group.slices}"
        return self.define(f"{{name}} = add_partial_sums({type_of(total.outputs[0])}, {numbers}, {source}, {write})\n")


class _NeighbourOperands(NodeOperands):
    """Operands of one of four neighbours, of which `o0`, `o1` ... hold those that are at the same place."""

    def __init__(self, writer: Writer, node: Node, lane: int) -> None:
        super().__init__(writer, node)
        self.lane = lane

    def at(self, k: int, place: Expr) -> Expr:
        """See `NodeOperands.at`."""
        return Name(f"o{k}[{self.lane}]") if self.is_beside(k) else super().at(k, place)


class _PackedOperands(NodeOperands):
    """Operands of which the only one that is not a constant is called e."""

    def at(self, k: int, place: Expr) -> Expr:
        """See `NodeOperands.at`."""
        return super().at(k, place) if self.node.inputs[k].kind == "constant" else Name("e")
