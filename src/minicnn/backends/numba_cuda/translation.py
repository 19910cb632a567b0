"""NVVM's module of a kernel's text, which is written in few words of Python.

Numba would take the same text, as its simulator does, but needs four times as long to infer types by all of Python's
rules as NVVM to compile it. Functions are written where they are called. Integers become 64 bits wide where they meet,
as Numba has it; a variable keeps the kind of number that it has first, where branches or loops assign it, too.
"""

from __future__ import annotations

import ast
import builtins
import inspect
from collections.abc import Callable, Sequence
from functools import lru_cache, partial, reduce
from itertools import pairwise
from typing import Any

import numpy as np

from minicnn.backends.numba_cuda.instructions import FLOATS, TYPES, Instructions, Memory, Number, common, constant
from minicnn.backends.numba_cuda.intrinsics import FUNCTIONS
from minicnn.backends.numba_cuda.texts import text_of

_OPERATORS: dict[type[ast.AST], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%", ast.BitAnd: "&",
    ast.BitOr: "|", ast.BitXor: "^", ast.LShift: "<<", ast.RShift: ">>", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">",
    ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=",
}  # fmt: skip
# Registers of the device, by what they are called in Python and in PTX.
_REGISTERS = {"threadIdx": "tid", "blockIdx": "ctaid", "blockDim": "ntid", "gridDim": "nctaid"}
# What is computed whether it is needed or not: nothing in it can go wrong, or take long.
_PLAIN = (ast.Name, ast.Constant, ast.Compare, ast.BinOp, ast.UnaryOp, ast.operator, ast.cmpop, ast.unaryop, ast.Load)


class UnknownWordError(TypeError):
    """A text has a word that the translation does not know."""


@lru_cache(64)  # few are looked at again: those of the kernel at hand, and of the files of kernels
def _definitions(file: str) -> dict[tuple[str, int], tuple[ast.FunctionDef, frozenset[str]]]:
    """Functions of a file, or of a kernel's text, by name and line; and their variables with memory."""
    tree = ast.parse(text_of(file))
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return {(n.name, min([n.lineno, *(d.lineno for d in n.decorator_list)])): (n, _variables(n)) for n in nodes}


def _variables(definition: ast.FunctionDef) -> frozenset[str]:
    """Names that are assigned in a branch or loop, and assigned or read in what is around it: they need memory."""
    assigned: dict[str, list[tuple[int, ...]]] = {}
    used: dict[str, set[int]] = {}

    def visit(statements: Sequence[ast.stmt], path: tuple[int, ...]) -> None:
        for one in statements:
            bodies = [one.body, one.orelse] if isinstance(one, ast.For | ast.While | ast.If) else []
            inner = {id(statement) for body in bodies for statement in body}
            nodes = [n for part in ast.iter_child_nodes(one) if id(part) not in inner for n in ast.walk(part)]
            for name in (n for n in nodes if isinstance(n, ast.Name)):
                is_counter = isinstance(one, ast.For) and isinstance(name.ctx, ast.Store)  # the variable of a loop
                if isinstance(name.ctx, ast.Store) and not is_counter:
                    assigned.setdefault(name.id, []).append(path)
                if not is_counter:
                    used.setdefault(name.id, set()).add(path[-1])
            for body in bodies:
                visit(body, (*path, id(body)))

    for parameter in definition.args.args:
        used[parameter.arg] = {0}
    visit(definition.body, (0,))
    return frozenset(n for n, paths in assigned.items() if any(used[n] & set(path[:-1]) for path in paths))


