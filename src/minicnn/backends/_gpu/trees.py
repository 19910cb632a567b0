"""Expression trees: what one element of a result is, in no language; printers turn them into C++ or Python.

An expression is an element, of a type that is known where it is printed, or a *place*: the number of an element of an
array in row-major order, a 32-bit unsigned integer; or a *wide place*, of 64 bits. `i` is the place of the element that
is computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, cast

from minicnn.ops.windows import Axes


class Expr:
    """An expression. Arithmetic and comparisons of expressions and plain numbers make larger ones."""

    def __add__(self, other: Expr | float) -> Expr:
        return self if other in (0, ZERO) else Binary("+", self, of(other))

    def __sub__(self, other: Expr | float) -> Expr:
        return Binary("-", self, of(other)) if other != 0 else self

    def __mul__(self, other: Expr | float) -> Expr:
        return Binary("*", self, of(other)) if other != 1 else self

    def __truediv__(self, other: Expr | float) -> Expr:
        return Binary("/", self, of(other))

    def __floordiv__(self, other: int) -> Expr:
        return Binary("//", self, of(other)) if other != 1 else self

    def __mod__(self, other: int) -> Expr:
        return Binary("%", self, of(other)) if other != 1 else ZERO

    def __neg__(self) -> Expr:
        return Negative(self)

    def __gt__(self, other: Expr | float) -> Expr:
        return Binary(">", self, of(other))

    def __ge__(self, other: Expr | float) -> Expr:
        return Binary(">=", self, of(other))

    def __lt__(self, other: Expr | float) -> Expr:
        return Binary("<", self, of(other))

    def __le__(self, other: Expr | float) -> Expr:
        return Binary("<=", self, of(other))

    def equals(self, other: Expr | float) -> Expr:
        """Whether both are the same number."""
        return Binary("==", self, of(other))

    def replaced(self, pairs: Mapping[Expr, Expr]) -> Expr:
        """The same with some of its parts replaced, the largest first."""
        if self in pairs:
            return pairs[self]
        this: Any = self  # a dataclass, as all expressions are
        return cast(Expr, replace(this, **{f.name: _replaced(getattr(this, f.name), pairs) for f in fields(this)}))


def _replaced(part: Any, pairs: Mapping[Expr, Expr]) -> Any:
    if isinstance(part, tuple):
        return tuple(_replaced(one, pairs) for one in part)
    return part.replaced(pairs) if isinstance(part, Expr) else part


@dataclass(frozen=True)
class Name(Expr):
    """A variable: "i", or "r", the number of a term."""

    name: str


@dataclass(frozen=True)
class Number(Expr):
    """A number, of a type if it says so, else of that of what is computed."""

    value: float | bool
    dtype: str | None = None


@dataclass(frozen=True)
class Element(Expr):
    """The element of input k at a place."""

    k: int
    place: Expr


@dataclass(frozen=True)
class Binary(Expr):
    """An operation or comparison of two, by its symbol in Python; "and" joins conditions."""

    symbol: str
    left: Expr
    right: Expr


@dataclass(frozen=True)
class Negative(Expr):
    """Minus an expression."""

    x: Expr


@dataclass(frozen=True)
class Select(Expr):
    """One of two, of which only that one need exist."""

    condition: Expr
    yes: Expr
    no: Expr


@dataclass(frozen=True)
class Cast(Expr):
    """An expression as another type; "place" and "wide_place" make it one."""

    x: Expr
    dtype: str
    source: str | None = None


@dataclass(frozen=True)
class Call(Expr):
    """A scalar function by name, one of `scalars.FUNCTIONS` or of each language's own, in a type."""

    function: str
    arguments: tuple[Expr, ...]
    dtype: str


@dataclass(frozen=True)
class Fold(Expr):
    """The "sum" or the "max" of `count` terms, term r after term r - 1, in a type."""

    join: str
    dtype: str
    count: int
    term: Expr


@dataclass(frozen=True)
class OfRow(Expr):
    """A function of a whole row of a length, whose element r is `term`, in a type: "softmax", "argmax" and the like."""

    function: str
    dtype: str
    length: int
    term: Expr
    arguments: tuple[Expr, ...]


@dataclass(frozen=True)
class OfWindows(Expr):
    """A function of windows over images, by the name of its primitive; depthwise convolutions are grouped ones."""

    function: str
    dtype: str  # in which type it computes
    x: Image  # image over which windows slide
    y: Image  # image of one pixel a window
    window: Window
    flags: tuple[int | bool, ...]  # further numbers that it is compiled for
    inputs: tuple[int, ...]  # the inputs that it looks at, by number


@dataclass(frozen=True)
class Image:
    """Images (n, h, w, c) that are stored in the order of a format."""

    data_format: str
    n: int
    h: int
    w: int
    c: int

    @classmethod
    def of(cls, shape: tuple[int, ...], data_format: str) -> Image:
        """That of an array."""
        axes = Axes.of(data_format)
        return cls(data_format, shape[axes.n], shape[axes.h], shape[axes.w], shape[axes.c])


@dataclass(frozen=True)
class Window:
    """Taps, strides, zeros above and left of the image, and distances between taps."""

    kernel: tuple[int, int]
    strides: tuple[int, int]
    before: tuple[int, int]
    dilation: tuple[int, int]

    @property
    def numbers(self) -> tuple[int, ...]:
        """All of them."""
        return (*self.kernel, *self.strides, *self.before, *self.dilation)


I, R = Name("i"), Name("r")  # noqa: E741 - as in the text
ZERO, ONE = Number(0), Number(1)


def of(x: Expr | float) -> Expr:
    """A number as an expression."""
    return x if isinstance(x, Expr) else Number(x)


def both(left: Expr, right: Expr) -> Expr:
    """Whether both conditions hold."""
    return Binary("and", left, right)
