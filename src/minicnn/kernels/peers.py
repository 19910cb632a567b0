"""Elements of sums over ranks: what a thread has goes to all ranks, and comes back summed.

An engine that has them knows two functions: `give_to_ranks` writes a number into the windows of all ranks, with the
number of the round, which it gives back, and `sum_over_ranks` waits for what all ranks give in that round.
"""

from __future__ import annotations

from collections.abc import Callable

from minicnn.kernels.expressions import PLACE, ZERO, Call, Element, Expr, I, Number
from minicnn.program.graph import Node

# Numbers among the addresses of a sum, behind a row of each rank in that rank's memory, and rows of all in the own one.
HALF, ENDED, OTHERS = 0, 1, 2


def addresses(ranks: int) -> int:
    """Numbers that a sum's addresses are, a multiple of 16 bytes."""
    return OTHERS + 2 * ranks


def _rows(node: Node, first: int) -> list[Expr]:
    """Addresses of the rows of all ranks, the first of which has a number among the addresses."""
    count = (node.inputs[1].size - OTHERS) // 2
    return [Element(1, Number(OTHERS + first * count + r, PLACE)) for r in range(count)]


def _given(node: Node, result: int) -> Expr:
    size, half = Number(node.outputs[0].size, PLACE), Element(1, Number(HALF, PLACE))
    return Call("give_to_ranks", (Element(0, I), I, size, Element(2, ZERO), half, *_rows(node, 0)), "uint32")


def _summed(node: Node, result: int) -> Expr:
    size = Number(node.outputs[0].size, PLACE)
    half, ended = (Element(1, Number(k, PLACE)) for k in (HALF, ENDED))
    return Call("sum_over_ranks", (Element(0, I), I, size, half, ended, *_rows(node, 1)), node.outputs[0].dtype)


ELEMENTS: dict[str, Callable[[Node, int], Expr]] = {"give_to_ranks": _given, "sum_over_ranks": _summed}
