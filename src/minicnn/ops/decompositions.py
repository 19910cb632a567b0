"""Composite primitives in simpler ones, for engines that have kernels for these, and fuse them.

A decomposition emits the simpler nodes into the node's Program and returns their results. Which nodes to decompose is
the engine's choice: see `Program.replace`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from minicnn.ops.activations import log_softmax, softmax
from minicnn.ops.checks import normalize_axes
from minicnn.ops.elementwise import cast, equal, exp, greater, log, sqrt, square, where
from minicnn.ops.fused import fused
from minicnn.ops.linalg import matmul
from minicnn.ops.losses import softmax_cross_entropy, softmax_cross_entropy_gradient
from minicnn.ops.manipulation import one_hot, permute
from minicnn.ops.normalization import in_units, normalize, normalize_gradient
from minicnn.ops.primitive import Primitive
from minicnn.ops.reduction import argmax, max, max_gradient, mean, sum, sum_to_shape
from minicnn.ops.shapes import reshape
from minicnn.program.graph import Node, Value

Decomposition = Callable[[Node], Sequence[Value]]

_DECOMPOSITIONS: dict[str, Decomposition] = {}


def decompose(node: Node) -> Sequence[Value]:
    """Emit what a node consists of; returns the Values that can take the place of its results."""
    return _DECOMPOSITIONS[node.op.name](node)


def _of(*ops: Primitive) -> Callable[[Decomposition], Decomposition]:
    def enter(rule: Decomposition) -> Decomposition:
        _DECOMPOSITIONS.update({op.name: rule for op in ops})
        return rule

    return enter


@_of(fused)
def _(node: Node) -> Sequence[Value]:
    values = list(node.inputs)
    for operation in node.attrs["body"].operations:
        outcome = operation.op(*(values[place] for place in operation.inputs), **operation.attrs)
        values += outcome if isinstance(outcome, tuple) else (outcome,)
    return [values[place] for place in node.attrs["body"].outputs]


@_of(mean)
def _(node: Node) -> Sequence[Value]:
    (x,) = node.inputs
    total = sum(x, **node.attrs)
    return [total / (x.size / (total.size or 1))]


@_of(normalize)
def _(node: Node) -> Sequence[Value]:
    x, scale, offset = node.inputs
    axes = node.attrs["axes"]
    average = mean(x, axes=axes, keepdims=True)
    centred = x - average
    small, epsilon = in_units(node)
    variance = mean(square(small(centred)), axes=axes, keepdims=True)
    return [centred * (small(scale) / sqrt(variance + epsilon)) + offset, average, variance]


@_of(normalize_gradient)
def _(node: Node) -> Sequence[Value]:
    dy, x, scale, average, variance = node.inputs
    axes = node.attrs["axes"]
    small, epsilon = in_units(node)
    inverse = small(1.0) / sqrt(variance + epsilon)
    u = (x - average) * inverse
    kept = (1,) * (x.ndim - scale.ndim) + scale.shape
    if all(kept[a] == 1 for a in normalize_axes("normalize_gradient", axes, x.ndim)):
        # The scale is a factor of whole sums: two sums of what is there anyway are all that is needed.
        sums = sum(dy * u, axes=axes, keepdims=True), sum(dy, axes=axes, keepdims=True)
        second, first = (one / (x.size / (one.size or 1)) for one in sums)
        dx = (dy - first - u * second) * (scale * inverse)
        return [dx, *(sum_to_shape(one, scale.shape) for one in sums)]
    g = dy * scale
    first, second = mean(g, axes=axes, keepdims=True), mean(g * u, axes=axes, keepdims=True)
    dx = (g - first - u * second) * inverse
    return [dx, sum_to_shape(dy * u, scale.shape), sum_to_shape(dy, scale.shape)]


@_of(max_gradient)
def _(node: Node) -> Sequence[Value]:
    """One axis after the other, each by the place of its maximum."""
    dy, best, _ = node.inputs
    ndim, masks = best.ndim, []
    # Axis by axis from the last: the first maximum in row-major order is the first along each axis in turn.
    for axis in reversed(normalize_axes("max_gradient", node.attrs["axes"], ndim)):
        place = reshape(argmax(best, axis=axis), shape=(*best.shape[:axis], 1, *best.shape[axis + 1 :]))
        numbers = np.arange(best.shape[axis], dtype="int32").reshape(-1, *[1] * (ndim - 1 - axis))
        masks.append(cast(equal(place, numbers), dtype=dy.dtype))
        best = max(best, axes=axis, keepdims=True)
    dx = reshape(dy, shape=best.shape)
    for mask in reversed(masks):
        dx = dx * mask
    return [dx]


@_of(matmul)
def _(node: Node) -> Sequence[Value]:
    """The first matrix transposed by itself, if it is."""
    a, b = node.inputs
    a = permute(a, axes=(1, 0)) if node.attrs["transpose_a"] else a
    return [matmul(a, b, transpose_b=node.attrs["transpose_b"])]


@_of(softmax, log_softmax)
def _(node: Node) -> Sequence[Value]:
    shifted, powers, total = _powers(node.inputs[0], node.attrs["axis"])
    return [powers / total if node.op is softmax else shifted - log(total)]


@_of(softmax_cross_entropy)
def _(node: Node) -> Sequence[Value]:
    logits, labels = node.inputs
    shifted, _, total = _powers(logits, -1)
    hits = one_hot(labels, classes=logits.shape[-1], dtype=logits.dtype)
    return [-sum(where(greater(hits, 0.5), shifted - log(total), 0.0), axes=-1)]


@_of(softmax_cross_entropy_gradient)
def _(node: Node) -> Sequence[Value]:
    dy, logits, labels = node.inputs
    _, powers, total = _powers(logits, -1)
    hits = one_hot(labels, classes=logits.shape[-1], dtype=logits.dtype)
    # 0 for a label outside of the classes, whose gradient is 0, too.
    inside = sum(hits, axes=-1, keepdims=True)
    dy = reshape(dy, shape=(*labels.shape, 1))
    return [(powers / total * inside - hits) * dy]


def _powers(x: Value, axis: int) -> tuple[Value, Value, Value]:
    """Logits below their maximum, e to the power of these, and the sums of that."""
    shifted = x - max(x, axes=axis, keepdims=True)
    powers = exp(shifted)
    return shifted, powers, sum(powers, axes=axis, keepdims=True)
