"""The text of a kernel: what is written alike in every language."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from minicnn.backends._gpu.elements import element, same_index
from minicnn.backends._gpu.fusing import Plan
from minicnn.backends._gpu.fusion_groups import FusionGroup
from minicnn.backends._gpu.printing import Operands, Printer
from minicnn.backends._gpu.trees import Cast, Element, I, Name, R
from minicnn.program.graph import Node, Value

COLUMN = Name("c")


class Writer(ABC):
    """Text of one kernel; functions become x0, x1 ..., variables v0, v1 ..., whatever the Program calls its values.

    Args:
        plan: The plan.
        launch: The groups of the kernel.
        queued: Ids of inputs of which there is one row a step.

    Attributes:
        written: Ids of the values in memory that the kernel writes.
        values: Those that it takes, in order.
        reads_queue: Whether it reads inputs of which there is one row a step.
        functions: Names of the functions that give values' elements, by the value's id.
        locals: Names of the variables that hold element i of a value, likewise.
    """

    printer: ClassVar[type[Printer]]
    queue_row: ClassVar[Name]  # which row of such inputs is read

    def __init__(self, plan: Plan, launch: Sequence[FusionGroup], queued: set[int]) -> None:
        self.plan, self.queued = plan, queued
        stored = {id(v) for group in launch for v in group.stored}
        updates = plan.program.updates.items()
        self.written = stored | {id(plan.program.value(name)) for name, v in updates if id(plan.root(v)) in stored}
        self.values: list[Value] = []
        self.reads_queue = False
        self.functions: dict[int, str] = {}
        self.locals: dict[int, str] = {}
        self._count = 0

    # What each language spells in its own way -------------------------------------------------------

    @abstractmethod
    def pointer(self, k: int) -> str:
        """Text of parameter k."""

    @abstractmethod
    def define(self, text: str) -> str:
        """Name of a new function or the like, whose definition has {name} where the name goes."""

    @abstractmethod
    def define_elements(self, root: Value) -> str:
        """Name of a new function of i whose result is `element(root)`."""

    @abstractmethod
    def define_matrix(self, value: Value, columns: int, text: str | None) -> str:
        """Name of a new function of r and c, which sees i, with that result; None: element i."""

    @abstractmethod
    def call(self, function: str, place: str) -> str:
        """Text of an element that a function gives."""

    @abstractmethod
    def call_matrix(self, function: str) -> str:
        """Text of element (r, c) that a function gives."""

    @abstractmethod
    def load(self, root: Value, place: str) -> str:
        """Text of an element of a value in memory."""

    @abstractmethod
    def computed(self, value: Value, text: str) -> str:
        """Text of what was computed for an element, in the type of the value."""

    @abstractmethod
    def let(self, value: Value, name: str, text: str) -> str:
        """Statement that puts an element of a value into a new variable."""

    @abstractmethod
    def store(self, value: Value, name: str) -> str:
        """Statement that puts a variable into memory, as element i of a value."""

    # What they have in common -----------------------------------------------------------------------

    def new(self, kind: str = "x") -> str:
        """A name that is not in use."""
        self._count += 1
        return f"{kind}{self._count - 1}"

    def parameter(self, value: Value) -> str:
        """Text of a value's memory."""
        for k, known in enumerate(self.values):
            if known is value:
                return self.pointer(k)
        self.values.append(value)
        return self.pointer(len(self.values) - 1)

    def inlined(self, value: Value) -> Node | None:
        """The node whose results are computed where a value is read; None if the value is in memory."""
        root = self.plan.root(value)
        return root.node if id(root) in self.plan.virtual else None

    def number(self, value: Value) -> str | None:
        """The number that all elements of a constant are, if so."""
        data = value.data if value.kind == "constant" else None
        if data is None or not data.size or not (data == data.flat[0]).all():
            return None
        return self.printer.literal(data.flat[0], value.dtype)

    def place(self, root: Value) -> str:
        """Place in memory of element i."""
        if id(root) not in self.queued:
            return "i"
        self.reads_queue = True
        return self.printer().place(self.queue_row * root.size + I)

    def element(self, root: Value) -> str:
        """Text of element i, without a function for it."""
        number, node = self.number(root), self.inlined(root)
        if number is not None:
            return number
        return self.load(root, self.place(root)) if node is None else self.computed(root, self.expression(node))

    def expression(self, node: Node, result: int = 0, operands: Operands | None = None) -> str:
        """Text of element i of one result of a node."""
        return self.printer(operands or NodeOperands(self, node)).text(element(node, result))

    def function(self, value: Value) -> str:
        """Name of the function that gives a value's elements."""
        root = self.plan.root(value)
        if id(root) not in self.functions:
            self.functions[id(root)] = self.define_elements(root)
        return self.functions[id(root)]

    def at(self, value: Value, place: str) -> str:
        """Text of an element of a value."""
        root = self.plan.root(value)
        if id(root) in self.locals:
            return self.locals[id(root)]
        return self.number(root) or self.call(self.function(root), place)

    def gathers(self, node: Node, columns: int) -> bool:
        """Whether a node gathers rows of so many columns."""
        return node.op.name == "take" and math.prod(node.outputs[0].shape[1:]) == columns

    def matrix(self, value: Value, columns: int) -> str:
        """Name of a function of row r and column c for a value's elements, which spares gathers a division."""
        root, node, text = self.plan.root(value), self.inlined(value), None
        if node is not None and self.gathers(node, columns):
            place = Cast(Element(1, R), "place") * columns + COLUMN
            text = self.printer(NodeOperands(self, node)).text(Element(0, place))
        elif node is not None and node.op.elementwise:
            text = self.computed(root, self.expression(node, operands=MatrixOperands(self, node, columns)))
        return self.define_matrix(value, columns, text)

    def follow(
        self, nodes: Sequence[Node], group: FusionGroup, given: str | None = None, tap: str | None = None
    ) -> str:
        """Statements that compute nodes at element i and store what is stored; see `compute`."""
        text, stored = self.compute(nodes, group, given, tap)
        return text + "".join(self.store(value, name) for value, name in stored)

    def compute(
        self, nodes: Sequence[Node], group: FusionGroup, given: str | None = None, tap: str | None = None
    ) -> tuple[str, list[tuple[Value, str]]]:
        """Statements that compute nodes at element i; values that are stored, and the variables that hold them.

        Args:
            nodes: The nodes.
            group: Their group.
            given: What holds the result of the first node, if that is computed already.
            tap: What holds the result of the pooling's index node, likewise.
        """
        text, kept = "", []
        stored = {id(v) for v in group.stored}
        for k, node in enumerate(nodes):
            made = {}
            for j, value in enumerate(node.outputs):
                known = given if k == 0 else tap if node.op.name == "max_pool2d_index" else None
                now = self.expression(node, j) if known is None else known
                name = made[id(value)] = self.new("v")
                text += self.let(value, name, now)
                if id(value) in stored:
                    kept.append((value, name))
            self.locals |= made  # not before all results are written down: none reads another
        return text, kept


class NodeOperands(Operands):
    """Operands of a node whose result is taken by element i."""

    def __init__(self, writer: Writer, node: Node) -> None:
        self.writer, self.node = writer, node

    def at(self, k: int, place: str) -> str:
        """See `Operands.at`."""
        return self.writer.at(self.node.inputs[k], place)

    def function(self, k: int) -> str:
        """See `Operands.function`."""
        return self.writer.function(self.node.inputs[k])

    def define(self, text: str) -> str:
        """See `Operands.define`."""
        return self.writer.define(text)

    def is_beside(self, k: int) -> bool:
        """Whether an element of input k, which is no constant, is needed from the place of the result alone."""
        return same_index(self.node, self.node.inputs[k]) and self.node.inputs[k].kind != "constant"


class MatrixOperands(NodeOperands):
    """Operands of a node whose result is taken by row r and column c."""

    def __init__(self, writer: Writer, node: Node, columns: int) -> None:
        super().__init__(writer, node)
        self.columns = columns

    def at(self, k: int, place: str) -> str:
        """See `Operands.at`."""
        if not self.is_beside(k):
            return super().at(k, place)
        return self.writer.call_matrix(self.writer.matrix(self.node.inputs[k], self.columns))
