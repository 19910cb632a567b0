"""WGSL of kernels, and of the scalar functions that are defined as expressions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from importlib.resources import files
from typing import Any, ClassVar

import numpy as np

from minicnn.kernels.expressions import (
    INDEX,
    PLACE,
    SHORT,
    Apply,
    Array,
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
)  # fmt: skip
from minicnn.kernels.printing import Printer, type_name
from minicnn.kernels.scalars import FUNCTIONS, T
from minicnn.kernels.statements import Assign, Barrier, If, Kernel, Let, Loop, Procedure, Run, Shared, Store, Variable
from minicnn.program.graph import ITEMSIZE

# The types in which numbers are computed; in memory they have their own width.
TYPES = {
    **dict.fromkeys(("float32", *SHORT), "f32"), **dict.fromkeys(("int8", "int16", "int32", INDEX), "i32"),
    **dict.fromkeys(("uint8", "uint16", "uint32", PLACE), "u32"), "bool": "bool",
}  # fmt: skip
_NARROW = {"uint8": "({0} & 255u)", "uint16": "({0} & 65535u)", "int8": "(({0} << 24u) >> 24u)",
           "int16": "(({0} << 16u) >> 16u)"}  # fmt: skip
_WORD = {"f32": "bitcast<f32>({0})", "i32": "bitcast<i32>({0})", "u32": "{0}", "bool": "({0} != 0u)"}
# An element among those of a word, {0}, at bit {1}; and the bits of one, {0}.
_PART = {
    "uint8": "({0} >> {1}) & 255u", "uint16": "({0} >> {1}) & 65535u", "bool": "(({0} >> {1}) & 255u) != 0u",
    "int8": "bitcast<i32>(({0} >> {1}) << 24u) >> 24u", "int16": "bitcast<i32>(({0} >> {1}) << 16u) >> 16u",
    "float16": "unpack2x16float({0} >> {1}).x", "bfloat16": "bitcast<f32>(({0} >> {1}) << 16u)",
}  # fmt: skip
_BITS = {
    "float16": "pack2x16float(vec2<f32>({0}, 0.0))", "bfloat16": "bfloat16_bits({0})", "bool": "u32({0})",
    **dict.fromkeys(("int8", "int16"), "bitcast<u32>({0})"),
}  # fmt: skip
# Functions of WGSL itself for whole numbers; for floats `functions.wgsl` has all, exact enough and with NaN.
_WHOLE = {"maximum": "max", "minimum": "min"}
_TRUTH = {"maximum": "{0} || {1}", "minimum": "{0} && {1}"}
PRELUDE = files(__package__).joinpath("functions.wgsl").read_text(encoding="utf-8")
SAFE = (Name, Number)


class Wgsl(Printer):
    """WGSL of a kernel.

    Args:
        kernel: The kernel; its arrays are called p0, p1 ..., in order.
        kind: Type of names and numbers that state none.
    """

    symbols: ClassVar[Mapping[str, str]] = {"//": "/", "and": "&&"}

    def __init__(self, kernel: Kernel, kind: str = PLACE) -> None:
        super().__init__(self._new)
        self._kernel, self._kind = kernel, kind
        self._results = {f.name: f.dtype for part in kernel.parts for f in part.functions}
        self._atomic = any(a.written and ITEMSIZE[a.dtype] < 4 for a in kernel.arrays)
        self._definitions: dict[str, str] = {}
        self._procedures: dict[str, tuple[str, tuple[Name, ...]]] = {}
        self._in_block: dict[str, Array] = {}

    # Types --------------------------------------------------------------------------------------

    def _type(self, x: Any) -> str | None:
        """The type in which an expression is computed; None for a number that takes that of what it meets."""
        match x:
            case Name() | Number():
                dtype = x.dtype or (None if isinstance(x, Number) and self._kind == PLACE else self._kind)
            case Load(array=array):
                dtype = array.dtype
            case Apply(function=function):
                dtype = self._results[function]
            case Select(yes=yes, no=no):
                return self._type(yes) or self._type(no)
            case Negative(x=inner):
                return self._type(inner)
            case Binary(symbol=symbol) if symbol in ("==", "<", "<=", ">", ">=", "and"):
                return "bool"
            case Binary(left=left, right=right):
                kinds = {k for k in (self._type(left), self._type(right)) if k}
                return "u32" if len(kinds) > 1 else next(iter(kinds), None)
            case _:
                dtype = self._kind if x.dtype == T else x.dtype
        return dtype and TYPES[dtype]

    def _as(self, x: Expr, dtype: str) -> str:
        """Text of an expression as one of a type."""
        dtype = self._kind if dtype == T else dtype
        if isinstance(x, Number):
            return self.literal(x.value, dtype)
        kind, source = TYPES[dtype], self._type(x)
        if kind == "bool" and source not in ("bool", None):
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
        if isinstance(x, Binary) and x.symbol == "==" and x.left == x.right and self._type(x.left) == "f32":  # not NaN
            return f"!is_nan({self.text(x.left)})", 6
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
        if x.array.name in self._in_block:
            return f"{x.array.name}[{self.place(x.place)}]", 9
        return f"{self._access(x.array, 'load')}({self.place(x.place)})", 9

    def _select(self, x: Select) -> tuple[str, int]:
        kind = self._type(x)
        parts = [self._show(p)[0] if self._type(p) else f"{kind}({self.text(p)})" for p in (x.no, x.yes)]
        match x:
            case Select(yes=Load(array, place), no=Number()):  # a place that exists, whatever is chosen
                parts[1] = self.text(Load(array, Select(x.condition, place, Number(0, PLACE))))
                safe = not any(_inside(place, Load | Apply | Body))
            case _:
                safe = not any(_inside((x.yes, x.no), Load | Apply | Body | Call))
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
        local = {one.name.name for one in _inside(x, Let | Variable)} | {one.variable.name for one in _inside(x, Loop)}
        names = {n.name: n for n in _inside(x, Name) if n.name not in local and n.name != "row"}
        parameters = ", ".join(f"{n.name}: {TYPES[n.dtype or self._kind]}" for n in names.values())
        name = self._new(f"fn {{name}}({parameters}) -> {kind} {{\n    {body}\n}}\n")
        return f"{name}({', '.join(names)})", 9

    # Definitions --------------------------------------------------------------------------------

    def _new(self, text: str) -> str:
        """Name of a definition, one for all that are alike."""
        return self._definitions.setdefault(text, f"of{len(self._definitions)}")

    def _scalar(self, name: str, dtype: str) -> str:
        function, printer = FUNCTIONS[name], Wgsl(self._kernel, dtype)
        printer._definitions = self._definitions
        kind = TYPES[dtype]
        body = "".join(f"    let {local} = {printer.text(x)};\n" for local, x in function.first.items())
        parameters = ", ".join(f"{p}: {kind}" for p in function.parameters)
        result = printer.text(function.result)
        return self._new(f"// {name}\nfn {{name}}({parameters}) -> {kind} {{\n{body}    return {result};\n}}\n")

    def _access(self, array: Array, what: str) -> str:
        """Name of the function that loads, or stores, an element of an array in memory."""
        k, size, kind = int(array.name[1:]), ITEMSIZE[array.dtype], TYPES[array.dtype]
        per_word = 4 // size
        at = f"{offset(k)} + i" if size == 4 else f"{offset(k)} + i / {per_word}u"
        bit = f"(i % {per_word}u) * {8 * size}u"
        word = f"atomicLoad(&m{k}[{at}])" if self._atomic else f"m{k}[{at}]"
        if what == "load":
            text = (_WORD[kind] if size == 4 else _PART[array.dtype]).format(word, bit)
            return self._new(f"fn {{name}}(i: u32) -> {kind} {{\n    return {text};\n}}\n")
        bits = _BITS.get(array.dtype, "bitcast<u32>({0})" if kind != "u32" else "{0}").format("x")
        if size == 4:
            text = f"    atomicStore(&m{k}[{at}], {bits});\n" if self._atomic else f"    {word} = {bits};\n"
        else:  # neighbours in a word are other threads': each changes its own bits alone
            mask = f"{2 ** (8 * size) - 1}u"
            text = f"    let bit = {bit};\n    atomicAnd(&m{k}[{at}], ~({mask} << bit));\n"
            text += f"    atomicOr(&m{k}[{at}], ({bits} & {mask}) << bit);\n"
        return self._new(f"fn {{name}}(i: u32, x: {kind}) {{\n{text}}}\n")

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
        start, stop = (self.literal(n, dtype) for n in (x.start, x.stop))
        head = f"for (var {name} = {start}; {name} < {stop}; {name}++)"
        return f"{head} {{\n{self.inner(x.body)}{self.INDENT * self._depth}}}"

    def _store(self, x: Store) -> str:
        value, place = self._as(x.value, x.array.dtype), self.place(x.place)
        if x.array.name in self._in_block:
            return f"{x.array.name}[{place}] = {value};"
        return f"{self._access(x.array, 'store')}({place}, {value});"

    def _shared(self, x: Shared) -> str:
        known = self._in_block.setdefault(x.array.name, x.array)
        self._in_block[x.array.name] = max(known, x.array, key=lambda a: a.size)  # parts use the same
        return f"// {x.array.name} is in shared memory"

    def _procedure(self, x: Procedure) -> str:
        parameters = ", ".join(f"{p.name}: {TYPES[type_name(p)]}" for p in x.parameters)
        name = self._new(f"fn {{name}}({parameters}) {{\n{self.lines(x.body, 1)}}}\n")
        self._procedures[x.name] = name, x.parameters
        return f"// {x.name} is {name}"

    def _run(self, x: Run) -> str:
        name, parameters = self._procedures[x.procedure]
        pairs = zip(x.arguments, parameters, strict=True)
        return f"{name}({', '.join(self._as(a, type_name(p)) for a, p in pairs)});"

    def _barrier(self, x: Barrier) -> str:
        return "workgroupBarrier();"

    # The whole ----------------------------------------------------------------------------------

    def module(self) -> str:
        """Text of the kernel; memory{k} of its arrays is declared where it says //memories."""
        parts, calls, first = [], "", 0
        for number, part in enumerate(self._kernel.parts):
            for f in part.functions:
                parameters = ", ".join(f"{p.name}: {TYPES[type_name(p)]}" for p in f.parameters)
                body = (
                    f"fn {f.name}({parameters}) -> {TYPES[f.dtype]} {{\n    return {self._as(f.result, f.dtype)};\n}}\n"
                )
                parts.append(body)
            for shared in (one for one in part.statements if isinstance(one, Shared)):
                self._shared(shared)
            text = self.lines(part.statements, 1)
            parts.append(f"// {part.title}\nfn part{number}(block: u32, thread: u32) {{\n{text}}}\n")
            start, first = first, first + part.blocks
            calls += (
                f"{' else ' if start else '    '}if (number < {first}u) {{ part{number}(number - {start}u, thread); }}"
            )
        count = len(self._kernel.arrays)
        numbers = count + 2 * self._kernel.queued
        at = f"m{count}[{offset(count)}]"
        row = f"    row = {f'atomicLoad(&{at})' if self._atomic else at} + {offset(count + 1)};\n" * self._kernel.queued
        shared_arrays = "".join(
            f"var<workgroup> {a.name}: array<{TYPES[a.dtype]}, {a.size}>;\n" for a in self._in_block.values()
        )
        definitions = "".join(text.replace("{name}", name) for text, name in self._definitions.items())
        return (
            f"// {self._kernel.title}\n"
            f"@group(0) @binding(0) var<uniform> arguments: array<vec4<u32>, {-(-numbers // 4)}>;\n"
            f"//memories\nvar<private> row: u32;\n{shared_arrays}{PRELUDE}\n{definitions}{''.join(parts)}"
            f"@compute @workgroup_size({self._kernel.threads})\n"
            "fn kernel(@builtin(workgroup_id) id: vec3<u32>, @builtin(num_workgroups) count: vec3<u32>,\n"
            "          @builtin(local_invocation_index) thread: u32) {\n"
            f"    let number = id.x + id.y * count.x;\n{row}{calls}\n}}\n"
        )


def offset(k: int) -> str:
    """Argument k of a kernel: the word with which array k begins, or a number."""
    return f"arguments[{k // 4}][{k % 4}]"


def _inside(part: Any, kinds: Any) -> Iterator[Any]:
    """The parts of some kinds of an expression, a statement or a tuple of such, itself included."""
    if isinstance(part, kinds):
        yield part
    if isinstance(part, tuple):
        for one in part:
            yield from _inside(one, kinds)
    elif is_dataclass(part) and not isinstance(part, Array):
        for f in fields(part):
            yield from _inside(getattr(part, f.name), kinds)
