"""Passes over the Program of one shard, which put collectives where shards have something in common."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from minicnn import ops
from minicnn.ops.checks import normalize_axes
from minicnn.ops.groups import Group
from minicnn.ops.normalization import in_units
from minicnn.ops.primitive import Array, Namespace, Primitive
from minicnn.program.graph import Node, Program, Spec, Value

Layout = tuple[tuple[str, int], ...]

BUCKET = 8_000_000  # bytes of gradients that are worth a collective of their own, beside the rest of the backward pass
# Bytes, at most, of what is summed last if there is more: it is begun when nothing is left to compute beside.
LAST = 1_000_000
# What a step calls that which its rank has added to sums over ranks: this, the level, and a number.
ADDED = "added "
# What several steps call that which tells whether they were finite: of each step a row, which begins with the loss, and
# then has zero or NaN for each that it calls as above, in their order.
FINITE = "finite"
_REDUCTIONS = ("sum", "mean", "max", "normalize")


@dataclass(frozen=True)
class Shard:
    """One shard of a batch.

    Attributes:
        number: Which.
        count: Of how many.
        start: Its first sample in the batch.
        samples: Its samples.
        batch: Samples of the batch.
        layout: Regular expressions of the paths of kernels that are split between the shards, and how many axes these
            have.
        groups: Groups of shards, in each of which kernels are split.
    """

    number: int
    count: int
    start: int
    samples: int
    batch: int
    layout: Layout = ()
    groups: int = 1

    @property
    def split(self) -> Group:
        """The shards between which kernels are split."""
        count = self.count // self.groups
        return Group(count, self.number % count, count, stride=1) if self.groups > 1 else self.group

    @property
    def alike(self) -> Group:
        """The shards of all groups that have the same columns of kernels."""
        count = self.count // self.groups
        return Group(self.groups, self.number // count, self.groups, stride=count)

    @property
    def group(self) -> Group:
        """The shards, as if each had a process of its own."""
        return Group(self.count, self.number, self.count)


def _refuse(
    x: Array, mean: Array, variance: Array, scale: Array, offset: Array, *, axes: tuple[int, ...], epsilon: float,
    unit: float, each: float, group: Group, xp: Namespace,
) -> Array:  # fmt: skip
    """Normalise by statistics of all shards, which are functions of x in its gradient; written out before it runs."""
    raise NotImplementedError(_refuse.__doc__)


_normalized = Primitive(_refuse)


@_normalized.shape
def _(x: Spec, *_: Spec, **attrs: object) -> Spec:
    return x


@_normalized.gradient
def _(node: Node, dy: Value) -> list[Value | None]:
    """As that of `minicnn.ops.normalize`, whose two sums over all shards go in one message."""
    x, mean, variance, scale, offset = node.inputs
    inverse = (1.0 / node.attrs["unit"]) / ops.sqrt(variance + in_units(node)[1])
    axes, each = node.attrs["axes"], node.attrs["each"]
    # What is read once is computed where it is read, and neither rounded nor stored.
    local = [ops.sum(v, axes=axes, keepdims=True) for v in (dy, dy * ((x - mean) * inverse))]
    # Before the sums: behind them they would be copies.
    of_offset, of_scale = (ops.reshape(v, shape=like.shape) for v, like in zip(local, (offset, scale), strict=True))
    # Terms of means, as a shard makes them with its sums: shards' sums divided by the batch were a launch more.
    of_dy, of_u = ops.all_reduce(*(v * each for v in local), group=node.attrs["group"])
    dx = (dy - of_dy - (x - mean) * inverse * of_u) * (scale * inverse)
    return [dx, None, None, of_scale, of_offset]


def write_out(program: Program) -> None:
    """Put operations that a backend has in the place of normalisations by statistics of all shards."""

    def rule(node: Node) -> Sequence[Value] | None:
        if node.op is not _normalized:
            return None
        x, mean, variance, scale, offset = node.inputs
        small, epsilon = in_units(node)
        return [(x - mean) * (small(scale) / ops.sqrt(variance + epsilon)) + offset]

    program.replace(rule)


def in_common(
    shard: Shard, by_shard: Collection[int] = (), *, short: bool = False
) -> Callable[[Node], Sequence[Value] | None]:
    """The rule by which mean and variance are taken over the samples of all shards wherever they are over the batch.

    Of images that are stored in 16 bits both sums go in one message, that of x and that of its square: what float32
    loses there, some 2^-24 of the squared mean, is less than what storing lost.
    """

    def rule(node: Node) -> Sequence[Value] | None:
        if node.op.name != "normalize" or not {0, -node.inputs[0].ndim} & set(node.attrs["axes"]):
            return None
        # Statistics of a shard alone; only their running means are shared.
        if id(node) in by_shard:
            y, *statistics = node.op(*node.inputs, **node.attrs)
            return y, *(total * (1.0 / shard.count) for total in ops.all_reduce(*statistics, group=shard.group))
        x, scale, offset = node.inputs
        axes, each = node.attrs["axes"], 1.0 / (x.size // node.outputs[1].size * shard.batch // shard.samples)
        small, epsilon = in_units(node)

        def term(value: Value) -> Value:
            """The shard's part of a mean."""
            return ops.sum(value, axes=axes, keepdims=True) * each

        if short and x.ndim == 4:
            mean, squares = ops.all_reduce(term(x), term(ops.square(small(x))), group=shard.group)
            # E[x^2] - E[x]^2 may come out below zero, where sqrt gives NaN.
            variance = ops.maximum(squares - ops.square(small(mean)), 0.0)
        else:
            # Two sums one after the other: squares of x itself would lose digits where the mean is large.
            mean = ops.all_reduce(term(x), group=shard.group)
            variance = ops.all_reduce(term(ops.square(small(x - mean))), group=shard.group)
        over = {a - x.ndim for a in normalize_axes("normalize", axes, x.ndim)}
        alike = all(n == 1 or a - len(scale.shape) not in over for a, n in enumerate(scale.shape))
        if not alike or scale.size != mean.size:
            return (x - mean) * (small(scale) / ops.sqrt(variance + epsilon)) + offset, mean, variance
        about = {"axes": axes, "epsilon": node.attrs["epsilon"], "unit": node.attrs["unit"], "each": each}
        return _normalized(x, mean, variance, scale, offset, **about, group=shard.group), mean, variance

    return rule


