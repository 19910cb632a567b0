"""Printers of expression trees: what C++ and Python have in common. Spelling and `index` are each language's own."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from minicnn.backends._gpu.elements import SHORT, images, window
from minicnn.backends._gpu.scalars import T
from minicnn.backends._gpu.trees import Binary, Element, Expr, Image, Name, Negative, Window
from minicnn.program.graph import Node


class Operands:
    """How a text names the inputs of a node: functions x0, x1 ..., unless a class says otherwise."""

    def at(self, k: int, place: str) -> str:
        """Text of one element of input k."""
        return f"{self.function(k)}({place})"

    def function(self, k: int) -> str:
        """Name of a function that gives the elements of input k."""
        return f"x{k}"


class Printer:
    """Text of expressions in some language.

    Args:
        operands: The inputs of the node whose expressions they are.
    """

    _BINDS: ClassVar = {
        "and": 1, **dict.fromkeys(("==", "<", "<=", ">", ">="), 3), "+": 4, "-": 4, **dict.fromkeys("*/%", 5), "//": 5,
    }  # fmt: skip
    symbols: ClassVar[Mapping[str, str]] = {}  # where they are not Python's
    types: ClassVar[Mapping[str, str]] = {}
    IMAGE: ClassVar[str]  # format {0} and sizes {1} of images
    WINDOW: ClassVar[str]  # numbers {0} of windows
    special: ClassVar[Mapping[str, str]] = {}  # how "True", "False", "nan" and "inf", of a type {0}, are written

    def __init__(self, operands: Operands | None = None) -> None:
        self._operands = operands or Operands()

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

    @classmethod
    def image(cls, x: Image) -> str:
        """Text of an image's geometry."""
        return cls.IMAGE.format(x.data_format, f"{x.n}, {x.h}, {x.w}, {x.c}")

    @classmethod
    def window(cls, x: Window) -> str:
        """Text of a window's geometry."""
        return cls.WINDOW.format(", ".join(map(str, x.numbers)))

    @classmethod
    def geometry(cls, node: Node) -> str:
        """Texts of the images and the windows of a node."""
        return ", ".join([*map(cls.image, images(node)), cls.window(window(node))])

    def text(self, x: Expr) -> str:
        """Text of an expression."""
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
        method: Callable[[Any], tuple[str, int]] = getattr(self, f"_{type(x).__name__.lower()}")
        return method(x)

    def _name(self, x: Name) -> tuple[str, int]:
        return x.name, 9

    def _element(self, x: Element) -> tuple[str, int]:
        return self._operands.at(x.k, self.place(x.place)), 9

    def _within(self, x: Expr, binds: int) -> str:
        text, own = self._show(x)
        return text if own >= binds else f"({text})"
