"""Lowering of fusion groups to statements and functions, which engines print around their templates."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import ClassVar

from minicnn.backends._gpu.fusing import Plan
from minicnn.backends._gpu.fusion_groups import FusionGroup
from minicnn.backends._gpu.row_steps import RowSteps
from minicnn.kernels.elements import MOST_ELEMENTS, element, row_place, same_index
from minicnn.kernels.expressions import (
    PLACE,
    Apply,
    Array,
    Body,
    Element,
    Expr,
    I,
    Load,
    Name,
    Number,
    R,
    changed,
    parts_of,
)  # fmt: skip
from minicnn.kernels.peers import PAIR, pair
from minicnn.kernels.printing import Printer
from minicnn.kernels.statements import If, Let, Loop, Statement, Store
from minicnn.program.graph import Node, Value

COLUMN = Name("c")
_NOTHING: Mapping[int, Expr] = MappingProxyType({})
BLOCK, THREAD, QUEUE_ROW = Name("block"), Name("thread"), Name("row")


class Writer:
    """Lowers the groups of one kernel; functions become x0, x1 ..., variables v0, v1 ..., whatever values are called.

    Args:
        plan: The plan.
        launch: The groups of the kernel.
        queued: Ids of inputs of which there is one row a step.

    Attributes:
        launch: Number of the launch.
        written: Ids of the values in memory that the kernel writes.
        values: Those that it takes, in order.
        reads_queue: Whether it reads inputs of which there is one row a step.
        functions: Names of the functions that give values' elements, by the value's id.
        locals: The variables that hold element i of a value, likewise.
        kept: Expressions, by their places, of elements of values in a block's own memory, likewise.
    """

    printer: ClassVar[type[Printer]]
    row_steps: ClassVar[type[RowSteps]] = RowSteps
    POINTER: ClassVar[str] = "p{0}"  # parameter {0}
    DEPTH: ClassVar[int]  # of the statements of a group

    def __init__(self, plan: Plan, launch: Sequence[FusionGroup], queued: set[int]) -> None:
        self.plan, self.queued = plan, queued
        self.launch = next(k for k, other in enumerate(plan.launches) if other is launch)
        stored = {id(v) for group in launch for v in group.stored}
        # An update writes where its weight was: neither of the two names may be read through a cache that is not
        # coherent.
        self.written = stored.union(*(plan.replaced_by[key] for key in stored & plan.replaced_by.keys()))
        self.values: list[Value] = []
        self._numbers: dict[int, int] = {}  # of those, by id
        self.reads_queue = False
        self.functions: dict[int, str] = {}
        self.locals: dict[int, Name] = {}
        self.kept: dict[int, Callable[[Expr], Expr]] = {}
        self._count = 0

    # Text ---------------------------------------------------------------------------------------

    def define(self, text: str) -> str:
        """Name of a new function or the like, whose definition has {name} where the name goes."""
        raise NotImplementedError(text)

    def text(self, x: Expr) -> str:
        """Text of an expression."""
        return self.printer(self.define).text(x)

    def lines(self, statements: Iterable[Statement], depth: int | None = None) -> str:
        """Text of statements."""
        return self.printer(self.define).lines(statements, self.DEPTH if depth is None else depth)

    # Functions ----------------------------------------------------------------------------------

    def define_function(self, parameters: tuple[Name, ...], result: Expr, value: Value, title: str = "") -> str:
        """Name of a new function of places that gives elements of a value; with a title, for people."""
        raise NotImplementedError

    def define_elements(self, root: Value) -> str:
        """Name of a new function that gives a value's elements."""
        return self.define_function((I,), self.element(root), root)

    def define_plain_matrix(self, value: Value, columns: int) -> str:
        """Name of a new function of r and c for what has no quicker way than to take element i."""
        return self._matrix(value, columns, Apply(self.function(value), (I,)))

    def _matrix(self, value: Value, columns: int, result: Expr) -> str:
        place = Let(Name("i", PLACE), R * columns + COLUMN)
        return self.define_function((R, COLUMN), Body((place,), result, value.dtype), value)

    def new(self, kind: str = "x") -> str:
        """A name that is not in use."""
        self._count += 1
        return f"{kind}{self._count - 1}"

    def parameter(self, value: Value) -> str:
        """Text of a value's memory."""
        number = self._numbers.setdefault(id(value), len(self.values))
        if number == len(self.values):
            self.values.append(value)
        return self.POINTER.format(number)

    def inlined(self, value: Value) -> Node | None:
        """The node whose results are computed where a value is read; None if the value is in memory."""
        root = self.plan.root(value)
        return root.node if id(root) in self.plan.virtual else None

    def number(self, value: Value) -> Number | None:
        """The number that all elements of a constant are, if so."""
        data = value.data if value.kind == "constant" else None
        if data is None or not data.size or not (data == data.flat[0]).all():
            return None
        return Number(data.flat[0], value.dtype)

    def is_settled(self, value: Value) -> bool:
        """True if nobody writes a value in memory while the kernel is in place: no group of it, and no launch ahead.

        Loads of such a value may come in any order, and ahead of waiting for the launch ahead.
        """
        return id(value) not in self.written and self.plan.is_early(value, self.launch)

    @property
    def settled(self) -> tuple[bool, ...]:
        """See `Source.settled`; the cursor moves at the end of a step."""
        return (*map(self.is_settled, self.values), *[self.plan.follows_kernel(self.launch)] * self.reads_queue)

    def array(self, value: Value) -> Array:
        """A value's memory."""
        return Array(
            self.parameter(value), value.dtype, value.size, id(value) in self.written, f"{value.spec}, {value.name}"
        )

    def load(self, root: Value, place: Expr) -> Load:
        """An element of a value in memory; of what is queued, of the row of the step."""
        if id(root) in self.queued:
            self.reads_queue = True
            place = QUEUE_ROW * root.size + place
        return Load(self.array(root), place)

    def element(self, root: Value) -> Expr:
        """Element i, without a function for it."""
        number, node = self.number(root), self.inlined(root)
        if number is not None:
            return number
        return self.load(root, I) if node is None else self.expression(node)

    def resolved(self, node: Node, x: Expr, operands: NodeOperands | None = None) -> Expr:
        """An expression of a node's inputs in terms of variables, functions and memory."""
        return resolve(x, operands or NodeOperands(self, node))

    def expression(self, node: Node, result: int = 0, operands: NodeOperands | None = None) -> Expr:
        """Element i of one result of a node."""
        return self.resolved(node, element(node, result), operands)

    def function(self, value: Value) -> str:
        """Name of the function that gives a value's elements."""
        root = self.plan.root(value)
        # One function for each value, however many expressions read it.
        if id(root) not in self.functions:
            with self._any_place():
                self.functions[id(root)] = self.define_elements(root)
        return self.functions[id(root)]

    @contextmanager
    def _any_place(self) -> Iterator[None]:
        """Without the thread's variables, ahead of which functions are defined."""
        variables, self.locals = self.locals, {}
        try:
            yield
        finally:
            self.locals = variables

    def at(self, value: Value, place: Expr) -> Expr:
        """An element of a value."""
        root = self.plan.root(value)
        if id(root) in self.locals:
            return self.locals[id(root)]
        if id(root) in self.kept:
            return self.kept[id(root)](place)
        # Its places need 64 bits, which functions of places do not take.
        if root.size > MOST_ELEMENTS:
            return Load(self.array(root), place)
        return self.number(root) or Apply(self.function(root), (place,))

    def gathers(self, node: Node, columns: int) -> bool:
        """True if a node gathers rows of so many columns."""
        return node.op.name == "take" and math.prod(node.outputs[0].shape[1:]) == columns

    def matrix(self, value: Value, columns: int) -> str:
        """Name of a function of row r and column c for a value's elements, which spares gathers a division."""
        node = self.inlined(value)
        with self._any_place():
            if node is not None and self.gathers(node, columns):
                expression = self.resolved(node, Element(0, row_place(node, R) * columns + COLUMN))
            elif node is not None and node.op.elementwise:
                expression = self.expression(node, operands=MatrixOperands(self, node, columns))
            else:
                return self.define_plain_matrix(value, columns)
            return self._matrix(value, columns, expression)

    # Statements ---------------------------------------------------------------------------------

    def let(self, value: Value, x: Expr) -> tuple[list[Statement], Name]:
        """Statements that put an element of a value into a new variable, and that variable."""
        name = Name(self.new("v"), value.dtype)
        return [Let(name, x)], name

    def store(self, value: Value, x: Expr) -> Statement:
        """Statement that stores element i of a value."""
        return Store(self.array(value), I, x)

    def blocks(self, group: FusionGroup, threads: int) -> int:
        """Blocks of a group; without a tile they have so many threads."""
        if group.tile is not None:
            return group.tile.blocks
        return -(-group.size // (threads // group.slices * group.width))

    def elements(self, group: FusionGroup, threads: int) -> list[Statement]:
        """Statements of a thread for a group without a tile: of one element of each value, or of some neighbours."""
        place, first = Name("i", PLACE), Name("first", PLACE)
        if group.width == 1:
            return [
                Let(place, BLOCK * threads + THREAD),
                If(place < group.size, tuple(self.follow(group.nodes, group))),
            ]
        one = (Let(place, first + Name("e")), *self.follow(group.nodes, group))
        each = Loop(Name("e", PLACE), group.width, one, unroll=group.width)
        return [Let(first, (BLOCK * threads + THREAD) * group.width), If(first < group.size, (each,))]

    def follow(
        self, nodes: Sequence[Node], group: FusionGroup, start: Expr | None = None, tap: Expr | None = None
    ) -> list[Statement]:
        """Statements that compute nodes at element i and store what is stored; see `compute`."""
        statements, stored = self.compute(nodes, group, start, tap)
        return [*statements, *(self.store(value, name) for value, name in stored)]

    def compute(
        self, nodes: Sequence[Node], group: FusionGroup, start: Expr | None = None, tap: Expr | None = None,
        known: Mapping[int, Expr] = _NOTHING,
    ) -> tuple[list[Statement], list[tuple[Value, Name]]]:  # fmt: skip
        """Statements that compute nodes at element i; values that are stored, and the variables that hold them.

        Args:
            nodes: The nodes.
            group: Their group.
            start: The result of the first node, if that is computed already.
            tap: The result of the pooling's index node, likewise.
            known: Results of other nodes that are, by the node's id.
        """
        statements, kept, known = list[Statement](), [], dict(known)
        stored = {id(v) for v in group.stored}
        for k, node in enumerate(nodes):
            names = {}
            if node.op.name == "sum_over_ranks" and id(node) not in known:
                statements += self._waiting(nodes[k:], known)
            for j, value in enumerate(node.outputs):
                first = k == 0 and start is not None
                result = start if first else tap if node.op.name == "max_pool2d_index" else known.get(id(node))
                lines, name = self.let(value, result or self.expression(node, j))
                statements += lines
                names[id(value)] = name
                if id(value) in stored:
                    kept.append((value, name))
            self.locals |= names  # not before all results are written down: none reads another
        return statements, kept

    def _waiting(self, nodes: Sequence[Node], known: dict[int, Expr]) -> list[Statement]:
        """Statements ahead of a node that waits for other ranks; the first two that do may wait together."""
        statements, inside = list[Statement](), {id(v) for n in nodes for v in n.outputs}
        places: dict[int, set[Expr]] = {}  # at which roots are read
        roots: dict[int, Value] = {}
        for node, result in ((n, j) for n in nodes for j in range(len(n.outputs))):
            for one in parts_of(element(node, result), Element):
                root = self.plan.root(node.inputs[one.k])
                roots[id(root)] = root
                places.setdefault(id(root), set()).add(one.place)
        for key in [key for key in roots if key not in inside and key not in self.locals]:
            # What comes from memory at the thread's own place is on its way meanwhile.
            if places[key] == {I} and self.inlined(roots[key]) is None and self.number(roots[key]) is None:
                lines, self.locals[key] = self.let(roots[key], self.load(roots[key], I))
                statements += lines
        if len(nodes) > 1 and nodes[1].op is nodes[0].op:
            both = pair(*map(self.expression, nodes[:2]))
            if both is not None:
                name = self.new("v")
                statements.append(Let(Name(name, PAIR), both))
                known |= {id(n): Name(f"{name}.v[{j}]", both.dtype) for j, n in enumerate(nodes[:2])}
        return statements


class NodeOperands:
    """Operands of a node whose result is taken by element i."""

    def __init__(self, writer: Writer, node: Node) -> None:
        self.writer, self.node = writer, node

    def at(self, k: int, place: Expr) -> Expr:
        """An element of input k."""
        return self.writer.at(self.node.inputs[k], place)

    def is_beside(self, k: int) -> bool:
        """True if an element of input k, which is no constant, is needed from the place of the result alone."""
        return same_index(self.node, self.node.inputs[k]) and self.node.inputs[k].kind != "constant"


class MatrixOperands(NodeOperands):
    """Operands of a node whose result is taken by row r and column c."""

    def __init__(self, writer: Writer, node: Node, columns: int) -> None:
        super().__init__(writer, node)
        self.columns = columns

    def at(self, k: int, place: Expr) -> Expr:
        """See `NodeOperands.at`."""
        if not self.is_beside(k):
            return super().at(k, place)
        return Apply(self.writer.matrix(self.node.inputs[k], self.columns), (R, COLUMN))


def resolve(x: Expr, operands: NodeOperands) -> Expr:
    """An expression of a node's inputs with what these are in their place."""

    def change(part: Expr) -> Expr | None:
        return operands.at(part.k, changed(part.place, change)) if isinstance(part, Element) else None

    return changed(x, change)
