"""Elements of sums over ranks: what a thread has goes to all ranks, and comes back summed.

An engine that has them knows two functions: `give_to_ranks` writes a number into the windows of all ranks, with the
number of the round, which it gives back, and `sum_over_ranks` waits for what all ranks give in that round. Two sums are
waited for together by `two_sums_over_ranks`, which gives a pair: v[0] and v[1].
"""

from __future__ import annotations

from collections.abc import Callable

from minicnn.kernels.expressions import PLACE, ZERO, Call, Element, Expr, I, Number
from minicnn.program.graph import Node

# Numbers among the addresses of a sum, behind a row of each rank in that rank's memory, and rows of all in the own one.
HALF, ENDED, OTHERS = 0, 1, 2
PAIR = "pair"  # type of two sums


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


def pair(first: Expr, second: Expr) -> Call | None:
    """Two sums that are waited for together, if both are such."""
    if not (isinstance(first, Call) and isinstance(second, Call)) or first.function != "sum_over_ranks":
        return None
    # All but the rows is the same for both.
    about = first.arguments[1:3] == second.arguments[1:3] and first.dtype == second.dtype
    rows = second.arguments[len(second.arguments) - len(first.arguments) + 5 :]
    alike = about and second.function == first.function
    return Call("two_sums_over_ranks", (*first.arguments, *rows), first.dtype) if alike else None


ELEMENTS: dict[str, Callable[[Node, int], Expr]] = {"give_to_ranks": _given, "sum_over_ranks": _summed}
