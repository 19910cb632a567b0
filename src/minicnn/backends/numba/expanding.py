"""Composite nodes without kernels of their own, written out in simpler ones, which fuse again."""

from __future__ import annotations

from minicnn.ops.decompositions import decompose
from minicnn.program.graph import Node, Program
from minicnn.program.passes import remove_dead_nodes


def expand(program: Program) -> None:
    """Rewrite a Program in place so that its nodes have kernels."""
    # Lowering joins groups of its own, so nodes that others have fused come apart first.
    count = program.replace(lambda node: decompose(node) if node.op.name == "fused" else None)
    count += program.replace(lambda node: None if _has_kernel(node) else decompose(node))
    if count:
        remove_dead_nodes(program)


def _has_kernel(node: Node) -> bool:
    name, attrs = node.op.name, node.attrs
    if name == "matmul":
        return not (attrs["transpose_a"] and attrs["transpose_b"])
    if name in ("softmax", "log_softmax"):
        return bool(attrs["axis"] % node.inputs[0].ndim)  # samples do not depend on each other
    if name in ("normalize", "normalize_gradient"):
        return _of_channels(node)
    return True


def _of_channels(node: Node) -> bool:
    """Whether the last axis stays and has a scale for each of its elements: batch normalisation."""
    x, scale = node.inputs[:2] if node.op.name == "normalize" else node.inputs[1:3]
    axes = {a % x.ndim for a in node.attrs["axes"]}
    return x.ndim > 1 and axes == set(range(x.ndim - 1)) and scale.size == x.shape[-1]
