"""The text of a kernel: what is written alike in every language."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from minicnn.backends._gpu.elements import MOST_ELEMENTS, element, row_place, same_index
from minicnn.backends._gpu.fusing import Plan
from minicnn.backends._gpu.fusion_groups import FusionGroup
from minicnn.backends._gpu.printing import Operands, Printer
from minicnn.backends._gpu.trees import Element, I, Name, R
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

    # How a language spells it: templates of `str.format`; {{name}} stands for the name of what is defined.
    printer: ClassVar[type[Printer]]
    QUEUE_ROW: ClassVar[Name]  # which row is read of inputs of which there is one a step
    POINTER: ClassVar[str]  # parameter {0}
    CALL: ClassVar[str]  # element {1} of function {0}
    MATRIX_CALL: ClassVar[str]  # element (r, c) of function {0}
    ELEMENTS: ClassVar[str]  # function of i with result {0}
    MATRIX: ClassVar[str]  # function of r and c with result {0}, which sees i, for {1} columns
    TYPED: ClassVar[str]  # {1}, computed for a value of type {0}
    LET: ClassVar[str]  # variable {1} of type {0} for {2}
    STORE: ClassVar[str]  # {1} as element i of {0}

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

    @abstractmethod
    def define(self, text: str) -> str:
        """Name of a new function or the like, whose definition has {name} where the name goes."""

    def load(self, root: Value, place: str) -> str:
        """Text of an element of a value in memory."""
        return f"{self.parameter(root)}[{place}]"

    def stored(self, value: Value, text: str) -> str:
        """Text of an element as it is stored."""
        return text

    def define_elements(self, root: Value) -> str:
        """Name of a new function that gives a value's elements."""
        return self.define(self.ELEMENTS.format(self.element(root)))

    def define_plain_matrix(self, value: Value, columns: int) -> str:
        """Name of a new function of r and c for what has no quicker way than to take element i."""
        return self.define(self.MATRIX.format(self.CALL.format(self.function(value), "i"), columns))

    def new(self, kind: str = "x") -> str:
        """A name that is not in use."""
        self._count += 1
        return f"{kind}{self._count - 1}"

    def parameter(self, value: Value) -> str:
        """Text of a value's memory."""
        for k, known in enumerate(self.values):
            if known is value:
                return self.POINTER.format(k)
        self.values.append(value)
        return self.POINTER.format(len(self.values) - 1)

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
        return self.printer().place(self.QUEUE_ROW * root.size + I)

    def element(self, root: Value) -> str:
        """Text of element i, without a function for it."""
        number, node = self.number(root), self.inlined(root)
        if number is not None:
            return number
        return self.load(root, self.place(root)) if node is None else self.typed(root, self.expression(node))

    def typed(self, value: Value, text: str) -> str:
        """Text of what was computed for an element of a value."""
        return self.TYPED.format(self.printer.types[value.dtype], text)

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
        if root.size > MOST_ELEMENTS:
            return self.load(root, place)
        return self.number(root) or self.CALL.format(self.function(root), place)

    def gathers(self, node: Node, columns: int) -> bool:
        """Whether a node gathers rows of so many columns."""
        return node.op.name == "take" and math.prod(node.outputs[0].shape[1:]) == columns

    def matrix(self, value: Value, columns: int) -> str:
        """Name of a function of row r and column c for a value's elements, which spares gathers a division."""
        node = self.inlined(value)
        if node is not None and self.gathers(node, columns):
            place = row_place(node, R) * columns + COLUMN
            text = self.printer(NodeOperands(self, node)).text(Element(0, place))
        elif node is not None and node.op.elementwise:
            text = self.typed(node.outputs[0], self.expression(node, operands=MatrixOperands(self, node, columns)))
        else:
            return self.define_plain_matrix(value, columns)
        return self.define(self.MATRIX.format(text, columns))

    def let(self, value: Value, text: str) -> tuple[str, str]:
        """Statement that puts an element of a value into a new variable; its name."""
        name = self.new("v")
        return self.LET.format(self.printer.types[value.dtype], name, text), name

    def store(self, value: Value, text: str) -> str:
        """Statement that stores element i of a value."""
        return self.STORE.format(self.parameter(value), self.stored(value, text))

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
                line, name = self.let(value, known or self.expression(node, j))
                text, made[id(value)] = text + line, name
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
        """See `Writer.define`."""
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
        return self.writer.MATRIX_CALL.format(self.writer.matrix(self.node.inputs[k], self.columns))
