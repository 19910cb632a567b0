"""Reductions over axes, and their inverse, broadcasting."""

from __future__ import annotations

import math

from minicnn.ops.arrays import arange, copy_of, masked
from minicnn.ops.checks import broadcast_shape, normalize_axes, normalize_axis, require_float, same_dtype
from minicnn.ops.primitive import Array, Namespace, Primitive, primitive
from minicnn.ops.shapes import reshape_to
from minicnn.program.graph import Node, Spec, Value

Axes = int | tuple[int, ...] | None


def _reduction(op: Primitive) -> None:
    @op.shape
    def shape(x: Spec, *, axes: Axes, keepdims: bool) -> Spec:
        require_float(op.name, x)
        reduced = normalize_axes(op.name, axes, x.ndim)
        if keepdims:
            return Spec(tuple(1 if a in reduced else n for a, n in enumerate(x.shape)), x.dtype)
        return Spec(tuple(n for a, n in enumerate(x.shape) if a not in reduced), x.dtype)

    @op.cost
    def cost(node: Node) -> int:
        return node.inputs[0].size


def _spread(dy: Value, node: Node) -> Value:
    """Gradient of a reduction's result with the reduced axes put back as length 1."""
    x = node.inputs[0]
    reduced = normalize_axes(node.op.name, node.attrs["axes"], x.ndim)
    return reshape_to(dy, tuple(1 if a in reduced else n for a, n in enumerate(x.shape)))


@primitive
def sum(x: Array, *, axes: Axes = None, keepdims: bool = False, xp: Namespace) -> Array:  # noqa: A001
    """Sum over the given axes (all by default)."""
    return xp.sum(x, axis=axes, keepdims=keepdims)


@sum.gradient
def _(node: Node, dy: Value) -> Value:
    return broadcast_to(_spread(dy, node), shape=node.inputs[0].shape)


@primitive
def mean(x: Array, *, axes: Axes = None, keepdims: bool = False, xp: Namespace) -> Array:
    """Arithmetic mean over the given axes (all by default)."""
    return xp.mean(x, axis=axes, keepdims=keepdims)


@mean.gradient
def _(node: Node, dy: Value) -> Value:
    count = node.inputs[0].size / node.outputs[0].size
    return broadcast_to(_spread(dy * (1.0 / count), node), shape=node.inputs[0].shape)


@primitive
def max(x: Array, *, axes: Axes = None, keepdims: bool = False, xp: Namespace) -> Array:  # noqa: A001
    """Maximum over the given axes (all by default).

    The gradient goes to the first of equal maxima in row-major order, as in max_pool2d and in PyTorch's max-pooling;
    Keras and JAX share it among them. To share it one would have to find the elements that are equal to the maximum,
    which a compiler that computes them anew may have rounded otherwise.
    """
    return xp.max(x, axis=axes, keepdims=keepdims)


@max.gradient
def _(node: Node, dy: Value) -> Value:
    y = _spread(node.outputs[0], node)
    return max_gradient(_spread(dy, node), node.inputs[0], y, axes=node.attrs["axes"], keepdims=True)


