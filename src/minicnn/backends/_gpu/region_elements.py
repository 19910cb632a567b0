"""Elements of a row-wise region as expression trees, and places among the rows of a tile."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from minicnn.kernels.expressions import (
    INDEX,
    PLACE,
    Apply,
    Body,
    Call,
    Cast,
    Element,
    Expr,
    I,
    Load,
    Name,
    Number,
    R,
    Select,
    both,
    changed,
)
from minicnn.kernels.rows import pick
from minicnn.kernels.statements import Block, Loop, Statement
from minicnn.program.graph import Node

E, Q, C, O, K, AT, ROW0 = (Name(name, PLACE) for name in ("e", "q", "c", "o", "k", "at", "row0"))  # noqa: E741
_ROUND = Name("round", PLACE)


def rounds(count: int, body: Callable[[Expr], tuple[Statement, ...]], unroll: int = 0) -> Statement:
    """A loop of some rounds, of which a single one is written without it."""
    return Loop(_ROUND, count, body(_ROUND), unroll) if count > 1 else Block(body(Number(0, INDEX)))


def moved(place: Expr, row: Expr, columns: int, places: Mapping[Expr, Expr]) -> Expr:
    """A place counted from the beginning of a row on, of which some expressions are known."""
    outside = False

    def change(x: Expr) -> Expr | None:
        nonlocal outside
        outside = outside or x in (row, I)
        return x if isinstance(x, Load | Apply | Body) else places.get(x)

    local = changed(place, change)
    return place - row * columns if outside else local


def softmax_element(node: Node, row: Expr, top: Expr, total: Expr, inverse: Expr | None = None) -> Expr:
    """Expression of an element in column c of a row of a softmax, of its logarithm, of a loss or of its gradient.

    Args:
        node: The node.
        row: Number of the row in the batch.
        top: Its maximum.
        total: The sum of the exponentials of what lies below it.
        inverse: One divided by that, if a thread has all of the row in registers, where no number chooses an element.
    """
    name, dtype = node.op.name, node.outputs[0].dtype
    k = int(name == "softmax_cross_entropy_gradient")
    classes = node.inputs[k].shape[1]
    # The maximum is taken off before: exp of a large logit would be infinite.
    share: Expr = Call("exp", (Element(k, I) - top,), dtype)
    share = share / total if inverse is None else share * inverse

    def logarithm(x: Expr) -> Expr:
        return x - top - Call("log", (total,), dtype)

    if name in ("softmax", "log_softmax"):
        return share if name == "softmax" else logarithm(Element(k, I))
    label, zero = Cast(Element(k + 1, row), "int32"), Number(0, dtype)
    # A label outside has no class: its loss and gradient are zero, as in the reference, rather than memory beyond the
    # row.
    real = both(label >= Number(0, "int32"), label < Number(classes, "int32"))
    if name == "softmax_cross_entropy":
        chosen: Expr = Element(k, row * classes + Cast(label, "place"))
        # Registers have no address, so that a loop picks the label's logit by comparison.
        if inverse is not None:
            chosen = pick(dtype, classes, Element(k, row * classes + R), label)
        return Select(real, -logarithm(chosen), zero)
    hit = Cast(label.equals(Cast(C, "int32")), dtype, "bool")
    return Select(real, share - hit, zero) * Element(0, row)
