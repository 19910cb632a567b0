"""LLVM's instructions of a kernel's text, which is written in few words of Python.

A function of integers has assignments, `for ... in range`, `while`, `if`, arithmetic, comparisons and calls of
operations. Numbers are integers of 64 bits, floats of 32 bits and bools; a variable has the type of what it is first
given. Numba would take the same text, but needs longer to infer types by all of Python's rules than LLVM to compile it.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from functools import partial, reduce
from itertools import pairwise
from typing import Any

import numpy as np
from llvmlite import ir

from minicnn.backends.numba.cpus import Target
from minicnn.backends.numba.operations import BOOL, BYTE, FLOAT, HALF, INT, INT32, VOID, Operation, loop, variable

_COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=",
}  # fmt: skip
# Instructions on integers, and on floats.
_ARITHMETIC: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("add", "fadd"), ast.Sub: ("sub", "fsub"), ast.Mult: ("mul", "fmul"), ast.Div: ("", "fdiv"),
    ast.BitAnd: ("and_", ""), ast.BitOr: ("or_", ""), ast.BitXor: ("xor", ""),
    ast.LShift: ("shl", ""), ast.RShift: ("ashr", ""),
}  # fmt: skip
_CASTS = {"float32": FLOAT, "int64": INT, "int32": INT, "uint8": INT, "uint16": INT}
_NUMBERS = {"inf": math.inf, "nan": math.nan}


def module_of(text: str, operations: Mapping[str, Operation], name: str, target: Target) -> Any:
    """LLVM's module with one function, `name`, that does what a text's function does.

    Args:
        text: Python source of a function of integers that returns nothing.
        operations: What it calls, by name.
        name: Of the function in the module.
        target: The CPU that the code is for.
    """
    definition = ast.parse(text).body[0]
    if not isinstance(definition, ast.FunctionDef):
        raise TypeError(f"A kernel's text is one function. Received: {ast.unparse(definition)[:80]}")
    module = ir.Module(name)
    module.target, module.triple = target, target.triple
    parameters = [argument.arg for argument in definition.args.args]
    function = ir.Function(module, ir.FunctionType(VOID, [INT] * len(parameters)), name)
    function.attributes.add("nounwind")
    entry, first = function.append_basic_block("entry"), function.append_basic_block("first")
    ir.IRBuilder(entry).branch(first)
    translation = _Translation(ir.IRBuilder(first), operations)
    for parameter, value in zip(parameters, function.args, strict=True):
        translation.assign(parameter, value)
    translation.run(definition.body)
    translation.builder.ret_void()
    return module


class _Translation:
    """Writes statements, one after the other.

    Attributes:
        builder: Where the next instruction goes.
    """

    def __init__(self, builder: Any, operations: Mapping[str, Operation]) -> None:
        self.builder = builder
        self._operations = operations
        self._variables: dict[str, tuple[Any, Any]] = {}  # place and type

    def assign(self, name: str, value: Any) -> None:
        """Give a variable a value."""
        place, kind = self._variables.get(name, (None, None))
        # A tile of another size takes the name from there on.
        if place is None or not (value.type == kind or (_is_number(value.type) and _is_number(kind))):
            kind = value.type
            place = variable(self.builder, kind)
            self._variables[name] = place, kind
        if value.type == FLOAT != kind:
            raise TypeError(f"A variable keeps its type. Received: a float for the integer {name}.")
        self.builder.store(self._as(value, kind), place)

    # Statements ---------------------------------------------------------------------------------

    def run(self, statements: list[ast.stmt]) -> None:
        """Write statements."""
        for statement in statements:
            getattr(self, f"_{type(statement).__name__.lower()}", self._unknown)(statement)

    def _unknown(self, node: ast.AST) -> Any:
        raise TypeError(f"The code of kernels has no such words. Received: {ast.unparse(node)}.")

    def _assign(self, statement: ast.Assign) -> None:
        (target,) = statement.targets
        if isinstance(target, ast.Tuple) and isinstance(statement.value, ast.Tuple):
            targets, values = target.elts, [self.value(one) for one in statement.value.elts]
        else:
            targets, values = [target], [self.value(statement.value)]
        for one, value in zip(targets, values, strict=True):
            self.assign(self._target(one), value)

    def _augassign(self, statement: ast.AugAssign) -> None:
        name = self._target(statement.target)
        before = ast.Name(name, ast.Load())
        self.assign(name, self.value(ast.BinOp(before, statement.op, statement.value)))

    def _target(self, target: ast.expr) -> str:
        return target.id if isinstance(target, ast.Name) else str(self._unknown(target))

    def _expr(self, statement: ast.Expr) -> None:
        self.value(statement.value)

    def _for(self, statement: ast.For) -> None:
        span = statement.iter
        if not (isinstance(span, ast.Call) and isinstance(span.func, ast.Name) and span.func.id == "range"):
            self._unknown(statement)
            return
        bounds = [self._as(self.value(one), INT) for one in span.args]
        start, stop = (ir.Constant(INT, 0), *bounds)[-2:] if len(bounds) < 3 else bounds[:2]
        step = bounds[2] if len(bounds) > 2 else ir.Constant(INT, 1)
        with loop(self.builder, start, stop, step) as counter:
            self.assign(self._target(statement.target), counter)
            self.run(statement.body)

    def _while(self, statement: ast.While) -> None:
        test, body, end = (self.builder.append_basic_block(name) for name in ("test", "body", "end"))
        self.builder.branch(test)
        self.builder.position_at_end(test)
        self.builder.cbranch(self._condition(statement.test), body, end)
        self.builder.position_at_end(body)
        self.run(statement.body)
        self.builder.branch(test)
        self.builder.position_at_end(end)

    def _if(self, statement: ast.If) -> None:
        condition = self._condition(statement.test)
        self._branches(condition, lambda: self.run(statement.body), lambda: self.run(statement.orelse))

    def _branches(self, condition: Any, yes: Callable[[], Any], no: Callable[[], Any]) -> list[tuple[Any, Any]]:
        """Write two ways; what each gives, and the block in which it ends."""
        first, second, end = (self.builder.append_basic_block(name) for name in ("yes", "no", "end"))
        self.builder.cbranch(condition, first, second)
        results = []
        for block, write in ((first, yes), (second, no)):
            self.builder.position_at_end(block)
            results.append((write(), self.builder.block))
            self.builder.branch(end)
        self.builder.position_at_end(end)
        return results

    # Expressions --------------------------------------------------------------------------------

    def value(self, x: ast.expr) -> Any:
        """Write an expression."""
        return getattr(self, f"_{type(x).__name__.lower()}", self._unknown)(x)

    def _constant(self, x: ast.Constant) -> Any:
        match x.value:
            case bool():
                return ir.Constant(BOOL, x.value)
            case int():
                return ir.Constant(INT, x.value)
            case float():
                return _float(x.value)
        return self._unknown(x)

    def _name(self, x: ast.Name) -> Any:
        if x.id in self._variables:
            return self.builder.load(self._variables[x.id][0])
        return _float(_NUMBERS[x.id])

    def _unaryop(self, x: ast.UnaryOp) -> Any:
        if isinstance(x.op, ast.Not):
            return self.builder.not_(self._condition(x.operand))
        value = self.value(x.operand)
        if isinstance(value, ir.Constant) and isinstance(x.op, ast.USub):
            return ir.Constant(value.type, -value.constant)
        if isinstance(x.op, ast.USub):
            return self.builder.fneg(value) if value.type == FLOAT else self.builder.neg(self._as(value, INT))
        return self._unknown(x)

    def _binop(self, x: ast.BinOp) -> Any:
        left, right = self._alike(self.value(x.left), self.value(x.right))
        if isinstance(x.op, ast.FloorDiv | ast.Mod) and left.type == INT:
            return self._divided(left, right, isinstance(x.op, ast.Mod))
        name = _ARITHMETIC.get(type(x.op), ("", ""))[left.type == FLOAT]
        return getattr(self.builder, name)(left, right) if name else self._unknown(x)

    def _divided(self, left: Any, right: Any, remainder: bool) -> Any:
        """Quotient, rounded down, or the remainder that belongs to it."""
        b = self.builder
        if isinstance(right, ir.Constant) and right.constant > 0 and right.constant & (right.constant - 1) == 0:
            mask, bits = ir.Constant(INT, right.constant - 1), ir.Constant(INT, right.constant.bit_length() - 1)
            return b.and_(left, mask) if remainder else b.ashr(left, bits)
        quotient, rest = b.sdiv(left, right), b.srem(left, right)
        zero = ir.Constant(INT, 0)
        # The CPU rounds towards zero: where signs differ and something is left, the quotient is one less.
        differ = b.and_(b.icmp_signed("!=", rest, zero), b.icmp_signed("<", b.xor(rest, right), zero))
        if remainder:
            return b.add(rest, b.select(differ, right, zero))
        return b.sub(quotient, b.zext(differ, INT))

    def _compare(self, x: ast.Compare) -> Any:
        values = [self.value(one) for one in (x.left, *x.comparators)]
        results = []
        for op, pair in zip(x.ops, pairwise(values), strict=True):
            left, right = self._alike(*pair)
            sign = _COMPARISONS[type(op)]
            if left.type == INT:
                results.append(self.builder.icmp_signed(sign, left, right))
            else:
                compare = self.builder.fcmp_unordered if sign == "!=" else self.builder.fcmp_ordered
                results.append(compare(sign, left, right))
        return reduce(self.builder.and_, results)

    def _boolop(self, x: ast.BoolOp) -> Any:
        """As in Python, the second is not computed where the first decides."""
        is_and = isinstance(x.op, ast.And)
        result = self._condition(x.values[0])
        for one in x.values[1:]:
            ways: list[Callable[[], Any]] = [partial(self._condition, one), lambda: ir.Constant(BOOL, not is_and)]
            result = self._joined(self._branches(result, *(ways if is_and else ways[::-1])))
        return result

    def _ifexp(self, x: ast.IfExp) -> Any:
        """As in Python, only what is chosen is computed."""
        return self._joined(
            self._branches(self._condition(x.test), lambda: self.value(x.body), lambda: self.value(x.orelse))
        )

    def _joined(self, results: list[tuple[Any, Any]]) -> Any:
        joined = self.builder.phi(results[0][0].type)
        for value, block in results:
            joined.add_incoming(value, block)
        return joined

    def _call(self, x: ast.Call) -> Any:
        name = self._target(x.func)
        if name == "bool":
            return self._condition(x.args[0])
        arguments = [self.value(one) for one in x.args]
        if name in _CASTS:
            return self._as(arguments[0], _CASTS[name])
        if name in ("min", "max"):
            return reduce(lambda a, b: self._extremum("<" if name == "min" else ">", a, b), arguments)
        called = self._operations[name]
        converted = [self._as(a, kind) for a, kind in zip(arguments, called.arguments, strict=True)]
        result = called.emit(self.builder, *converted)
        if called.result == INT32:
            return self.builder.sext(result, INT)
        return self.builder.zext(result, INT) if called.result in (BYTE, HALF) else result

    def _extremum(self, sign: str, x: Any, y: Any) -> Any:
        x, y = self._alike(x, y)
        if isinstance(x, ir.Constant) and isinstance(y, ir.Constant):
            return x if (operator.lt if sign == "<" else operator.gt)(x.constant, y.constant) else y
        compared = self.builder.icmp_signed if x.type == INT else self.builder.fcmp_ordered
        return self.builder.select(compared(sign, x, y), x, y)

    # Types --------------------------------------------------------------------------------------

    def _condition(self, x: ast.expr) -> Any:
        value = self.value(x)
        if value.type == BOOL:
            return value
        if value.type == FLOAT:
            return self.builder.fcmp_unordered("!=", value, _float(0))
        return self.builder.icmp_signed("!=", value, ir.Constant(INT, 0))

    def _alike(self, x: Any, y: Any) -> tuple[Any, Any]:
        """Two numbers as numbers of one type: floats if one is, else integers."""
        kind = FLOAT if FLOAT in (x.type, y.type) else INT
        return self._as(x, kind), self._as(y, kind)

    def _as(self, x: Any, kind: Any) -> Any:
        """A value as one of another type."""
        if x.type == kind:
            return x
        if isinstance(x, ir.Constant) and kind in (FLOAT, INT) and x.type in (FLOAT, INT, BOOL):
            return _float(x.constant) if kind == FLOAT else ir.Constant(INT, int(x.constant))
        match x.type, kind:
            case (ir.IntType(width=1), ir.IntType()):
                return self.builder.zext(x, kind)
            case (ir.IntType(width=64), ir.IntType(width=8 | 16 | 32)):
                return self.builder.trunc(x, kind)
            case (ir.IntType(width=1), ir.FloatType()):
                return self.builder.uitofp(x, kind)
            case (ir.IntType(), ir.FloatType()):
                return self.builder.sitofp(x, kind)
            case (ir.FloatType(), ir.IntType(width=64)):
                return self.builder.fptosi(x, kind)
        raise TypeError(f"A variable and an argument have one type. Received: {x.type} for {kind}.")


def _is_number(kind: Any) -> bool:
    return kind == FLOAT or isinstance(kind, ir.IntType)


def _float(value: float) -> Any:
    return ir.Constant(FLOAT, float(np.float32(value)))