def check_samples(
    nodes: Sequence[Node], shard: Shard, name: str | None = None, checked: Collection[int] | None = None
) -> None:
    """Raise a ValueError if layers or a loss reduce over the samples themselves, of which a shard has only some.

    Args:
        nodes: The nodes of the layers, before they have anything in common, or those of the loss.
        shard: The shard.
        name: What the loss is called; None for layers.
        checked: Ids of the nodes that are checked; None for all.
    """
    if shard.count == 1:
        return
    dependent: set[int] = set()  # ids of Values that depend on samples
    for node in nodes:
        kinds = {v.kind for v in node.inputs if v.node is None}
        if name is not None or "input" in kinds or any(id(v) in dependent for v in node.inputs):
            dependent.update(map(id, node.outputs))
        elif node.op.name not in _REDUCTIONS:
            continue
        if node.op.name not in _REDUCTIONS or (node.op.name == "normalize" and name is None):
            continue
        if checked is not None and id(node) not in checked:
            continue
        x = node.inputs[0]
        if x.shape[:1] == (shard.samples,) and 0 in normalize_axes(node.op.name, node.attrs["axes"], x.ndim):
            raise ValueError(
                "With several shards what is computed of a sample depends on no other sample, but in ops.normalize of "
                f"layers. Received: {name or node.scope!r}, in which {node.op.name} goes over the samples. Let it go "
                "over the other axes alone, as in Dice(axis=(1, 2, 3)), or train without shards."
            )


def in_buckets(program: Program, shard: Shard, values: Sequence[Value]) -> list[Value]:
    """Sums over all shards, in the order in which a step makes the summands: the first may go while it makes others."""
    place = {id(v): i for i, node in enumerate(program.nodes) for v in node.outputs}
    waiting, reduced = list[Value](), dict[int, Value]()
    # Gradients of the last layers come first in the backward pass: their sums may go while the others are computed.
    ordered = sorted({id(v): v for v in values}.values(), key=lambda v: place.get(id(v), -1))
    left = sum(v.nbytes for v in ordered)
    for value, after in zip_longest(ordered, ordered[1:]):
        waiting.append(value)
        left -= value.nbytes
        size = sum(v.nbytes for v in waiting)
        # One that is large by itself is not joined with others, which would copy it.
        if after is None or max(size, after.nbytes) >= BUCKET or left <= LAST < size:
            totals = ops.all_reduce(*waiting, group=shard.group)
            reduced |= zip(map(id, waiting), totals if isinstance(totals, tuple) else (totals,), strict=True)
            waiting.clear()
    return [reduced[id(v)] for v in values]


def summed_loss(program: Program) -> Value | None:
    """The sum of all losses over the shards, by the rank's own part of which one can tell where NaN comes from."""
    waiting = [program.outputs["loss"]] if "loss" in program.outputs else []
    while waiting:
        value = waiting.pop()
        if value.node is not None and value.node.op.name == "all_reduce":
            return value
        waiting += () if value.node is None else value.node.inputs
    return None


def constant_of(value: Value, depth: int = 4) -> Array | None:
    """Content of a value that a few nodes make of constants alone; None of others."""
    import array_api_compat.numpy as xp  # loads much, and only who distributes needs it

    if value.data is not None or value.node is None or len(value.node.outputs) > 1 or not depth:
        return value.data
    operands = list[Array]()
    for operand in value.node.inputs:
        if (known := constant_of(operand, depth - 1)) is None:
            return None
        operands.append(known)
    return value.node.op.reference(*operands, **value.node.attrs, xp=xp) if operands else None
