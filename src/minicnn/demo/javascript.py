"""A Program as JavaScript: a function for each node, from the expressions that kernels of GPUs are printed from."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from minicnn.kernels import scalars
from minicnn.kernels.elements import element, unsupported
from minicnn.kernels.expressions import Body, Call, Cast, Element, Expr, I, Load, Number, Select
from minicnn.kernels.printing import Printer
from minicnn.kernels.scalars import ScalarFunction
from minicnn.kernels.statements import If, Let, Loop, Variable
from minicnn.program.graph import Node, Program, Value

ARRAYS = {"float32": "Float32Array", "int32": "Int32Array", "uint8": "Uint8Array", "bool": "Uint8Array"}
_OWN = ("abs", "exp", "expm1", "floor", "log", "log1p", "sign", "sqrt", "tanh")  # functions of `Math` of the same name
_OTHERS = {"maximum": "max", "minimum": "min", "power": "pow"}


class JavaScript(Printer):
    """JavaScript of expressions and statements; numbers have 64 bits until an array rounds them."""

    symbols: ClassVar[Mapping[str, str]] = {"and": "&&", "==": "==="}

    def _show(self, x: Expr) -> tuple[str, int]:
        if getattr(x, "symbol", None) == "//":
            return f"Math.floor({self.text(x.left)} / {self.text(x.right)})", 9  # type: ignore[attr-defined]
        return super()._show(x)

    def _number(self, x: Number) -> tuple[str, int]:
        if isinstance(x.value, bool):
            return str(int(x.value)), 9
        if math.isnan(x.value):
            return "NaN", 9
        text = f"{'-' * (x.value < 0)}Infinity" if math.isinf(x.value) else repr(x.value)
        return (f"({text})" if text.startswith("-") else text), 9

    def _element(self, x: Element) -> tuple[str, int]:
        return f"x{x.k}[{self.text(x.place)}]", 9

    def _load(self, x: Load) -> tuple[str, int]:
        return f"{x.array.name}[{self.text(x.place)}]", 9

    def _select(self, x: Select) -> tuple[str, int]:
        return f"({self.text(x.condition)} ? {self.text(x.yes)} : {self.text(x.no)})", 9

    def _cast(self, x: Cast) -> tuple[str, int]:
        if x.dtype == "bool":
            return f"Number({self.text(x.x)} !== 0)", 9
        return (f"Number({self.text(x.x)})" if "float" in x.dtype else f"Math.trunc({self.text(x.x)})"), 9

    def _call(self, x: Call) -> tuple[str, int]:
        arguments = [self.text(argument) for argument in x.arguments]
        if x.function == "choose":
            return f"({arguments[0]} ? {arguments[1]} : {arguments[2]})", 9
        if x.function in scalars.FUNCTIONS:
            return f"{x.function}({', '.join(arguments)})", 9
        name = x.function if x.function in _OWN else _OTHERS.get(x.function)
        if name is None:
            raise ValueError(f"A page computes what JavaScript has functions for. Received: {x.function}.")
        return f"Math.{name}({', '.join(arguments)})", 9

    def _body(self, x: Body) -> tuple[str, int]:
        inner = self.inner(x.statements)
        indent = self.INDENT * self._depth
        return f"(() => {{\n{inner}{indent}{self.INDENT}return {self.text(x.result)};\n{indent}}})()", 9

    # Statements ---------------------------------------------------------------------------------

    def _let(self, x: Let | Variable) -> str:
        return f"let {x.name.name} = {self.text(x.value)};"

    _variable = _let

    def _assign(self, x: Any) -> str:
        return f"{super()._assign(x)};"

    def _if(self, x: If) -> str:
        return f"if ({self.text(x.condition)}) {{\n{self.inner(x.body)}{self.INDENT * self._depth}}}"

    def _loop(self, x: Loop) -> str:
        name = x.variable.name
        head = f"for (let {name} = {x.start}; {name} < {x.stop}; {name}++)"
        return f"{head} {{\n{self.inner(x.body)}{self.INDENT * self._depth}}}"


def script(program: Program) -> str:
    """JavaScript with `run(arrays)`: from the Program's inputs by name to its outputs by name.

    Raises:
        ValueError: If a node has no expression, or a function that JavaScript lacks.
    """
    names = {id(value): f"a[{json.dumps(value.name)}]" for value in (*program.inputs, *program.constants)}
    lines = ["function run(a) {", *(f"  {names[id(value)]} = {_constant(value)};" for value in program.constants)]
    for number, node in enumerate(program.nodes):
        for result, value in enumerate(node.outputs):
            names[id(value)] = f"v{number}_{result}"
        lines += [
            f"  const {names[id(value)]} = {_function(node, result)}({', '.join(names[id(v)] for v in node.inputs)});"
            for result, value in enumerate(node.outputs)
        ]
    outputs = ", ".join(f"{json.dumps(name)}: {names[id(value)]}" for name, value in program.outputs.items())
    return "".join(map(_scalar, scalars.FUNCTIONS.items())) + "\n".join([*lines, f"  return {{{outputs}}};", "}", ""])


def _function(node: Node, result: int) -> str:
    """A function of a node's inputs: the loop over the elements of one of its results."""
    if reason := unsupported(node, short=False):
        raise ValueError(
            f"A page computes a Program by the elements of its values. Received: {node.op.name}: {reason}."
        )
    value, parameters = node.outputs[result], ", ".join(f"x{k}" for k in range(len(node.inputs)))
    text = JavaScript().text(element(node, result), 2)
    loop = f"for (let {I.name} = 0; {I.name} < {value.size}; {I.name}++) y[{I.name}] = {text};"
    return f"(({parameters}) => {{ const y = new {ARRAYS[value.dtype]}({value.size}); {loop} return y; }})"


def _constant(value: Value) -> str:
    numbers = np.ravel(np.asarray(value.data)).tolist()
    return f"{ARRAYS[value.dtype]}.of({', '.join(JavaScript().text(Number(n)) for n in numbers)})"


def _scalar(item: tuple[str, ScalarFunction]) -> str:
    """One of the functions that are made of simpler ones; those that JavaScript cannot compute are left out."""
    name, function = item
    try:
        first = "".join(f" const {n} = {JavaScript().text(x)};" for n, x in function.first.items())
        result = JavaScript().text(function.result)
    except ValueError:
        return ""
    return f"const {name} = ({', '.join(function.parameters)}) => {{{first} return {result}; }};\n"
