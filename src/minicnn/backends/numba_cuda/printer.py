"""Python of expression trees, and of the scalar functions that are defined as such."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from minicnn.backends._gpu.elements import DTYPES
from minicnn.backends._gpu.printing import Printer
from minicnn.backends._gpu.scalars import FUNCTIONS, T
from minicnn.backends._gpu.trees import (
    Binary,
    Call,
    Cast,
    Element,
    Expr,
    Fold,
    Name,
    Number,
    OfRow,
    OfWindows,
    R,
    Select,
)
from minicnn.backends._gpu.writer import NodeOperands
from minicnn.program.graph import Value

# Functions of `kernels/` whose names are others; those in whose names a type stands.
_NAMES = {
    "maximum": "larger",
    "minimum": "smaller",
    "power": "pow_",
    "abs": "absolute",
    "sign": "signum",
    "floor": "floor_",
}
_TYPED = frozenset((*FUNCTIONS, "erf", "erfc", "floor", "random_uniform"))


TYPES = {**{dtype: f"np.{dtype}" for dtype in DTYPES}, "bool": "bool", "wide_place": "np.int64", T: T}


def _is_wide(place: Expr) -> bool:
    """Whether a place has 64 bits: the first of what is added up or multiplied says it."""
    while isinstance(place, Binary):
        place = place.left
    return isinstance(place, Cast) and place.dtype == "wide_place"


def type_of(value: Value) -> str:
    """The type of a value's elements."""
    return TYPES[value.dtype]


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
    """Python of an expression."""

    _operands: NodeOperands  # folds and windows become functions of their own
    types: ClassVar[Mapping[str, str]] = TYPES
    IMAGE, WINDOW = 'Image("{0}", {1})', "Window({0})"
    special: ClassVar[Mapping[str, str]] = {
        "True": "True", "False": "False", "nan": "{0}(np.nan)", "inf": "{0}({1}np.inf)",
    }  # fmt: skip

    def place(self, x: Expr) -> str:
        """Text of a place."""
        text = self.text(x)
        return text if isinstance(x, Name) or _is_wide(x) else f"index({text})"

    def _number(self, x: Number) -> tuple[str, int]:
        return (str(x.value) if x.dtype is None else self.literal(x.value, x.dtype)), 9

    def _select(self, x: Select) -> tuple[str, int]:
        condition, yes = self.text(x.condition), x.yes
        if isinstance(yes, Element) and not isinstance(yes.place, Name):  # a place that exists, whatever is chosen
            at = f"index({self.text(yes.place)} if {condition} else 0)"
            return f"({self._operands.at(yes.k, at)} if {condition} else {self.text(x.no)})", 9
        return f"({self.text(yes)} if {condition} else {self.text(x.no)})", 9

    def _cast(self, x: Cast) -> tuple[str, int]:
        # Where it becomes a place of 32 bits or is compared, any integer will do.
        if x.dtype != "wide_place" and x.source in (None, x.dtype):
            return self._show(x.x)
        if x.dtype == "bool":
            return f"{self._within(x.x, 4)} != 0", 3
        return f"{TYPES[x.dtype]}({self.text(x.x)})", 9

    def _call(self, x: Call) -> tuple[str, int]:
        ending = f"_{x.dtype}" if x.function in _TYPED else ""
        return f"{_NAMES.get(x.function, x.function)}{ending}({', '.join(map(self.text, x.arguments))})", 9

    def _fold(self, x: Fold) -> tuple[str, int]:
        term, first = (self.text(one) for one in (x.term, x.term.replaced({R: Number(0)})))
        text = _FOLDS[x.join].format(T=TYPES[x.dtype], n=x.count, term=term, first=first)
        return f"{self._operands.define(text)}(p, i)", 9

    def _ofrow(self, x: OfRow) -> tuple[str, int]:
        term = self.text(x.term)
        row = self._operands.define(f"@device\ndef {{name}}(p, i, r):\n    return {term}\n")
        made = self._operands.define(f"{{name}} = {x.function}({TYPES[x.dtype]}, {x.length}, {row})\n")
        return f"{made}({', '.join(['p', 'i', *map(self.text, x.arguments)])})", 9

    def _ofwindows(self, x: OfWindows) -> tuple[str, int]:
        functions = (self._operands.function(k) for k in x.inputs)
        given = (
            TYPES[x.dtype],
            self.image(x.x),
            self.image(x.y),
            self.window(x.window),
            *map(str, x.flags),
            *functions,
        )
        made = self._operands.define(f"{{name}} = {x.function}({', '.join(given)})\n")
        return f"{made}(p, i)", 9


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
