"""Reshape, reorder, cut, join and look up arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minicnn.arguments import plain
from minicnn.ops.arrays import arange, copy_of, extend, zeros
from minicnn.ops.checks import normalize_axis, same_dtype
from minicnn.ops.primitive import Array, Cost, Namespace, primitive
from minicnn.ops.reduction import sum
from minicnn.ops.shapes import reshape
from minicnn.program.graph import Node, Spec, Value

Pairs = tuple[tuple[int, int], ...]


@primitive
def permute(x: Array, *, axes: tuple[int, ...], xp: Namespace) -> Array:
    """Axes reordered: axis i of the result is axis `axes[i]` of x."""
    return copy_of(xp.permute_dims(x, axes), xp)


@permute.shape
def _(x: Spec, *, axes: tuple[int, ...]) -> Spec:
    if sorted(axes) != list(range(x.ndim)):
        raise ValueError(f"permute takes each axis of x once. Received: {x} and axes {tuple(axes)}.")
    return Spec(tuple(x.shape[a] for a in axes), x.dtype)


@permute.gradient
def _(node: Node, dy: Value) -> Value:
    axes = node.attrs["axes"]
    return permute(dy, axes=tuple(axes.index(i) for i in range(len(axes))))


@primitive
def concat(*arrays: Array, axis: int = -1, xp: Namespace) -> Array:
    """Arrays joined along one axis."""
    return xp.concat(arrays, axis=axis)


@concat.shape
def _(*specs: Spec, axis: int) -> Spec:
    first = specs[0]
    joined = normalize_axis("concat", axis, first.ndim)
    others = {tuple(n for a, n in enumerate(s.shape) if a != joined) for s in specs}
    if len(others) != 1 or any(s.ndim != first.ndim for s in specs):
        raise ValueError(
            f"concat takes arrays whose shapes are equal but for axis {joined}. Received: {', '.join(map(str, specs))}."
        )
    length = 0
    for s in specs:
        length += s.shape[joined]
    return Spec((*first.shape[:joined], length, *first.shape[joined + 1 :]), same_dtype("concat", *specs))


@concat.gradient
def _(node: Node, dy: Value) -> list[Value]:
    axis = normalize_axis("concat", node.attrs["axis"], dy.ndim)
    gradients, start = [], 0
    for value in node.inputs:
        stop = start + value.shape[axis]
        bounds = tuple((start, stop) if a == axis else (0, n) for a, n in enumerate(dy.shape))
        gradients.append(slice_(dy, bounds=bounds))
        start = stop
    return gradients


def total(scalars: Sequence[Value]) -> Value:
    """Sum of scalars in one addition: in a chain of them, each of which may be a launch, one would wait for another."""
    if len(scalars) == 1:
        return scalars[0]
    return sum(concat(*(reshape(x, shape=(1,)) for x in scalars), axis=0))


@primitive
def slice_(x: Array, *, bounds: Pairs, xp: Namespace) -> Array:
    """The box of x that starts and stops at `bounds[axis]` along each axis."""
    return copy_of(x[tuple(slice(a, b) for a, b in bounds)], xp)


@slice_.shape
def _(x: Spec, *, bounds: Pairs) -> Spec:
    if len(bounds) != x.ndim or any(not 0 <= a <= b <= n for (a, b), n in zip(bounds, x.shape, strict=False)):
        raise ValueError(
            f"slice_ takes (start, stop) for each axis, within its length. Received: {x} and bounds {bounds}."
        )
    return Spec(tuple(b - a for a, b in bounds), x.dtype)


@slice_.gradient
def _(node: Node, dy: Value) -> Value:
    x = node.inputs[0]
    return pad(dy, widths=tuple((a, n - b) for (a, b), n in zip(node.attrs["bounds"], x.shape, strict=True)))


def getitem(x: Value, key: Any) -> Value:
    """Static indexing: integers, slices with step 1 and an ellipsis."""
    keys = [plain(k) for k in (key if isinstance(key, tuple) else (key,))]
    if any(not isinstance(k, int | slice | type(...)) for k in keys) or keys.count(...) > 1:
        raise TypeError(
            f"A Value is indexed with integers, slices with step 1 and at most one ellipsis. Received: {key!r}."
        )
    if ... not in keys:
        keys.append(...)
    at = keys.index(...)
    keys[at : at + 1] = [slice(None)] * (x.ndim - len(keys) + 1)
    if len(keys) != x.ndim:
        raise IndexError(f"An index has at most one entry an axis. Received: {key!r} for {x.spec}.")
    bounds, shape = [], []
    for k, n in zip(keys, x.shape, strict=True):
        if isinstance(k, int):
            if not -n <= k < n:
                raise IndexError(f"An index lies within its axis. Received: {k} for an axis of length {n} of {x.spec}.")
            bounds.append((k % n, k % n + 1))
            continue
        start, stop, step = k.indices(n)
        if step != 1:
            raise IndexError(f"Slices of a Value have step 1. Received: {k}.")
        bounds.append((start, max(start, stop)))
        shape.append(bounds[-1][1] - start)
    y = slice_(x, bounds=tuple(bounds))
    return y if y.shape == tuple(shape) else reshape(y, shape=tuple(shape))


@primitive
def pad(x: Array, *, widths: Pairs, value: float = 0.0, xp: Namespace) -> Array:
    """Array x framed by `widths[axis]` = (before, after) elements of a constant value along each axis."""
    y = x
    for axis, (before, after) in enumerate(widths):
        y = extend(y, axis, before, after, xp, value)
    return copy_of(x, xp) if y is x else y


@pad.shape
def _(x: Spec, *, widths: Pairs, value: float) -> Spec:
    if len(widths) != x.ndim or any(a < 0 or b < 0 for a, b in widths):
        raise ValueError(f"pad takes (before, after) >= 0 for each axis. Received: {x} and widths {widths}.")
    return Spec(tuple(a + n + b for n, (a, b) in zip(x.shape, widths, strict=True)), x.dtype)


@pad.gradient
def _(node: Node, dy: Value) -> Value:
    x = node.inputs[0]
    return slice_(dy, bounds=tuple((a, a + n) for n, (a, _) in zip(x.shape, node.attrs["widths"], strict=True)))


@primitive
def repeat(x: Array, *, repeats: int, axis: int, xp: Namespace) -> Array:
    """Each element repeated `repeats` times along one axis."""
    return xp.repeat(x, repeats, axis=axis)


@repeat.shape
def _(x: Spec, *, repeats: int, axis: int) -> Spec:
    at = normalize_axis("repeat", axis, x.ndim)
    if repeats < 1:
        raise ValueError(f"repeat takes a count of at least 1. Received: {repeats}.")
    return Spec(tuple(n * repeats if a == at else n for a, n in enumerate(x.shape)), x.dtype)


@repeat.gradient
def _(node: Node, dy: Value) -> Value:
    axis = normalize_axis("repeat", node.attrs["axis"], dy.ndim)
    shape = node.inputs[0].shape
    # (..., n * repeats, ...) -> (..., n, repeats, ...) -> (..., n, ...)
    split = (*shape[: axis + 1], node.attrs["repeats"], *shape[axis + 1 :])
    return sum(reshape(dy, shape=split), axes=axis + 1)


@primitive
def take(x: Array, index: Array, *, xp: Namespace) -> Array:
    """Rows of x along the first axis, by an int32 index array: the gather of a batch.

    Raises:
        IndexError: From the array library, if an index is outside and the library checks.
    """
    return xp.take(x, index, axis=0)


@take.shape
def _(x: Spec, index: Spec) -> Spec:
    if index.ndim != 1 or index.dtype != "int32":
        raise ValueError(f"take gathers rows by an int32 index with one axis. Received: {index}.")
    return Spec((index.shape[0], *x.shape[1:]), x.dtype)


@take.cost
def _(node: Node) -> Cost:
    index, y = node.inputs[1], node.outputs[0]
    return Cost(0, index.nbytes + 2 * y.nbytes)  # only the rows taken are read


@take.gradient
def _(node: Node, dy: Value) -> list[Value | None]:
    x, index = node.inputs
    return [take_gradient(dy, index, rows=x.shape[0]), None]


@primitive
def take_gradient(dy: Array, index: Array, *, rows: int, xp: Namespace) -> Array:
    """Gradient of `take`: row i is the sum of the rows of dy whose index is i.

    Rows are sorted by their index, in their order where it is equal, and those of one index are summed by a segmented
    scan (W. D. Hillis, G. L. Steele, Data parallel algorithms, doi:10.1145/7902.7903): in log2(n) steps, in an order
    that depends on the index alone.
    """
    n = index.shape[0]
    if n == 0:
        return zeros((rows, *dy.shape[1:]), dy, xp)
    # Rows of equal index lie together, in their own order: sums are the same every time.
    order = xp.argsort(index, stable=True)
    at = xp.take(index, order, axis=0)
    y = xp.take(dy, order, axis=0)
    ones = (1,) * (dy.ndim - 1)
    zero = zeros((1,) * dy.ndim, dy, xp)
    distance = 1
    # A segmented scan: after k rounds each row has added up to 2^k rows of its index, in log(n) operations.
    while distance < n:
        same = xp.reshape(at[distance:] == at[:-distance], (n - distance, *ones))
        y = xp.concat([y[:distance, ...], y[distance:, ...] + xp.where(same, y[:-distance, ...], zero)], axis=0)
        distance *= 2
    every = arange(rows, index, xp)
    last = xp.searchsorted(at, every, side="right") - 1  # where the sum of the row is, if it has one
    last = xp.where(last < 0, zeros((1,), last, xp), last)
    there = xp.reshape(xp.take(at, last, axis=0) == every, (rows, *ones))
    return xp.where(there, xp.take(y, last, axis=0), zero)


@take_gradient.shape
def _(dy: Spec, index: Spec, *, rows: int) -> Spec:
    if index.ndim != 1 or index.dtype != "int32" or dy.shape[:1] != index.shape:
        raise ValueError(f"take_gradient takes a row for each entry of an int32 index. Received: {dy} and {index}.")
    return Spec((rows, *dy.shape[1:]), dy.dtype)


@take_gradient.gradient
def _(node: Node, dx: Value) -> list[Value | None]:
    return [take(dx, node.inputs[1]), None]


@take_gradient.cost
def _(node: Node) -> Cost:
    dy, index = node.inputs
    x = node.outputs[0]
    return Cost(dy.size, dy.nbytes + index.nbytes + x.nbytes, 2 * dy.nbytes)


@primitive
def one_hot(labels: Array, *, classes: int, dtype: str = "float32", xp: Namespace) -> Array:
    """1 at each label along a new last axis of length `classes`, 0 elsewhere."""
    # Class numbers may not fit the labels' type: uint8 has no 300.
    labels = xp.astype(labels, xp.int32)
    hits = xp.expand_dims(labels, axis=-1) == arange(classes, labels, xp)
    return xp.astype(hits, getattr(xp, dtype))


@one_hot.shape
def _(labels: Spec, *, classes: int, dtype: str) -> Spec:
    if "int" not in labels.dtype:
        raise TypeError(
            f"one_hot takes integer labels. Received: {labels}. Convert first with ops.cast(x, dtype='int32')."
        )
    return Spec((*labels.shape, classes), dtype)
