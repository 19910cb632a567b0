"""A Program cut into stages: which stage computes each node, and in which order pieces of stages come."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from minicnn.distribution.segments import COLLECTIVES, Segments
from minicnn.program.graph import Node, Program, Value

FREE = -1  # the stage of what depends on counters and data alone: every rank computes it


def stays(value: Value) -> bool:
    """True if an input stays with one stage: a weight, or an optimizer's state; single numbers all ranks have."""
    return value.kind in ("parameter", "statistic", "optimizer") and value.ndim > 0


@dataclass
class StagePiece:
    """Nodes of one stage that come one after the other.

    Attributes:
        level: Level, as of `Segments`.
        shared: Whether all shards have these nodes in common.
        wave: How many changes of the stage lie before it on its level.
        stage: The stage.
        nodes: The nodes.
        program: They as a Program.
    """

    level: int
    shared: bool
    wave: int
    stage: int
    nodes: list[Node] = field(default_factory=list)
    program: Program = field(default_factory=Program)

    @property
    def order(self) -> tuple[int, bool, int, int]:
        """Pieces are computed in this order."""
        return self.level, not self.shared, self.wave, self.stage


class Stages:
    """The Program of a shard, each node of which belongs to a stage.

    Layers belong to stages by their order; what follows from them, such as gradients, updates and losses, belongs to
    the last stage that it needs something of.

    Args:
        segments: The Program, cut where shards compute together.
        cuts: Names of the layers with which a new stage begins, in order.

    Attributes:
        stage: Stage of each value, by its id.
        pieces: The pieces in their order.
        readers: Stages that read each value, by its id; what the step hands back, but weights, is read by all.

    Raises:
        ValueError: If there is no layer of such a name where the stage could begin.
    """

    def __init__(self, segments: Segments, cuts: Sequence[str]) -> None:
        self.segments, program = segments, segments.program
        self.stage = {id(v): FREE for v in (*program.constants, *program.inputs)}
        self._by_layers(_layers(program, cuts))
        self._where_it_is_read()
        self.readers: dict[int, set[int]] = {}
        told = [v for name, v in (program.outputs | program.updates).items() if not _stays(program, name)]
        self.readers |= {id(v): set(range(len(cuts) + 1)) for v in told}
        pieces: dict[tuple[int, bool, int, int], StagePiece] = {}
        wave: dict[int, tuple[int, bool, int]] = {}  # of each value the level, whether it is shared, and the wave
        for level, shared, node in _placed(segments):
            if node.op.name in COLLECTIVES:
                continue
            stage = self.stage[id(node.outputs[0])]
            before = 0
            for value in node.inputs:
                self.readers.setdefault(id(value), set()).add(stage)
                at = wave.get(id(value))
                if at is not None and at[:2] == (level, shared) and self.stage[id(value)] != FREE:
                    # A wave ends where values cross from one stage to another.
                    before = max(before, at[2] + (self.stage[id(value)] != stage))
            new_piece = StagePiece(level, shared, FREE if stage == FREE else before, stage)
            pieces.setdefault(new_piece.order, new_piece).nodes.append(node)
            wave |= {id(v): (level, shared, before) for v in node.outputs}
        self.pieces = [pieces[order] for order in sorted(pieces)]
        summed = {id(v) for n in program.nodes if n.op.name in COLLECTIVES for v in n.inputs}
        read = segments.read_last() | summed
        for piece in reversed(self.pieces):
            piece.program = segments.part(piece.nodes, read)
            read |= {id(v) for n in piece.nodes for v in n.inputs}

        self._check()

    def _by_layers(self, layers: Mapping[str, int]) -> None:
        """Each node belongs to the stage of its layer, what follows from layers to the last stage that it needs."""
        unknown = {id(v): v for v in self.segments.program.inputs if stays(v)}

        def settle(value: Value, stage: int) -> None:
            """Give a stage to a value that has none, and to what it was computed from."""
            # A weight belongs to the stage that first reads it, and so does what is computed from it alone.
            if unknown.pop(id(value), None) is not None:
                self.stage[id(value)] = stage
                for part in (*value.node.outputs, *value.node.inputs) if value.node else ():
                    settle(part, stage)

        for _, _, node in _placed(self.segments):
            if node.op.name in COLLECTIVES:  # each sum belongs to what it is a sum of, or else to the first stage
                for value, total in zip(node.inputs, node.outputs, strict=True):
                    settle(value, 0)
                    self.stage[id(total)] = max(self.stage[id(value)], 0)
                continue
            stage = self._where_most_is(node, unknown)
            if node.phase != "update":
                stage = layers.get(node.scope.split("/")[0], stage)
            if stage == FREE and any(id(v) in unknown for v in node.inputs):
                # An optimizer's state alone: it belongs to the stage of its weight, which is met with it later.
                unknown |= {id(v): v for v in node.outputs}
                continue
            for value in node.inputs:
                settle(value, stage)
            self.stage |= {id(v): stage for v in node.outputs}
        for value in list(unknown.values()):
            settle(value, 0)

    def _where_it_is_read(self) -> None:
        """Give to one stage what it alone reads, though every rank could compute it, such as images as numbers."""
        results, readers = {id(v) for v in self.segments.program.results}, dict[int, set[int]]()
        for _, _, node in reversed(list(_placed(self.segments))):
            stages = [self.stage[id(v)] for v in node.outputs]
            if stages[0] == FREE and not any(id(v) in results for v in node.outputs):
                reading = set[int]().union(*(readers.get(id(v), ()) for v in node.outputs))
                # Otherwise all ranks would convert all images, of which only the first stage makes use.
                if len(reading) == 1:
                    self.stage |= dict.fromkeys(map(id, node.outputs), *reading)
                    stages = [*reading] * len(stages)
            summed = node.op.name in COLLECTIVES
            for i, value in enumerate(node.inputs):
                readers.setdefault(id(value), set()).add(stages[i if summed else 0])

    def _where_most_is(self, node: Node, unknown: Collection[int]) -> int:
        """The stage of the largest array that a node reads: gradients stay where they are, numbers come to them."""
        known = [v for v in node.inputs if id(v) not in unknown and self.stage[id(v)] != FREE]
        return max(((v.ndim, v.size, self.stage[id(v)]) for v in known), default=(0, 0, FREE))[2]

    def _check(self) -> None:
        program = self.segments.program
        for name, value in program.updates.items():
            old = program.value(name)
            if stays(old) and self.stage[id(value)] not in (self.stage[id(old)], FREE):
                raise ValueError(
                    f"A weight is updated in the stage that reads it. Received: {name!r}, which is read in stage "
                    f"{self.stage[id(old)]} and updated in stage {self.stage[id(value)]}. Begin the stages elsewhere."
                )


