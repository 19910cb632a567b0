"""Python of expression trees, and of the scalar functions that are defined as such."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

from minicnn.backends._gpu.elements import element
from minicnn.backends._gpu.scalars import FUNCTIONS, T
from minicnn.backends._gpu.trees import (
    Call,
    Cast,
    Element,
    Expr,
    Fold,
    I,
    Image,
    Name,
    Number,
    OfRow,
    OfWindows,
    Printer,
    R,
    Select,
    Window,
)
from minicnn.program.graph import Node, Value


class Operands(Protocol):
    """The inputs of a node, as the text that is being written names them."""

    def at(self, k: int, place: str) -> str:
        """Text for one element of input k."""

    def function(self, k: int) -> str:
        """Name of a function of (p, i) that gives the elements of input k."""

    def define(self, text: str) -> str:
        """Name of a new global, whose definition has {name} where the name goes."""


# Functions of `kernels/` whose names are others; those in whose names a type stands.
_NAMES = {"maximum": "larger", "minimum": "smaller", "power": "pow_", "abs": "absolute", "sign": "signum"}
_TYPED = frozenset((*FUNCTIONS, "erf", "random_uniform"))


def type_of(value: Value) -> str:
    """The type of a value's elements."""
    return _type(value.dtype)


def _type(dtype: str) -> str:
    return {"bool": "bool", T: T}.get(dtype, f"np.{dtype}")


def literal(number: Any, kind: str) -> str:
    """A number of a type."""
    if kind == "bool":
        return str(bool(number))
    if kind not in ("np.float32", "np.float64", T):
        return f"{kind}({int(number)})"
    number = float(number)
    if math.isfinite(number):
        return f"{kind}({number!r})"
    return f"{kind}({'-' if number < 0 else ''}np.{'nan' if math.isnan(number) else 'inf'})"


def image(of: Image) -> str:
    """Text of an image's geometry."""
    return f'Image("{of.data_format}", {of.n}, {of.h}, {of.w}, {of.c})'


def window_text(of: Window) -> str:
    """Text of a window's geometry."""
    return f"Window({', '.join(map(str, of.numbers))})"


_FOLDS = {
    "sum": """@device
def {{name}}(p, i):
    total = {T}(0)
    for r in range({n}):
        total += {T}({term})
    return total
""",
    "max": """@device
def {{name}}(p, i):
    best = {T}({first})
    for r in range(1, {n}):
        best = larger(best, {T}({term}))
    return best
""",
}


class Python(Printer):
    """Python of an expression.

    Args:
        operands: The inputs.
        i: Text of the place i.
    """

    def __init__(self, operands: Operands, i: str = "i") -> None:
        self._operands, self._i = operands, i

    def place(self, x: Expr) -> str:
        """Text of a place."""
        text = self.text(x)
        return text if isinstance(x, Name) else f"index({text})"

    def _name(self, x: Name) -> tuple[str, int]:
        return (self._i if x is I or x == I else x.name), 9

    def _number(self, x: Number) -> tuple[str, int]:
        return (str(x.value) if x.dtype is None else literal(x.value, _type(x.dtype))), 9

    def _element(self, x: Element) -> tuple[str, int]:
        return self._operands.at(x.k, self.place(x.place)), 9

    def _select(self, x: Select) -> tuple[str, int]:
        condition, yes = self.text(x.condition), x.yes
        if isinstance(yes, Element) and not isinstance(yes.place, Name):  # a place that exists, whatever is chosen
            at = f"index({self.text(yes.place)} if {condition} else 0)"
            return f"({self._operands.at(yes.k, at)} if {condition} else {self.text(x.no)})", 9
        return f"({self.text(yes)} if {condition} else {self.text(x.no)})", 9

    def _cast(self, x: Cast) -> tuple[str, int]:
        if x.source is None or x.source == x.dtype:  # where it becomes a place or is compared, any integer will do
            return self._show(x.x)
        if x.dtype == "bool":
            return f"{self._within(x.x, 4)} != 0", 3
        return f"{_type(x.dtype)}({self.text(x.x)})", 9

    def _call(self, x: Call) -> tuple[str, int]:
        ending = f"_{x.dtype}" if x.function in _TYPED else ""
        return f"{_NAMES.get(x.function, x.function)}{ending}({', '.join(map(self.text, x.arguments))})", 9

    def _fold(self, x: Fold) -> tuple[str, int]:
        inner = Python(self._operands)
        term, first = (inner.text(one) for one in (x.term, x.term.replaced({R: Number(0)})))
        text = _FOLDS[x.join].format(T=_type(x.dtype), n=x.count, term=term, first=first)
        return f"{self._operands.define(text)}(p, {self._i})", 9

    def _ofrow(self, x: OfRow) -> tuple[str, int]:
        term = Python(self._operands).text(x.term)
        row = self._operands.define(f"@device\ndef {{name}}(p, i, r):\n    return {term}\n")
        made = self._operands.define(f"{{name}} = {x.function}({_type(x.dtype)}, {x.length}, {row})\n")
        return f"{made}({', '.join(['p', self._i, *map(self.text, x.arguments)])})", 9

    def _ofwindows(self, x: OfWindows) -> tuple[str, int]:
        functions = (self._operands.function(k) for k in x.inputs)
        given = (_type(x.dtype), image(x.x), image(x.y), window_text(x.window), *map(str, x.flags), *functions)
        made = self._operands.define(f"{{name}} = {x.function}({', '.join(given)})\n")
        return f"{made}(p, {self._i})", 9


def expression(node: Node, result: int, operands: Operands, i: str) -> str:
    """Python for element i of one result of a node."""
    return Python(operands, i).text(element(node, result))


class _Scalars(Printer):
    """The body of a scalar function that computes in type T; where nothing is gained by a branch there is none."""

    def _number(self, x: Number) -> tuple[str, int]:
        return f"T({x.value!r})", 9

    def _select(self, x: Select) -> tuple[str, int]:
        parts = [self.text(part) for part in (x.condition, x.yes, x.no)]
        if all(isinstance(part, Name | Number) for part in (x.yes, x.no)):
            return f"choose({', '.join(parts)})", 9
        return "({1} if {0} else {2})".format(*parts), 9

    def _call(self, x: Call) -> tuple[str, int]:
        return f"{_NAMES.get(x.function, x.function)}({', '.join(map(self.text, x.arguments))})", 9


def scalar_functions(device: Callable[..., Any], names: dict[str, Any]) -> dict[str, Callable[..., Any]]:
    """The functions that are defined as expression trees.

    Args:
        device: What makes a function of the device of a Python function.
        names: What their text sees, the type T among it; the functions are added.
    """
    printer = _Scalars()
    for name, function in FUNCTIONS.items():
        lines = [f"    {local} = {printer.text(x)}\n" for local, x in function.first.items()]
        lines.append(f"    return {printer.text(function.result)}\n")
        exec(f"def {name}({', '.join(function.parameters)}):\n{''.join(lines)}", names)
        names[name] = device(names[name])
    return {name: names[name] for name in FUNCTIONS}
