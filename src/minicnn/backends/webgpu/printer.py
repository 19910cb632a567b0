"""WGSL of kernels, and of the scalar functions that are defined as expressions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar

from minicnn.backends.webgpu.types import TYPES, TypedPrinter
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
    parts_of,
)
from minicnn.kernels.printing import type_name
from minicnn.kernels.scalars import FUNCTIONS, T
from minicnn.kernels.statements import Assign, Barrier, Function, If, Let, Loop, Procedure, Run, Shared, Store, Variable

# Functions of WGSL itself for whole numbers; for floats `functions.wgsl` has all, exact enough and with NaN.
_WHOLE = {"maximum": "max", "minimum": "min"}
# Comparisons that are false for NaN, and whether their operands change places.
_COMPARISONS = {
    "<": ("less_", False), "<=": ("less_equal_", False), ">": ("less_", True), ">=": ("less_equal_", True),
    "==": ("equal_", False),
}  # fmt: skip
_TRUTH = {"maximum": "{0} || {1}", "minimum": "{0} && {1}"}


class Wgsl(TypedPrinter):
    """WGSL of the expressions and statements of a kernel. See `TypedPrinter`."""

    symbols: ClassVar[Mapping[str, str]] = {"//": "/", "and": "&&"}
    braces = True

    # Expressions --------------------------------------------------------------------------------

    def _show(self, x: Expr) -> tuple[str, int]:
        if isinstance(x, Binary) and x.symbol in _COMPARISONS and "f32" in (self._type(x.left), self._type(x.right)):
            name, swapped = _COMPARISONS[x.symbol]
            left, right = (self._as(one, "float32") for one in ((x.right, x.left) if swapped else (x.left, x.right)))
            return f"{name}({left}, {right})", 9
        if isinstance(x, Binary) and x.symbol == "*" and self._type(x) == "f32":
            for zero, other in ((x.left, x.right), (x.right, x.left)):
                if isinstance(zero, Number) and zero.value == 0:
                    return f"zero_times({self._as(other, 'float32')})", 9
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
        kind = self._type(x)
        parts = [self._show(p)[0] if self._type(p) else f"{kind}({self.text(p)})" for p in (x.no, x.yes)]
        if not any(parts_of((x.yes, x.no), Load | Apply | Body | Call)):
            return f"select({', '.join(parts)}, {self.text(x.condition)})", 9
        return self._closed(x, f"if ({self.text(x.condition)}) {{ return {parts[1]}; }}\n    return {parts[0]};", kind)

    def _cast(self, x: Cast) -> tuple[str, int]:
        text = self._as(x.x, x.dtype)
        return (f"unpack2x16float(float16_bits({text})).x" if x.dtype == "float16" else text), 9

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


def _typed(names: Iterable[Name], default: str = PLACE) -> str:
    """Parameters with their types."""
    return ", ".join(f"{n.name}: {TYPES[n.dtype or default]}" for n in names)
