"""C++ of kernels, and of the scalar functions that are defined as expressions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import ClassVar

from minicnn.kernels.expressions import (
    INDEX,
    PLACE,
    THREAD,
    WIDE_PLACE,
    Body,
    Call,
    Cast,
    Expr,
    Load,
    Name,
    Number,
    Select,
)  # fmt: skip
from minicnn.kernels.peers import PAIR
from minicnn.kernels.printing import Printer, type_name
from minicnn.kernels.scalars import FUNCTIONS, T
from minicnn.kernels.statements import (
    Assign,
    Barrier,
    Copy,
    If,
    Join,
    Let,
    Local,
    Loop,
    Procedure,
    Run,
    Shared,
    Store,
    Variable,
)  # fmt: skip
from minicnn.kernels.windows import Image, Window, images, window
from minicnn.program.graph import ITEMSIZE, Node, Value

C_TYPES = {
    "float32": "float", "float64": "double", "int32": "int", T: T, "bool": "bool", PAIR: "auto",
    **{name: name for name in ("bfloat16", "float16", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int64")},
}  # fmt: skip
_WHOLE = {INDEX: "int", PLACE: "uint32", WIDE_PLACE: "uint64"}

# Functions that are told the type in which they compute.
_TYPED = frozenset((*FUNCTIONS, "random_uniform", "sum_over_ranks", "two_sums_over_ranks"))
# Functions whose names in C++ are others.
_NAMES = {"power": "pow"}


def c_type(value: Value) -> str:
    """The C++ type of a value's elements."""
    return C_TYPES[value.dtype]


def sizes_type(sizes: Mapping[str, int | bool]) -> str:
    """Definition of the type `Sizes`, whose members templates read by name."""
    return f"struct Sizes {{ enum {{ {', '.join(f'{name} = {int(size)}' for name, size in sizes.items())} }}; }};"


