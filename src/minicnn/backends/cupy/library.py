"""Matrix products by the vendor's library: which may be, and the piece of a Program that is timed for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from minicnn import ops
from minicnn.ops.primitive import Array, Namespace, Primitive
from minicnn.program.graph import Node, Program, Value
from minicnn.program.readers import Readers

LEAST_OPERATIONS = 2**27  # below that a launch more costs what a faster product could win
_MOVES = frozenset({"take", "reshape", "broadcast_to"})


def library_matmul(a: Array, b: Array, *, xp: Namespace, **attrs: object) -> Array:
    """A matmul that the library computes; "why" says what speaks for it."""
    return ops.matmul.reference(a, b, xp=xp, **{k: v for k, v in attrs.items() if k != "why"})


LIBRARY = Primitive(library_matmul)


def use_library(program: Program, decide: Callable[[Node], str | None]) -> Program:
    """Hand products over to the library, in place.

    Args:
        program: The Program.
        decide: Why a product should be handed over, or None.
    """
    reasons = {id(node): decide(node) for node in program.nodes if may_be(node)}

    def rule(node: Node) -> Sequence[Value] | None:
        why = reasons.get(id(node))
        if why is None:
            return None
        return program.append(LIBRARY, node.inputs, [node.outputs[0].spec], {**node.attrs, "why": why}).outputs

    program.replace(rule)
    return program


def may_be(node: Node) -> bool:
    """Whether the library could compute a node: a product of matrices that are in memory as they are."""
    values = (*node.inputs, *node.outputs)
    if node.op.name != "matmul" or node.outputs[0].dtype not in ("float32", "float64"):
        return False
    if any(v.ndim != 2 or v.dtype != node.outputs[0].dtype or not v.size for v in values):
        return False
    return not any(_source(v).node is None and _source(v).kind == "input" for v in node.inputs)


def _source(value: Value) -> Value:
    while value.node is not None and value.node.op.name == "reshape":
        value = value.node.inputs[0]
    return value


def operations(node: Node) -> int:
    """Multiplications and additions of a product."""
    (m, n), inner = node.outputs[0].shape, node.inputs[0].shape[0 if node.attrs["transpose_a"] else 1]
    return 2 * m * n * inner


def piece(program: Program, node: Node) -> Program:
    """A product with what could run in one kernel with it: elementwise operations before and after, and gathers."""
    new = Program("piece")
    known: dict[int, Value] = {}

    def value(old: Value, depth: int) -> Value:
        if id(old) not in known:
            made = old.node
            if old.kind == "constant" and old.data is not None:
                known[id(old)] = new.constant(old.data, old.dtype)
            elif made is None or not depth or not (made.op.elementwise or made.op.name in _MOVES):
                known[id(old)] = new.input(f"a{len(known)}", old.shape, old.dtype, kind="parameter")
            else:
                copy(made, depth - 1)
        return known[id(old)]

    def copy(old: Node, depth: int) -> None:
        inputs = [value(v, depth) for v in old.inputs]
        made = old.op(*inputs, **old.attrs)
        for was, now in zip(old.outputs, made if isinstance(made, tuple) else (made,), strict=True):
            known[id(was)] = now

    copy(node, 4)
    last, readers = node.outputs[0], Readers(program)
    while (after := readers.only(last)) is not None and after.op.elementwise and len(after.outputs) == 1:
        if after.outputs[0].size != last.size:
            break
        copy(after, 0)
        last = after.outputs[0]
    new.outputs["y"] = known[id(last)]
    return new


def described(program: Program) -> str:
    """All that the time of a piece depends on."""
    lines = []
    for node in program.nodes:
        values: list[Any] = [v.spec for v in (*node.inputs, *node.outputs)]
        lines.append(f"{node.op.name} {sorted(node.attrs.items())} {values}")
    return "\n".join(lines)
