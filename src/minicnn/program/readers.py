"""Readers of values: the nodes of a Program that read each of them."""

from __future__ import annotations

from collections.abc import Collection

from minicnn.program.graph import Node, Program, Value


class Readers:
    """Nodes that read each value of a Program as it is now.

    It stays right for nodes that are in no merged group, and for groups that have no node in common. After other
    changes of the Program, make another.

    Args:
        program: Program.
    """

    def __init__(self, program: Program) -> None:
        self._results = {id(v) for v in program.results}
        self._nodes: dict[int, dict[int, Node]] = {}
        for node in program.nodes:
            for value in node.inputs:
                self._nodes.setdefault(id(value), {})[id(node)] = node

    def of(self, value: Value) -> list[Node]:
        """Nodes that read a value, each once."""
        return list(self._nodes.get(id(value), {}).values())

    def is_result(self, value: Value) -> bool:
        """True if a value is a result of the Program."""
        return id(value) in self._results

    def only(self, value: Value) -> Node | None:
        """The one node that reads a value that is no result of the Program; None if there are others or none."""
        readers = self.of(value)
        return readers[0] if len(readers) == 1 and not self.is_result(value) else None

    def outside(self, value: Value, members: Collection[int]) -> bool:
        """True if a value is a result of the Program or read by nodes other than those with the given ids."""
        return self.is_result(value) or any(id(n) not in members for n in self.of(value))
