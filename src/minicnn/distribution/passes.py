"""Passes over the Program of one shard, which put collectives where shards have something in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from minicnn import ops
from minicnn.ops.checks import normalize_axes
from minicnn.ops.groups import Group
from minicnn.program.graph import Node, Program, Value


@dataclass(frozen=True)
class Shard:
    """One shard of a batch.

    Attributes:
        number: Which.
        count: Of how many.
        start: Its first sample in the batch.
        samples: Its samples.
        batch: Samples of the batch.
    """

    number: int
    count: int
    start: int
    samples: int
    batch: int

    @property
    def group(self) -> Group:
        """The shards, as if each had a process of its own."""
        return Group(self.count, self.number, self.count)


def synchronize(program: Program, shard: Shard) -> int:
    """Take mean and variance over the samples of all shards wherever they are taken over the batch.

    Args:
        program: Program of a shard, with its forward nodes only.
        shard: The shard.

    Returns:
        How many normalisations were changed.
    """
    if shard.count == 1:
        return 0

    def rule(node: Node) -> Sequence[Value] | None:
        if node.op.name != "normalize" or not {0, -node.inputs[0].ndim} & set(node.attrs["axes"]):
            return None
        x, scale, offset = node.inputs
        axes, each = node.attrs["axes"], 1.0 / (x.size // node.outputs[1].size * shard.batch // shard.samples)

        def mean_of(value: Value) -> Value:
            return ops.all_reduce(ops.sum(value, axes=axes, keepdims=True), group=shard.group) * each

        mean = mean_of(x)
        centred = x - mean
        variance = mean_of(ops.square(centred))
        y = centred * (scale / ops.sqrt(variance + node.attrs["epsilon"])) + offset
        return y, mean, variance

    return program.replace(rule)


def check_loss(nodes: Sequence[Node], shard: Shard, name: str) -> None:
    """Raise a ValueError if a loss sums over samples itself, of which a shard has only some.

    Args:
        nodes: The nodes of the loss.
        shard: The shard.
        name: What the loss is called.
    """
    if shard.count == 1:
        return
    for node in nodes:
        if node.op.name not in ("sum", "mean", "max", "normalize"):
            continue
        x, *_ = node.inputs
        if x.shape[:1] == (shard.samples,) and 0 in normalize_axes(node.op.name, node.attrs["axes"], x.ndim):
            message = (
                f"With several shards the loss of a sample depends on no other sample. Received: {name}, in which "
                f"{node.op.name} goes over the samples. Let it go over the other axes alone, as in Dice(axis=(1, 2, 3))"
                ", or train without shards."
            )
            raise ValueError(message)


def reduce_totals(program: Program, shard: Shard, loss: Value, gradients: Sequence[Value]) -> list[Value]:
    """Sum what the shards have to say: the loss, the totals of the metrics, and the gradients, in one collective.

    Args:
        program: Program of a shard, whose updates are sums of metrics, each an input plus what the shard adds.
        shard: The shard.
        loss: Sum of the losses of the shard's samples; the batch's mean becomes the output "loss".
        gradients: Gradients of that sum.

    Returns:
        Gradients of the mean over the batch.
    """
    added = {name: value.node.inputs for name, value in program.updates.items() if value.node is not None}
    with program.scope("shards", "backward" if gradients else "forward"):
        made = ops.all_reduce(loss, *(new for _, new in added.values()), *gradients, group=shard.group)
        reduced = iter(made if isinstance(made, tuple) else (made,))
        scale = 1.0 / shard.batch
        program.outputs["loss"] = next(reduced) * scale
        for name, (old, _) in added.items():
            program.updates[name] = old + next(reduced)
        return [total * scale for total in reduced]