class Translation:
    """A function, which is written into the block that is open."""

    def __init__(self, out: Instructions, function: Any) -> None:
        self.out, self._function = out, inspect.unwrap(function)
        code = self._function.__code__
        self._definition, self._memory = _definitions(code.co_filename)[code.co_name, code.co_firstlineno]
        self._names: dict[str, Any] = {}
        self._variables: dict[str, Memory] = {}

    def run(self, arguments: Sequence[Any]) -> Any:
        """Write the function's body; what it returns."""
        parameters = [a.arg for a in self._definition.args.args]
        for name, value in zip(parameters, arguments, strict=True):
            self._assign_name(name, value)
        *body, last = self._definition.body
        if any(isinstance(n, ast.Return) for one in (*body, *ast.iter_child_nodes(last)) for n in ast.walk(one)):
            raise UnknownWordError(f"A function returns at its end. Received: {self._definition.name}.")
        self._run(body)
        if isinstance(last, ast.Return):
            return None if last.value is None else self.value(last.value)
        self._run([last])
        return None

    def _unknown(self, node: ast.AST) -> Any:
        raise UnknownWordError(f"The texts of kernels have no such words. Received: {ast.unparse(node)[:80]}.")

    # Statements ---------------------------------------------------------------------------------

    def _run(self, statements: Sequence[ast.stmt]) -> None:
        for one in statements:
            getattr(self, f"_{type(one).__name__.lower()}", self._unknown)(one)

    def _pass(self, _: ast.Pass) -> None:
        pass

    def _expr(self, statement: ast.Expr) -> None:
        if not isinstance(statement.value, ast.Constant):  # a docstring
            self.value(statement.value)

    def _assign(self, statement: ast.Assign) -> None:
        (target,) = statement.targets
        self._give(target, self.value(statement.value))

    def _give(self, target: ast.expr, value: Any) -> None:
        if isinstance(target, ast.Tuple):
            for one, part in zip(target.elts, value, strict=True):
                self._give(one, part)
        elif isinstance(target, ast.Subscript):
            self.out.store(self.value(target.value), self._place(target), self._number(value))
        elif isinstance(target, ast.Name):
            self._assign_name(target.id, value)
        else:
            self._unknown(target)

    def _assign_name(self, name: str, value: Any) -> None:
        if name not in self._memory:
            self._names[name] = value
            return
        value = self._number(value)
        if name not in self._variables:
            self._variables[name] = self.out.variable(value.kind)
        memory = self._variables[name]
        if value.kind != memory.kind and (value.is_float or memory.kind in FLOATS):
            raise UnknownWordError(f"A variable keeps its kind. Received: {value.kind} for {memory.kind} {name}.")
        value = self.out.cast(value, memory.kind)
        self.out.lines.append(f"store {value.typed}, {memory.type} {memory.pointer}")

    def _augassign(self, statement: ast.AugAssign) -> None:
        sign, target = _OPERATORS[type(statement.op)], statement.target
        if isinstance(target, ast.Name):
            before, other = self._number(self.value(target)), self._number(self.value(statement.value))
            value = self.out.binary(sign, before, other)
            self._assign_name(target.id, value)
        elif isinstance(target, ast.Subscript):
            array, where = self.value(target.value), self._place(target)
            value = self.out.binary(sign, self.out.load(array, where), self._number(self.value(statement.value)))
            self.out.store(array, where, value)
        else:
            self._unknown(statement)

    def _body(self, statements: Sequence[ast.stmt], target: ast.expr | None = None, counter: Any = None) -> None:
        """Statements of a branch or loop, whose names are known within them only; a loop gives its target a number."""
        names, known = dict(self._names), dict(self.out.known)
        if target is not None:
            self._give(target, counter)
        self._run(statements)
        self._names, self.out.known = names, known

    def _for(self, statement: ast.For) -> None:
        span, target = statement.iter, statement.target
        if not (isinstance(span, ast.Call) and isinstance(span.func, ast.Name) and span.func.id == "range"):
            self._unknown(statement)
            return
        bounds = [self._number(self.value(one)) for one in span.args]
        kind = "uint64" if any(b.kind == "uint64" for b in bounds) else "int64"
        bounds = [self.out.cast(b, kind) for b in bounds]
        start, stop = (constant(0, kind), *bounds)[-2:] if len(bounds) < 3 else bounds[:2]
        step = bounds[2] if len(bounds) > 2 else constant(1, kind)
        if step.constant is not None and step.constant <= 0:
            self._unknown(statement)
        known = [b.constant for b in (start, stop, step)]
        rounds = len(range(*known)) if None not in known else 2
        if rounds < 2:  # no loop
            self._body(statement.body if rounds else (), target, start)
            return
        out = self.out
        test, body, end = (out.name("b") for _ in range(3))
        before = out.block
        out.jump(test)
        out.open(test)
        counter, following = Number(kind, f"%{out.name()}", natural=start.natural), f"%{out.name()}"
        place = len(out.lines)
        out.branch(out.compare("<", counter, stop), body, end)
        out.open(body)
        self._body(statement.body, target, counter)
        out.lines.append(f"{following} = add nsw {counter.typed}, {step.text}")
        out.jump(test)
        pairs = f"[{start.text}, %{before}], [{following}, %{out.block}]"
        out.lines.insert(place, f"{counter.text} = phi {TYPES[kind]} {pairs}")
        out.open(end)

    def _while(self, statement: ast.While) -> None:
        test, body, end = (self.out.name("b") for _ in range(3))
        self.out.jump(test)
        self.out.open(test)
        known = dict(self.out.known)
        self.out.branch(self._condition(statement.test), body, end)
        self.out.open(body)
        self._body(statement.body)
        self.out.jump(test)
        self.out.open(end)
        self.out.known = known

    def _if(self, statement: ast.If) -> None:
        condition, out = self._condition(statement.test), self.out
        if condition.constant is not None:
            self._run(statement.body if condition.constant else statement.orelse)
            return
        ways = [statement.body, statement.orelse] if statement.orelse else [statement.body]
        names = [out.name("b") for _ in range(len(ways) + 1)]
        out.branch(condition, names[0], names[1])
        for name, way in zip(names, ways, strict=False):
            out.open(name)
            self._body(way)
            out.jump(names[-1])
        out.open(names[-1])

    # Expressions --------------------------------------------------------------------------------

    def value(self, x: ast.expr) -> Any:
        """Write an expression: a number, an array, a tuple, or what Python has of that name."""
        return getattr(self, f"_{type(x).__name__.lower()}", self._unknown)(x)

    def _number(self, value: Any) -> Number:
        return value if isinstance(value, Number) else constant(value)

    def _constant(self, x: ast.Constant) -> Any:
        return x.value

    def _name(self, x: ast.Name) -> Any:
        if x.id in self._variables:
            return self.out.load_variable(self._variables[x.id])
        if x.id in self._names:
            return self._names[x.id]
        code, outside = self._function.__code__, self._function.__globals__
        if x.id in code.co_freevars:
            return self._function.__closure__[code.co_freevars.index(x.id)].cell_contents
        return outside[x.id] if x.id in outside else getattr(builtins, x.id)

    def _tuple(self, x: ast.Tuple) -> tuple[Any, ...]:
        return tuple(self.value(one) for one in x.elts)

    def _attribute(self, x: ast.Attribute) -> Any:
        if isinstance(x.value, ast.Attribute) and x.value.attr in _REGISTERS:
            return self.out.register(f"{_REGISTERS[x.value.attr]}.{x.attr}")
        return getattr(self.value(x.value), x.attr)

    def _subscript(self, x: ast.Subscript) -> Any:
        whole = self.value(x.value)
        if isinstance(whole, tuple):
            return whole[self._known(x.slice)]
        return self.out.load(whole, self._place(x))

    def _known(self, x: ast.expr) -> Any:
        """An expression that is known while the kernel is compiled."""
        value = self.value(x)
        value = value.constant if isinstance(value, Number) else value
        return self._unknown(x) if value is None else value

    def _place(self, x: ast.Subscript) -> list[Number]:
        index = self.value(x.slice)
        return [self._number(one) for one in (index if isinstance(index, tuple) else (index,))]

    def _unaryop(self, x: ast.UnaryOp) -> Any:
        if isinstance(x.op, ast.Not):
            condition = self._condition(x.operand)
            return self.out.binary("^", condition, constant(True))
        value = self._number(self.value(x.operand))
        if isinstance(x.op, ast.USub):
            return self.out.negated(value)
        return self.out.binary("^", value, constant(-1)) if isinstance(x.op, ast.Invert) else self._unknown(x)

    def _binop(self, x: ast.BinOp) -> Any:
        sign = _OPERATORS.get(type(x.op))
        left, right = self.value(x.left), self.value(x.right)
        left, right = self._number(left), self._number(right)
        if sign is None or ((left.is_float or right.is_float) and sign not in ("+", "-", "*", "/")):
            return self._unknown(x)
        return self.out.binary(sign, left, right)

    def _compare(self, x: ast.Compare) -> Number:
        values = [self._number(self.value(one)) for one in (x.left, *x.comparators)]
        results = [
            self.out.compare(_OPERATORS[type(op)], *pair) for op, pair in zip(x.ops, pairwise(values), strict=True)
        ]
        return reduce(lambda a, b: self.out.binary("&", a, b), results)

    def _boolop(self, x: ast.BoolOp) -> Number:
        """As in Python, the second is not computed where the first decides, unless it makes no difference."""
        is_and = isinstance(x.op, ast.And)
        result = self._condition(x.values[0])
        for one in x.values[1:]:
            if result.constant is not None:
                result = self._condition(one) if result.constant == is_and else result
            elif _is_plain(one):
                result = self.out.binary("&" if is_and else "|", result, self._condition(one))
            else:
                ways: list[Callable[[], Any]] = [partial(self._condition, one), partial(constant, not is_and)]
                result = self._joined(result, ways if is_and else ways[::-1])
        return result

    def _ifexp(self, x: ast.IfExp) -> Any:
        """As in Python, only what is chosen is computed, unless it makes no difference."""
        condition = self._condition(x.test)
        if condition.constant is not None:
            return self.value(x.body if condition.constant else x.orelse)
        if _is_plain(x.body) and _is_plain(x.orelse):
            return self.out.select(condition, *(self._number(self.value(one)) for one in (x.body, x.orelse)))
        return self._joined(condition, [partial(self.value, x.body), partial(self.value, x.orelse)])

    def _joined(self, condition: Number, ways: Sequence[Callable[[], Any]]) -> Number:
        """The number that one of two ways gives."""
        out, outer, known = self.out, self.out.lines, self.out.known
        yes, no, end = (out.name("b") for _ in range(3))
        out.branch(condition, yes, no)
        parts: list[list[str]] = []
        ends: list[tuple[Number, str]] = []
        for name, way in zip((yes, no), ways, strict=True):
            out.lines, out.known = list[str](), dict(known)
            out.open(name)
            ends.append((self._number(way()), out.block))
            parts.append(out.lines)
        kind = common([value.kind for value, _ in ends])
        pairs = []
        for lines, (value, block) in zip(parts, ends, strict=True):  # behind both, since each takes the kind of both
            out.lines, out.known = lines, dict(known)
            pairs.append(f"[{out.cast(value, kind).text}, %{block}]")
            out.jump(end)
        out.lines, out.known = [*outer, *parts[0], *parts[1]], known
        out.open(end)
        return Number(kind, out.emit(f"phi {TYPES[kind]} {', '.join(pairs)}"))

    def _condition(self, x: ast.expr) -> Number:
        return self.out.cast(self._number(self.value(x)), "bool")

    # Calls --------------------------------------------------------------------------------------

    def _call(self, x: ast.Call) -> Any:
        if isinstance(x.func, ast.Attribute) and (special := _SPECIAL.get(x.func.attr)) is not None:
            return special(self, x)
        function = self.value(x.func)
        arguments = [self.value(one) for one in x.args]
        if isinstance(function, type) and issubclass(function, np.generic):
            return self.out.cast(self._number(arguments[0]), np.dtype(function).name)
        if (emit := FUNCTIONS.get(function)) is not None:
            return emit(self.out, *[a if isinstance(a, Memory) else self._number(a) for a in arguments])
        if not inspect.isfunction(inspect.unwrap(function)):
            return self._unknown(x)
        return Translation(self.out, function).run(arguments)

    def _barrier(self, _: ast.Call) -> None:
        self.out.call("llvm.nvvm.barrier0", "void", (), pure=False)

    def _grid(self, x: ast.Call) -> Number:
        """Number of the thread among all, or how many there are."""
        blocks, block, threads, thread = (
            self.out.cast(self.out.register(f"{name}.x"), "int64") for name in ("nctaid", "ctaid", "ntid", "tid")
        )
        if ast.unparse(x.func) == "cuda.gridsize":
            return self.out.binary("*", blocks, threads)
        return self.out.binary("+", self.out.binary("*", block, threads), thread)

    def _array(self, x: ast.Call) -> Memory:
        shape, dtype = self._known(x.args[0]), self.value(x.args[1])
        shape = shape if isinstance(shape, tuple) else (shape,)
        kind = np.dtype(dtype).name if isinstance(dtype, type) else str(dtype)
        if ast.unparse(x.func) == "cuda.local.array":
            return self.out.local(kind, int(np.prod(shape)))
        # One for each place in the text, wherever it is called from.
        return self.out.shared((self._function.__code__.co_filename, x.lineno), kind, shape)


def _is_plain(x: ast.expr) -> bool:
    return all(isinstance(node, _PLAIN) for node in ast.walk(x))


_SPECIAL: dict[str, Callable[[Translation, ast.Call], Any]] = {
    "syncthreads": Translation._barrier, "grid": Translation._grid, "gridsize": Translation._grid,
    "array": Translation._array,
}  # fmt: skip
