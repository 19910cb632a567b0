"""Kernels of primitives without a rule of their own: one element of a plain array at a time, as `ELEMENTS` says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import ClassVar

from minicnn.backends._python import WHOLE, Python
from minicnn.backends.numba.kernel import KernelCode
from minicnn.backends.numba.lowering import PLAIN, Lowering, NoKernelError
from minicnn.backends.numba.printer import FUNCTIONS, composed
from minicnn.kernels.elements import element, unsupported
from minicnn.kernels.expressions import Array, Body, Call, Element, Expr, I, Load, Name, Number, changed
from minicnn.kernels.statements import Statement
from minicnn.program.graph import ITEMSIZE, Node

_LETTERS = {"float32": "f", "int32": "i", "uint8": "u", "bool": "u"}  # of the operations that load and store one
_VECTORS = {"maximum": "vmax", "minimum": "vmin", "power": "vpow"}
_TARGET = "target"  # the buffer of the result; expressions have names such as y


def general(to: Lowering, node: Node) -> None:
    """Compute a node from the expression of its elements, if `ELEMENTS` has one."""
    reason = unsupported(node, short=False)
    if reason is not None:
        to.refuse(reason)
    sources = [_source(node, k) for k in range(len(node.outputs))]
    reads = [to.need(value, PLAIN) for value in node.inputs]
    for source, value in zip(sources, node.outputs, strict=True):
        to.add(node, source, reads, [to.buffer(value, PLAIN)], value.size)


def _source(node: Node, result: int) -> KernelCode:
    """The kernel of one of a node's results; one item an element."""
    dtype, arrays = node.outputs[result].dtype, [Array(f"x{k}", v.dtype, v.size) for k, v in enumerate(node.inputs)]

    def loaded(x: Expr) -> Expr | None:
        return Load(arrays[x.k], changed(x.place, loaded)) if isinstance(x, Element) else None

    printer = _Scalars()
    value = Name("value", dtype)
    text = printer.valued(value, changed(element(node, result), loaded))
    stored = f"uint8({value.name})" if dtype == "bool" else value.name
    place = f"{_TARGET} + {ITEMSIZE[dtype]} * {I.name}"
    lines = [
        f"for {I.name} in range(start, stop):",
        *text.splitlines(),
        f"    {_LETTERS[dtype]}store({place}, {stored})",
    ]
    return KernelCode(f"{node.op.name} by elements", (*(a.name for a in arrays), _TARGET), tuple(lines))


def _short(x: Expr) -> Expr | None:
    """A number without a type as a float32; Python's has 64 bits."""
    return Number(x.value, "float32") if isinstance(x, Number) and x.dtype is None else None


class _Scalars(Python):
    """Python of one element in the words of `vector` and `functions`, so that all kernels compute a function alike."""

    types: ClassVar[Mapping[str, str]] = {
        **{name: name for name in _LETTERS}, **dict.fromkeys(WHOLE, "int64"),
    }  # fmt: skip
    special: ClassVar[Mapping[str, str]] = {
        "True": "True", "False": "False", "nan": "{0}(nan)", "inf": "{0}({1}inf)",
    }  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        self._first: list[str] = []  # lines that the statement that is written needs before it
        self._count = 0

    def valued(self, name: Name, x: Expr) -> str:
        """Lines after which a variable holds an expression."""
        self._depth = 1
        text = self.typed(x, str(name.dtype))
        first, self._first = self._first, []
        return "".join(first) + f"{self.INDENT}{name.name} = {text}\n"

    def lines(self, statements: Iterable[Statement], depth: int) -> str:
        """See `Printer.lines`."""
        text = ""
        for one in statements:
            outer, self._first = self._first, []
            line = super().lines([one], depth)
            text += "".join(self._first) + line
            self._first = outer
        return text

    def _body(self, x: Body) -> tuple[str, int]:
        # Its variables may have the names of another's.
        name = f"value{self._count}"
        self._count += 1
        depth = self._depth
        self._first.append(self.lines(x.statements, depth))
        self._first.append(f"{self.INDENT * depth}{name} = {self.typed(x.result, x.dtype)}\n")
        return name, 9

    def _load(self, x: Load) -> tuple[str, int]:
        dtype = x.array.dtype
        text = f"{_LETTERS[dtype]}load({x.array.name} + {ITEMSIZE[dtype]} * int64({self.text(x.place)}))"
        return (f"{text} != 0", 3) if dtype == "bool" else (text, 9)

    def _call(self, x: Call) -> tuple[str, int]:
        if x.function == "choose":
            condition, yes, no = map(self.text, x.arguments)
            return f"({yes} if {condition} else {no})", 9
        if x.function in FUNCTIONS:
            names = tuple(Name(f"argument{k}") for k in range(len(x.arguments)))
            function = changed(composed(replace(x, arguments=names)), _short)  # its numbers, not those of the arguments
            return f"({self.text(function.replaced(dict(zip(names, x.arguments, strict=True))))})", 9
        if x.function == "random_uniform":
            raise NoKernelError("kernels draw random numbers for whole arrays only")
        arguments = [self.text(argument) for argument in x.arguments]
        if x.dtype in ("int32", *WHOLE):
            return f"{ {'maximum': 'max', 'minimum': 'min'}[x.function] }({', '.join(arguments)})", 9
        vectors = ", ".join(f"splat(float32({argument}))" for argument in arguments)
        return f"vlane({_VECTORS.get(x.function, f'v{x.function}')}({vectors}), 0)", 9
