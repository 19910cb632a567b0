"""Workload of a training step, layer by layer: operations, kept and sent bytes, counted from its Programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from minicnn.program.graph import Node, Program, Value

PRODUCTS = ("conv2d", "depthwise_conv2d", "matmul")  # what multiplies by weights
DENSE = "matmul"
PHASES = ("forward", "backward", "update")


@dataclass(frozen=True)
class Timed:
    """Seconds of a node.

    Attributes:
        node: The node.
        seconds: All of them.
        least: What of them would remain if there were next to nothing to compute: a call, a launch.
    """

    node: Node
    seconds: float
    least: float


Clock = Callable[[Program], Sequence[Timed]]  # may rewrite the Program


@dataclass
class LayerWork:
    """A layer, or what else of a step has a name.

    Attributes:
        name: Its name.
        weights: Bytes of its weights that are trained, and so of their gradients.
        state: Bytes of what else it carries: state of the optimizer, statistics.
        dense: Whether it multiplies matrices by weights.
        width: Columns or filters, into which its weights can be cut; 0 without weights.
        activations: Bytes a sample of what its weights are multiplied with, each array once in a network.
        first: Whether these come from the data alone, so that they need no gradient.
        saved: Bytes a sample of its results that the backward pass reads.
        crossing: Bytes a sample that layers up to it hand to later ones.
        normalized: Bytes of means that it takes over the batch; 0 if it takes none.
        seconds: By phase, for each batch that was timed: all seconds, and those that remain for next to no work.
    """

    name: str
    weights: float = 0.0
    state: float = 0.0
    dense: bool = False
    width: int = 0
    activations: float = 0.0
    first: bool = False
    saved: float = 0.0
    crossing: float = 0.0
    normalized: float = 0.0
    seconds: dict[str, list[list[float]]] = field(default_factory=dict)


@dataclass(frozen=True)
class Workload:
    """The layers of a step in the order in which they compute.

    Attributes:
        layers: The layers.
        batches: Batches that were timed, ascending.
        input: Bytes a sample of the data.
        passing: Bytes a sample of what lives for a moment, at the moment when most bytes do: see `MemoryPlan`.
    """

    layers: Sequence[LayerWork]
    batches: Sequence[int]
    input: float
    passing: float = 0.0

    @property
    def weights(self) -> float:
        """Bytes of all trained weights."""
        return sum(layer.weights for layer in self.layers)

    def seconds(self, layer: LayerWork, phase: str, batch: float, share: float = 1.0) -> float:
        """Seconds of a layer in a phase, of which a rank computes a share.

        Between the batches that were timed, and beyond them, times lie on lines.
        """
        if phase not in layer.seconds:
            return 0.0
        every, least = (_line(self.batches, values, batch) for values in layer.seconds[phase])
        return least + share * (every - least)

    def total(self, batch: float) -> float:
        """Seconds of a step on one rank."""
        return sum(self.seconds(layer, phase, batch) for layer in self.layers for phase in PHASES)

    @property
    def hybrid_until(self) -> float:
        """Samples of a group's batch below which hybrid parallelism moves fewer bytes than data parallelism.

        Data parallelism sends the gradients of the dense layers in a ring; hybrid parallelism gathers their inputs and
        scatters the gradients of these, which is the same ring: so bytes of weights are divided by bytes of inputs a
        sample. A layer after the convolutions whose input is the data has none to gather.
        """
        dense = [layer for layer in self.layers if layer.dense]
        activations = sum(layer.activations for layer in dense if not layer.first)
        return sum(layer.weights for layer in dense) / activations if activations else float("inf")


def _line(xs: Sequence[int], ys: Sequence[float], x: float) -> float:
    """The value at x of the line through the two nearest points that are known."""
    if len(xs) == 1:
        return ys[0] * x / xs[0]
    i = min(max(1, next((k for k, known in enumerate(xs) if known >= x), len(xs) - 1)), len(xs) - 1)
    t = (x - xs[i - 1]) / (xs[i] - xs[i - 1])
    return max(0.0, ys[i - 1] + t * (ys[i] - ys[i - 1]))


def workload(trace: Callable[[int], Program], batches: Sequence[int], clock: Clock | None = None) -> Workload:
    """Count the layers of a training step.

    Args:
        trace: Gives the Program of a training step on a batch.
        batches: Batches to be timed, ascending.
        clock: Times the nodes of a Program, which it may rewrite; without one all take no time.
    """
    program = trace(batches[-1])
    names = list(dict.fromkeys(_top(n) for n in program.nodes if n.phase == "forward"))
    layers = {name: LayerWork(name) for name in names}
    for value in program.inputs:
        if value.kind in ("parameter", "statistic", "optimizer"):
            parts = value.name.split("/")
            # Names of an optimizer's state have the layer's in the middle; what belongs to none is the first layer's.
            layer = layers.get(next((p for p in parts if p in layers), "")) or layers[names[0]]
            trained = value.kind == "parameter" and value.name in program.updates
            layer.weights += value.nbytes * trained
            layer.state += value.nbytes * (not trained)
    _products(program, layers, batches[-1])
    _values(program, layers, batches[-1])
    for i, batch in enumerate(batches):
        for timed in clock(trace(batch)) if clock else ():
            _add(layers, names, timed, i, len(batches))
    every, batch = list(layers.values()), batches[-1]
    data = sum(v.nbytes for v in program.inputs if v.kind == "input" and v.shape[:1] == (batch,)) / batch
    kept = sum(2 * layer.weights + layer.state + batch * layer.saved for layer in every) + batch * data
    # What the plan needs at its peak beyond all that is counted by layer: gradients on their way.
    passing = max(0.0, program.memory().peak_bytes - kept) / batch
    return Workload(every, list(batches), data, passing)


def _top(node: Node) -> str:
    return node.scope.split("/")[0]


def _add(layers: Mapping[str, LayerWork], names: Sequence[str], timed: Timed, place: int, places: int) -> None:
    """Add a node's seconds to its layer; those of updates are shared out by bytes of weights."""
    weights = sum(layer.weights for layer in layers.values()) or 1.0
    name, phase = _top(timed.node), timed.node.phase
    shares = {name if name in layers else names[-1]: 1.0}
    if phase == "update":
        # An update may be one node for all weights.
        shares = {n: layer.weights / weights for n, layer in layers.items() if layer.weights} or shares
    for n, share in shares.items():
        times = layers[n].seconds.setdefault(phase, [[0.0] * places, [0.0] * places])
        times[0][place] += share * timed.seconds
        times[1][place] += share * timed.least


