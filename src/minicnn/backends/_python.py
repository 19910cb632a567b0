"""Python of expressions and statements, as far as Numba takes the same for CPUs and GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from minicnn.kernels.expressions import (
    INDEX,
    PLACE,
    WIDE_PLACE,
    Apply,
    Body,
    Cast,
    Expr,
    Load,
    Name,
    Number,
    Select,
)  # fmt: skip
from minicnn.kernels.printing import Printer, type_name
from minicnn.kernels.statements import If, Let, Loop, Variable

WHOLE = (INDEX, PLACE, WIDE_PLACE)


class Python(Printer):
    """Python of expressions and statements; a place is an integer of whatever width."""

    special: ClassVar[Mapping[str, str]] = {
        "True": "True", "False": "False", "nan": "{0}(np.nan)", "inf": "{0}({1}np.inf)",
    }  # fmt: skip

    def typed(self, x: Expr, dtype: str) -> str:
        """Text of an expression as a number of a type."""
        exact = isinstance(x, Number | Load | Apply) or (isinstance(x, Body) and x.dtype == dtype)
        return self.text(x) if exact else f"{self.types[dtype]}({self.text(x)})"

    def _number(self, x: Number) -> tuple[str, int]:
        return (str(x.value) if x.dtype in (None, *WHOLE) else self.literal(x.value, str(x.dtype))), 9

    def _select(self, x: Select) -> tuple[str, int]:
        yes = x.yes
        match yes:  # a place that exists, whatever is chosen
            case Load(array=array, place=place) if not isinstance(place, Name):
                yes = Load(array, Select(x.condition, place, Number(0, PLACE)))
            case Apply(function=function, arguments=(place,)) if not isinstance(place, Name):
                yes = Apply(function, (Select(x.condition, place, Number(0, PLACE)),))
        return f"({self.text(yes)} if {self.text(x.condition)} else {self.text(x.no)})", 9

    def _cast(self, x: Cast) -> tuple[str, int]:
        # Where it becomes a place of 32 bits or is compared, any integer will do.
        if x.dtype != WIDE_PLACE and x.source in (None, x.dtype):
            return self._show(x.x)
        if x.dtype == "bool":
            return f"{self._within(x.x, 4)} != 0", 3
        return f"{self.types[x.dtype]}({self.text(x.x)})", 9

    # Statements ---------------------------------------------------------------------------------

    def _let(self, x: Let | Variable) -> str:
        return f"{x.name.name} = {self.typed(x.value, type_name(x.name))}"

    _variable = _let

    def _if(self, x: If) -> str:
        return f"if {self.text(x.condition)}:\n{self.inner(x.body)}".rstrip("\n")

    def _loop(self, x: Loop) -> str:
        stop = f"{x.stop}" if isinstance(x.stop, int) else self.text(x.stop)
        span = f"{x.start}, {stop}" if x.start else stop
        return f"for {x.variable.name} in range({span}):\n{self.inner(x.body)}".rstrip("\n")
