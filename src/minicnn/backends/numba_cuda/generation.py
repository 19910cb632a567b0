"""A kernel's text for each launch of a plan: the groups' functions around the families of `kernels/`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from minicnn.backends._gpu.elements import same_index
from minicnn.backends._gpu.fusing import Plan
from minicnn.backends._gpu.fusion_groups import FusionGroup, named
from minicnn.backends._gpu.source import Source
from minicnn.backends.numba_cuda.operands import MatrixOperands, NeighbourOperands, NodeOperands, PackedOperands
from minicnn.backends.numba_cuda.printer import expression, literal, type_of
from minicnn.backends.numba_cuda.region_text import PARAMETERS, QUEUE, region_text
from minicnn.backends.numba_cuda.tile_text import tile_text
from minicnn.program.graph import Node, Value


def generate(plan: Plan, launch: Sequence[FusionGroup], queued: set[int], threads: int) -> Source:
    """The kernel of one launch.

    Args:
        plan: The plan that the launch is of.
        launch: Groups that run side by side.
        queued: Ids of inputs of which there is one row a step.
        threads: Threads of a block, unless a tile says otherwise.
    """
    writer = Writer(plan, launch, queued)
    calls, start = "", 0
    for group in launch:
        count = -(-group.size // (threads // group.slices))
        if group.tile is not None:
            count, threads = group.tile.blocks, group.tile.threads
        name = writer.group(group, threads)
        place = f"number - {start}" if start else "number"
        calls += f"    {'el' if start else ''}if number < {start + count}:\n        {name}(p, {place})\n"
        start += count
    values = [*(f"p{k}" for k in range(len(writer.values))), *(["cursor", "offset"] if writer.reads_queue else [])]
    row = ["read(cursor, 0) + offset"] if writer.reads_queue else []
    arguments = ", ".join([*values[: len(writer.values)], *row]) + ("" if len(writer.values) + len(row) > 1 else ",")
    every = ", ".join(f"p[{k}]" for k in range(len(writer.values)))
    definitions = "".join(writer.definitions).replace(PARAMETERS, every).replace(QUEUE, "p[-1]" if row else "index(0)")
    text = (
        f"# {named(launch)}\n{definitions}\n\n"
        f"def kernel({', '.join(values)}):\n    number = cuda.blockIdx.x\n    p = ({arguments})\n{calls}"
    )
    shared = max((u.tile.shared for u in launch if u.tile is not None and u.anchor.op.name == "row_region"), default=0)
    return Source(text, tuple(writer.values), writer.reads_queue, start, threads, named(launch), shared)


class Writer:
    """Text of one kernel; values become p[0], p[1] ..., functions x0, x1 ..., whatever the Program calls them."""

    def __init__(self, plan: Plan, launch: Sequence[FusionGroup], queued: set[int]) -> None:
        self.plan, self.queued = plan, queued
        stored = {id(v) for group in launch for v in group.stored}
        updates = plan.program.updates.items()
        self._written = stored | {id(plan.program.value(name)) for name, v in updates if id(plan.root(v)) in stored}
        self.values: list[Value] = []
        self.definitions: list[str] = []
        self.reads_queue = False
        self._count = 0
        self.functions: dict[int, str] = {}
        self._fours: dict[int, str] = {}
        self.locals: dict[int, str] = {}

    def define(self, text: str) -> str:
        """See `Operands.define`."""
        self._count += 1
        name = f"x{self._count - 1}"
        before = self.definitions[-1].lstrip() if self.definitions else ""
        apart = before.startswith("@") or (before and text.startswith("@"))
        self.definitions.append(("\n\n" if apart else "") + text.replace("{name}", name))
        return name

    def local(self) -> str:
        """Name of a new variable."""
        self._count += 1
        return f"v{self._count - 1}"

    def operands(self, node: Node) -> NodeOperands:
        """The inputs of a node."""
        return NodeOperands(self, node)

    def parameter(self, value: Value) -> str:
        """Text of a value's memory."""
        for k, known in enumerate(self.values):
            if known is value:
                return f"p[{k}]"
        self.values.append(value)
        return f"p[{len(self.values) - 1}]"

    def function(self, value: Value) -> str:
        """Name of the function of (p, i) that gives a value's elements."""
        root = self.plan.root(value)
        if id(root) not in self.functions:
            self.functions[id(root)] = self.define(f"@device\ndef {{name}}(p, i):\n    return {self._element(root)}\n")
        return self.functions[id(root)]

    def _element(self, root: Value) -> str:
        if root.kind == "constant" and root.data is not None and _uniform(root.data):
            return literal(root.data.flat[0], type_of(root))
        if id(root) in self.plan.virtual and root.node is not None:
            return f"{type_of(root)}({expression(root.node, 0, NodeOperands(self, root.node), 'i')})"
        place = "i"
        if id(root) in self.queued:
            self.reads_queue = True
            place = f"index(p[-1] * {root.size} + i)"
        array = self.parameter(root)
        element = f"{array}[{place}]" if id(root) in self._written else f"read({array}, {place})"
        return element + (" != 0" if root.dtype == "bool" else "")

    def at(self, value: Value, place: str) -> str:
        """Text of an element of a value."""
        root = self.plan.root(value)
        if id(root) in self.locals:
            return self.locals[id(root)]
        if root.kind == "constant" and root.data is not None and _uniform(root.data):
            return literal(root.data.flat[0], type_of(root))
        return f"{self.function(root)}(p, {place})"

    def matrix(self, value: Value, columns: int) -> str:
        """Name of a function of (p, row, column) for a value's elements, which spares gathers a division."""
        root = self.plan.root(value)
        node = root.node if id(root) in self.plan.virtual else None
        if node is not None and node.op.name == "take" and math.prod(node.outputs[0].shape[1:]) == columns:
            source, rows = (self.function(v) for v in node.inputs)
            text = f"{source}(p, index({rows}(p, r) * {columns} + c))"
        elif node is not None and node.op.elementwise:
            text = f"{type_of(root)}({expression(node, 0, MatrixOperands(self, node, columns), 'i')})"
        else:
            text = f"{self.function(value)}(p, i)"
        return self.define(f"@device\ndef {{name}}(p, r, c):\n    i = index(r * {columns} + c)\n    return {text}\n")

    def four(self, value: Value) -> str:
        """Name of a function of (p, i) for elements i to i + 3 of a value, where i is a multiple of 4."""
        root = self.plan.root(value)
        stored = id(root) not in self.plan.virtual and root.kind != "constant" and id(root) not in self._written
        if stored and id(root) not in self._fours and root.dtype != "bool":
            place = "i"
            if id(root) in self.queued:
                self.reads_queue = True
                place = f"index(p[-1] * {root.size} + i)"
            text = f"read_four({self.parameter(root)}, {place})"
        else:
            text = f"({', '.join(f'{self.function(value)}(p, index(i + {k}))' for k in range(4))})"
        if id(root) not in self._fours:
            self._fours[id(root)] = self.define(f"@device\ndef {{name}}(p, i):\n    return {text}\n")
        return self._fours[id(root)]

    def neighbours(self, value: Value, columns: int, count: int) -> str:
        """Name of a function of (p, row, column) for so many (1 or 4) neighbours of a matrix, from that column on."""
        if count == 1:
            return self.define(
                f"@device\ndef {{name}}(p, r, c):\n    return ({self.matrix(value, columns)}(p, r, c),)\n"
            )
        root = self.plan.root(value)
        node = root.node if id(root) in self.plan.virtual else None
        lines = f"    i = index(r * {columns} + c)\n"
        if node is not None and node.op.name == "take" and math.prod(node.outputs[0].shape[1:]) == columns:
            rows = self.function(node.inputs[1])
            text = f"{self.four(node.inputs[0])}(p, index({rows}(p, r) * {columns} + c))"
        elif node is not None and node.op.elementwise:
            for k, operand in enumerate(node.inputs):
                if same_index(node, operand) and operand.kind != "constant":
                    lines += f"    o{k} = {self.neighbours(operand, columns, 4)}(p, r, c)\n"
            each = (expression(node, 0, NeighbourOperands(self, node, k), f"index(i + {k})") for k in range(4))
            text = f"({', '.join(f'{type_of(root)}({one})' for one in each)})"
        else:
            text = f"{self.four(value)}(p, i)"
        return self.define(f"@device\ndef {{name}}(p, r, c):\n{lines}    return {text}\n")

    def packed(self, value: Value, columns: int) -> tuple[str, str] | None:
        """Two functions for a matrix that is made of bytes and constants; None for any other.

        The first, of (p, row, column), gives four bytes as one word, the other, of (word, k), what becomes of the k-th.
        """
        region, root = list[Node](), self.plan.root(value)
        while id(root) in self.plan.virtual and root.node is not None and root.node.op.elementwise:
            own = [
                v for v in root.node.inputs if not (v.kind == "constant" and v.data is not None and _uniform(v.data))
            ]
            if len(own) != 1 or not same_index(root.node, own[0]):
                return None
            region.append(root.node)
            root = self.plan.root(own[0])
        gather = root.node if id(root) in self.plan.virtual else None
        if gather is not None and (gather.op.name != "take" or math.prod(gather.outputs[0].shape[1:]) != columns):
            return None
        leaf = self.plan.root(gather.inputs[0]) if gather is not None else root
        if (
            leaf.dtype != "uint8"
            or id(leaf) in self._written | self.plan.virtual | self.queued
            or leaf.data is not None
        ):
            return None
        row = "r" if gather is None else f"{self.function(gather.inputs[1])}(p, r)"
        place = f"read_word({self.parameter(leaf)}, index({row} * {columns} + c))"
        word = self.define(f"@device\ndef {{name}}(p, r, c):\n    return ({place},)\n")
        lines = "".join(
            f"    e = {type_of(n.outputs[0])}({expression(n, 0, PackedOperands(self, n), 'i')})\n" for n in region[::-1]
        )
        lines = f"    e = np.uint8(word >> (8 * k) & 255)\n{lines}    return e\n"
        return word, self.define(f"@device\ndef {{name}}(word, k):\n{lines}")

    def group(self, group: FusionGroup, threads: int) -> str:
        """Name of the function of (p, number of the block) that computes a group."""
        self.locals = {}
        if group.tile is not None:
            if group.anchor.op.name == "row_region":
                return region_text(self, group.anchor)
            return tile_text(self, group)
        if group.slices == 1:
            body = self.follow(group.nodes, group)
            size = f"    i = index(number * {threads} + cuda.threadIdx.x)\n    if i < {group.size}:\n"
            return self.define(f"@block\ndef {{name}}(p, number):\n{size}{_indent(body)}")
        total = group.anchor
        source = self.function(total.inputs[0])
        write = self.write("p, i, total", self.follow(group.nodes, group, given="total"))
        numbers = f"{group.size}, {total.inputs[0].shape[0]}, {group.slices}, {threads // group.slices}"
        return self.define(f"{{name}} = add_partial_sums({type_of(total.outputs[0])}, {numbers}, {source}, {write})\n")

    def write(self, arguments: str, body: str) -> str:
        """Name of a function of the device with these arguments and this body."""
        return self.define(f"@device\ndef {{name}}({arguments}):\n{body}")

    def follow(
        self, nodes: Sequence[Node], group: FusionGroup, given: str | None = None, tap: str | None = None
    ) -> str:
        """Statements that compute nodes at element i and store what is stored.

        Args:
            nodes: The nodes.
            group: Their group.
            given: What holds the result of the first node, if that is computed already.
            tap: What holds the result of the pooling's index node, likewise.
        """
        text, stores = "", ""
        stored = {id(v) for v in group.stored}
        for k, node in enumerate(nodes):
            made = []
            for j, value in enumerate(node.outputs):
                if given is not None and k == 0:
                    now = given
                elif tap is not None and node.op.name == "max_pool2d_index":
                    now = tap
                else:
                    now = expression(node, j, NodeOperands(self, node), "i")
                local = self.local()
                text += f"    {local} = {type_of(value)}({now})\n"
                made.append((id(value), local))
                if id(value) in stored:
                    element = f"np.uint8(1 if {local} else 0)" if value.dtype == "bool" else local
                    stores += f"    {self.parameter(value)}[i] = {element}\n"
            self.locals.update(made)  # not before all results are written down: none reads another
        return text + stores


def _indent(text: str) -> str:
    return "".join(f"    {line}\n" for line in text.splitlines())


def _uniform(data: np.ndarray[Any, Any]) -> bool:
    return bool(data.size) and bool((data == data.flat[0]).all())
