"""Rules for each primitive: they add the tasks that compute a node, or refuse it with a NoKernelError."""

from __future__ import annotations

import math

from minicnn.backends.numba import chains, channel_rules, elementwise, loss, movement, random
from minicnn.backends.numba.expanding import expand
from minicnn.backends.numba.general import general
from minicnn.backends.numba.grouping import PACK, POOL, PRODUCT, ROUNDED, SUM, UPDATE, elementwise_group, group, update
from minicnn.backends.numba.images import IMAGE_RULES, pool_and_relu, product, rounded
from minicnn.backends.numba.keeping import fixed_values, fold
from minicnn.backends.numba.lowering import BLOCKED, PLAIN, Lowering, Rule, StoredRows
from minicnn.backends.numba.moving import MOVING_RULES
from minicnn.backends.numba.repeating import repeat_gradients
from minicnn.backends.numba.short import SHORT
from minicnn.backends.numba.statistics import STATISTIC_RULES, sum_of_terms
from minicnn.backends.numba.transforms import transform
from minicnn.backends.numba.widening import widen
from minicnn.program.graph import ITEMSIZE, Node, Program, Value
from minicnn.program.layout import channels_last

_CONVOLUTIONS = ("conv2d", "conv2d_input_gradient", "conv2d_weight_gradient")


def _take(to: Lowering, node: Node) -> None:
    (x, index), y = node.inputs, node.outputs[0]
    checked = index.kind == "input"  # before the step
    if checked and to.is_blocked(y) and x.dtype == "float32":
        _pack(to, node, x, index)
        return
    if checked:
        to.indices.append((index, x.shape[0]))
    nbytes, rows = math.prod(x.shape[1:]) * ITEMSIZE[x.dtype], None if checked else x.shape[0]
    source = movement.gather_rows(nbytes=nbytes, rows=rows)
    to.add(node, source, [to.need(v, PLAIN) for v in node.inputs], [to.buffer(y, PLAIN)], y.shape[0])


