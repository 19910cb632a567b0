"""Elementwise groups: which nodes can run in one kernel, how their operands are read, and that kernel."""

from __future__ import annotations

import math

from minicnn.backends.numba import elementwise
from minicnn.backends.numba.elementwise import Group, Operand, contiguous
from minicnn.backends.numba.lowering import BLOCKED, PLAIN, Lowering
from minicnn.ops.fused import body_specs
from minicnn.program.fusion import chains, merge, only_reader
from minicnn.program.graph import Node, Value

_NAMES = frozenset(elementwise.OPERATIONS) - {"reshape"} | {"cast"}


BIASED, SCALED = "product+bias", "cast+scale"  # names of merged pairs


def group(to: Lowering) -> None:
    """Merge nodes that have one kernel together.

    First pairs: a convolution or matrix product and its bias, bytes and their scale; then chains of elementwise nodes,
    on blocked values and on plain ones.
    """
    for node in list(to.program.nodes):
        after = only_reader(node.outputs[0], to.program)
        if after is not None and _biased(to, node, after):
            merge(to.program, [node, after], BIASED)
        elif after is not None and _scaled(to, node, after):
            merge(to.program, [node, after], SCALED)
    to.mark()
    for blocked in (True, False):
        for nodes in chains(to.program, lambda n, b=blocked: _member(to, n, b)):  # type: ignore[misc]
            merge(to.program, nodes, "elementwise")


def _biased(to: Lowering, node: Node, after: Node) -> bool:
    y = node.outputs[0]
    if node.op.name not in ("conv2d", "matmul") or after.op.name != "add" or not to.is_blocked(y):
        return False
    if node.op.name == "conv2d" and node.attrs["data_format"] != "NHWC":
        return False
    if node.op.name == "matmul" and id(node.inputs[1]) in to.carries:
        return False
    bias = after.inputs[1]
    return (
        after.inputs[0] is y and bias.shape == y.shape[-1:] and bias.dtype == "float32" and id(bias) not in to.carries
    )


def _scaled(to: Lowering, node: Node, after: Node) -> bool:
    y = node.outputs[0]
    if node.op.name != "cast" or node.inputs[0].dtype != "uint8" or not to.is_blocked(y) or y.dtype != "float32":
        return False
    factor = after.inputs[-1]
    return after.op.name == "multiply" and after.inputs[0] is y and factor.kind == "constant" and factor.size == 1


def _member(to: Lowering, node: Node, blocked: bool) -> bool:
    result = node.outputs[0]
    return (
        node.op.name in _NAMES
        and to.is_blocked(result) == blocked
        and elementwise.supported(node.op.name, [v.dtype for v in node.inputs], result.dtype)
        and all(_operand(to, v, result) is not None for v in node.inputs)
    )


def _operand(to: Lowering, value: Value, result: Value) -> Operand | None:
    """How a value is read next to a result; None if it cannot be."""
    if value.dtype not in elementwise.DTYPES:
        return None
    if value.kind == "constant" and value.size == 1 and value.data is not None:
        return Operand("constant", value.dtype, value=value.data.item())
    if not to.is_blocked(result):
        if value.size == 1 and result.size != 1:
            return Operand("one", value.dtype)
        return Operand("many", value.dtype) if value.size == result.size and not to.is_blocked(value) else None
    axes = result.ndim - 1
    if id(value) in to.carries:
        if value.ndim != result.ndim or not to.is_blocked(value):
            return None
        return Operand("lanes", value.dtype, _strides(value.shape[1:], result.shape[1:]))
    if value.size == 1:
        return Operand("one", value.dtype, (0,) * axes)
    shape = value.shape
    if len(shape) > axes:
        if shape[0] != 1:  # a plain array with a row for each sample
            return (
                Operand("lanes", value.dtype, _strides(shape[1:], result.shape[1:])) if value.dtype != "int32" else None
            )
        shape = shape[1:]
    return Operand("one", value.dtype, _strides((*(1,) * (axes - len(shape)), *shape), result.shape[1:]))


def _strides(shape: tuple[int, ...], result: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(s if n == m else 0 for s, n, m in zip(contiguous(shape), shape, result, strict=True))


def chain(to: Lowering, node: Node) -> str | None:
    """Lower a group of elementwise nodes, or one of them."""
    count = len(node.inputs)
    if node.op.name == "fused":
        body = node.attrs["body"]
        steps, outputs = tuple((s.op.name, s.inputs, s.attrs) for s in body.steps), body.outputs
        dtypes = tuple(s.dtype for s in body_specs(body, tuple(v.spec for v in node.inputs)))
    else:
        steps, outputs = ((node.op.name, tuple(range(count)), node.attrs),), (count,)
        dtypes = (*(v.dtype for v in node.inputs), node.outputs[0].dtype)
        if node.op.name not in _NAMES or not elementwise.supported(node.op.name, dtypes[:-1], dtypes[-1]):
            return f"no kernel for {node.op.name} of {', '.join(dtypes[:-1])}"
    result = node.outputs[0]
    operands = [_operand(to, v, result) for v in node.inputs]
    if any(o is None for o in operands):
        return "no kernel for operands that are broadcast so"
    run(to, node, Group(steps, outputs, dtypes), [o for o in operands if o is not None])
    return None


def run(to: Lowering, node: Node, group: Group, operands: list[Operand]) -> None:
    """Run a group whose operands are the node's inputs and whose results are its outputs."""
    result = node.outputs[0]
    blocked = to.is_blocked(result)
    reads = [
        to.need(v, BLOCKED if o.kind == "lanes" else PLAIN)
        for v, o in zip(node.inputs, operands, strict=True) if o.kind != "constant"
    ]  # fmt: skip
    if blocked:
        spans = [math.prod(v.shape[1:]) for v in node.inputs]
        source = elementwise.blocked(group, operands, result.shape[1:], spans)
    else:
        source = elementwise.plain(group, operands, result.size)
    writes = [to.buffer(v, BLOCKED if blocked else PLAIN) for v in node.outputs]
    to.add(node, source, reads, writes, None if blocked else elementwise.items(result.size))
