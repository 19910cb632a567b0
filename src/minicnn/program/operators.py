"""Python's operators on what stands for an array of a Program."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Number
from typing import Any

# What they emit, by the names of the primitives: `minicnn.ops` enters them.
OPERATORS: dict[str, Callable[..., Any]] = {}


class Operators:
    """Arithmetic, comparisons and static indexing by primitives."""

    __slots__ = ()
    __array_ufunc__ = None  # numpy_array * value asks value.__rmul__ instead of looping over elements

    def __add__(self, other: Any) -> Any:
        return OPERATORS["add"](self, other)

    def __radd__(self, other: Any) -> Any:
        return OPERATORS["add"](other, self)

    def __sub__(self, other: Any) -> Any:
        return OPERATORS["subtract"](self, other)

    def __rsub__(self, other: Any) -> Any:
        return OPERATORS["subtract"](other, self)

    def __mul__(self, other: Any) -> Any:
        return OPERATORS["multiply"](self, other)

    def __rmul__(self, other: Any) -> Any:
        return OPERATORS["multiply"](other, self)

    def __truediv__(self, other: Any) -> Any:
        return OPERATORS["divide"](self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return OPERATORS["divide"](other, self)

    def __pow__(self, other: Any) -> Any:
        return OPERATORS["power"](self, other)

    def __neg__(self) -> Any:
        return OPERATORS["negative"](self)

    def __matmul__(self, other: Any) -> Any:
        return OPERATORS["matmul"](self, other)

    def __lt__(self, other: Any) -> Any:
        return OPERATORS["less"](self, other)

    def __le__(self, other: Any) -> Any:
        return OPERATORS["less_equal"](self, other)

    def __gt__(self, other: Any) -> Any:
        return OPERATORS["greater"](self, other)

    def __ge__(self, other: Any) -> Any:
        return OPERATORS["greater_equal"](self, other)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Number):
            raise TypeError(
                f"== asks whether two names stand for the same array of a Program. Received: {self!r} and {other!r}. "
                "Use ops.equal to compare elements."
            )
        return self is other

    __hash__ = object.__hash__

    def __getitem__(self, key: Any) -> Any:
        return OPERATORS["getitem"](self, key)

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError(
            f"NumPy computes on elements, which are not known while a Program is traced. Received: {self!r}. Use the "
            "function of that name in minicnn.ops."
        )
