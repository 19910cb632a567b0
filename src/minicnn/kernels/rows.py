"""Sums, maxima and functions of rows, term after term: a thread goes through all of them."""

from __future__ import annotations

from collections.abc import Callable

from minicnn.kernels.expressions import PLACE, ZERO, Body, Call, Cast, Expr, Name, Number, R, Select, both, chosen
from minicnn.kernels.statements import Assign, Let, Loop, Statement, Variable

_LABEL = "int32"


def _at(term: Expr, r: Expr) -> Expr:
    """Term r of those that `term` gives."""
    return term.replaced({R: r})


def fold(join: str, dtype: str, count: int, term: Expr) -> Body:
    """The "sum" or the "max" of so many terms r, each after the one before, in a type."""
    if join == "max":
        best = Name("best", dtype)
        return Body(_largest(best, count, term, 4), best, dtype)
    total = Name("total", dtype)
    return Body(_summed(total, count, term, 4), total, dtype)


def _summed(total: Name, count: int, term: Expr, unroll: int) -> tuple[Statement, ...]:
    begin = Variable(total, Number(0, total.dtype))
    return begin, Loop(R, count, (Assign(total, total + term),), unroll)


def _largest(best: Name, count: int, term: Expr, unroll: int) -> tuple[Statement, ...]:
    larger = Assign(best, Call("maximum", (best, term), str(best.dtype)))
    return Variable(best, _at(term, ZERO)), *([Loop(R, count, (larger,), unroll, 1)] if count > 1 else [])


def of_row(function: str, dtype: str, length: int, term: Expr, arguments: tuple[Expr, ...]) -> Body:
    """A function of a whole row of a length, whose element r is `term`, by the name of its primitive.

    Args:
        function: The name.
        dtype: The type in which it computes.
        length: Elements of a row.
        term: Element r.
        arguments: The element that is asked for, the label, the gradient, as far as the function has them.
    """
    return _FUNCTIONS[function](dtype, length, term, *arguments)


def _statistics(dtype: str, length: int, term: Expr) -> tuple[tuple[Statement, ...], Expr, Expr]:
    """Statements for the maximum of a row and the sum of the exponentials of what lies below it; and these two."""
    top, total = Name("top", dtype), Name("total", dtype)
    below = Call("exp", (term - top,), dtype)
    return (*_largest(top, length, term, 4), *_summed(total, length, below, length)), top, total


def _softmax(dtype: str, length: int, term: Expr, at: Expr) -> Body:
    statements, top, total = _statistics(dtype, length, term)
    return Body(statements, Call("exp", (_at(term, at) - top,), dtype) / total, dtype)


def _log_softmax(dtype: str, length: int, term: Expr, at: Expr) -> Body:
    statements, top, total = _statistics(dtype, length, term)
    return Body(statements, _at(term, at) - top - Call("log", (total,), dtype), dtype)


def _is_class(label: Expr, length: int) -> Expr:
    return both(label >= Number(0, _LABEL), label < Number(length, _LABEL))


def _softmax_cross_entropy(dtype: str, length: int, term: Expr, label: Expr) -> Body:
    """Minus the logarithm of the label's probability; 0 for a label that is no class."""
    statements, top, total = _statistics(dtype, length, term)
    named = Name("label", _LABEL)
    loss = -(_at(term, Cast(named, PLACE)) - top - Call("log", (total,), dtype))
    return Body((Let(named, label), *statements), Select(_is_class(named, length), loss, Number(0, dtype)), dtype)


def _softmax_cross_entropy_gradient(dtype: str, length: int, term: Expr, at: Expr, label: Expr, dy: Expr) -> Body:
    """(probability - 1 at the label) * dy; 0 * dy for a label that is no class."""
    statements, top, total = _statistics(dtype, length, term)
    named, share = Name("label", _LABEL), Call("exp", (_at(term, at) - top,), dtype) / total
    hit = Cast(Cast(at, _LABEL).equals(named), dtype, "bool")
    result = Select(_is_class(named, length), (share - hit) * dy, Number(0, dtype) * dy)
    return Body((Let(named, label), *statements), result, dtype)


def _argmax(dtype: str, length: int, term: Expr) -> Body:
    """Place of the first maximum; of the first NaN, if there is one."""
    best, at, value = Name("best", dtype), Name("winner", _LABEL), Name("value", dtype)
    kept = Name("kept", "bool")  # a NaN is not even itself, and nothing replaces it
    compare = (
        Let(value, term),
        Let(kept, chosen(best.equals(best), value <= best, Number(True, "bool"), "bool")),
        Assign(at, chosen(kept, at, Cast(R, _LABEL), _LABEL)),
        Assign(best, chosen(kept, best, value, dtype)),
    )
    loop = [Loop(R, length, compare, 16, 1)] if length > 1 else []
    return Body((Variable(best, _at(term, ZERO)), Variable(at, Number(0, _LABEL)), *loop), at, _LABEL)


def pick(dtype: str, length: int, term: Expr, at: Expr) -> Body:
    """Element `at` of a row that is there already."""
    value = Name("value", dtype)
    keep = Assign(value, chosen(at.equals(Cast(R, _LABEL)), term, value, dtype))
    loop = [Loop(R, length, (keep,), length, 1)] if length > 1 else []
    return Body((Variable(value, _at(term, ZERO)), *loop), value, dtype)


_FUNCTIONS: dict[str, Callable[..., Body]] = {
    "softmax": _softmax,
    "log_softmax": _log_softmax,
    "softmax_cross_entropy": _softmax_cross_entropy,
    "softmax_cross_entropy_gradient": _softmax_cross_entropy_gradient,
    "argmax": _argmax,
}
