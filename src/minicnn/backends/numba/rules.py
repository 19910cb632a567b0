"""How each primitive is lowered. A rule adds tasks, or returns the reason why it cannot."""

from __future__ import annotations

import math

from minicnn.backends.numba import elementwise, loss, movement, random, reduction
from minicnn.backends.numba.grouping import BIASED, SCALED, chain
from minicnn.backends.numba.images import IMAGE_RULES, product
from minicnn.backends.numba.lowering import BLOCKED, PLAIN, Lowering, Rule
from minicnn.backends.numba.optimizing import UPDATE_RULES
from minicnn.backends.numba.statistics import STATISTIC_RULES
from minicnn.program.fusion import only_reader
from minicnn.program.graph import ITEMSIZE, Node, Value

_BYTES = ("uint8", "bool")


def _take(to: Lowering, node: Node) -> str | None:
    x, index = node.inputs
    y = node.outputs[0]
    if index.kind != "input":
        return "only indices that are checked before the step"
    to.indices.append((index, x.shape[0]))
    reader = only_reader(y, to.program)
    if x.dtype == "uint8" and reader is not None and _casts(reader) and to.is_blocked(reader.outputs[0]):
        to.how[id(node)] = "gather (with the cast that follows)"
    elif to.is_blocked(y) and x.dtype == "float32":
        _enter(to, node, x, index)
    else:
        nbytes = math.prod(x.shape[1:]) * ITEMSIZE[x.dtype]
        source = movement.gather_rows(nbytes=nbytes)
        to.add(node, source, [to.need(x, PLAIN), to.need(index, PLAIN)], [to.buffer(y, PLAIN)], y.shape[0])
    return None


def _casts(node: Node) -> bool:
    return node.op.name == "cast" or (node.op.name == "fused" and node.attrs["body"].name == SCALED)


def _enter(to: Lowering, node: Node, x: Value, index: Value | None, scale: float = 1.0) -> None:
    elements = math.prod(x.shape[1:])
    source = movement.enter(
        samples=to.samples, elements=elements, dtype=x.dtype, gathered=index is not None, scale=scale
    )
    reads = [to.need(x, PLAIN)] + ([to.need(index, PLAIN)] if index is not None else [])
    to.add(node, source, reads, [to.buffer(node.outputs[0], BLOCKED)])


def _cast(to: Lowering, node: Node) -> str | None:
    (x,) = node.inputs
    if x.dtype != "uint8" or not to.is_blocked(node.outputs[0]):
        return chain(to, node)
    _enter_bytes(to, node, x, 1.0)
    return None


def _enter_bytes(to: Lowering, node: Node, x: Value, scale: float) -> None:
    taken = x.node is not None and x.node.op.name == "take" and not to.how[id(x.node)].startswith("reference")
    if taken and x.node is not None and "cast" in to.how[id(x.node)]:
        _enter(to, node, x.node.inputs[0], x.node.inputs[1], scale)
    else:
        _enter(to, node, x, None, scale)


def _fused(to: Lowering, node: Node) -> str | None:
    body = node.attrs["body"]
    if body.name == BIASED:
        return product(to, node, body.steps[0], (node.inputs[0], node.inputs[1]), node.inputs[2])
    if body.name == SCALED:
        factor = node.inputs[1].data
        _enter_bytes(to, node, node.inputs[0], 1.0 if factor is None else float(factor.item()))
        return None
    return chain(to, node)


def _reshape(to: Lowering, node: Node) -> str | None:
    x, y = node.inputs[0], node.outputs[0]
    # (B, ..., 16) has the same bytes for any shape of a sample; so has any plain array.
    if to.is_blocked(x) and to.is_blocked(y):
        to.alias(y, to.need(x, BLOCKED))
    elif x.dtype == "bool" and to.form(x) == BLOCKED:
        return "no reshape of samples of bools"
    else:
        to.alias(y, to.need(x, PLAIN))
    to.how[id(node)] = "no work"
    return None


def _softmax(to: Lowering, node: Node) -> str | None:
    x = node.inputs[0]
    if not to.is_blocked(x) or node.attrs["axis"] % x.ndim != x.ndim - 1 or x.ndim != 2:
        return "kernels take the last axis of (N, K)"
    source = loss.softmax(classes=x.shape[1], log=node.op.name == "log_softmax")
    to.add(node, source, [to.need(x, BLOCKED)], [to.buffer(node.outputs[0], BLOCKED)])
    return None


