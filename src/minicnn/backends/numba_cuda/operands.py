"""How the text of a kernel names the elements of a node's inputs, where several results are computed together."""

from __future__ import annotations

from minicnn.backends._gpu.writer import NodeOperands, Writer
from minicnn.program.graph import Node


class NeighbourOperands(NodeOperands):
    """Operands of one of four neighbours, of which `o0`, `o1` ... hold those that are at the same place."""

    def __init__(self, writer: Writer, node: Node, lane: int) -> None:
        super().__init__(writer, node)
        self.lane = lane

    def at(self, k: int, place: str) -> str:
        """See `Operands.at`."""
        return f"o{k}[{self.lane}]" if self.is_beside(k) else super().at(k, place)


class PackedOperands(NodeOperands):
    """Operands of which the only one that is not a constant is called e."""

    def at(self, k: int, place: str) -> str:
        """See `Operands.at`."""
        return super().at(k, place) if self.node.inputs[k].kind == "constant" else "e"
