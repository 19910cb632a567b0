"""Operands of tiles: where their elements are, so that neighbours in memory are loaded at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from minicnn.backends._gpu.writer import NodeOperands, Writer
from minicnn.kernels.blocks import Operand
from minicnn.kernels.elements import MOST_ELEMENTS, row_place
from minicnn.kernels.expressions import Apply, Expr, I, Name, Number
from minicnn.program.graph import Node, Value


def operand(writer: Writer, value: Value) -> Operand:
    """An operand whose elements are taken by their places."""
    name = writer.function(value)
    neighbours = _Neighbours(writer)
    of = neighbours.of(value)
    if of is None:
        return Operand(lambda place: Apply(name, (place,)))
    arrays = tuple(writer.array(v) for v in neighbours.values)
    return Operand(lambda place: Apply(name, (place,)), arrays, of=_in_places(of))


def matrix(writer: Writer, value: Value) -> Operand:
    """An operand whose elements are taken by row and column, as it is stored; its rows may be gathered."""
    columns, name = value.shape[1], writer.matrix(value, value.shape[1])
    neighbours = _Neighbours(writer, columns)
    of = neighbours.of(value)

    def one(r: Expr, c: Expr) -> Expr:
        return Apply(name, (r, c))

    def number(r: Expr, c: Expr) -> Expr:
        return r * columns + c

    if of is None:
        return Operand(one)
    arrays, gather = tuple(writer.array(v) for v in neighbours.values), neighbours.gather
    if gather is None:
        return Operand(one, arrays, number, number, _in_places(of))

    def gathered(r: Expr, c: Expr) -> Expr:
        return writer.resolved(gather, row_place(gather, r)) * columns + c

    return Operand(one, arrays, gathered, number, _in_places(of))


def _in_places(x: Expr) -> Callable[[Expr, Sequence[Expr]], Expr]:
    """The function of a place and of elements of arrays that an expression of these is."""

    def of(place: Expr, elements: Sequence[Expr]) -> Expr:
        return x.replaced({I: place, **{_stored(k): one for k, one in enumerate(elements)}})

    return of


def _stored(k: int) -> Name:
    """The element of array k at the place of the operand's."""
    return Name(f"stored element {k}")


class _Neighbours:
    """Arrays in memory, or rows of one of them, whose elements at a place make the element of a value there.

    Args:
        writer: The writer.
        columns: Columns of the value as a matrix, whose rows may be gathered; 0 if it is none.
    """

    def __init__(self, writer: Writer, columns: int = 0) -> None:
        self.writer, self.columns = writer, columns
        self.values: list[Value] = []
        self.gather: Node | None = None

    def of(self, value: Value) -> Expr | None:
        """Element `I` of a value in terms of `_stored`; None if it is made otherwise."""
        try:
            x = self.expression(value)
        except _ElsewhereError:
            return None
        # With rows that are gathered, nothing else lies at the same place.
        return None if not self.values or (self.gather and len(self.values) > 1) else x

    def expression(self, value: Value) -> Expr:
        """The same for a part of it."""
        writer, root = self.writer, self.writer.plan.root(value)
        node = writer.inlined(root)
        if node is not None and node.op.elementwise:
            return writer.expression(node, operands=_Beside(self, node))
        if node is not None and self.columns and writer.gathers(node, self.columns):
            if self.gather not in (None, node):
                raise _ElsewhereError
            self.gather, root = node, writer.plan.root(node.inputs[0])
            node = writer.inlined(root)
        elsewhere = node is not None or root.kind == "constant" or id(root) in writer.queued or root.dtype == "bool"
        if elsewhere or root.size > MOST_ELEMENTS:
            raise _ElsewhereError
        if not any(root is one for one in self.values):
            self.values.append(root)
        return _stored(next(k for k, one in enumerate(self.values) if one is root))


class _ElsewhereError(Exception):
    """Signal that an element is made of more than what lies at its own place."""


class _Beside(NodeOperands):
    """Operands of which those at the place of the result are expressions of arrays, too."""

    def __init__(self, neighbours: _Neighbours, node: Node) -> None:
        super().__init__(neighbours.writer, node)
        self.neighbours = neighbours

    def at(self, k: int, place: Expr) -> Expr:
        """See `NodeOperands.at`."""
        value = self.node.inputs[k]
        number = self.writer.number(self.writer.plan.root(value))
        if isinstance(number, Number) or not self.is_beside(k):
            return super().at(k, place)
        return self.neighbours.expression(value)