def _take_gradient(to: Lowering, node: Node) -> None:
    dy, dx = node.inputs[0], node.outputs[0]
    if dx.dtype != "float32":
        to.refuse(f"kernels add rows of float32, not {dx.dtype}")
    elements = math.prod(dx.shape[1:])
    width = -(-elements // to.threads)
    source = movement.add_rows(count=dy.shape[0], rows=dx.shape[0], elements=elements, width=width)
    to.add(node, source, [to.need(v, PLAIN) for v in node.inputs], [to.buffer(dx, PLAIN)], -(-elements // width))


def _pack(to: Lowering, node: Node, x: Value, index: Value | None, scale: float = 1.0) -> None:
    y = node.outputs[0]
    if index is not None:
        to.indices.append((index, x.shape[0]))

    def make() -> None:
        elements = math.prod(x.shape[1:])
        source = movement.pack(
            samples=y.shape[0], elements=elements, dtype=x.dtype, gathered=index is not None, scale=scale,
            pieces=to.pieces(y, elements),
        )  # fmt: skip
        reads = [to.need(x, PLAIN)] + ([to.need(index, PLAIN)] if index is not None else [])
        to.add(node, source, reads, [to.buffer(y, BLOCKED)])

    to.how[id(node)] = "no work: rows are read where they are"
    to.later(y, make, StoredRows(x, index, scale))


def _pack_bytes(to: Lowering, node: Node) -> None:
    x, *others = node.inputs
    index = others.pop(0) if node.attrs["body"].operations[0].op.name == "take" else None
    _pack(to, node, x, index, *(float(v.data.item()) for v in others if v.data is not None))


def _fused(to: Lowering, node: Node) -> None:
    rules = {
        PACK: _pack_bytes, PRODUCT: product, POOL: pool_and_relu, SUM: sum_of_terms, ROUNDED: rounded,
        UPDATE: channel_rules.updated,
    }  # fmt: skip
    rules.get(node.attrs["body"].name, elementwise_group)(to, node)


def _reshape(to: Lowering, node: Node) -> None:
    x, y = node.inputs[0], node.outputs[0]
    # (B, ..., 16) has the same bytes for any shape of a sample; so has any plain array.
    rows = to.rows(x)
    if rows is not None and to.is_blocked(x) and to.is_blocked(y):
        to.later(y, lambda: to.alias(y, to.need(x, BLOCKED)), rows)
    elif to.is_blocked(x) and to.is_blocked(y):
        to.alias(y, to.need(x, BLOCKED))
    else:
        to.alias(y, to.need(x, PLAIN))
    to.how[id(node)] = "no work"


def _cast(to: Lowering, node: Node) -> None:
    y = node.outputs[0]
    if node.inputs[0].dtype != SHORT and (y.dtype != SHORT or to.is_blocked(y)):
        elementwise_group(to, node)
        return
    to.how[id(node)] = f"no work: {'rounded' if y.dtype == SHORT else 'widened'} where it is read"
    to.later(y, lambda: elementwise_group(to, node))


def _softmax(to: Lowering, node: Node) -> None:
    x, axis = node.inputs[0], node.attrs["axis"] % node.inputs[0].ndim
    outer, inner = math.prod(x.shape[1:axis]), math.prod(x.shape[axis + 1 :])
    source = loss.softmax(classes=x.shape[axis], outer=outer, inner=inner, log=node.op.name == "log_softmax")
    to.add(node, source, [to.need(x, BLOCKED)], [to.buffer(node.outputs[0], BLOCKED)])


def _cross_entropy(to: Lowering, node: Node) -> None:
    *gradient, logits, labels = node.inputs
    if labels.dtype not in ("int32", "uint8"):
        to.refuse(f"kernels take labels in int32 or uint8, not {labels.dtype}")
    make = loss.cross_entropy_gradient if gradient else loss.cross_entropy
    places = math.prod(logits.shape[1:-1])
    vector = PLAIN if logits.ndim == 2 else BLOCKED  # losses (N,) or (N, ...)
    source = make(samples=logits.shape[0], places=places, classes=logits.shape[-1], labels=labels.dtype,
                  vector=vector == PLAIN)  # fmt: skip
    reads = [*(to.need(v, vector) for v in gradient), to.need(logits, BLOCKED), to.need(labels, PLAIN)]
    writes = [to.buffer(node.outputs[0], BLOCKED if gradient else vector)]
    to.add(node, source, reads, writes)


def _random_uniform(to: Lowering, node: Node) -> None:
    y, a = node.outputs[0], node.attrs
    step = to.need(node.inputs[0], PLAIN)
    source = random.uniform(seed=a["seed"], stream=a["stream"], size=y.size)
    to.add(node, source, [step], [to.buffer(y, PLAIN)], -(-y.size // 64))


RULES: dict[str, Rule] = {
    **dict.fromkeys(elementwise.OPERATIONS, elementwise_group),
    "cast": _cast,
    "fused": _fused,
    "take": _take,
    "take_gradient": _take_gradient,
    "reshape": _reshape,
    "softmax": _softmax,
    "log_softmax": _softmax,
    "softmax_cross_entropy": _cross_entropy,
    "softmax_cross_entropy_gradient": _cross_entropy,
    "random_uniform": _random_uniform,
    "affine_transform": transform,
    "affine_transform_gradient": transform,
    **IMAGE_RULES,
    **MOVING_RULES,
    **STATISTIC_RULES,
    **dict.fromkeys(("sgd_update", "momentum_update", "adam_update", "rmsprop_update"), update),
}


def lower(program: Program, threads: int, convolution: str | None = None) -> Lowering:
    """Lower a Program, which is rewritten in place.

    Args:
        program: The Program.
        threads: Threads that share the work.
        convolution: How convolutions are done; see `NumbaBackend`.
    """
    channels_last(program)
    expand(program)
    fold(program)
    widen(program)
    lowering = Lowering(program, threads, convolution)
    lowering.fixed = fixed_values(program)
    lowering.mark()
    lowering.channels_in_lanes = channel_rules.chosen(lowering)
    lowering.threads = channel_rules.threads_of(lowering)
    if not lowering.channels_in_lanes:
        repeat_gradients(lowering)
    group(lowering)
    lowering.mark()
    unrolled = _CONVOLUTIONS if convolution == "unrolled" else ()
    lowering.run(RULES | dict.fromkeys(unrolled, Lowering.unrolled), general)
    chains.chain(lowering)
    return lowering
