"""Types of WGSL: which ones numbers are computed in, that of an expression, and how one becomes another."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from minicnn.kernels.expressions import INDEX, PLACE, SHORT, Apply, Binary, Expr, Load, Name, Negative, Number, Select
from minicnn.kernels.printing import Printer
from minicnn.kernels.scalars import T

if TYPE_CHECKING:
    from minicnn.backends.webgpu.module import Module

# The types in which numbers are computed; in memory they have their own width.
TYPES = {
    **dict.fromkeys(("float32", *SHORT), "f32"), **dict.fromkeys(("int8", "int16", "int32", INDEX), "i32"),
    **dict.fromkeys(("uint8", "uint16", "uint32", PLACE), "u32"), "bool": "bool",
}  # fmt: skip

_NARROW = {"uint8": "({0} & 255u)", "uint16": "({0} & 65535u)", "int8": "(({0} << 24u) >> 24u)",
           "int16": "(({0} << 16u) >> 16u)"}  # fmt: skip


class TypedPrinter(Printer):
    """Printer that knows the type of each expression, and writes one as another.

    Args:
        module: Where functions are defined.
        kind: Type of names and numbers that state none.
    """

    def __init__(self, module: Module, kind: str = PLACE) -> None:
        super().__init__(module.define)
        self._module, self._kind = module, kind

    def _type(self, x: Any) -> str | None:
        """The type in which an expression is computed; None for a number that takes that of what it meets."""
        match x:
            case Name() | Number():
                dtype = x.dtype or (None if isinstance(x, Number) and self._kind == PLACE else self._kind)
            case Load(array=array):
                dtype = array.dtype
            case Apply(function=function):
                dtype = self._module.results[function]
            case Select(yes=yes, no=no):
                return self._type(yes) or self._type(no)
            case Negative(x=inner):
                return self._type(inner)
            case Binary(symbol="==" | "<" | "<=" | ">" | ">=" | "and"):
                return "bool"
            case Binary(left=left, right=right):
                types = {t for t in (self._type(left), self._type(right)) if t}
                return TYPES[PLACE] if len(types) > 1 else next(iter(types), None)  # whole numbers meet as places
            case _:
                dtype = self._kind if x.dtype == T else x.dtype
        return dtype and TYPES[dtype]

    def _as(self, x: Expr, dtype: str) -> str:
        """Text of an expression as one of a type."""
        dtype = self._kind if dtype == T else dtype
        if isinstance(x, Number):
            return self.literal(x.value, dtype)
        kind, source = TYPES[dtype], self._type(x)
        if kind == "bool" and source not in ("bool", None):
            return f"!equal_({self.text(x)}, 0.0f)" if source == "f32" else f"({self._within(x, 4)} != {source}(0))"
        text = self.text(x) if source == kind else f"{kind}({self.text(x)})"
        exact = isinstance(x, Name | Load | Apply | Select) and getattr(x, "dtype", dtype) == dtype
        return text if dtype not in _NARROW or exact else _NARROW[dtype].format(text)

    @classmethod
    def literal(cls, number: Any, dtype: str) -> str:
        """See `Printer.literal`; numbers that WGSL cannot write are made of their bits."""
        kind = TYPES[dtype]
        if kind == "bool":
            return str(bool(number)).lower()
        if kind != "f32":
            return f"{int(number)}{'u' if kind == 'u32' else 'i'}"
        value = np.float32(number)
        return f"{float(value)!r}f" if math.isfinite(value) else f"of_bits({value.view(np.uint32)}u)"
