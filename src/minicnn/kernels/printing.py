"""Printers of kernels: what C++, Python and words have in common. Spelling is each language's own."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

from minicnn.kernels.expressions import PLACE, SHORT, Apply, Binary, Element, Expr, Name, Negative
from minicnn.kernels.scalars import T
from minicnn.kernels.statements import Assign, Block, Statement, Step


class Printer:
    """Text of expressions and statements in some language.

    Args:
        define: Gives something a name, whose definition has {name} where the name goes.
    """

    _BINDS: ClassVar = {
        "and": 1, **dict.fromkeys(("==", "<", "<=", ">", ">="), 3), "+": 4, "-": 4, **dict.fromkeys("*/%", 5), "//": 5,
    }  # fmt: skip
    symbols: ClassVar[Mapping[str, str]] = {}  # where they are not Python's
    types: ClassVar[Mapping[str, str]] = {}
    special: ClassVar[Mapping[str, str]] = {}  # how "True", "False", "nan" and "inf", of a type {0}, are written
    names: ClassVar[Mapping[str, str]] = {}  # how "block", "thread" and "row" are written
    INDENT: ClassVar[str] = "    "
    braces: ClassVar[bool] = False  # whether names end with them

    def __init__(self, define: Callable[[str], str] | None = None) -> None:
        self._define = define
        self._depth = 0  # of the statement that is written

    @classmethod
    def literal(cls, number: Any, dtype: str) -> str:
        """A number of a type."""
        kind = cls.types[dtype]
        if dtype == "bool":
            return cls.special[str(bool(number))]
        if dtype not in ("float32", "float64", T, *SHORT):
            return f"{kind}({int(number)})"
        number = float(number)
        if math.isfinite(number):
            return f"{kind}({number!r})"
        return cls.special[str(abs(number))].format(kind, "-" if number < 0 else "")

    # Expressions --------------------------------------------------------------------------------

    def text(self, x: Expr, depth: int | None = None) -> str:
        """Text of an expression in a statement so far from the margin."""
        self._depth = self._depth if depth is None else depth
        return self._show(x)[0]

    def place(self, x: Expr) -> str:
        """Text of a place."""
        return self.text(x)

    def _show(self, x: Expr) -> tuple[str, int]:
        """Text, and how strongly what is outermost in it binds."""
        if isinstance(x, Binary):
            binds = self._BINDS[x.symbol]
            symbol = self.symbols.get(x.symbol, x.symbol)
            return f"{self._within(x.left, binds)} {symbol} {self._within(x.right, binds + 1)}", binds
        if isinstance(x, Negative):
            return f"-{self._within(x.x, 6)}", 6
        shown: tuple[str, int] = self._of(x)(x)
        return shown

    def _of(self, x: object) -> Callable[..., Any]:
        """The method for an expression or a statement."""
        method: Callable[..., Any] = getattr(self, f"_{type(x).__name__.lower()}")
        return method

    def _name(self, x: Name) -> tuple[str, int]:
        return self.names.get(x.name, x.name), 9

    def _element(self, x: Element) -> tuple[str, int]:
        return self._show(Apply(f"x{x.k}", (x.place,)))

    def _apply(self, x: Apply) -> tuple[str, int]:
        return f"{x.function}({', '.join(map(self.place, x.arguments))})", 9

    def _within(self, x: Expr, binds: int) -> str:
        text, strength = self._show(x)
        return text if strength >= binds else f"({text})"

    # Statements ---------------------------------------------------------------------------------

    def lines(self, statements: Iterable[Statement], depth: int) -> str:
        """Text of statements, each in lines of its own, so far from the margin."""
        outer, self._depth = self._depth, depth
        text = "".join(f"{self.INDENT * depth}{self._of(one)(one)}\n" for one in statements)
        self._depth = outer
        return text

    def inner(self, statements: Iterable[Statement]) -> str:
        """Lines within the statement that is written."""
        return self.lines(statements, self._depth + 1)

    def _block(self, x: Block) -> str:
        if self.braces:
            return f"{{\n{self.inner(x.body)}{self.INDENT * self._depth}}}"
        return self.lines(x.body, self._depth).strip()

    def _step(self, x: Step) -> str:
        return x.text.format(*map(self.text, x.arguments))

    def _assign(self, x: Assign) -> str:
        return f"{x.name.name} {self.changed(x.name, x.value)}"

    def changed(self, place: Expr, value: Expr) -> str:
        """Text behind the name of what is assigned a value."""
        match value:
            case Binary(symbol="+", left=left, right=right) if left == place:
                return f"+= {self.text(right)}"
        return f"= {self.text(value)}"


def type_name(x: Name) -> str:
    """The type of a variable; a place, if it says none."""
    return x.dtype or PLACE
