"""Operands of tiles: where their elements are, so that neighbours in memory are loaded at once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from minicnn.backends._gpu.inlining import SCATTER
from minicnn.backends._gpu.writer import NodeOperands, Writer
from minicnn.kernels.blocks import Neighbours, Operand
from minicnn.kernels.elements import MOST_ELEMENTS, row_place
from minicnn.kernels.expressions import (
    INDEX,
    PLACE,
    Apply,
    Body,
    Cast,
    Expr,
    I,
    Name,
    Number,
    Select,
    both,
    chosen,
)
from minicnn.kernels.statements import Let
from minicnn.kernels.windows import Windows
from minicnn.program.graph import Node, Value

BESIDE, WINDOW = Name("neighbours", PLACE), Name("window", PLACE)  # where neighbours begin in arrays of two kinds
TAP = Name("tap", INDEX)


def operand(writer: Writer, value: Value) -> Operand:
    """An operand whose elements are taken by their places."""
    name, sources = writer.function(value), _Sources(writer)
    element = sources.of(value)
    if element is None:
        return Operand(lambda place: Apply(name, (place,)))
    return Operand(lambda place: Apply(name, (place,)), lambda place: sources.from_place(element, place, place))


def matrix(writer: Writer, value: Value) -> Operand:
    """An operand whose elements are taken by row and column, as it is stored; its rows may be gathered."""
    columns, name = value.shape[1], writer.matrix(value, value.shape[1])
    sources = _Sources(writer, columns)
    element = sources.of(value)

    def one(r: Expr, c: Expr) -> Expr:
        return Apply(name, (r, c))

    def neighbours(r: Expr, c: Expr) -> Neighbours:
        number, gather = r * columns + c, sources.gather
        if element is None or gather is None:
            return sources.from_place(element or I, number, number)
        return sources.from_place(element, number, writer.resolved(gather, row_place(gather, r)) * columns + c)

    return Operand(one, None if element is None else neighbours)


def _stored(k: int) -> Name:
    """The element of array k that belongs to the operand's."""
    return Name(f"stored element {k}")


class _Sources:
    """Arrays in memory of whose elements an element of a value is made, so that neighbours are made of neighbours.

    Arrays have them at the place of the value's element, in a row that is gathered, or, of the gradient of a
    max-pooling with the channels last, at the place of the element's window.

    Args:
        writer: The writer.
        columns: Columns of the value as a matrix, whose rows may be gathered; 0 if it is none.
    """

    def __init__(self, writer: Writer, columns: int = 0) -> None:
        self.writer, self.columns = writer, columns
        self.values: list[tuple[Value, Name]] = []
        self.gather: Node | None = None
        self.scatter: Node | None = None
        self._begin = BESIDE

    def of(self, value: Value) -> Expr | None:
        """The element at place `I` in terms of `_stored`; None if it is made otherwise."""
        try:
            x = self.expression(value)
        except _ElsewhereError:
            return None
        # With rows that are gathered, nothing else lies at the same place.
        return None if not self.values or (self.gather and len(self.values) > 1) else x

    def from_place(self, x: Expr, number: Expr, place: Expr) -> Neighbours:
        """Neighbours whose element `I` an expression is, from a number on; where arrays have them beside it."""
        lets = [Let(BESIDE, place)] if any(begin is BESIDE for _, begin in self.values) else []
        if self.scatter is not None:
            names, inside, at, tap = Windows(self.scatter).only_window()
            for name, found, none in ((WINDOW, at, Number(0, PLACE)), (TAP, tap, Number(-1, INDEX))):
                result = Select(reduce(both, inside), found, none) if inside else found
                lets.append(Let(name, Body(tuple(names), result, str(name.dtype)).replaced({I: number})))
        arrays = [(self.writer.array(value), begin) for value, begin in self.values]

        def element(q: Expr, elements: Sequence[Expr]) -> Expr:
            stored: dict[Expr, Expr] = {_stored(k): one for k, one in enumerate(elements)}
            return x.replaced({I: number + q, WINDOW: WINDOW + q, **stored})

        return Neighbours(lets, arrays, element)

    def expression(self, value: Value) -> Expr:
        """The element of a part of it at place `I`."""
        writer, root = self.writer, self.writer.plan.root(value)
        node = writer.inlined(root)
        if node is not None and node.op.elementwise:
            return writer.expression(node, operands=_Beside(self, node))
        if node is not None and node.op.name == SCATTER:
            return self._scattered(node)
        if node is not None and self.columns and writer.gathers(node, self.columns):
            if self.gather not in (None, node):
                raise _ElsewhereError
            self.gather, root = node, writer.plan.root(node.inputs[0])
            node = writer.inlined(root)
        elsewhere = node is not None or root.kind == "constant" or id(root) in writer.queued or root.dtype == "bool"
        if elsewhere or root.size > MOST_ELEMENTS:
            raise _ElsewhereError
        for k, (known, begin) in enumerate(self.values):
            if known is root and begin is self._begin:
                return _stored(k)
        self.values.append((root, self._begin))
        return _stored(len(self.values) - 1)

    def _scattered(self, node: Node) -> Expr:
        """The element of a max-pooling's gradient: that of its window, if the maximum there is under its tap."""
        windows = Windows(node)
        if self.scatter not in (None, node) or not windows.apart or not windows.x.data_format.endswith("C"):
            raise _ElsewhereError
        if windows.x.c % 4 or self._begin is WINDOW:
            raise _ElsewhereError
        self.scatter, self._begin = node, WINDOW
        dy, winner = (self.expression(v).replaced({I: WINDOW}) for v in node.inputs)
        self._begin = BESIDE
        return chosen(Cast(winner, INDEX).equals(TAP), dy, windows.number(0), windows.dtype)


class _ElsewhereError(Exception):
    """Signal that an element is made of more than what lies at its own place."""


class _Beside(NodeOperands):
    """Operands of which those at the place of the result are expressions of arrays, too."""

    def __init__(self, sources: _Sources, node: Node) -> None:
        super().__init__(sources.writer, node)
        self.sources = sources

    def at(self, k: int, place: Expr) -> Expr:
        """See `NodeOperands.at`."""
        value = self.node.inputs[k]
        number = self.writer.number(self.writer.plan.root(value))
        if isinstance(number, Number) or not self.is_beside(k):
            return super().at(k, place)
        return self.sources.expression(value)
