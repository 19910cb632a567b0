"""Composite nodes without kernels of their own, written out in simpler ones, which fuse again."""

from __future__ import annotations

from collections.abc import Callable

from minicnn.program.graph import Node, Program, Value
from minicnn.program.passes import remove_dead_nodes

Rule = Callable[[Node], "tuple[Value, ...] | None"]


def expand(program: Program) -> None:
    """Rewrite a Program in place so that its nodes have kernels."""
    _rewrite(program, {"fused": _parts})
    _rewrite(program, _RULES)


def _rewrite(program: Program, rules: dict[str, Rule]) -> None:
    if not any(node.op.name in rules for node in program.nodes):
        return
    nodes, program.nodes = program.nodes, []
    now: dict[int, Value] = {}
    for node in nodes:
        node.inputs = tuple(now.get(id(v), v) for v in node.inputs)
        rule = rules.get(node.op.name)
        with program.scope_of(node, node.phase):
            made = rule(node) if rule is not None else None
        if made is None:
            program.nodes.append(node)
        else:
            now |= {id(old): new for old, new in zip(node.outputs, made, strict=True)}
    program.outputs = {k: now.get(id(v), v) for k, v in program.outputs.items()}
    program.updates = {k: now.get(id(v), v) for k, v in program.updates.items()}
    if now:
        remove_dead_nodes(program)


def _parts(node: Node) -> tuple[Value, ...]:
    """The nodes of a fused one: lowering joins them as its kernels do."""
    values = list(node.inputs)
    for step in node.attrs["body"].steps:
        made = step.op(*(values[place] for place in step.inputs), **step.attrs)
        values += made if isinstance(made, tuple) else (made,)
    return tuple(values[place] for place in node.attrs["body"].outputs)


def _of_channels(node: Node, x: Value, scale: Value) -> bool:
    """Whether the last axis stays and has a scale for each of its elements: batch normalisation."""
    return (
        x.ndim > 1 and {a % x.ndim for a in node.attrs["axes"]} == set(range(x.ndim - 1)) and scale.size == x.shape[-1]
    )


def _normalize(node: Node) -> tuple[Value, ...] | None:
    from minicnn import ops

    x, scale, offset = node.inputs
    if _of_channels(node, x, scale):
        return None
    axes = node.attrs["axes"]
    mean = ops.mean(x, axes=axes, keepdims=True)
    centred = x - mean
    variance = ops.mean(ops.square(centred), axes=axes, keepdims=True)
    y = centred * (scale / ops.sqrt(variance + node.attrs["epsilon"])) + offset
    return y, mean, variance


def _normalize_gradient(node: Node) -> tuple[Value, ...] | None:
    from minicnn import ops
    from minicnn.ops.reduction import sum_to_shape

    dy, x, scale, mean, variance = node.inputs
    if _of_channels(node, x, scale):
        return None
    axes = node.attrs["axes"]
    inverse = 1.0 / ops.sqrt(variance + node.attrs["epsilon"])
    u = (x - mean) * inverse
    g = dy * scale
    shared = ops.mean(g, axes=axes, keepdims=True), ops.mean(g * u, axes=axes, keepdims=True)
    dx = (g - shared[0] - u * shared[1]) * inverse
    return dx, sum_to_shape(dy * u, scale.shape), sum_to_shape(dy, scale.shape)


def _matmul(node: Node) -> tuple[Value, ...] | None:
    from minicnn import ops

    if not (node.attrs["transpose_a"] and node.attrs["transpose_b"]):
        return None
    a, b = node.inputs
    return (ops.matmul(ops.permute(a, axes=(1, 0)), b, transpose_b=True),)


def _softmax(node: Node) -> tuple[Value, ...] | None:
    """Along the first axis: the only axis of samples is a new one of length 1."""
    from minicnn import ops

    x = node.inputs[0]
    if node.attrs["axis"] % x.ndim:
        return None
    y = getattr(ops, node.op.name)(ops.reshape(x, shape=(1, *x.shape)), axis=1)
    return (ops.reshape(y, shape=x.shape),)


_RULES: dict[str, Rule] = {
    "normalize": _normalize,
    "normalize_gradient": _normalize_gradient,
    "matmul": _matmul,
    "softmax": _softmax,
    "log_softmax": _softmax,
}
