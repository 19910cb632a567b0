"""WGSL of kernels, and of the scalar functions that are defined as expressions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, ClassVar

import numpy as np

from minicnn.backends.webgpu.module import Module
from minicnn.backends.webgpu.types import TYPES, type_of
from minicnn.kernels.expressions import (
    PLACE,
    Apply,
    Binary,
    Body,
    Call,
    Cast,
    Expr,
    Load,
    Name,
    Negative,
    Number,
    Select,
    changed,
    parts_of,
)
from minicnn.kernels.printing import Printer, type_name
from minicnn.kernels.scalars import FUNCTIONS, T
from minicnn.kernels.statements import Assign, Barrier, Function, If, Let, Loop, Procedure, Run, Shared, Store, Variable

_NARROW = {"uint8": "({0} & 255u)", "uint16": "({0} & 65535u)", "int8": "(({0} << 24u) >> 24u)",
           "int16": "(({0} << 16u) >> 16u)"}  # fmt: skip
# Functions of WGSL itself for whole numbers; for floats `functions.wgsl` has all, exact enough and with NaN.
_WHOLE = {"maximum": "max", "minimum": "min"}
# Comparisons that are false for NaN, and whether their operands change places.
_COMPARISONS = {
    "<": ("less_", False), "<=": ("less_equal_", False), ">": ("less_", True), ">=": ("less_equal_", True),
    "==": ("equal_", False),
}  # fmt: skip
_TRUTH = {"maximum": "{0} || {1}", "minimum": "{0} && {1}"}


class Wgsl(Printer):
    """WGSL of the expressions and statements of a kernel.

    Args:
        module: Where functions are defined.
        kind: Type of names and numbers that state none.
    """

    symbols: ClassVar[Mapping[str, str]] = {"//": "/", "and": "&&"}

    def __init__(self, module: Module, kind: str = PLACE) -> None:
        super().__init__(module.define)
        self._module, self._kind = module, kind

    def _type(self, x: Any) -> str | None:
        return type_of(x, self._kind, self._module.results)

    def _as(self, x: Expr, dtype: str) -> str:
        """Text of an expression as one of a type."""
        dtype = self._kind if dtype == T else dtype
        if isinstance(x, Number):
            return self.literal(x.value, dtype)
        kind, source = TYPES[dtype], self._type(x)
        if kind == "bool" and source not in ("bool", None):
            if source == "f32":
                return f"!equal_({self.text(x)}, 0.0f)"
            return f"({self._within(x, 4)} != {TYPES[PLACE] if source is None else source}(0))"
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
        if math.isfinite(value):
            return f"{float(value)!r}f"
        return f"of_bits({value.view(np.uint32)}u)"

    # Expressions --------------------------------------------------------------------------------

    def _show(self, x: Expr) -> tuple[str, int]:
        if isinstance(x, Binary) and x.symbol in _COMPARISONS and "f32" in (self._type(x.left), self._type(x.right)):
            name, swapped = _COMPARISONS[x.symbol]
            left, right = (self._as(one, "float32") for one in ((x.right, x.left) if swapped else (x.left, x.right)))
            return f"{name}({left}, {right})", 9
        if isinstance(x, Negative):  # of a number below zero, two signs would be another one
            return f"-({self.text(x.x)})", 6
        if isinstance(x, Binary) and x.symbol != "and":
            kinds = {k for k in (self._type(x.left), self._type(x.right)) if k}
            if len(kinds) > 1:  # whole numbers of two types meet as places
                x = Binary(x.symbol, *(Cast(one, PLACE) for one in (x.left, x.right)))
        return super()._show(x)

    def place(self, x: Expr) -> str:
        """See `Printer.place`."""
        return self._as(x, PLACE)

    def _number(self, x: Number) -> tuple[str, int]:
        dtype = x.dtype or self._kind
        plain = x.dtype is None and self._kind == PLACE
        return (str(x.value) if plain else self.literal(x.value, self._kind if dtype == T else dtype)), 9

    def _load(self, x: Load) -> tuple[str, int]:
        if x.array.name in self._module.shared:
            return f"{x.array.name}[{self.place(x.place)}]", 9
        return f"{self._module.access(x.array, stores=False)}({self.place(x.place)})", 9

    def _select(self, x: Select) -> tuple[str, int]:
        kind, yes = self._type(x), x.yes
        safe = not any(parts_of((yes, x.no), Load | Apply | Body | Call))
        if not safe and isinstance(x.no, Number) and _reads_at_places(yes):
            # A branch would make each load wait for the one before it: instead, all are from places that exist.
            yes, safe = changed(yes, partial(_at_first_unless, x.condition)), True
        parts = [self._show(p)[0] if self._type(p) else f"{kind}({self.text(p)})" for p in (x.no, yes)]
        if safe:
            return f"select({', '.join(parts)}, {self.text(x.condition)})", 9
        return self._closed(x, f"if ({self.text(x.condition)}) {{ return {parts[1]}; }}\n    return {parts[0]};", kind)

    def _cast(self, x: Cast) -> tuple[str, int]:
        return self._as(x.x, x.dtype), 9

    def _call(self, x: Call) -> tuple[str, int]:
        dtype = self._kind if x.dtype == T else x.dtype
        kind, name = TYPES[dtype], x.function
        if name == "choose":
            condition, yes, no = x.arguments
            return f"select({self._as(no, dtype)}, {self._as(yes, dtype)}, {self.text(condition)})", 9
        texts = [self._as(a, PLACE if name == "random_uniform" else dtype) for a in x.arguments]
        if name in FUNCTIONS:
            name = self._scalar(name, dtype)
        elif kind == "bool":
            return f"({_TRUTH[name].format(*texts)})", 9
        elif kind != "f32":
            name = _WHOLE.get(name, f"{name}_{kind}" if name in ("power", "sign") else name)
        else:
            name = f"{name}_"
        return f"{name}({', '.join(texts)})", 9

    def _body(self, x: Body) -> tuple[str, int]:
        return self._closed(x, f"{self.lines(x.statements, 1).strip()}\n    return {self._as(x.result, x.dtype)};",
                            TYPES[x.dtype])  # fmt: skip

    def _closed(self, x: Expr, body: str, kind: str | None) -> tuple[str, int]:
        """A call of a new function of the names that an expression takes from around it."""
        local = {one.name.name for one in parts_of(x, Let | Variable)} | {
            one.variable.name for one in parts_of(x, Loop)
        }
        names = {n.name: n for n in parts_of(x, Name) if n.name not in local and n.name != "row"}
        parameters = _typed(names.values(), self._kind)
        name = self._module.define(f"fn {{name}}({parameters}) -> {kind} {{\n    {body}\n}}\n")
        return f"{name}({', '.join(names)})", 9

    def _scalar(self, name: str, dtype: str) -> str:
        function, printer = FUNCTIONS[name], Wgsl(self._module, dtype)
        kind = TYPES[dtype]
        body = "".join(f"    let {local} = {printer.text(x)};\n" for local, x in function.first.items())
        parameters = ", ".join(f"{p}: {kind}" for p in function.parameters)
        result = printer.text(function.result)
        return self._module.define(
            f"// {name}\nfn {{name}}({parameters}) -> {kind} {{\n{body}    return {result};\n}}\n"
        )

    # Statements ---------------------------------------------------------------------------------

    def _let(self, x: Let | Variable) -> str:
        word, dtype = "let" if isinstance(x, Let) else "var", type_name(x.name)
        return f"{word} {x.name.name}: {TYPES[dtype]} = {self._as(x.value, dtype)};"

    _variable = _let

    def _assign(self, x: Assign) -> str:
        return f"{x.name.name} = {self._as(x.value, type_name(x.name))};"

    def _if(self, x: If) -> str:
        return f"if ({self.text(x.condition)}) {{\n{self.inner(x.body)}{self.INDENT * self._depth}}}"

    def _loop(self, x: Loop) -> str:
        name, dtype = x.variable.name, type_name(x.variable)
        start, stop = (self._as(n if isinstance(n, Expr) else Number(n), dtype) for n in (x.start, x.stop))
        head = f"for (var {name} = {start}; {name} < {stop}; {name}++)"
        return f"{head} {{\n{self.inner(x.body)}{self.INDENT * self._depth}}}"

    def _store(self, x: Store) -> str:
        value, place = self._as(x.value, x.array.dtype), self.place(x.place)
        if x.array.name in self._module.shared:
            return f"{x.array.name}[{place}] = {value};"
        return f"{self._module.access(x.array, stores=True)}({place}, {value});"

    def _shared(self, x: Shared) -> str:
        return f"// {x.array.name} is in shared memory"

    def _procedure(self, x: Procedure) -> str:
        name = self._module.define(f"fn {{name}}({_typed(x.parameters)}) {{\n{self.lines(x.body, 1)}}}\n")
        self._module.procedures[x.name] = name, x.parameters
        return f"// {x.name} is {name}"

    def _run(self, x: Run) -> str:
        name, parameters = self._module.procedures[x.procedure]
        pairs = zip(x.arguments, parameters, strict=True)
        return f"{name}({', '.join(self._as(a, type_name(p)) for a, p in pairs)});"

    def _barrier(self, x: Barrier) -> str:
        return "workgroupBarrier();"

    def function(self, x: Function) -> str:
        """Definition of a function."""
        head = f"fn {x.name}({_typed(x.parameters)}) -> {TYPES[x.dtype]}"
        return f"{head} {{\n    return {self._as(x.result, x.dtype)};\n}}\n"


def _reads_at_places(x: Expr) -> bool:
    """Whether all that an expression reads is at places that nothing has to be read for."""
    reads = list(parts_of(x, Load | Apply))
    places = tuple(one.place if isinstance(one, Load) else one.arguments for one in reads)
    return bool(reads) and not any(parts_of(places, Load | Apply)) and not any(parts_of(x, Body))


def _at_first_unless(condition: Expr, x: Expr) -> Expr | None:
    """Load from a place if a condition holds, and from the first place if not."""
    match x:
        case Load(array, place):
            return Load(array, Select(condition, place, Number(0, PLACE)))
        case Apply(function, places):
            return Apply(function, tuple(Select(condition, place, Number(0, PLACE)) for place in places))
    return None


def _typed(names: Iterable[Name], default: str = PLACE) -> str:
    """Parameters with their types."""
    return ", ".join(f"{n.name}: {TYPES[n.dtype or default]}" for n in names)
