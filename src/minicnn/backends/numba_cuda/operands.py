"""How the text of a kernel names the elements of a node's inputs, by the way its result is taken."""

from __future__ import annotations

from typing import TYPE_CHECKING

from minicnn.backends._gpu.elements import same_index
from minicnn.program.graph import Node

if TYPE_CHECKING:
    from minicnn.backends.numba_cuda.generation import Writer


class NodeOperands:
    """See `Operands`."""

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


class MatrixOperands(NodeOperands):
    """Operands of a node whose result is taken by row r and column c."""

    def __init__(self, writer: Writer, node: Node, columns: int) -> None:
        super().__init__(writer, node)
        self.columns = columns

    def at(self, k: int, place: str) -> str:
        """See `Operands.at`."""
        value = self.node.inputs[k]
        if not same_index(self.node, value) or value.kind == "constant":
            return super().at(k, place)
        return f"{self.writer.matrix(value, self.columns)}(p, r, c)"


class NeighbourOperands(NodeOperands):
    """Operands of one of four neighbours, of which `o0`, `o1` ... hold those that are at the same place."""

    def __init__(self, writer: Writer, node: Node, lane: int) -> None:
        super().__init__(writer, node)
        self.lane = lane

    def at(self, k: int, place: str) -> str:
        """See `Operands.at`."""
        value = self.node.inputs[k]
        if not same_index(self.node, value) or value.kind == "constant":
            return super().at(k, place)
        return f"o{k}[{self.lane}]"


class PackedOperands(NodeOperands):
    """Operands of which the only one that is not a constant is called e."""

    def at(self, k: int, place: str) -> str:
        """See `Operands.at`."""
        return super().at(k, place) if self.node.inputs[k].kind == "constant" else "e"
