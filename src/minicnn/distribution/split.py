"""Passes that split kernels by columns: each shard has some units or filters, and computes them of all samples."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence

from minicnn import ops
from minicnn.distribution.passes import Shard
from minicnn.ops.windows import Axes
from minicnn.program.graph import Node, Program, Value
from minicnn.program.readers import Readers


def splitting(program: Program, shard: Shard, paths: Collection[str]) -> Callable[[Node], Sequence[Value] | None]:
    """The rule that gives a shard its columns of kernels, which it multiplies with the samples of all shards.

    Samples are gathered from all shards, and of the products each shard gets back those of its own samples:

        y = all_to_all(all_gather(x) @ kernel[:, columns of the shard])

    With several groups of shards this is done in each of them.

    Shards of fewer samples than others are filled up with zeros, which add nothing to any gradient.

    Args:
        program: Program of a shard, with its forward nodes only.
        shard: The shard, whose `layout` says which kernels are meant.
        paths: Names of the parameters that may be split: those are whose columns the number of shards divides, and that
            one dense or convolutional layer reads. They become the Program's `parts`.

    Raises:
        ValueError: If a pattern of the layout is that of no weight.
    """
    names = [value.name for value in program.inputs if value.kind in ("parameter", "statistic")]
    for pattern, _ in shard.layout:
        if not any(re.search(pattern, name) for name in names):
            raise ValueError(
                f"Each pattern of layout_map is found in the path of a weight. Received: {pattern!r}, and the weights "
                f"{', '.join(names[:8]) or 'none'}{', ...' * (len(names) > 8)}. "
                "Mend it, or use DataParallel, which splits no kernel."
            )
    count, readers = shard.split.shards, Readers(program)
    most = -(-shard.batch // shard.count)

    def rule(node: Node) -> Sequence[Value] | None:
        if node.op.name == "conv2d" and node.attrs["groups"] == 1:
            image = Axes.of(node.attrs["data_format"])
            first, channels = image.n, image.c
        elif node.op.name == "matmul" and not (node.attrs["transpose_a"] or node.attrs["transpose_b"]):
            first, channels = 0, 1
        else:
            return None
        x, kernel = node.inputs
        named = any(kernel.ndim == axes and re.search(pattern, kernel.name) for pattern, axes in shard.layout)
        meant = named and kernel.name in paths
        rows, rest = divmod(x.shape[first] * most, shard.samples)
        if count == 1 or not meant or len(readers.of(kernel)) != 1 or kernel.shape[-1] % count or rest:
            return None
        # Nothing else has read its shape.
        kernel.spec = type(kernel.spec)((*kernel.shape[:-1], kernel.shape[-1] // count), kernel.dtype)
        program.parts[kernel.name] = count
        if rows > x.shape[first]:
            frame = [(0, rows - x.shape[first] if axis == first else 0) for axis in range(x.ndim)]
            x = ops.pad(x, widths=tuple(frame))
        whole = ops.all_gather(x, axis=first, group=shard.split)
        y = node.op(whole, kernel, **node.attrs)
        y = ops.all_to_all(y, split=first, join=channels, group=shard.split)
        kept = node.outputs[0].shape[first]
        return [y[(*[slice(None)] * first, slice(0, kept), ...)] if kept < rows else y]

    return rule


def sum_parts(program: Program, shard: Shard, gradients: Collection[Value]) -> None:
    """Make sums over all elements of a split gradient, as for its norm, sums over all shards.

    Args:
        program: Program with the nodes of the update.
        shard: The shard.
        gradients: Split kernels, their state and their gradients.

    Raises:
        ValueError: If the update of an element depends on other elements otherwise.
    """
    dependent = {id(v) for v in gradients}

    def rule(node: Node) -> Sequence[Value] | None:
        if node.phase != "update" or not any(id(v) in dependent for v in node.inputs):
            return None
        if node.op.name == "sum" and node.outputs[0].size == 1:
            total = ops.all_reduce(node.op(*node.inputs, **node.attrs), group=shard.group)
            return [total if shard.groups == 1 else total * (1.0 / shard.groups)]  # each group adds the same
        if not node.op.elementwise:
            raise ValueError(
                "With split kernels the update of an element depends on others by sums over all of them alone. "
                f"Received: {node.scope}, in which {node.op.name} mixes elements. Choose an optimizer such as SGD or "
                "Adam, or DataParallel."
            )
        dependent.update(map(id, node.outputs))
        return None

    program.replace(rule)
