"""The language of kernels: a small part of Python, so that a kernel's text can be run by the grader itself.

A kernel computes with numbers and elements of arrays, in loops; it names nothing else. So what is counted of it (reads,
barriers, lines of a cache) cannot be forged, and a product cannot be handed to a library. CUDA kernels become
generators, which stop at each barrier: `simulator` runs them thread by thread. CPU kernels stay as they are; Numba
compiles them where time counts.
"""

from __future__ import annotations

import ast
from typing import Any

from minicnn.exercises.exercise import WrongError

RUN = "run"  # the function of a process that runs a kernel
MATHS = ("exp", "log", "sqrt", "fabs", "floor", "ceil", "inf")
CALLS = ("range", "min", "max", "abs", "int", "float", "float32", "int32", "len")
PLACES = ("threadIdx", "blockIdx", "blockDim", "gridDim")
STATEMENTS = (
    ast.Assign, ast.AugAssign, ast.AnnAssign, ast.For, ast.While, ast.If, ast.Return, ast.Expr, ast.Pass, ast.Break,
    ast.Continue, ast.Raise,
)  # fmt: skip
EXPRESSIONS = (
    ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Constant, ast.Name, ast.Subscript, ast.Tuple,
    ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.expr_context,
)  # fmt: skip


def translated(text: bytes, kind: str) -> str:
    """Text of the kernels of a file, checked.

    Args:
        text: The file.
        kind: "cuda" or "cpu".

    Raises:
        WrongError: If it holds anything but kernels, constants and their imports; says in which line.
    """
    tree = ast.parse(text)
    kept: list[ast.stmt] = []
    names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom) or _is_text(node):
            continue
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            kept.append(node)
        elif isinstance(node, ast.FunctionDef):
            kept.append(_Kernel(kind, names).visit_function(node))
        else:
            raise _wrong(node, "a file of kernels holds imports, constants and functions")
    return ast.unparse(ast.fix_missing_locations(ast.Module(kept, [])))


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _wrong(node: ast.AST, rule: str) -> WrongError:
    return WrongError(f"{rule}. Received: {ast.unparse(node).splitlines()[0]} (line {getattr(node, 'lineno', '?')})")


class _Kernel(ast.NodeVisitor):
    """Check of one function."""

    def __init__(self, kind: str, functions: set[str]) -> None:
        self._kind, self._functions = kind, functions

    def visit_function(self, node: ast.FunctionDef) -> ast.FunctionDef:
        decorators = [ast.unparse(d) for d in node.decorator_list]
        allowed = {"cuda": ("cuda.jit", "cuda.jit(device=True)"), "cpu": ("njit",)}[self._kind]
        if len(decorators) != 1 or decorators[0] not in allowed or node.args.defaults or node.args.kwonlyargs:
            raise _wrong(node, f"a kernel has the decorator @{allowed[0]} and plain arguments")
        body = [n for n in node.body if not _is_text(n)]
        for statement in body:
            self.visit(statement)
        node.body, node.returns = body or [ast.Pass()], None
        for argument in node.args.args:
            self._name(argument.arg, argument)
            argument.annotation = None
        device = "device=True" in decorators[0]
        if self._kind == "cuda":
            node.decorator_list = []
            if not device:
                node.args.args.insert(0, ast.arg("cuda"))
                node.body = [_Barriers().visit(n) for n in node.body] + ast.parse("if False:\n    yield").body
        return node

    def generic_visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow | ast.MatMult):
            raise _wrong(node, "a kernel multiplies numbers one by one")
        if not isinstance(node, (*STATEMENTS, *EXPRESSIONS)):
            raise _wrong(node, "a kernel computes with numbers and elements of arrays, in loops and conditions")
        super().generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        """The blank."""
        if ast.unparse(node) != "raise NotImplementedError":
            raise _wrong(node, "a kernel raises no errors")

    def visit_For(self, node: ast.For) -> None:
        called = node.iter.func if isinstance(node.iter, ast.Call) else None
        if not isinstance(called, ast.Name) or called.id not in ("range", "prange") or node.orelse:
            raise _wrong(node, "a loop is over range")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if not isinstance(node.value, int | float | bool):
            raise _wrong(node, "a constant of a kernel is a number")

    def visit_Name(self, node: ast.Name) -> None:
        self._name(node.id, node)

    def _name(self, name: str, node: ast.AST) -> None:
        if name.startswith("_") or name in ("eval", "exec", "open", "getattr", "type", "vars", "globals", "locals"):
            raise _wrong(node, "a kernel names variables, arrays and constants only")

    def visit_Attribute(self, node: ast.Attribute) -> None:
        text = ast.unparse(node)
        head, _, tail = text.partition(".")
        place, _, axis = tail.partition(".")
        if head == "cuda" and place in PLACES and axis in ("x", "y", "z"):
            return
        if (head == "math" and tail in MATHS) or (tail in ("shape", "size") and isinstance(node.value, ast.Name)):
            return
        raise _wrong(node, "attributes are array.shape, cuda.threadIdx.x and the like, and functions of math")

    def visit_Call(self, node: ast.Call) -> None:
        name = ast.unparse(node.func)
        shared = name in ("cuda.shared.array", "cuda.local.array") and len(node.args) == 2
        if shared and self._kind == "cuda":
            self.visit(node.args[0])
            return
        known = (*CALLS, *(f"math.{m}" for m in MATHS), *self._functions)
        known += ("prange",) if self._kind == "cpu" else ("cuda.grid", "cuda.gridsize", "cuda.syncthreads")
        if name not in known or node.keywords:
            raise _wrong(node, f"a kernel calls {', '.join(CALLS)}, functions of math and its own")
        for argument in node.args:
            self.visit(argument)


class _Barriers(ast.NodeTransformer):
    """Each barrier becomes a yield."""

    def visit_Expr(self, node: ast.Expr) -> Any:
        return ast.parse("yield").body[0] if ast.unparse(node.value) == "cuda.syncthreads()" else node
