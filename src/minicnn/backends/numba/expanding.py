"""Composite nodes without kernels of their own, written out in simpler ones, which fuse again."""

from __future__ import annotations

from collections.abc import Sequence

from minicnn.ops.decompositions import decompose
from minicnn.ops.elementwise import sqrt, square
from minicnn.ops.normalization import in_units
from minicnn.ops.reduction import mean, sum
from minicnn.ops.shapes import reshape
from minicnn.program.graph import Node, Program, Value
from minicnn.program.passes import remove_dead_nodes


def expand(program: Program) -> None:
    """Rewrite a Program in place so that its nodes have kernels."""
    # Lowering joins groups of its own, so nodes that others have fused come apart first.
    count = program.replace(lambda node: decompose(node) if node.op.name == "fused" else None)
    count += program.replace(_written_out)
    if count:
        remove_dead_nodes(program)


def _written_out(node: Node) -> Sequence[Value] | None:
    """Values that can take the place of the results of a node without a kernel; None if there are none."""
    name, attrs = node.op.name, node.attrs
    # With both operands transposed neither lies in the order that a kernel reads.
    if name == "matmul":
        return decompose(node) if attrs["transpose_a"] and attrs["transpose_b"] else None
    if name in ("softmax", "log_softmax"):  # samples do not depend on each other
        return None if attrs["axis"] % node.inputs[0].ndim else decompose(node)
    if name in ("normalize", "normalize_gradient"):
        # Batch normalisation as sums and elementwise operations, so that these join the groups of the layers around it.
        of_batch = _normalize if name == "normalize" else _normalize_gradient
        return of_batch(node) if _of_channels(node) else decompose(node)
    return None


def _of_channels(node: Node) -> bool:
    """True if the last axis stays and has a scale for each of its elements: batch normalisation."""
    x, scale = node.inputs[:2] if node.op.name == "normalize" else node.inputs[1:3]
    axes = {a % x.ndim for a in node.attrs["axes"]}
    return x.ndim > 1 and axes == set(range(x.ndim - 1)) and scale.size == x.shape[-1]


# Images are centred once for each reader: what is summed over the batch is then never stored.


def _normalize(node: Node) -> Sequence[Value]:
    (x, scale, offset), axes = node.inputs, node.attrs["axes"]
    average = mean(x, axes=axes, keepdims=True)
    small, epsilon = in_units(node)
    variance = mean(square(small(x - average)), axes=axes, keepdims=True)
    factor = small(scale) / sqrt(variance + epsilon)
    return [(x - average) * factor + offset, average, variance]


def _normalize_gradient(node: Node) -> Sequence[Value]:
    (dy, x, scale, average, variance), axes = node.inputs, node.attrs["axes"]
    shifts, products = (sum(v, axes=axes, keepdims=True) for v in (dy, dy * (x - average)))
    small, epsilon = in_units(node)
    inverse, share = small(1.0) / sqrt(variance + epsilon), scale.size / x.size
    dscale, factor = products * inverse, scale * inverse
    # In this order each operation reads the one before, so that what is done to images runs as one.
    dx = (dy - (x - average) * (dscale * inverse * share)) * factor - shifts * factor * share
    return [dx, reshape(dscale, shape=scale.shape), reshape(shifts, shape=scale.shape)]
