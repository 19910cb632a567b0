"""Rules for what only moves elements: other orders of axes, cuts, frames, joins, repeats, one-hot rows."""

from __future__ import annotations

from collections.abc import Sequence

from minicnn.backends.numba import movement
from minicnn.backends.numba.elementwise import ElementwiseGroup, Operand
from minicnn.backends.numba.grouping import run
from minicnn.backends.numba.lowering import BLOCKED, PLAIN, Key, Lowering, Rule, blocks_of
from minicnn.backends.numba.short import bytes_of
from minicnn.kernels.strides import collapse, row_major
from minicnn.program.graph import ITEMSIZE, Node, Value


def _form(to: Lowering, node: Node, *, along: int | None = None) -> str:
    """Blocked if all values are and the first axis stays as it is."""
    whole = all(to.is_blocked(v) for v in (*node.inputs, *node.outputs))
    return BLOCKED if whole and along != 0 else PLAIN


def _sizes(value: Value, form: str) -> tuple[int, ...]:
    return (blocks_of(value), *value.shape[1:]) if form == BLOCKED else value.shape


def _copy(to: Lowering, node: Node, value: Value, key: Key, form: str, shape: Sequence[int], source: Sequence[int],
          target: Sequence[int], first: tuple[int, int] = (0, 0)) -> None:  # fmt: skip
    """Copy a box of a value into a buffer; strides are in elements, in vectors of blocked values."""
    # The first axis is shared between threads, so it is kept apart from the others.
    sizes, (inner, outer) = collapse(shape[1:], [source[1:], target[1:]])
    nbytes = bytes_of(value.dtype) if form == BLOCKED else ITEMSIZE[value.dtype]
    box = (shape[:1] or [1], source[:1] or [0], target[:1] or [0])
    code = movement.copy((*box[0], *sizes), (*box[1], *inner), (*box[2], *outer), first, nbytes=nbytes)
    to.add(node, code, [to.need(value, form)], [key], box[0][0], name=node.op.name.rstrip("_"))


def _permute(to: Lowering, node: Node) -> None:
    x, y, axes = node.inputs[0], node.outputs[0], node.attrs["axes"]
    form = _form(to, node, along=None if not axes or axes[0] == 0 else 0)
    source, shape = row_major(_sizes(x, form)), _sizes(y, form)
    _copy(to, node, x, to.buffer(y, form), form, shape, [source[a] for a in axes], row_major(shape))


def _concat(to: Lowering, node: Node) -> None:
    y = node.outputs[0]
    axis = node.attrs["axis"] % y.ndim
    form = _form(to, node, along=axis)
    key, target, start = to.buffer(y, form), row_major(_sizes(y, form)), 0
    for value in node.inputs:
        shape = _sizes(value, form)
        _copy(to, node, value, key, form, shape, row_major(shape), target, (0, start * target[axis]))
        start += value.shape[axis]


def _slice(to: Lowering, node: Node) -> None:
    x, y = node.inputs[0], node.outputs[0]
    form = _form(to, node)
    source, shape = row_major(_sizes(x, form)), _sizes(y, form)
    first = _offset([start for start, _ in node.attrs["bounds"]], source)
    _copy(to, node, x, to.buffer(y, form), form, shape, source, row_major(shape), (first, 0))


def _pad(to: Lowering, node: Node) -> None:
    x, y, value = node.inputs[0], node.outputs[0], node.attrs["value"]
    form = _form(to, node)
    group = ElementwiseGroup((("broadcast_to", (0,), {"shape": y.shape}),), (1,), (y.dtype, y.dtype))
    run(to, node, group, [Operand("constant", y.dtype, value=value)], form == BLOCKED)
    key, shape, target = to.buffer(y, form), _sizes(x, form), row_major(_sizes(y, form))
    first = _offset([before for before, _ in node.attrs["widths"]], target)
    _copy(to, node, x, key, form, shape, row_major(shape), target, (0, first))


def _offset(starts: Sequence[int], strides: Sequence[int]) -> int:
    return sum(a * s for a, s in zip(starts, strides, strict=True))


def _repeat(to: Lowering, node: Node) -> None:
    x, y, times = node.inputs[0], node.outputs[0], node.attrs["repeats"]
    axis = node.attrs["axis"] % x.ndim
    form = _form(to, node, along=axis)
    sizes, source, target = _sizes(x, form), row_major(_sizes(x, form)), row_major(_sizes(y, form))
    shape = (*sizes[: axis + 1], times, *sizes[axis + 1 :])
    # Along the axis of length n * times neighbours of x are `times` apart, their copies 1.
    source = (*source[: axis + 1], 0, *source[axis + 1 :])
    target = (*target[:axis], target[axis] * times, target[axis], *target[axis + 1 :])
    _copy(to, node, x, to.buffer(y, form), form, shape, source, target)


def _one_hot(to: Lowering, node: Node) -> None:
    labels, y = node.inputs[0], node.outputs[0]
    if labels.dtype not in ("int32", "uint8"):
        to.refuse(f"kernels take labels in int32 or uint8, not {labels.dtype}")
    source = movement.one_hot(classes=y.shape[-1], labels=labels.dtype, dtype=y.dtype)
    to.add(node, source, [to.need(labels, PLAIN)], [to.buffer(y, PLAIN)], labels.size)


MOVING_RULES: dict[str, Rule] = {
    "permute": _permute,
    "concat": _concat,
    "slice_": _slice,
    "pad": _pad,
    "repeat": _repeat,
    "one_hot": _one_hot,
}
