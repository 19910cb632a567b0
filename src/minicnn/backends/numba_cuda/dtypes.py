"""Data types: NumPy's objects, the standard's promotion."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

DType = np.dtype[Any]

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float32", "float64")
ALL = ("bool", *INTEGERS, *FLOATS)
KINDS = {
    "bool": ("bool",),
    "signed integer": tuple(n for n in INTEGERS if n.startswith("int")),
    "unsigned integer": tuple(n for n in INTEGERS if n.startswith("u")),
    "integral": INTEGERS,
    "real floating": FLOATS,
    "complex floating": (),
    "numeric": (*INTEGERS, *FLOATS),
}


def dtype(kind: Any) -> DType:
    """The data type of a name, a data type or a NumPy scalar type.

    Raises:
        TypeError: If the namespace has no such type.
    """
    checked = np.dtype(kind)
    if checked.name not in ALL:
        raise TypeError(
            f"Arrays of numba_cuda are of {', '.join(ALL)}. Received: {checked.name}. Convert them with NumPy."
        )
    return checked


def result_type(*values: Any) -> DType:
    """The type that arrays, data types and Python numbers promote to, as the standard says.

    Raises:
        TypeError: If the standard does not define it, such as for int32 and float32 arrays.
    """
    dtypes = [dtype(getattr(v, "dtype", v)) for v in values if not isinstance(v, bool | int | float)]
    scalars = [v for v in values if isinstance(v, bool | int | float)]
    if not dtypes:
        raise TypeError(f"At least one argument is an array or a data type. Received: {scalars}. Use asarray.")
    result = dtypes[0]
    for other in dtypes[1:]:
        promoted = np.promote_types(result, other)
        mixed = (result.kind == "f") != (other.kind == "f") or (result.kind == "b") != (other.kind == "b")
        if mixed or (promoted.kind == "f" and result.kind != "f"):  # uint64 with a signed type
            raise TypeError(_mixed(result.name, other.name))
        result = promoted
    for scalar in scalars:
        fits = {"b": isinstance(scalar, bool), "f": not isinstance(scalar, bool)}.get(
            result.kind, isinstance(scalar, int) and not isinstance(scalar, bool)
        )
        if not fits:
            raise TypeError(_mixed(result.name, f"the Python {type(scalar).__name__} {scalar}"))
    return result


def _mixed(first: str, second: str) -> str:
    return (
        "Types promote within bool, integers or floats, and as the Array API standard says. "
        f"Received: {first} and {second}. Convert one with astype."
    )


def isdtype(dtype: Any, kind: Any) -> bool:
    """True if a data type is of a kind: the name of one, a data type, or a tuple of these.

    Raises:
        ValueError: If the kind is not one of the standard's.
    """
    if isinstance(kind, tuple):
        return any(isdtype(dtype, k) for k in kind)
    if isinstance(kind, str):
        if kind not in KINDS:
            raise ValueError(f"A kind is one of {', '.join(KINDS)}. Received: {kind!r}.")
        return np.dtype(dtype).name in KINDS[kind]
    return bool(np.dtype(dtype) == np.dtype(kind))


def can_cast(from_: Any, to: Any) -> bool:
    """True if a type or array promotes to another type without becoming a third."""
    source, target = dtype(getattr(from_, "dtype", from_)), dtype(to)
    try:
        return result_type(source, target) == target
    except TypeError:
        return False


def finfo(type: Any, /) -> SimpleNamespace:  # noqa: A002
    """Limits of a floating-point type, or of an array's, as Python numbers."""
    limits = np.finfo(dtype(getattr(type, "dtype", type)))
    numbers = {name: float(getattr(limits, name)) for name in ("eps", "max", "min", "smallest_normal")}
    return SimpleNamespace(bits=limits.bits, dtype=limits.dtype, **numbers)


iinfo = np.iinfo


__all__ = ["can_cast", "finfo", "iinfo", "isdtype", "result_type"]
