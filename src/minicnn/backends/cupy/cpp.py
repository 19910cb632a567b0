"""C++ of expression trees, and of the scalar functions that are defined as such."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from minicnn.backends._gpu.printing import Operands, Printer
from minicnn.backends._gpu.scalars import FUNCTIONS, T
from minicnn.backends._gpu.trees import Call, Cast, Expr, Fold, Number, OfRow, OfWindows, Select
from minicnn.program.graph import Value

C_TYPES = {
    "float32": "float", "float64": "double", "int32": "int", T: T, "bool": "bool",
    "place": "uint32", "wide_place": "uint64",
    **{name: name for name in ("bfloat16", "float16", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int64")},
}  # fmt: skip

# Functions whose names in C++ are others.
_NAMES = {"power": "pow", "argmax": "argmax_of"}


def c_type(value: Value) -> str:
    """The C++ type of a value's elements."""
    return C_TYPES[value.dtype]


class Cpp(Printer):
    """C++ of an expression.

    Args:
        operands: The inputs.
        kind: Type of numbers that state none: "place", or the type in which a function computes.
    """

    symbols: ClassVar[Mapping[str, str]] = {"//": "/", "and": "&&"}
    types: ClassVar[Mapping[str, str]] = C_TYPES
    IMAGE, WINDOW = "Image<{0}, {1}>", "Window<{0}>"
    special: ClassVar[Mapping[str, str]] = {
        "True": "true", "False": "false", "nan": "({0}(0) * Limits<{0}>::infinity())",
        "inf": "({1}Limits<{0}>::infinity())",
    }  # fmt: skip

    def __init__(self, operands: Operands | None = None, kind: str = "place") -> None:
        super().__init__(operands)
        self._kind = kind

    def _number(self, x: Number) -> tuple[str, int]:
        if x.dtype is None and self._kind == "place":
            return f"{x.value}u", 9
        return self.literal(x.value, x.dtype or self._kind), 9

    def _select(self, x: Select) -> tuple[str, int]:
        return f"{self._within(x.condition, 1)} ? {self._within(x.yes, 1)} : {self.text(x.no)}", 0

    def _cast(self, x: Cast) -> tuple[str, int]:
        return f"{C_TYPES[x.dtype]}({self.text(x.x)})", 9

    def _call(self, x: Call) -> tuple[str, int]:
        typed = f"<{C_TYPES[x.dtype]}>" if x.function in FUNCTIONS or x.function == "random_uniform" else ""
        return f"{_NAMES.get(x.function, x.function)}{typed}({', '.join(map(self.text, x.arguments))})", 9

    def _fold(self, x: Fold) -> tuple[str, int]:
        return f"{x.join}_of<{C_TYPES[x.dtype]}, {x.count}>({self._row(x.term)})", 9

    def _row(self, term: Expr) -> str:
        return f"[&](uint32 r) {{ return {self.text(term)}; }}"

    def _ofrow(self, x: OfRow) -> tuple[str, int]:
        given = ", ".join([*map(self.text, x.arguments), self._row(x.term)])
        return f"{_NAMES.get(x.function, x.function)}<{C_TYPES[x.dtype]}, {x.length}>({given})", 9

    def _ofwindows(self, x: OfWindows) -> tuple[str, int]:
        given = ", ".join(map(self._operands.function, x.inputs))
        return f"{self.over_windows(x, C_TYPES[x.dtype])}({given}, i)", 9

    @classmethod
    def over_windows(cls, x: OfWindows, kind: str) -> str:
        """The template of a function of windows that computes in a type."""
        flags = (cls.literal(f, "bool") if isinstance(f, bool) else str(f) for f in x.flags)
        return f"{x.function}<{', '.join((kind, cls.image(x.x), cls.image(x.y), cls.window(x.window), *flags))}>"


def scalar_functions() -> str:
    """The header of the scalar functions that are defined as expression trees."""
    text = "// Made from expression trees.\n#pragma once\n"
    for name, function in FUNCTIONS.items():
        printer = Cpp(kind=T)
        first = "".join(f"  const T {local} = {printer.text(x)};\n" for local, x in function.first.items())
        parameters = ", ".join(f"T {p}" for p in function.parameters)
        result = printer.text(function.result)
        text += f"template <class T> DEVICE T {name}({parameters}) {{\n{first}  return {result};\n}}\n"
    return text
