"""A kernel for people: what each thread does, in no language that a machine reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from minicnn.kernels.elements import DTYPES
from minicnn.kernels.expressions import (
    INDEX,
    PLACE,
    SHORT,
    WIDE_PLACE,
    Body,
    Call,
    Cast,
    Load,
    Number,
    Select,
)  # fmt: skip
from minicnn.kernels.printing import Printer
from minicnn.kernels.statements import (
    Barrier,
    Copy,
    Function,
    If,
    Join,
    Kernel,
    Let,
    Local,
    Loop,
    Procedure,
    Run,
    Shared,
    Step,
    Store,
    Template,
    Variable,
)  # fmt: skip

_WHOLE = (INDEX, PLACE, WIDE_PLACE)


class Words(Printer):
    """Text of expressions and statements for people."""

    symbols: ClassVar[Mapping[str, str]] = {"//": "/"}  # of whole numbers, as in the text of a GPU
    types: ClassVar[Mapping[str, str]] = {name: name for name in (*DTYPES, *SHORT, *_WHOLE)}

    @classmethod
    def literal(cls, number: Any, dtype: str) -> str:
        """See `Printer.literal`; without the type."""
        return f"{number:g}" if dtype.startswith(("float", "bfloat")) else str(number)

    def _number(self, x: Number) -> tuple[str, int]:
        return self.literal(x.value, x.dtype or ""), 9

    def _load(self, x: Load) -> tuple[str, int]:
        return f"{x.array.name}[{self.text(x.place)}]", 9

    def _select(self, x: Select) -> tuple[str, int]:
        return f"({self.text(x.yes)} if {self.text(x.condition)} else {self.text(x.no)})", 9

    def _cast(self, x: Cast) -> tuple[str, int]:
        return self._show(x.x) if x.dtype in _WHOLE else (f"{x.dtype}({self.text(x.x)})", 9)

    def _call(self, x: Call) -> tuple[str, int]:
        return f"{x.function}({', '.join(map(self.text, x.arguments))})", 9

    def _body(self, x: Body) -> tuple[str, int]:
        return f"...\n{self.inner(x.statements)}{self.INDENT * (self._depth + 1)}{self.text(x.result)}", 9

    # Statements ---------------------------------------------------------------------------------

    def _let(self, x: Let | Variable) -> str:
        if not isinstance(x.value, Body):
            return f"{x.name.name} = {self.text(x.value)}"
        inner = self.lines(x.value.statements, self._depth).removeprefix(self.INDENT * self._depth)
        return f"{inner}{self.INDENT * self._depth}{x.name.name} = {self.text(x.value.result)}"

    _variable = _let

    def _if(self, x: If) -> str:
        return f"if {self.text(x.condition)}:\n{self.inner(x.body)}".rstrip("\n")

    def _loop(self, x: Loop) -> str:
        last = self.text(Number(x.stop - 1) if isinstance(x.stop, int) else x.stop - 1)
        return f"for {x.variable.name} in {x.start} .. {last}:\n{self.inner(x.body)}".rstrip("\n")

    def _store(self, x: Store) -> str:
        return f"{x.array.name}[{self.text(x.place)}] = {self.text(x.value)}"

    def _shared(self, x: Shared) -> str:
        return f"{x.array.name}: {x.array.size} numbers of {x.array.dtype} in shared memory"

    def _local(self, x: Local) -> str:
        return f"{x.array.name}: {x.array.size} numbers of {x.array.dtype} in registers"

    def _copy(self, x: Copy) -> str:
        sides = ((x.target, x.to), (x.source, x.begin))
        to, source = (f"{array.name}[{self.text(place)} ..]" for array, place in sides)
        return f"{to} = {x.count} numbers of {source}"

    def _join(self, x: Join) -> str:
        what, name = {"sum": "sum", "max": "largest"}[x.join], x.variable.name
        return f"{name} = the {what} of {name} over {x.far // x.near} threads"

    def _step(self, x: Step) -> str:
        return x.title + f" ({', '.join(map(self.text, x.arguments))})" * bool(x.arguments)

    def _procedure(self, x: Procedure) -> str:
        names = ", ".join(p.name for p in x.parameters)
        return f"{x.name}({names}):\n{self.inner(x.body)}".rstrip("\n")

    def _run(self, x: Run) -> str:
        return f"{x.procedure}({', '.join(map(self.text, x.arguments))})"

    def _barrier(self, x: Barrier) -> str:
        return "wait for all threads of the block"

    def _template(self, x: Template) -> str:
        fields = ", ".join(f"{name} = {value}" for name, value in x.fields)
        text = f"{x.name} of {', '.join(x.operands)}{f' by a {x.tile}' * bool(x.tile)}: {fields}"
        if x.finish:
            text += f"\n{self.INDENT * self._depth}for each of its results, {x.result.name} of element i:\n"
            text += self.inner(x.finish)
        return text.rstrip("\n")

    def function(self, x: Function) -> str:
        """Definition of a function."""
        names = ", ".join(p.name for p in x.parameters)
        return f"{self.INDENT}{x.name}({names}) = {self.text(x.result)}{f'    # {x.title}' * bool(x.title)}\n"


def text(kernel: Kernel) -> str:
    """A kernel for people."""
    return "".join(_lines(kernel))


def _lines(kernel: Kernel) -> Iterator[str]:
    blocks = sum(part.blocks for part in kernel.parts)
    yield f"{kernel.title}\n{blocks} block{'s' * (blocks > 1)} of {kernel.threads} threads\n\n"
    for array in kernel.arrays:
        yield f"{array.name}: {array.title}{', written' * array.written}\n"
    if kernel.queued:
        yield "row: the number of the step\n"
    first = 0
    for part in kernel.parts:
        last = first + part.blocks - 1
        place = "" if len(kernel.parts) == 1 else f", blocks {first} to {last}" if last > first else f", block {first}"
        yield f"\n{part.title}{place}:\n"
        words = Words()
        yield from map(words.function, part.functions)
        yield words.lines(part.statements, 1)
        first = last + 1