@primitive
def max_gradient(
    dy: Array, x: Array, y: Array, *, axes: Axes = None, keepdims: bool = False, xp: Namespace
) -> Array:  # fmt: skip
    """Gradient of max: dy goes to the first of equal maxima in row-major order; beside a NaN to one element, whichever.

    The place is an integer, which has no roundings: x is never compared with y (see max_pool2d_gradient). It is looked
    for among the maxima of groups, and then in one group.

    Args:
        dy: Gradient of y.
        x: Array of any shape.
        y: Result of max.
        axes: As in max; so is keepdims.

    Returns:
        dx with the shape of x.
    """
    gone = normalize_axes("max_gradient", axes, x.ndim)
    order = gone + tuple(a for a in range(x.ndim) if a not in gone)
    size = tuple(x.shape[a] for a in order)
    count, width = math.prod(size[: len(gone)]), math.prod(size[len(gone) :])
    # Two levels, of groups and of members: masks then have sqrt(n) rows instead of n, and argmax is taken twice.
    members = next(n for n in range(math.isqrt(count), 0, -1) if count % n == 0)
    rows = xp.reshape(xp.permute_dims(x, order), (count // members, members, width))
    group = _largest_in_columns(xp.max(rows, axis=1), xp)  # (width,)
    groups, inside, columns = (arange(n, x, xp, dtype=group.dtype) for n in rows.shape)
    first = group * (members * width) + columns  # where in rows the groups begin
    places = xp.reshape(first + xp.expand_dims(inside * width, axis=1), (-1,))
    candidates = xp.reshape(xp.take(xp.reshape(rows, (-1,)), places, axis=0), (members, width))
    member = _largest_in_columns(candidates, xp)
    to_groups = masked(xp.reshape(dy, (1, width)), xp.expand_dims(groups, axis=1) == group, xp)
    # The gradient goes to the first maximum alone, so that equal ones do not share it.
    here = xp.astype(xp.expand_dims(inside, axis=1) == member, x.dtype)
    dx = xp.reshape(xp.expand_dims(to_groups, axis=1) * here, size)
    return xp.permute_dims(dx, tuple(order.index(a) for a in range(x.ndim)))


def _largest_in_columns(rows: Array, xp: Namespace) -> Array:
    """Index of each column's first largest element; in memory order, as PyTorch is slow along other axes."""
    columns = xp.reshape(xp.permute_dims(rows, (1, 0)), (-1,))
    return xp.argmax(xp.reshape(columns, (rows.shape[1], rows.shape[0])), axis=1)


@max_gradient.gradient
def _(node: Node, gradient: Value) -> list[Value | None]:
    # It is linear in dy, and where the maximum is does not depend on x, as long as there is one.
    dy, x, y = node.inputs
    ones = broadcast_to(dy.program.constant(1.0, dy.dtype), shape=dy.shape)
    picked = gradient * max_gradient(ones, x, y, **node.attrs)
    return [sum(picked, axes=node.attrs["axes"], keepdims=node.attrs["keepdims"]), None, None]


@max_gradient.shape
def _(dy: Spec, x: Spec, y: Spec, *, axes: Axes, keepdims: bool) -> Spec:
    gone = normalize_axes("max_gradient", axes, x.ndim)
    same_dtype("max_gradient", require_float("max_gradient", dy), x, y)
    expected = tuple(1 if a in gone else n for a, n in enumerate(x.shape) if keepdims or a not in gone)
    if not dy.shape == y.shape == expected:
        raise ValueError(
            f"max_gradient takes dy and y of the shape {expected} of a maximum over axes {gone}. Received: {dy} and "
            f"{y}. Give the result of ops.max with the same axes and keepdims."
        )
    return x


@max_gradient.cost
def _(node: Node) -> int:
    return node.inputs[1].size


for _op in (sum, mean, max):
    _reduction(_op)


@primitive
def argmax(x: Array, *, axis: int = -1, xp: Namespace) -> Array:
    """Index of the first maximum along one axis, as int32."""
    return xp.astype(xp.argmax(x, axis=axis), xp.int32)


@argmax.shape
def _(x: Spec, *, axis: int) -> Spec:
    reduced = normalize_axis("argmax", axis, x.ndim)
    return Spec(tuple(n for a, n in enumerate(x.shape) if a != reduced), "int32")


@primitive
def broadcast_to(x: Array, *, shape: tuple[int, ...], xp: Namespace) -> Array:
    """Array x repeated along axes of length 1 (and new leading axes) to the given shape."""
    # An array of its own: a primitive never returns a view of its input.
    return copy_of(xp.broadcast_to(x, shape), xp)


@broadcast_to.shape
def _(x: Spec, *, shape: tuple[int, ...]) -> Spec:
    if broadcast_shape("broadcast_to", x, Spec(shape)) != tuple(shape):
        raise ValueError(
            f"broadcast_to takes a shape that x broadcasts to. Received: {x} and {shape}. Reshape x first."
        )
    return Spec(tuple(shape), x.dtype)


@broadcast_to.gradient
def _(node: Node, dy: Value) -> Value:
    return sum_to_shape(dy, node.inputs[0].shape)


def sum_to_shape(x: Value, shape: tuple[int, ...]) -> Value:
    """Sum of x over the axes along which `shape` was broadcast to x's shape."""
    if x.shape == shape:
        return x
    lead = x.ndim - len(shape)
    axes = tuple(range(lead)) + tuple(a for a, n in enumerate(shape, lead) if n == 1 and x.shape[a] != 1)
    return reshape_to(sum(x, axes=axes) if axes else x, shape)
