"""Rules for sums, means, maxima and batch normalisation."""

from __future__ import annotations

import math

from minicnn.backends.numba import elementwise, reduction
from minicnn.backends.numba.elementwise import Group, Operand, Steps, splat
from minicnn.backends.numba.lowering import BLOCKED, PLAIN, Key, Lowering, Rule
from minicnn.program.graph import Node, Value


def _reduce(to: Lowering, node: Node) -> str | None:
    x, y = node.inputs[0], node.outputs[0]
    given = node.attrs["axes"]
    axes = (
        set(range(x.ndim)) if given is None else {a % x.ndim for a in ((given,) if isinstance(given, int) else given)}
    )
    if not to.is_blocked(x):
        if len(axes) < x.ndim or x.dtype != "float32" or not x.size:
            return "kernels reduce all axes of arrays without samples"
        source = reduction.of_all(node.op.name, x.size)
        to.add(node, source, [to.need(x, PLAIN)], [to.buffer(y, PLAIN)], 1)
        return None
    if 0 in axes:
        if axes != set(range(len(axes))) or node.op.name == "max":
            return "kernels sum over the batch and all axes up to the last that are summed"
        _sum_batch(to, node, x, math.prod(x.shape[1 : len(axes)]), math.prod(x.shape[len(axes) :]))
        return None
    reduced = [a in axes for a in range(1, x.ndim)]
    vector = y.ndim == 1
    if not vector and not to.is_blocked(y):
        return "the result has no batch axis"
    sizes, kinds = _merged(x.shape[1:], reduced)
    source = reduction.of_samples(node.op.name, sizes, kinds, samples=to.samples, vector=vector)
    to.add(node, source, [to.need(x, BLOCKED)], [to.buffer(y, PLAIN if vector else BLOCKED)])
    return None


def _merged(shape: tuple[int, ...], reduced: list[bool]) -> tuple[list[int], list[bool]]:
    """Neighbouring axes of one kind as one."""
    sizes: list[int] = []
    kinds: list[bool] = []
    for n, kind in zip(shape, reduced, strict=True):
        if kinds and kinds[-1] == kind:
            sizes[-1] *= n
        else:
            sizes.append(n)
            kinds.append(kind)
    return sizes, kinds


def _sum_batch(to: Lowering, node: Node, x: Value, positions: int, channels: int) -> None:
    y = node.outputs[0]
    parts = to.parts(node, "parts", channels)
    source = reduction.of_batch(
        "sum", samples=to.samples, positions=positions, channels=channels, parts=to.threads, blocks=to.blocks
    )
    to.add(node, source, [to.clean(x)], [parts], to.threads, name=node.op.name)
    divisor = to.samples * positions if node.op.name == "mean" else 1
    to.join(node, to.buffer(y, PLAIN), channels, parts, divisor=divisor)


def _of_channels(to: Lowering, node: Node, x: Value, scale: Value) -> str | None:
    if not to.is_blocked(x) or {a % x.ndim for a in node.attrs["axes"]} != set(range(x.ndim - 1)):
        return "kernels normalise over all axes but the last"
    return None if scale.size == x.shape[-1] else "kernels scale each channel"


def _apply(to: Lowering, node: Node, group: Group, image: list[Value], channel: list[Key], result: Value) -> None:
    """Elementwise operations on images and numbers of each channel."""
    axes = result.ndim - 1
    full = elementwise.contiguous(result.shape[1:])
    operands = [Operand("lanes", "float32", full) for _ in image]
    operands += [Operand("one", "float32", (*(0,) * (axes - 1), 1)) for _ in channel]
    spans = [math.prod(result.shape[1:])] * len(operands)
    source = elementwise.blocked(group, operands, result.shape[1:], spans)
    reads = [*(to.need(v, BLOCKED) for v in image), *channel]
    to.add(node, source, reads, [to.buffer(result, BLOCKED)], name=node.op.name)