def _stays(program: Program, result: str) -> bool:
    """True if a result is an update of what stays with one stage."""
    return result in program.updates and result not in program.outputs and stays(program.value(result))


def _placed(segments: Segments) -> Iterator[tuple[int, bool, Node]]:
    """All nodes in an order in which they can be computed, with their level and whether all shards share them."""
    for level, parts in enumerate(zip(segments.common, segments.per_shard, segments.collectives, strict=True)):
        for shared, nodes in zip((True, False, True), parts, strict=True):
            for node in nodes:
                yield level, shared, node


def _layers(program: Program, cuts: Sequence[str]) -> dict[str, int]:
    """The stage of each layer, by its name."""
    stages: dict[str, int] = {}
    stage = 0
    for node in program.nodes:
        name = node.scope.split("/")[0]
        if node.phase != "forward" or name in stages or not _is_layer(name, program.inputs):
            continue
        if stage < len(cuts) and name == cuts[stage]:
            stage += 1
        stages[name] = stage
    if stage < len(cuts):
        raise ValueError(
            "A stage begins with a layer of the model, and stages come in the order of the layers. Received: "
            f"{cuts[stage]!r}. Layers that compute: {', '.join(stages)}."
        )
    return stages


def _is_layer(name: str, inputs: Collection[Value]) -> bool:
    return name not in ("", "data", "loss", "metrics", "shards", "loss_scale")