def _cross_entropy(to: Lowering, node: Node) -> str | None:
    *gradient, logits, labels = node.inputs
    if not to.is_blocked(logits) or logits.ndim != 2 or labels.dtype != "int32":
        return "kernels take logits (N, K) and int32 labels"
    make = loss.cross_entropy_gradient if gradient else loss.cross_entropy
    reads = [*(to.need(v, PLAIN) for v in gradient), to.need(logits, BLOCKED), to.need(labels, PLAIN)]
    writes = [to.buffer(node.outputs[0], BLOCKED if gradient else PLAIN)]
    to.add(node, make(samples=to.samples, classes=logits.shape[1]), reads, writes)
    return None


def _random_uniform(to: Lowering, node: Node) -> str | None:
    y, a = node.outputs[0], node.attrs
    step = to.need(node.inputs[0], PLAIN)
    if to.is_blocked(y):
        elements = math.prod(y.shape[1:])
        source = random.uniform_blocked(seed=a["seed"], stream=a["stream"], samples=to.samples, elements=elements)
        to.add(node, source, [step], [to.buffer(y, BLOCKED)])
    else:
        source = random.uniform(seed=a["seed"], stream=a["stream"], size=y.size)
        to.add(node, source, [step], [to.buffer(y, PLAIN)], -(-y.size // 64))
    return None


def _argmax(to: Lowering, node: Node) -> str | None:
    x = node.inputs[0]
    if not to.is_blocked(x) or x.ndim != 2 or node.attrs["axis"] % 2 != 1:
        return "kernels take the last axis of (N, K)"
    source = reduction.argmax(samples=to.samples, classes=x.shape[1])
    to.add(node, source, [to.need(x, BLOCKED)], [to.buffer(node.outputs[0], PLAIN)])
    return None


def _concat(to: Lowering, node: Node) -> str | None:
    y = node.outputs[0]
    axis = node.attrs["axis"] % y.ndim
    if not to.is_blocked(y) or not all(to.is_blocked(v) for v in node.inputs) or axis == 0:
        return "kernels join samples' own axes"
    key, inner = to.buffer(y, BLOCKED), math.prod(y.shape[axis + 1 :])
    outer, every = math.prod(y.shape[1:axis]), math.prod(y.shape[1:])
    start = 0
    for value in node.inputs:
        length = value.shape[axis] * inner
        source = movement.copy(
            (outer, length), (length, 1), (y.shape[axis] * inner, 1), first=(0, start), spans=(outer * length, every)
        )
        to.add(node, source, [to.need(value, BLOCKED)], [key], name="concat")
        start += length
    return None


def _box(to: Lowering, node: Node) -> str | None:
    """slice_ takes a box out of x, pad puts x as a box into its result."""
    x, y = node.inputs[0], node.outputs[0]
    small, large = (y, x) if node.op.name == "slice_" else (x, y)
    offsets = [pair[0] for pair in node.attrs["bounds" if node.op.name == "slice_" else "widths"]]
    if not (to.is_blocked(x) and to.is_blocked(y)):
        return "kernels cut samples, not the batch"
    strides = [elementwise.contiguous(v.shape[1:]) for v in (small, large)]
    sizes, (inner, outer) = elementwise.collapse(small.shape[1:], strides)
    if len(sizes) > 3:
        return "kernels cut along at most three axes"
    first = sum(o * s for o, s in zip(offsets[1:], strides[1], strict=True))
    ends, spans = (0, first), tuple(math.prod(v.shape[1:]) for v in (small, large))
    key = to.buffer(y, BLOCKED)
    if node.op.name == "slice_":
        source = movement.copy(sizes, outer, inner, first=(first, 0), spans=(spans[1], spans[0]))
    else:
        to.add(node, movement.fill(elements=spans[1], value=node.attrs["value"]), [], [key])
        source = movement.copy(sizes, inner, outer, first=ends, spans=(spans[0], spans[1]))
    to.add(node, source, [to.need(x, BLOCKED)], [key], name=node.op.name.rstrip("_"))
    return None


RULES: dict[str, Rule] = {
    **dict.fromkeys(elementwise.OPERATIONS, chain),
    "fused": _fused,
    "take": _take,
    "cast": _cast,
    "reshape": _reshape,
    "softmax": _softmax,
    "log_softmax": _softmax,
    "softmax_cross_entropy": _cross_entropy,
    "softmax_cross_entropy_gradient": _cross_entropy,
    "random_uniform": _random_uniform,
    "argmax": _argmax,
    "concat": _concat,
    "slice_": _box,
    "pad": _box,
    **IMAGE_RULES,
    **STATISTIC_RULES,
    **UPDATE_RULES,
}
