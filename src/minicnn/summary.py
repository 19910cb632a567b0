"""Tables about a model: its layers, and which kernel runs each node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from minicnn import html
from minicnn.program.graph import Node, Program
from minicnn.program.printing import engineering

if TYPE_CHECKING:
    from minicnn.models import Model


@dataclass(frozen=True, repr=False)
class Explanation:
    """Explanation of a Program: the kernel that runs each node, or why its reference does; print it.

    Attributes:
        program: The Program.
        rows: Its nodes as the backend runs them, and what runs each.
    """

    program: Program
    rows: list[tuple[Node, str]]

    def to_html(self) -> str:
        """A page to explore the Program, with what runs each node: see `Program.to_html`."""
        return self.program.to_html(run_by=self.rows)

    def __str__(self) -> str:
        width = max((len(repr(node)) for node, _ in self.rows), default=0)
        return "\n".join(f"{node!r:<{width}}  {node.scope:<24}  {how}" for node, how in self.rows)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        kernels = sum(how.startswith("kernel") for _, how in self.rows)
        rows = [
            (node, ", ".join(str(v.spec) for v in node.outputs), engineering(node.cost.flops),
             engineering(node.cost.bytes), node.phase, node.scope, how)
            for node, how in self.rows
        ]  # fmt: skip
        header = ("node", "shape", "FLOPs", "bytes", "phase", "scope", "run by")
        return html.block(f"{len(rows)} nodes, {kernels} of them by kernels", html.table(header, rows))


def summary(model: Model, print_fn: Callable[[str], Any] | None = print, *, batch_size: int = 1) -> str | None:
    """Table of the layers: name, class and whether it is frozen, output shape, weights, FLOPs of the forward pass.

    Args:
        print_fn: Takes the text; if None it is returned.
        batch_size: Samples that the FLOPs are for.
    """
    rows, foot = _layers(model, batch_size)
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    lines = [
        "  ".join([f"{a:<{widths[0]}}", f"{b:<{widths[1]}}", f"{c:>{widths[2]}}", f"{d:>{widths[3]}}"])
        for a, b, c, d in rows
    ]
    rule = "-" * len(lines[0])
    text = "\n".join([lines[0], rule, *lines[1:], rule, foot])
    if print_fn is None:
        return text
    print_fn(text)  # and nothing is returned, which a notebook would show once more
    return None


def page(model: Model) -> str:
    """The table of the layers as HTML, for a batch of one; of a model that is not built its layers."""
    if not model.built:
        return html.block(repr(model).strip("<>"), html.table(("layer",), [(layer,) for layer in model.layers]))
    (header, *rows), foot = _layers(model, 1)
    return html.block(repr(model).strip("<>"), html.table(header, rows), html.paragraph(foot))


def _layers(model: Model, batch_size: int) -> tuple[list[tuple[str, str, str, str]], str]:
    """Titles and rows of the table, and the line below."""
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
    tensors = [*(t for call in model._graph.calls for t in call.inputs), *model.outputs]
    shapes = {model.layer_name(t.source.layer): str(t.shape) for t in tensors if t.source is not None}
    if not model._graph.calls:  # of a model with a call of its own the last result of each layer
        last = {node.scope.split("/")[0]: node.outputs[0].shape for node in program.nodes}
        shapes = {name: str((None, *shape[1:])) for name, shape in last.items()}
    rows = [("layer", "output shape", "params", "FLOPs")]
    for layer in model.layers:
        name = model.layer_name(layer)
        frozen = "" if model.trainable and layer.trainable else ", frozen"
        rows.append(
            (
                f"{name} ({type(layer).__name__}{frozen})", shapes.get(name, ""), f"{params.get(name, 0):,}",
                engineering(flops.get(name, 0)).strip(),
            )
        )  # fmt: skip
    trainable, rest = model.count_params(trainable=True), model.count_params(trainable=False)
    return rows, (
        f"{trainable + rest:,} weights, {trainable:,} of them trainable; "
        f"{engineering(program.flops)}FLOP forward for a batch of {batch_size}{_trial(model)}{_share(model)}"
    )


def _share(model: Model) -> str:
    """The share of the weights that this rank has, or that one of as many ranks as shards would have."""
    distribution = model.distribution
    if distribution is None:
        return ""
    if distribution.ranks > 1:
        weights = distribution.weights(model.program("train", batch_size=max(32, distribution.shards)))
        return f"; rank {distribution.rank} of {distribution.ranks} trains with {weights:,} weights"
    if not distribution.layout:
        return ""
    feed = model._training.step.feed(distribution.shards)
    shard = model._training.executor.program("train", feed)
    held = sum(v.size for v in shard.inputs if v.kind in ("parameter", "statistic"))
    return f"; each of {distribution.shards} ranks has {held:,} weights"


def _trial(model: Model) -> str:
    """The sizes that the figures are for, where they are not known."""
    shapes = [" x ".join(map(str, t.trial())) for t in model.inputs if t.trials]
    return f" of {', '.join(shapes)}" if shapes else ""