def _normalize(to: Lowering, node: Node) -> str | None:
    x, scale, offset = node.inputs
    y, mean, variance = node.outputs
    reason = _of_channels(to, node, x, scale)
    if reason:
        return reason
    c = x.shape[-1]
    sizes = {"samples": to.samples, "positions": math.prod(x.shape[1:-1]), "channels": c}
    count = to.samples * sizes["positions"]
    means, variances = to.buffer(mean, PLAIN), to.buffer(variance, PLAIN)
    parts = to.parts(node, "parts", c)
    image = to.clean(x)
    for kind, reads, made in (("sum", [image], means), ("square", [image, means], variances)):
        source = reduction.of_batch(kind, **sizes, parts=to.threads, blocks=to.blocks)
        to.add(node, source, reads, [parts], to.threads)
        to.join(node, made, c, parts, divisor=count)
    factor = to.scratch(node, "factor", 4 * c)
    line = f"factor = vdiv(scale, vsqrt(vadd(variance, {splat(node.attrs['epsilon'])})))"
    source = elementwise.formula("normalize", [line], ["scale", "variance"], [], ["factor"], c)
    to.add(node, source, [to.need(scale, PLAIN), variances], [factor], elementwise.items(c))
    # (x - mean) * factor + offset
    steps: Steps = (("subtract", (0, 1), {}), ("multiply", (4, 2), {}), ("add", (5, 3), {}))
    _apply(to, node, Group(steps, (6,), ("float32",) * 7), [x], [means, factor, to.need(offset, PLAIN)], y)
    return None


def _normalize_gradient(to: Lowering, node: Node) -> str | None:
    dy, x, scale, mean, variance = node.inputs
    dx, dscale, doffset = node.outputs
    reason = _of_channels(to, node, x, scale)
    if reason or not to.is_blocked(dy):
        return reason or "the gradient has no batch axis"
    c = x.shape[-1]
    positions = math.prod(x.shape[1:-1])
    means, shifts = to.need(mean, PLAIN), to.buffer(doffset, PLAIN)
    parts, more = to.parts(node, "parts", c), to.parts(node, "parts2", c)
    source = reduction.of_batch(
        "gradient", samples=to.samples, positions=positions, channels=c, parts=to.threads, blocks=to.blocks
    )
    to.add(node, source, [to.clean(dy), to.clean(x), means], [parts, more], to.threads)
    to.join(node, shifts, c, parts)
    products = to.scratch(node, "products", 4 * c)
    to.join(node, products, c, more)
    # dx = (dy - sum(dy) / M - (x - mean) * inverse^2 * sum(dy * (x - mean)) / M) * scale * inverse
    a, b, d = (to.scratch(node, name, 4 * c) for name in ("a", "b", "d"))
    share = splat(1.0 / (to.samples * positions))
    lines = [
        f"inverse = vdiv(splat(float32(1)), vsqrt(vadd(variance, {splat(node.attrs['epsilon'])})))",
        "dscale = vmul(products, inverse)",
        "a = vmul(scale, inverse)",
        f"b = vmul(a, vmul(shifts, {share}))",
        f"d = vmul(a, vmul(inverse, vmul(dscale, {share})))",
    ]
    inputs = ["variance", "scale", "shifts", "products"]
    source = elementwise.formula("normalize_gradient", lines, inputs, [], ["dscale", "a", "b", "d"], c)
    reads = [to.need(variance, PLAIN), to.need(scale, PLAIN), shifts, products]
    to.add(node, source, reads, [to.buffer(dscale, PLAIN), a, b, d], elementwise.items(c))
    # Places: 0 dy, 1 x, 2 mean, 3 a, 4 b, 5 d, then results.
    steps: Steps = (
        ("subtract", (1, 2), {}), ("multiply", (6, 5), {}), ("multiply", (0, 3), {}), ("subtract", (8, 4), {}),
        ("subtract", (9, 7), {}),
    )  # fmt: skip
    _apply(to, node, Group(steps, (10,), ("float32",) * 11), [dy, x], [means, a, b, d], dx)
    return None


STATISTIC_RULES: dict[str, Rule] = {
    "sum": _reduce,
    "mean": _reduce,
    "max": _reduce,
    "normalize": _normalize,
    "normalize_gradient": _normalize_gradient,
}
