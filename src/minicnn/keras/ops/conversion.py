"""Values in the types that functions of `keras.ops` take, and functions that a table names."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from minicnn import ops as p
from minicnn.keras.dispatch import function
from minicnn.program.graph import Value


def alike(*arguments: Any) -> list[Any]:
    """Arguments in one type: a floating-point one, if there is any."""
    values = [v for v in arguments if isinstance(v, Value)]
    kinds = [v.dtype if isinstance(v, Value) else np.asarray(v).dtype.name for v in arguments]
    floats = [v.dtype for v in values if "float" in v.dtype]
    some = builtins.any("float" in kind for kind in kinds)
    dtype = floats[0] if floats else "float32" if some else values[0].dtype
    return [as_dtype(v, dtype) if isinstance(v, Value) else np.asarray(v, dtype) for v in arguments]


def as_dtype(x: Value, dtype: str) -> Value:
    """A Value in a type."""
    return x if x.dtype == dtype else p.cast(x, dtype=dtype)


def as_float(x: Value) -> Value:
    """A Value in a floating-point type."""
    return x if "float" in x.dtype else p.cast(x, dtype="float32")


def as_bool(x: Any) -> Any:
    """True where an element is not 0."""
    return x if x.dtype == "bool" else inverted(p.equal(x, 0)) if isinstance(x, Value) else np.asarray(x, bool)


def inverted(x: Value) -> Value:
    """True where an element is 0."""
    return p.equal(p.cast(x, dtype="int32"), 0)


def floored(x: Value) -> Value:
    """Each element rounded down."""
    whole = p.cast(p.cast(x, dtype="int32"), dtype=x.dtype)
    return whole - p.as_float(p.greater(whole, x), x.dtype)


def named(name: str, definition: Callable[..., Any], what: str) -> None:
    """Put a function under a name into the module that defines it."""
    definition.__name__ = definition.__qualname__ = name
    definition.__doc__ = what
    setattr(sys.modules[definition.__module__], name, function(definition))
