"""Vector code of expression trees, from which the kernels of GPUs are printed as well: each is a register of 16 lanes.

In registers bool and uint8 are floats, and int32 is itself in the same 16 lanes.
"""

from __future__ import annotations

from collections.abc import Sequence

from minicnn.backends.numba.short import SHORT
from minicnn.kernels import scalars
from minicnn.kernels.expressions import (
    ONE,
    ZERO,
    Binary,
    Call,
    Cast,
    Element,
    Expr,
    Name,
    Negative,
    Number,
    Select,
)
from minicnn.kernels.scalars import ScalarFunction

_NAMES = {
    "+": "add", "-": "sub", "*": "mul", "/": "div", ">": "gt", ">=": "ge", "<": "lt", "<=": "le", "==": "eq",
    "maximum": "max", "minimum": "min", "power": "pow",
}  # fmt: skip
_X = Name("x")
# Functions that are no operation of a CPU's vectors.
FUNCTIONS = {
    **scalars.FUNCTIONS, "sign": ScalarFunction(("x",), {}, Select(_X > ZERO, ONE, Select(_X < ZERO, Number(-1), _X))),
}  # fmt: skip


def composed(x: Call) -> Expr:
    """The simpler functions that one of `FUNCTIONS` is made of, with the arguments of a call in them."""
    function = FUNCTIONS[x.function]
    known: dict[Expr, Expr] = dict(zip(map(Name, function.parameters), x.arguments, strict=True))
    known |= {Name(first): value.replaced(known) for first, value in function.first.items()}
    return function.result.replaced(known)


def splat(value: float) -> str:
    """A number in all lanes."""
    return f"splat(float32({float(value)!r}))"


class Vectors:
    """Code of a node's expressions.

    Args:
        registers: Names of the node's inputs.
        dtypes: Their types.
    """

    def __init__(self, registers: Sequence[str], dtypes: Sequence[str]) -> None:
        self._registers, self._dtypes = registers, dtypes

    def text(self, x: Expr) -> str:
        """Code of an expression."""
        match x:
            case Element():
                return self._registers[x.k]
            case Name():
                return x.name
            case Number():
                return splat(x.value)
            case Negative():
                return f"vsub({splat(-0.0)}, {self.text(x.x)})"
            case Cast():
                return self._cast(x.x, str(x.source), x.dtype)
            case Select():
                return f"vselect({self._mask(x.condition)}, {self.text(x.yes)}, {self.text(x.no)})"
            case Binary(symbol="-", left=Number(left), right=Number(right)):
                return splat(left - right)
            case Binary():
                return self._operation(x) if x.symbol in "+-*/" else self.text(Select(x, ONE, ZERO))
            case Call(function=name) if name in FUNCTIONS:
                return self.text(composed(x))
            case Call():
                return f"v{_NAMES.get(x.function, x.function)}({', '.join(map(self.text, x.arguments))})"
        raise TypeError(x)

    def _operation(self, x: Binary) -> str:
        whole = isinstance(x.left, Element) and self._dtypes[x.left.k] == "int32"
        return f"{'i' if whole else 'v'}{_NAMES[x.symbol]}({self.text(x.left)}, {self.text(x.right)})"

    def _mask(self, x: Expr) -> str:
        return self._operation(x if isinstance(x, Binary) else Binary(">", x, ZERO))

    def _cast(self, x: Expr, source: str, target: str) -> str:
        if target == SHORT:
            return f"vshort({self.text(x)})"
        if target == "bool":
            zero = "isplat(int32(0))" if source == "int32" else splat(0)
            return f"vselect({'i' if source == 'int32' else 'v'}eq({self.text(x)}, {zero}), {splat(0)}, {splat(1)})"
        if source == "int32" and target == "float32":
            return f"int_to_float({self.text(x)})"
        return f"float_to_int({self.text(x)})" if target == "int32" != source else self.text(x)
