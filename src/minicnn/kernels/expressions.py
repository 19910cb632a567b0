"""Expressions: the values in a kernel, in no language. Printers turn them into C++, Python or words.

An expression has a type: one of arrays' (float32, uint8, bool ...), or one of three for whole numbers that are stored
nowhere. A *place* is the number of an element of an array in row-major order, a 32-bit unsigned integer; a *wide place*
has 64 bits; an *index* is a signed 32-bit integer: a coordinate, which may lie outside of an image. A number without a
type has that of what it meets. Where one thread computes several neighbours, what has a type of arrays differs between
them, while places and indices are those of the first. `i` is the place of the element that is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from operator import is_not
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

if TYPE_CHECKING:
    from minicnn.kernels.statements import Statement

INDEX, PLACE, WIDE_PLACE = "index", "place", "wide_place"
DEVICE, SHARED, THREAD = "device", "shared", "thread"  # memories: of all, of a block, of a thread alone
SHORT = ("bfloat16", "float16")  # values may be stored as such, but are float32 wherever anything is computed
_COMPARISONS = frozenset(("==", "<", "<=", ">", ">=", "and"))
X = TypeVar("X")


def changed(part: X, change: Callable[[Expr], Expr | None]) -> X:
    """The same expression, statement or tuple of such with some of its expressions changed, the largest first.

    Args:
        part: What is changed.
        change: The new expression for one; None to look at its parts.
    """
    new: Any = change(part) if isinstance(part, Expr) else None
    if new is not None:
        return new
    if isinstance(part, tuple):
        parts = tuple([changed(one, change) for one in part])
        return parts if any(map(is_not, parts, part)) else part  # type: ignore[return-value]
    if not isinstance(part, Syntax):
        return part
    before = [getattr(part, name) for name in part.__match_args__]
    after = [changed(one, change) if isinstance(one, Syntax | tuple) else one for one in before]
    return type(part)(*after) if any(map(is_not, after, before)) else part


def parts_of(part: Any, kinds: Any) -> Iterator[Any]:
    """The parts of some kinds of an expression, a statement or a tuple of such, itself included."""
    waiting = [part]  # the next one last
    while waiting:
        one = waiting.pop()
        if isinstance(one, kinds):
            yield one
        if isinstance(one, tuple):
            waiting += one[::-1]
        elif isinstance(one, Syntax):
            waiting += [getattr(one, name) for name in one.__match_args__[::-1]]


class Syntax:
    """An expression or a statement: a dataclass, whose fields are its `__match_args__`."""

    __match_args__: ClassVar[tuple[str, ...]]

    def replaced(self: X, pairs: Mapping[Expr, Expr]) -> X:
        """The same with some of its expressions replaced, the largest first."""
        return changed(self, pairs.get)


class Expr(Syntax):
    """An expression. Arithmetic and comparisons of expressions and plain numbers make larger ones."""

    @property
    def is_index(self) -> bool:
        """True if the expression is an index."""
        return getattr(self, "dtype", None) == INDEX

    def __add__(self, other: Expr | float) -> Expr:
        # What adds nothing is left out here, so that every printer gets short text and no compiler has to be trusted
        # with it.
        if other in (0, ZERO, NO_INDEX):
            return self
        return other if self == NO_INDEX and isinstance(other, Expr) else Binary("+", self, of(other, self))

    def __sub__(self, other: Expr | float) -> Expr:
        return Binary("-", self, of(other, self)) if other != 0 else self

    def __mul__(self, other: Expr | float) -> Expr:
        if isinstance(self, Number) and self.is_index and isinstance(other, int):
            return Number(self.value * other, INDEX)
        return Binary("*", self, of(other, self)) if other != 1 else self

    def __truediv__(self, other: Expr | float) -> Expr:
        return Binary("/", self, of(other, self))

    def __floordiv__(self, other: int) -> Expr:
        return Binary("//", self, of(other, self)) if other != 1 else self

    def __mod__(self, other: int) -> Expr:
        return Binary("%", self, of(other, self)) if other != 1 else ZERO

    def __neg__(self) -> Expr:
        return Negative(self)

    def __gt__(self, other: Expr | float) -> Expr:
        return Binary(">", self, of(other, self))

    def __ge__(self, other: Expr | float) -> Expr:
        return Binary(">=", self, of(other, self))

    def __lt__(self, other: Expr | float) -> Expr:
        return Binary("<", self, of(other, self))

    def __le__(self, other: Expr | float) -> Expr:
        return Binary("<=", self, of(other, self))

    def equals(self, other: Expr | float) -> Expr:
        """Condition that both are the same number."""
        return Binary("==", self, of(other, self))


@dataclass(frozen=True)
class Name(Expr):
    """A variable, of a type if it says so: "i", or "r", the number of a term."""

    name: str
    dtype: str | None = None


@dataclass(frozen=True)
class Number(Expr):
    """A number, of a type if it says so."""

    value: float | bool
    dtype: str | None = None


@dataclass(frozen=True)
class Element(Expr):
    """The element of input k of a primitive at a place: `Writer.resolved` says where it comes from."""

    k: int
    place: Expr


@dataclass(frozen=True)
class Array:
    """An array that a kernel gets, or has in shared memory or in the registers of a thread.

    Attributes:
        name: How it is called.
        dtype: Type of its elements.
        size: Number of elements.
        written: Whether the kernel writes it.
        title: What it is, for people.
        memory: Where it is.
    """

    name: str
    dtype: str
    size: int
    written: bool = False
    title: str = ""
    memory: str = DEVICE


@dataclass(frozen=True)
class Load(Expr):
    """The element of an array at a place."""

    array: Array
    place: Expr


@dataclass(frozen=True)
class Apply(Expr):
    """A function that the kernel defines, of places."""

    function: str
    arguments: tuple[Expr, ...]


@dataclass(frozen=True)
class Binary(Expr):
    """An operation or comparison of two, by its symbol in Python; "and" joins conditions."""

    symbol: str
    left: Expr
    right: Expr

    @property
    def dtype(self) -> str | None:
        """Type of the result, as far as it is known without those of arrays."""
        if self.symbol in _COMPARISONS:
            return "bool"
        return next((t for t in (getattr(x, "dtype", None) for x in (self.left, self.right)) if t is not None), None)


@dataclass(frozen=True)
class Negative(Expr):
    """Minus an expression."""

    x: Expr


@dataclass(frozen=True)
class Select(Expr):
    """One of two, of which only that one need exist; the condition is the same for neighbours."""

    condition: Expr
    yes: Expr
    no: Expr


@dataclass(frozen=True)
class Cast(Expr):
    """An expression as another type."""

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
class Body(Expr):
    """Statements, and the expression in their variables that they lead to, of a type."""

    statements: tuple[Statement, ...]
    result: Expr
    dtype: str


I, R = Name("i"), Name("r")  # noqa: E741 - as in the text
ZERO, ONE, NO_INDEX = Number(0), Number(1), Number(0, INDEX)


def of(x: Expr | float, like: Expr = ZERO) -> Expr:
    """A number as an expression; an index beside an index."""
    return x if isinstance(x, Expr) else Number(x, INDEX if like.is_index else None)


def both(left: Expr, right: Expr) -> Expr:
    """Conjunction of two conditions."""
    return Binary("and", left, right)


def chosen(condition: Expr, yes: Expr, no: Expr, dtype: str) -> Expr:
    """One of two that both exist, in a type; neighbours may choose differently."""
    return Call("choose", (condition, yes, no), dtype)
