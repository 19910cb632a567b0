"""Rules for sums, means, maxima, their places, and batch normalisation."""

from __future__ import annotations

import math
from functools import partial
from itertools import groupby
from operator import itemgetter

from minicnn.backends._strides import row_major
from minicnn.backends.numba import elementwise, reduction
from minicnn.backends.numba.elementwise import Group, Operand, Steps
from minicnn.backends.numba.lowering import BLOCKED, PLAIN, Key, Lowering, Rule, blocks_of
from minicnn.backends.numba.vector import BYTES, LANES
from minicnn.ops.checks import normalize_axes
from minicnn.program.graph import Node, Value


def _reduce(to: Lowering, node: Node) -> None:
    x, y = node.inputs[0], node.outputs[0]
    if x.dtype != "float32":
        to.refuse(f"kernels reduce float32, not {x.dtype}")
    kind = node.op.name
    axes = set(normalize_axes(kind, node.attrs["axes"], x.ndim))
    if 0 not in axes or kind == "max" or not to.is_blocked(x):
        form, sizes, reduced, vector = _axes(to, x, y, axes)
        source, items = reduction.over_axes(kind, sizes, reduced, x.shape[0] if vector else None)
        to.add(node, source, [to.need(x, form)], [to.buffer(y, PLAIN if vector else form)], items)
        return
    key, channels, own = to.clean(x), math.prod(x.shape[1:]), [a in axes for a in range(1, x.ndim)]
    positions = 1
    if axes != set(range(len(axes))):  # the samples' own axes first
        channels = math.prod(n for n, gone in zip(x.shape[1:], own, strict=True) if not gone)
        source, items = reduction.over_axes("sum", *_merged((blocks_of(x), *x.shape[1:], LANES), [False, *own, False]))
        sums = to.scratch(node, "sums", channels * BYTES * blocks_of(x))
        to.add(node, source, [key], [sums], items)
        key = sums
    else:
        positions = math.prod(x.shape[1 : len(axes)])
        channels //= positions
    _sum_batch(to, node, key, positions, channels, divisor=x.size // channels if kind == "mean" else 1)


def _axes(to: Lowering, x: Value, y: Value, axes: set[int]) -> tuple[str, list[int], list[bool], bool]:
    """How a reduction of x to y goes through x: its form there, lengths of axes, which are reduced; whether y is (N,).

    A blocked value has an axis of 16 lanes behind all others.
    """
    own = [a in axes for a in range(x.ndim)]
    if 0 in axes or not to.is_blocked(x):
        return PLAIN, *_merged(x.shape, own), False
    return BLOCKED, *_merged((blocks_of(x), *x.shape[1:], LANES), [*own, False]), y.ndim == 1


def _max_gradient(to: Lowering, node: Node) -> None:
    dy, x, y = node.inputs
    if x.dtype != "float32":
        to.refuse(f"kernels reduce float32, not {x.dtype}")
    axes = set(normalize_axes("max_gradient", node.attrs["axes"], x.ndim))
    form, sizes, reduced, vector = _axes(to, x, y, axes)
    source, items = reduction.max_gradient(sizes, reduced, x.shape[0] if vector else None)
    small = PLAIN if vector else form
    reads = [to.need(dy, small), to.need(x, form), to.need(y, small)]
    to.add(node, source, reads, [to.buffer(node.outputs[0], form)], items)


def _merged(shape: tuple[int, ...], reduced: list[bool]) -> tuple[list[int], list[bool]]:
    """Neighbouring axes of one kind as one."""
    runs = [(kind, [n for n, _ in run]) for kind, run in groupby(zip(shape, reduced, strict=True), itemgetter(1))]
    return [math.prod(run) for _, run in runs], [kind for kind, _ in runs]


def _sum_batch(to: Lowering, node: Node, key: Key, positions: int, channels: int, *, divisor: int) -> None:
    """Sums over the batch and positions of (B, positions, channels, 16)."""
    x, y = node.inputs[0], node.outputs[0]
    source = reduction.of_batch(
        "sum", samples=x.shape[0], positions=positions, channels=channels, parts=to.threads, blocks=blocks_of(x)
    )
    to.sums(node, source, [key], to.buffer(y, PLAIN), channels, divisor=divisor, name=node.op.name)


def _argmax(to: Lowering, node: Node) -> None:
    x, y = node.inputs[0], node.outputs[0]
    axis = node.attrs["axis"] % x.ndim
    if to.is_blocked(x) and x.ndim == 2 and axis == 1:
        source = reduction.argmax(samples=x.shape[0], classes=x.shape[1])
        to.add(node, source, [to.need(x, BLOCKED)], [to.buffer(y, PLAIN)])
        return
    source = reduction.argmax_plain(classes=x.shape[axis], inner=math.prod(x.shape[axis + 1 :]), dtype=x.dtype)
    to.add(node, source, [to.need(x, PLAIN)], [to.buffer(y, PLAIN)], math.prod(x.shape[:axis]))


def _apply(
    to: Lowering, node: Node, name: str, group: Group, image: list[Value], channel: list[Key], result: Value
) -> None:
    """Elementwise operations on images and numbers of each channel."""
    axes = result.ndim - 1
    full = row_major(result.shape[1:])
    operands = [Operand("lanes", "float32", full) for _ in image]
    operands += [Operand("one", "float32", (*(0,) * (axes - 1), 1)) for _ in channel]
    spans = [math.prod(result.shape[1:])] * len(operands)
    source = elementwise.blocked(group, operands, result.shape[1:], spans, partial(to.pieces, result))
    reads = [*(to.need(v, BLOCKED) for v in image), *channel]
    to.add(node, source, reads, [to.buffer(result, BLOCKED)], blocks_of(result) * source.pieces, name=name)


def _of_channels(to: Lowering, node: Node, steps: Steps, outputs: tuple[int, ...], reads: list[Key],
                 constants: list[float], writes: list[Key], channels: int) -> None:  # fmt: skip
    """Elementwise operations on arrays with a number for each channel, and on constants."""
    operands = [Operand("many", strides=(1,)) for _ in reads] + [Operand("constant", value=c) for c in constants]
    group = Group(steps, outputs, ("float32",) * (len(operands) + len(steps)))
    source, items = elementwise.plain(group, operands, (channels,))
    to.add(node, source, reads, writes, items)


def normalize(to: Lowering, node: Node, activation: str = "") -> None:
    """Lower a batch normalisation, with an activation at its end."""
    x, scale, offset = node.inputs
    attrs, made = node.attrs, dict(enumerate(node.outputs))
    if activation:
        body = node.attrs["body"]  # places: 0 to 2 the inputs, 3 the normalised image, 4 and 5 mean and variance, 6
        attrs, places = body.steps[0].attrs, {6: 0, 4: 1, 5: 2}
        made = {places[p]: v for p, v in zip(body.outputs, node.outputs, strict=True)}
    y, mean, variance = (made.get(i) for i in range(3))
    if y is None:
        to.refuse("nobody reads the image")
    c = x.shape[-1]
    sizes = {"samples": x.shape[0], "positions": math.prod(x.shape[1:-1]), "channels": c}
    pixels = x.shape[0] * sizes["positions"]
    means, variances = (
        to.scratch(node, name, 4 * c) if value is None else to.buffer(value, PLAIN)
        for name, value in (("mean", mean), ("variance", variance))
    )
    image = to.clean(x)
    for kind, reads, key in (("sum", [image], means), ("square", [image, means], variances)):
        source = reduction.of_batch(kind, **sizes, parts=to.threads, blocks=blocks_of(x))
        to.sums(node, source, reads, key, c, divisor=pixels)
    factor = to.scratch(node, "factor", 4 * c)
    steps: Steps = (("add", (1, 2), {}), ("sqrt", (3,), {}), ("divide", (0, 4), {}))
    reads = [to.need(scale, PLAIN), variances]
    _of_channels(to, node, steps, (5,), reads, [attrs["epsilon"]], [factor], c)
    # (x - mean) * factor + offset
    steps = (("subtract", (0, 1), {}), ("multiply", (4, 2), {}), ("add", (5, 3), {}))
    if activation:
        steps = (*steps, (activation, (6,), {}))
    count = len(steps) + 4
    group = Group(steps, (count - 1,), ("float32",) * count)
    name = f"normalize + {activation}" if activation else "normalize"
    _apply(to, node, name, group, [x], [means, factor, to.need(offset, PLAIN)], y)


def _normalize_gradient(to: Lowering, node: Node) -> None:
    dy, x, scale, mean, variance = node.inputs
    dx, dscale, doffset = node.outputs
    c = x.shape[-1]
    positions = math.prod(x.shape[1:-1])
    means, shifts = to.need(mean, PLAIN), to.buffer(doffset, PLAIN)
    parts, more = to.parts(node, "parts", c), to.parts(node, "parts2", c)
    source = reduction.of_batch(
        "gradient", samples=x.shape[0], positions=positions, channels=c, parts=to.threads, blocks=blocks_of(x)
    )
    to.add(node, source, [to.clean(dy), to.clean(x), means], [parts, more], to.threads)
    to.join(node, shifts, c, parts)
    products = to.scratch(node, "products", 4 * c)
    to.join(node, products, c, more)
    # dx = (dy - sum(dy) / M - (x - mean) * inverse^2 * sum(dy * (x - mean)) / M) * scale * inverse
    a, b, d = (to.scratch(node, name, 4 * c) for name in ("a", "b", "d"))
    # Places: 0 variance, 1 scale, 2 and 3 sums of dy and of dy * (x - mean), 4 epsilon, 5 1 / M, 6 1, then results.
    steps: Steps = (
        ("add", (0, 4), {}), ("sqrt", (7,), {}), ("divide", (6, 8), {}),  # 9: inverse
        ("multiply", (3, 9), {}), ("multiply", (1, 9), {}),  # 10: dscale, 11: a
        ("multiply", (2, 5), {}), ("multiply", (11, 12), {}),  # 13: b
        ("multiply", (10, 5), {}), ("multiply", (9, 14), {}), ("multiply", (11, 15), {}),  # 16: d
    )  # fmt: skip
    reads = [to.need(variance, PLAIN), to.need(scale, PLAIN), shifts, products]
    constants = [node.attrs["epsilon"], 1.0 / (x.shape[0] * positions), 1.0]
    _of_channels(to, node, steps, (10, 11, 13, 16), reads, constants, [to.buffer(dscale, PLAIN), a, b, d], c)
    # Places: 0 dy, 1 x, 2 mean, 3 a, 4 b, 5 d, then results.
    steps = (
        ("subtract", (1, 2), {}), ("multiply", (6, 5), {}), ("multiply", (0, 3), {}), ("subtract", (8, 4), {}),
        ("subtract", (9, 7), {}),
    )  # fmt: skip
    _apply(to, node, node.op.name, Group(steps, (10,), ("float32",) * 11), [dy, x], [means, a, b, d], dx)


STATISTIC_RULES: dict[str, Rule] = {
    "sum": _reduce,
    "mean": _reduce,
    "max": _reduce,
    "max_gradient": _max_gradient,
    "argmax": _argmax,
    "normalize": normalize,
    "normalize_gradient": _normalize_gradient,
}
