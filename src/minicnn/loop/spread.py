"""Spread of Values over shards: the same on all shards, numbers of samples, a mean ..."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from minicnn.distribution.segments import COLLECTIVES
from minicnn.ops.checks import normalize_axes
from minicnn.program.graph import Node, Program, Value

# "same" on all shards; numbers of the "samples" along the first axis; a "mean" over samples, and what is linear in it,
# which over all shards is the mean of theirs; a "sum" likewise; "mixed": anything else.
Spread = Literal["same", "samples", "mean", "sum", "mixed"]

_LINEAR = frozenset({"add", "subtract", "negative", "reshape", "broadcast_to", "sum", "mean", "cast", "slice_",
                     "concat", "permute", "sum_to_shape", "repeat"})  # fmt: skip


def spread(program: Program, samples: int, data: Collection[str], means: Collection[int] = ()) -> dict[int, Spread]:
    """Spread of each Value, by id; those that are not named are the same on all shards.

    Args:
        program: Program of a shard.
        samples: Samples of the shard.
        data: Names of the inputs whose first axis counts them.
        means: Ids of Values that are known to be means.
    """
    kinds: dict[int, Spread] = {id(v): "samples" for v in program.inputs if v.name in data}
    for node in program.nodes:
        if node.op.name == "all_to_all":  # which gives each shard back what split kernels make of its samples
            kinds |= dict.fromkeys(map(id, node.outputs), "samples")
            continue
        of = [kinds.get(id(v), "same") for v in node.inputs]
        if node.op.name not in COLLECTIVES and any(kind != "same" for kind in of):
            for i, v in enumerate(node.outputs):
                kinds[id(v)] = "mean" if id(v) in means else _kind(node, of, i, samples)
    return kinds


def _kind(node: Node, of: list[Spread], result: int, samples: int) -> Spread:
    kinds: list[Spread] = sorted(set(of) - {"same"})
    kind: Spread = kinds[0] if len(kinds) == 1 else "mixed"
    if kind == "samples":
        return _of_samples(node, of, result, samples)
    if kind == "mixed" or node.op.name in _LINEAR:
        # A sum of all samples and a number that is there once would count it once for each shard.
        added = kind == "sum" and "same" in of and node.op.name in ("add", "subtract")
        return "mixed" if added else kind
    scaled = node.op.name == "multiply" and of.count(kind) == 1
    divided = node.op.name == "divide" and of[1] == "same"
    return kind if scaled or divided else "mixed"


def _of_samples(node: Node, of: list[Spread], result: int, samples: int) -> Spread:
    """Of a node that reads numbers of samples, and else what is the same for all."""
    name, x, y = node.op.name, node.inputs[0], node.outputs[result]
    rows = bool(y.shape) and y.shape[0] % samples == 0 and y.shape[0] > 0
    if name in ("sum", "mean", "max"):
        axes = normalize_axes(name, node.attrs["axes"], x.ndim)
        over: Spread = "mean" if name == "mean" else "sum" if name == "sum" else "mixed"
        return over if 0 in axes else "samples"
    if name in ("conv2d_weight_gradient", "depthwise_conv2d_weight_gradient"):
        return "sum"
    if name == "sum_to_shape":
        return "samples" if y.shape[:1] == x.shape[:1] and y.ndim == x.ndim else "sum"
    if name == "matmul" and x.ndim == 2:
        first, second = (v.shape for v in node.inputs)
        if of == ["samples", "samples"]:  # over the samples if both are turned so, else between samples
            turned = node.attrs.get("transpose_a") and not node.attrs.get("transpose_b") and first[0] == second[0]
            return "sum" if turned else "mixed"
        return "samples" if of[0] == "samples" and not node.attrs.get("transpose_a") and rows else "mixed"
    if name == "permute" and node.attrs["axes"][0] != 0:
        return "mixed"
    if name == "take" and of[0] == "samples":
        return "mixed"
    if name == "slice_" and any(place % samples for place in node.attrs["bounds"][0]):  # else whole batches of a concat
        return "mixed"
    if name == "normalize" and result > 0 and not rows:
        return "mixed"
    return "samples" if rows else "mixed"


def check_mean(what: str, value: Value, kind: Spread) -> None:
    """Raise a ValueError if a Value is no mean over samples, where each shard sees only its own."""
    if kind not in ("same", "mean"):
        origin = f", made by {value.node.op.name}" if value.node is not None else ""
        raise ValueError(
            f"{what} is a mean over samples where a batch is cut into shards, of which each sees only its own. "
            f"Received: {value!r}{origin}, which is {_SAID[kind]}. Take ops.mean over the samples last of all, "
            "with others of the batch through self.gather(x), or train without shards."
        )


_SAID = {"samples": "a number for each sample", "sum": "a sum over them", "mixed": "more than a mean over them"}
