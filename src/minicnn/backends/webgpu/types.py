"""Types of WGSL: which ones numbers are computed in, and that of an expression."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from minicnn.kernels.expressions import INDEX, PLACE, SHORT, Apply, Binary, Load, Name, Negative, Number, Select
from minicnn.kernels.scalars import T

# The types in which numbers are computed; in memory they have their own width.
TYPES = {
    **dict.fromkeys(("float32", *SHORT), "f32"), **dict.fromkeys(("int8", "int16", "int32", INDEX), "i32"),
    **dict.fromkeys(("uint8", "uint16", "uint32", PLACE), "u32"), "bool": "bool",
}  # fmt: skip


def type_of(x: Any, kind: str, functions: Mapping[str, str]) -> str | None:
    """The type in which an expression is computed; None for a number that takes that of what it meets.

    Args:
        x: The expression.
        kind: Type of names that state none, and of numbers unless it is a place's.
        functions: Types of what functions give, by name.
    """
    match x:
        case Name() | Number():
            dtype = x.dtype or (None if isinstance(x, Number) and kind == PLACE else kind)
        case Load(array=array):
            dtype = array.dtype
        case Apply(function=function):
            dtype = functions[function]
        case Select(yes=yes, no=no):
            return type_of(yes, kind, functions) or type_of(no, kind, functions)
        case Negative(x=inner):
            return type_of(inner, kind, functions)
        case Binary(symbol="==" | "<" | "<=" | ">" | ">=" | "and"):
            return "bool"
        case Binary(left=left, right=right):
            types = {t for t in (type_of(left, kind, functions), type_of(right, kind, functions)) if t}
            return TYPES[PLACE] if len(types) > 1 else next(iter(types), None)  # whole numbers meet as places
        case _:
            dtype = kind if x.dtype == T else x.dtype
    return dtype and TYPES[dtype]
