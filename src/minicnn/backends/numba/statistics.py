"""Rules for sums, means, maxima and their places."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import groupby
from operator import itemgetter

from minicnn.backends.numba import reduction
from minicnn.backends.numba.elementwise import ElementwiseGroup, Operand
from minicnn.backends.numba.grouping import group_of, operands_of, reads_of
from minicnn.backends.numba.lowering import BLOCKED, PLAIN, Key, Lowering, Rule, blocks_of
from minicnn.backends.numba.operations import BYTES, LANES
from minicnn.backends.numba.widening import stored
from minicnn.ops.checks import normalize_axes
from minicnn.ops.fused import body_specs
from minicnn.program.graph import Node, Spec, Value


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
    channels, is_reduced = math.prod(x.shape[1:]), [a in axes for a in range(1, x.ndim)]
    positions = 1
    if axes != set(range(len(axes))):  # the samples' own axes first
        channels = math.prod(n for n, gone in zip(x.shape[1:], is_reduced, strict=True) if not gone)
        source, items = reduction.over_axes(
            "sum", *_merged((blocks_of(x), *x.shape[1:], LANES), [False, *is_reduced, False])
        )
        sums = to.scratch(node, "sums", channels * BYTES * blocks_of(x))
        to.add(node, source, [to.need(x, BLOCKED)], [sums], items)
        key, dtype = sums, x.dtype
    else:
        key, dtype = to.need(stored(x), BLOCKED), stored(x).dtype
        positions = math.prod(x.shape[1 : len(axes)])
        channels //= positions
    whole = ElementwiseGroup((), (0,), (x.dtype,)), [Operand("lanes", dtype)]
    _sum_batch(to, node, kind, x, whole, [key], positions, channels)


def _axes(to: Lowering, x: Value, y: Value, axes: set[int]) -> tuple[str, list[int], list[bool], bool]:
    """The way of a reduction through x: its form there, lengths of axes, which are reduced; true if y is (N,).

    A blocked value has an axis of 16 lanes behind all others.
    """
    reduced = [a in axes for a in range(x.ndim)]
    if 0 in axes or not to.is_blocked(x):
        return PLAIN, *_merged(x.shape, reduced), False
    return BLOCKED, *_merged((blocks_of(x), *x.shape[1:], LANES), [*reduced, False]), y.ndim == 1


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


def sum_of_terms(to: Lowering, node: Node) -> None:
    """Lower sums over the batch with what makes their terms; see `grouping`."""
    group = group_of(node)
    count = len(node.outputs)  # the sums stand last
    terms = tuple(place for _, (place,), _ in group.steps[-count:])
    shape = body_specs(node.attrs["body"], tuple(v.spec for v in node.inputs))[terms[0]]
    operands = operands_of(to, node.inputs, shape, True) or []
    what, reads = replace(group, steps=group.steps[:-count], outputs=terms), reads_of(to, node, operands)
    _sum_batch(to, node, group.name, shape, (what, operands), reads, math.prod(shape.shape[1:-1]), shape.shape[-1])


def _sum_batch(to: Lowering, node: Node, name: str, x: Value | Spec, what: tuple[ElementwiseGroup, list[Operand]],
               reads: list[Key], positions: int, channels: int) -> None:  # fmt: skip
    """Sums over the batch and positions of what is made of (B, positions, channels, 16)."""
    source = reduction.of_batch(
        *what, samples=x.shape[0], positions=positions, channels=channels, parts=to.threads,
        blocks=blocks_of(x),
    )  # fmt: skip
    divisor = x.size // channels if name.endswith("mean") else 1
    results = [to.buffer(v, PLAIN) for v in node.outputs]
    to.sums(node, source, reads, results, channels, blocks_of(x), divisor=divisor, name=name)


def _argmax(to: Lowering, node: Node) -> None:
    x, y = node.inputs[0], node.outputs[0]
    axis = node.attrs["axis"] % x.ndim
    if to.is_blocked(x) and x.ndim == 2 and axis == 1:
        source = reduction.argmax(samples=x.shape[0], classes=x.shape[1])
        to.add(node, source, [to.need(x, BLOCKED)], [to.buffer(y, PLAIN)])
        return
    source = reduction.argmax_plain(classes=x.shape[axis], inner=math.prod(x.shape[axis + 1 :]), dtype=x.dtype)
    to.add(node, source, [to.need(x, PLAIN)], [to.buffer(y, PLAIN)], math.prod(x.shape[:axis]))


STATISTIC_RULES: dict[str, Rule] = {
    "sum": _reduce,
    "mean": _reduce,
    "max": _reduce,
    "max_gradient": _max_gradient,
    "argmax": _argmax,
}
