"""What one may want to read about a model: its layers, and which kernel runs each node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from minicnn.program.graph import Node
from minicnn.program.printing import engineering

if TYPE_CHECKING:
    from minicnn.models.network import Network


@dataclass(frozen=True)
class Explanation:
    """Which kernel runs each node of a Program, or why its reference does; print it."""

    rows: list[tuple[Node, str]]

    def __str__(self) -> str:
        width = max((len(repr(node)) for node, _ in self.rows), default=0)
        return "\n".join(f"{node!r:<{width}}  {node.scope:<24}  {how}" for node, how in self.rows)


def summary(model: Network, batch_size: int) -> str:
    """Table of the layers: name, class and whether it is frozen, output shape, weights, FLOPs of the forward pass.

    Args:
        model: The model.
        batch_size: Samples that the FLOPs are for.
    """
    program = model.program("predict", batch_size=batch_size)
    params: dict[str, int] = {}
    for value in program.inputs:
        if value.kind in ("parameter", "statistic"):
            owner = value.name.split("/")[0]
            params[owner] = params.get(owner, 0) + value.size
    flops: dict[str, int] = {}
    for node in program.nodes:
        owner = node.scope.split("/")[0]
        flops[owner] = flops.get(owner, 0) + node.cost.flops
    tensors = [*(t for call in model._calls for t in call.inputs), *model._outputs]
    shapes = {model.layer_name(t.source.layer): str(t.shape) for t in tensors if t.source is not None}
    rows = [("layer", "output shape", "params", "FLOPs")]
    for layer in model.layers:
        name = model.layer_name(layer)
        frozen = "" if model.trainable and layer.trainable else ", frozen"
        rows.append(
            (
                f"{name} ({type(layer).__name__}{frozen})", shapes[name], f"{params.get(name, 0):,}",
                engineering(flops.get(name, 0)).strip(),
            )
        )  # fmt: skip
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    lines = [
        "  ".join([f"{a:<{widths[0]}}", f"{b:<{widths[1]}}", f"{c:>{widths[2]}}", f"{d:>{widths[3]}}"])
        for a, b, c, d in rows
    ]
    lines.insert(1, "-" * len(lines[0]))
    trainable, rest = model.count_params(trainable=True), model.count_params(trainable=False)
    lines += [
        "-" * len(lines[0]),
        f"{trainable + rest:,} weights, {trainable:,} of them trainable; "
        f"{engineering(program.flops)}FLOP forward for a batch of {batch_size}{_trial(model)}",
    ]
    return "\n".join(lines)


def _trial(model: Network) -> str:
    """What sizes the figures are for where they are not known."""
    shapes = [" x ".join(map(str, t.trial())) for t in model.inputs if t.trials]
    return f" of {', '.join(shapes)}" if shapes else ""
