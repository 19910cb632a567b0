"""Python of kernels, and of the scalar functions that are defined as expressions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from minicnn.backends._python import Python
from minicnn.kernels.elements import DTYPES
from minicnn.kernels.expressions import (
    INDEX,
    PLACE,
    WIDE_PLACE,
    Apply,
    Binary,
    Body,
    Call,
    Cast,
    Expr,
    Load,
    Name,
    Number,
    Select,
)  # fmt: skip
from minicnn.kernels.printing import Printer
from minicnn.kernels.scalars import FUNCTIONS, T
from minicnn.kernels.statements import Barrier, Shared, Store
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

_WHOLE = {INDEX: "signed", PLACE: "index", WIDE_PLACE: "np.int64"}
TYPES = {**{dtype: f"np.{dtype}" for dtype in DTYPES}, "bool": "bool", T: T, **_WHOLE}


def _is_wide(place: Expr) -> bool:
    """True if a place has 64 bits: the first of what is added up or multiplied says it."""
    while isinstance(place, Binary):
        place = place.left
    return isinstance(place, Cast) and place.dtype == WIDE_PLACE


def type_of(value: Value) -> str:
    """The type of a value's elements."""
    return TYPES[value.dtype]


class CudaPython(Python):
    """CUDA Python of expressions and statements; functions take a tuple p of all parameters first.

    Args:
        define: See `Printer`: expressions with statements become functions of their own.
    """

    types: ClassVar[Mapping[str, str]] = TYPES
    IMAGE, WINDOW = 'Image("{0}", {1})', "Window({0})"
    names: ClassVar[Mapping[str, str]] = {"block": "number", "thread": "cuda.threadIdx.x", "row": "p[-1]"}

    def define(self, text: str) -> str:
        """Name of something new, whose definition has {name} where the name goes."""
        if self._define is None:
            raise TypeError(text)
        return self._define(text)

    def place(self, x: Expr) -> str:
        """Text of a place."""
        text = self.text(x)
        return text if isinstance(x, Name) or _is_wide(x) else f"index({text})"

    def _apply(self, x: Apply) -> tuple[str, int]:
        return f"{x.function}({', '.join(['p', *map(self.place, x.arguments)])})", 9

    def _load(self, x: Load) -> tuple[str, int]:
        # What nothing here writes is read past the cache that is kept coherent.
        array, place = x.array.name, self.place(x.place)
        return self._stored(f"{array}[{place}]" if x.array.written else f"read({array}, {place})", x.array.dtype)

    def _stored(self, text: str, dtype: str) -> tuple[str, int]:
        return (f"{text} != 0", 3) if dtype == "bool" else (text, 9)

    def _call(self, x: Call) -> tuple[str, int]:
        ending = f"_{x.dtype}" if x.function in _TYPED else ""
        return f"{_NAMES.get(x.function, x.function)}{ending}({', '.join(map(self.text, x.arguments))})", 9

    def _body(self, x: Body) -> tuple[str, int]:
        return f"{self.define(self.function((Name('i'),), x, x.dtype))}(p, i)", 9

    def function(self, parameters: Sequence[Name], result: Expr, dtype: str) -> str:
        """Definition of a function {name} of the device, which gives a number of a type."""
        body = ""
        if isinstance(result, Body):
            body, result = self.lines(result.statements, 1), result.result
        names = ", ".join(["p", *(p.name for p in parameters)])
        return f"@device\ndef {{name}}({names}):\n{body}    return {self.typed(result, dtype)}\n"

    # Statements ---------------------------------------------------------------------------------

    def _store(self, x: Store) -> str:
        value = self.text(x.value)
        value = f"np.uint8(1 if {value} else 0)" if x.array.dtype == "bool" else value  # bool as bytes
        return f"{x.array.name}[{self.place(x.place)}] = {value}"

    def _shared(self, x: Shared) -> str:
        return f"{x.array.name} = cuda.shared.array({x.array.size}, {self.types[x.array.dtype]})"

    def _barrier(self, x: Barrier) -> str:
        return "cuda.syncthreads()"


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
    """The functions that are defined as expressions.

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