def _products(program: Program, layers: Mapping[str, LayerWork], batch: int) -> None:
    """Note for each layer the products with its weights, and what it normalizes over the batch."""
    trained = {id(v) for v in program.inputs if v.kind == "parameter"}
    learned = set(trained)  # values that depend on weights
    gathered = set()
    for node in program.nodes:
        if node.phase != "forward":
            continue
        layer = layers[_top(node)]
        if node.op.name in PRODUCTS and any(id(v) in trained for v in node.inputs[1:]):
            x, w = node.inputs[:2]
            layer.dense |= node.op.name == DENSE
            layer.width = max(layer.width, w.shape[-1])
            if id(x) not in gathered:
                gathered.add(id(x))
                layer.activations += x.nbytes / batch
                layer.first = id(x) not in learned
        if node.op.name == "normalize" and 0 in [a % node.inputs[0].ndim for a in node.attrs["axes"]]:
            layer.normalized += node.outputs[1].nbytes
        if any(id(v) in learned for v in node.inputs):
            learned |= {id(v) for v in node.outputs}
            if _weights_alone(node, trained):  # a cast of weights, in mixed precision
                trained |= {id(v) for v in node.outputs}


def _weights_alone(node: Node, trained: set[int]) -> bool:
    return len(node.inputs) == 1 and id(node.inputs[0]) in trained


def _values(program: Program, layers: Mapping[str, LayerWork], batch: int) -> None:
    """Note for each layer the values that its backward pass reads, and those that cross to later layers."""
    order = {name: i for i, name in enumerate(layers)}
    outputs: dict[int, tuple[Value, int]] = {}
    last: dict[int, int] = {}
    saved: set[int] = set()
    for node in program.nodes:
        at = order.get(_top(node))
        if node.phase == "forward" and at is not None:
            outputs |= {id(v): (v, at) for v in node.outputs if v.shape[:1] == (batch,)}
            last |= {id(v): max(at, last.get(id(v), 0)) for v in node.inputs}
        if node.phase == "backward":
            saved |= {id(v) for v in node.inputs}
    every: list[Any] = list(layers.values())
    for key, (value, at) in outputs.items():
        if key in saved:
            every[at].saved += value.nbytes / batch
        # A value crosses every boundary up to its last reader: skip connections cross several.
        for i in range(at, last.get(key, at)):
            every[i].crossing += value.nbytes / batch