class Cpp(Printer):
    """C++ of expressions and statements.

    Args:
        define: See `Printer`; not needed.
        kind: Type of numbers that state none: a place, or the type in which a function computes.
    """

    symbols: ClassVar[Mapping[str, str]] = {"//": "/", "and": "&&"}
    types: ClassVar[Mapping[str, str]] = {**C_TYPES, **_WHOLE}
    INDENT, braces = "  ", True
    names: ClassVar[Mapping[str, str]] = {"thread": "threadIdx.x"}
    special: ClassVar[Mapping[str, str]] = {
        "True": "true", "False": "false", "nan": "({0}(0) * Limits<{0}>::infinity())",
        "inf": "({1}Limits<{0}>::infinity())",
    }  # fmt: skip

    def __init__(self, define: Callable[[str], str] | None = None, kind: str = PLACE) -> None:
        super().__init__(define)
        self._kind = kind
        self._shared_bytes = 0  # of shared memory that arrays have so far

    @staticmethod
    def image(x: Image) -> str:
        """The type of an image's geometry."""
        return f"Image<{x.data_format}, {x.n}, {x.h}, {x.w}, {x.c}>"

    @staticmethod
    def window(x: Window) -> str:
        """The type of a window's geometry."""
        return f"Window<{', '.join(map(str, x.numbers))}>"

    @classmethod
    def geometry(cls, node: Node) -> str:
        """Types of the images and the windows of a node."""
        return ", ".join([*map(cls.image, images(node)), cls.window(window(node))])

    def _number(self, x: Number) -> tuple[str, int]:
        kind = x.dtype or self._kind
        return (f"{x.value}{'u' * (kind == PLACE)}" if kind in _WHOLE else self.literal(x.value, kind)), 9

    def _load(self, x: Load) -> tuple[str, int]:
        return f"{x.array.name}[{self.place(x.place)}]", 9

    def _select(self, x: Select) -> tuple[str, int]:
        return f"{self._within(x.condition, 1)} ? {self._within(x.yes, 1)} : {self.text(x.no)}", 0

    def _cast(self, x: Cast) -> tuple[str, int]:
        return f"{self.types[x.dtype]}({self.text(x.x)})", 9

    def _call(self, x: Call) -> tuple[str, int]:
        typed = f"<{self.types[x.dtype]}>" if x.function in _TYPED else ""
        return f"{_NAMES.get(x.function, x.function)}{typed}({', '.join(map(self.text, x.arguments))})", 9

    def _body(self, x: Body) -> tuple[str, int]:
        return f"[&] {{\n{self._returning(x)}{self.INDENT * self._depth}}}()", 9

    def _returning(self, x: Body) -> str:
        return f"{self.inner(x.statements)}{self.INDENT * (self._depth + 1)}return {self.text(x.result)};\n"

    def function(self, parameters: Sequence[Name], result: Expr) -> str:
        """Definition of a function object {name}."""
        declared = ", ".join(f"{self.types[type_name(p)]} {p.name}" for p in parameters)
        body = f"\n{self._returning(result)}" if isinstance(result, Body) else f" return {self.text(result)}; "
        return f"auto {{name}} = [&]({declared}) {{{body}}};"

    # Statements ---------------------------------------------------------------------------------

    def _let(self, x: Let) -> str:
        return f"const {self._variable(x)}"

    def _variable(self, x: Let | Variable) -> str:
        return f"{self.types[type_name(x.name)]} {x.name.name} = {self.text(x.value)};"

    def _assign(self, x: Assign) -> str:
        return f"{super()._assign(x)};"

    def _if(self, x: If) -> str:
        return f"if ({self.text(x.condition)}) {{\n{self.inner(x.body)}{self.INDENT * self._depth}}}"

    def _loop(self, x: Loop) -> str:
        name, stop = x.variable.name, x.stop if isinstance(x.stop, int) else self._within(x.stop, 4)
        pragma = f"#pragma unroll{f' {x.unroll}' * (x.unroll != x.rounds)}\n{self.INDENT * self._depth}"
        head = f"for ({self.types[type_name(x.variable)]} {name} = {x.start}; {name} < {stop}; {name}++)"
        return f"{pragma * (x.unroll > 0)}{head} {{\n{self.inner(x.body)}{self.INDENT * self._depth}}}"

    def _store(self, x: Store) -> str:
        place = f"{x.array.name}[{self.place(x.place)}]"
        return f"{place} {self.changed(Load(x.array, x.place), x.value)};"

    def _shared(self, x: Shared) -> str:
        kind, first = self.types[x.array.dtype], x.first
        if first is None:  # one after the other in the memory that the launch asks for, each from 16 bytes on
            first = self._shared_bytes
            self._shared_bytes += -(-x.array.size * ITEMSIZE[x.array.dtype] // 16) * 16
        place = f"dynamic_shared(){f' + {first}' * (first > 0)}"
        return f"{kind}* const {x.array.name} = reinterpret_cast<{kind}*>({place});"

    def _local(self, x: Local) -> str:
        return f"{self.types[x.array.dtype]} {x.array.name}[{x.array.size}];"

    def _copy(self, x: Copy) -> str:
        name = "copy_in" if x.target.memory == THREAD else "copy_out"
        sides = ((x.target, x.to), (x.source, x.begin))
        to, source = (f"{array.name} + {self._within(place, 4)}" for array, place in sides)
        return f"{name}<{x.count}>({to}, {source});"

    def _procedure(self, x: Procedure) -> str:
        declared = ", ".join(f"{self.types[type_name(p)]} {p.name}" for p in x.parameters)
        return f"const auto {x.name} = [&]({declared}) {{\n{self.inner(x.body)}{self.INDENT * self._depth}}};"

    def _run(self, x: Run) -> str:
        return f"{x.procedure}({', '.join(map(self.text, x.arguments))});"

    def _barrier(self, x: Barrier) -> str:
        return "__syncthreads();"

    def _join(self, x: Join) -> str:
        name = x.variable.name
        return f"{name} = join_lanes<{x.near}, {x.far}, {'Largest' if x.join == 'max' else 'Plus'}>({name});"


@cache
def of_lanes(width: int) -> type[Cpp]:
    """C++ for so many neighbours at once: what has a type of arrays is `Lanes`."""
    lanes = {name: f"Lanes<{kind}, {width}>" for name, kind in C_TYPES.items()}
    return type(f"Cpp{width}", (Cpp,), {"types": {**lanes, **_WHOLE}})


def scalar_functions() -> str:
    """The header of the scalar functions that are defined as expressions."""
    text = "// Made from expressions.\n#pragma once\n"
    for name, function in FUNCTIONS.items():
        printer = Cpp(kind=T)
        first = "".join(f"  const T {local} = {printer.text(x)};\n" for local, x in function.first.items())
        parameters = ", ".join(f"T {p}" for p in function.parameters)
        result = printer.text(function.result)
        text += f"template <class T> DEVICE T {name}({parameters}) {{\n{first}  return {result};\n}}\n"
    return text
