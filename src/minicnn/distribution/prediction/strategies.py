"""Costs of a step by data, model, hybrid and pipeline parallelism: seconds, bytes that a rank sends, memory."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from minicnn.distribution.passes import BUCKET
from minicnn.distribution.prediction.jitter import expected_maximum
from minicnn.distribution.prediction.links import Interconnect, sent, sums_of
from minicnn.distribution.prediction.workload import LayerWork, Workload

STRATEGIES = ("data", "model", "hybrid", "pipeline")
MOST_STAGES = 64


@dataclass(frozen=True)
class Conditions:
    """Conditions under which ranks compute together.

    Attributes:
        network: What connects them.
        jitter: Step times of a rank, relative to the typical one.
        algorithm: How gradients are summed: see `Interconnect.all_reduce`.
        shards: Parts of each batch that a fixed tree sums; one a rank if None.
        bucket: Bytes of gradients that are summed at once while the backward pass goes on; 0 for all after it.
        cut: Seconds that a rank takes longer where gradients are summed: it writes and reads them, where kernels would
            otherwise update the weights at once.
        group: Ranks that share the dense layers in hybrid parallelism; the fastest number if None.
        memory: Bytes of a rank's memory; None if it is not known.
    """

    network: Interconnect
    jitter: Sequence[float] = (1.0,)
    algorithm: str = "fixed"
    shards: int | None = None
    bucket: float = BUCKET
    cut: float = 0.0
    group: int | None = None
    memory: float | None = None


@dataclass(frozen=True)
class Prediction:
    """A step by a strategy.

    Attributes:
        strategy: Which.
        ranks: Ranks.
        batch: Samples of the step.
        how: Sizes that were chosen, in words.
        seconds: Seconds of the step.
        compute: Of them those in which the slowest rank computes.
        hidden: Seconds of communication while ranks compute.
        exposed: Seconds in which ranks wait for communication.
        idle: Seconds in which ranks wait for a pipeline to fill and to drain.
        sent: Bytes that a rank sends, at most.
        memory: Bytes of a rank's memory.
        fits: Whether it has so much.
        impossible: Why it cannot be done; None if it can.
    """

    strategy: str
    ranks: int
    batch: int
    how: str = ""
    seconds: float = math.inf
    compute: float = 0.0
    hidden: float = 0.0
    exposed: float = 0.0
    idle: float = 0.0
    sent: float = 0.0
    memory: float = 0.0
    fits: bool = True
    impossible: str | None = None


@dataclass
class _Timeline:
    """The backward pass of a rank, and the sums of gradients beside it, one after the other on one network.

    Attributes:
        at: Seconds since the step began.
        free: When the network is free.
        talked: Seconds of all communication so far.
    """

    conditions: Conditions
    at: float = 0.0
    free: float = 0.0
    talked: float = 0.0
    waiting: dict[tuple[int, int], float] = field(default_factory=dict)  # bytes by ranks and stride
    sums: int = 1

    def wait(self, seconds: float) -> None:
        """Communicate what the next layer waits for."""
        if seconds:
            self.at = self.free = max(self.at, self.free) + seconds
            self.talked += seconds

    def add(self, nbytes: float, ranks: int, stride: int = 1) -> None:
        """Gradients are there, to be summed over some ranks: see `Interconnect.all_reduce`."""
        key = ranks, stride
        self.waiting[key] = self.waiting.get(key, 0.0) + nbytes
        # As the step itself does: a bucket goes as soon as it is full.
        if self.conditions.bucket and self.waiting[key] >= self.conditions.bucket:
            self.flush(key)

    def flush(self, key: tuple[int, int]) -> None:
        """Begin to sum what waits."""
        (ranks, stride), conditions = key, self.conditions
        sums = self.sums if stride == 1 else 1
        seconds = conditions.network.all_reduce(
            self.waiting.pop(key), ranks, conditions.algorithm, sums=sums, stride=stride
        )
        self.free = max(self.at, self.free) + seconds
        self.talked += seconds

    def end(self) -> float:
        """Begin the rest; returns the seconds until all is done after the backward pass."""
        for key in list(self.waiting):
            self.flush(key)
        return max(0.0, self.free - self.at)


def predict(work: Workload, strategy: str, ranks: int, batch: int, conditions: Conditions) -> Prediction:
    """A step by a strategy, with the sizes that make it fastest among those that fit into the memory.

    Args:
        work: The step's layers.
        strategy: One of `STRATEGIES`.
        ranks: Ranks.
        batch: Samples of the step, on all ranks together.
        conditions: How ranks compute together.
    """
    most = conditions.network.most_ranks
    if most and ranks > most:
        why = f"{conditions.network.name} connects {most} ranks"
        return Prediction(strategy, ranks, batch, impossible=why)
    ways = {"data": _data, "model": _model, "hybrid": _hybrid, "pipeline": _pipeline}
    predictions = list(ways[strategy](work, ranks, batch, conditions))
    possible = [p for p in predictions if p.impossible is None]
    if not possible:
        return predictions[0]
    if conditions.memory is not None:
        possible = [replace(p, fits=p.memory <= conditions.memory) for p in possible]
    # What fits comes before what is faster; if nothing fits, the smallest says how much is missing.
    return min(possible, key=lambda p: (not p.fits, p.seconds if p.fits else p.memory))


def _slowest(conditions: Conditions, ranks: int) -> float:
    return expected_maximum(conditions.jitter, ranks)


def _cut_s(work: Workload, weights: float, conditions: Conditions) -> float:
    """The share of `Conditions.cut` of so many bytes of the weights."""
    return conditions.cut * weights / work.weights if weights else 0.0


def _data(work: Workload, ranks: int, batch: int, conditions: Conditions) -> Iterator[Prediction]:
    """Each rank computes all layers for its samples; gradients are summed over all ranks."""
    return _groups(work, ranks, batch, conditions, "data", [1])


def _hybrid(work: Workload, ranks: int, batch: int, conditions: Conditions) -> Iterator[Prediction]:
    """Convolutions by data; columns of dense layers shared by groups of ranks (A. Krizhevsky, arXiv:1404.5997)."""
    dense = [layer for layer in work.layers if layer.dense]
    most = min((layer.width for layer in dense), default=0)
    # Groups of equal size, each with a column at least for every rank.
    sizes = [g for g in range(2, ranks + 1) if ranks % g == 0 and g <= most and g == (conditions.group or g)]
    if ranks > 1 and not sizes:
        why = f"no group of {conditions.group or 'several'} ranks shares {most} columns" if dense else "no dense layers"
        yield Prediction("hybrid", ranks, batch, impossible=why)
        return
    yield from _groups(work, ranks, batch, conditions, "hybrid", sizes or [1])


def _groups(
    work: Workload, ranks: int, batch: int, conditions: Conditions, strategy: str, sizes: Sequence[int]
) -> Iterator[Prediction]:
    """Data parallelism, in which groups of so many ranks share the dense layers; by themselves if that is 1."""
    shards = conditions.shards if conditions.algorithm == "fixed" and strategy == "data" else None
    if ranks > min(batch, shards or batch):
        why = f"a batch of {batch} has no sample for each rank" if ranks > batch else f"{shards} shards"
        yield Prediction(strategy, ranks, batch, impossible=why)
        return
    for size in sizes:
        yield _group(work, ranks, batch, conditions, strategy, size)


def _group(work: Workload, ranks: int, batch: int, conditions: Conditions, strategy: str, size: int) -> Prediction:
    network, slow = conditions.network, _slowest(conditions, ranks)
    rank_batch = -(-batch // ranks)
    runs, part, line = 1, rank_batch, _Timeline(conditions)
    if conditions.shards and conditions.algorithm == "fixed" and size == 1:
        shards = min(conditions.shards, batch)
        # Shards run one after the other, each a smaller batch, which takes more than its share of the time.
        runs, part, line.sums = -(-shards // ranks), -(-batch // shards), sums_of(shards, ranks)
    ways = ("fixed",) if conditions.algorithm == "fixed" else ("ring", "tree")  # libraries choose for few bytes
    split = [size > 1 and layer.dense for layer in work.layers]
    compute = 0.0

    def spend(layer: LayerWork, phase: str, cut: bool) -> None:
        nonlocal compute
        samples, share = (rank_batch * size, 1 / size) if cut else (part, 1.0)
        seconds = slow * work.seconds(layer, phase, samples, share)
        compute += seconds
        line.at += seconds

    def hand(layer: LayerWork, cut: bool) -> None:
        nonlocal compute
        parts = size if cut else 1
        seconds = slow * _cut_s(work, layer.weights / parts, conditions) if ranks * runs > 1 else 0.0
        compute += seconds
        line.at += seconds
        line.add(layer.weights / parts, ranks // parts, parts)

    def gather(layer: LayerWork, cut: bool) -> None:
        if cut and not layer.first:
            line.wait(network.all_gather(rank_batch * size * layer.activations, size))

    def normalize(layer: LayerWork) -> None:  # two sums over all shards, of x and of the squares around its mean
        line.wait(2 * min(network.all_reduce(layer.normalized, ranks, way) for way in ways))

    for number in range(runs):
        for layer, cut in zip(work.layers, split, strict=True):
            gather(layer, cut)
            spend(layer, "forward", cut)
            if number == 0:
                normalize(layer)
        for layer, cut in zip(reversed(work.layers), reversed(split), strict=True):
            if number == 0:
                normalize(layer)
            spend(layer, "backward", cut)
            # The gradient of a gather is a scatter of as many bytes.
            gather(layer, cut)
            if number == runs - 1:
                hand(layer, cut)
    late = line.end()
    line.at += late
    moved = memory = 0.0
    for layer, cut in zip(work.layers, split, strict=True):
        parts, samples = (size, rank_batch * size) if cut else (1, part)
        spend(layer, "update", cut)
        if cut and not layer.first:
            moved += 2 * samples * layer.activations * (size - 1) / size
        moved += 4 * sent(layer.normalized, ranks)
        moved += sent(layer.weights / parts, ranks // parts, 1 if cut else line.sums, conditions.algorithm)
        memory += (2 * layer.weights + layer.state) / parts + layer.saved * samples
    how = f"groups of {size}" if strategy == "hybrid" else f"{runs} shards a rank" if runs > 1 else ""
    exposed = max(0.0, line.at - compute)
    hidden = line.talked - exposed if line.talked > (1 + 1e-9) * exposed else 0.0  # what is not from rounding
    return Prediction(
        strategy, ranks, batch, how, line.at, compute, hidden, exposed, 0.0, moved,
        memory + (work.input + work.passing) * part,
    )  # fmt: skip


def _model(work: Workload, ranks: int, batch: int, conditions: Conditions) -> Iterator[Prediction]:
    """Columns and filters of all layers shared by all ranks, each of which sees the whole batch."""
    network, slow = conditions.network, _slowest(conditions, ranks)
    compute = talked = moved = memory = 0.0
    most = max(layer.width for layer in work.layers)
    if ranks > most:
        yield Prediction("model", ranks, batch, impossible=f"no layer has more than {most} columns or filters")
        return
    width = most
    for layer in work.layers:
        width = layer.width or width  # what has no weights is cut as the layer before it
        # The rank with most columns sets the pace: columns need not divide evenly.
        share = math.ceil(width / min(ranks, width)) / width
        for phase in ("forward", "backward", "update"):
            compute += slow * work.seconds(layer, phase, batch, share)
        gathered = 0.0 if layer.first or ranks == 1 else batch * layer.activations
        talked += 2 * network.all_gather(gathered, ranks) if gathered else 0.0
        moved += 2 * gathered * (ranks - 1) / ranks
        memory += (2 * layer.weights + layer.state + layer.saved * batch) * share + gathered * (1 - share)
    yield Prediction("model", ranks, batch, "", compute + talked, compute, 0.0, talked, 0.0, moved,
                     memory + work.input * batch + work.passing * batch / ranks)  # fmt: skip


def _pipeline(work: Workload, ranks: int, batch: int, conditions: Conditions) -> Iterator[Prediction]:
    """Layers in stages, and the batch in micro-batches that follow each other (Y. Huang et al., arXiv:1811.06965).

    Where there are more ranks than stages, several pipelines share the batch and sum their gradients.
    """
    if ranks == 1:
        yield replace(next(_data(work, 1, batch, replace(conditions, shards=None))), strategy="pipeline")
        return
    most = min(len([layer for layer in work.layers if layer.weights]), MOST_STAGES)
    counts = [p for p in range(2, min(ranks, most) + 1) if ranks % p == 0 and ranks // p <= batch]
    if not counts:
        why = f"{most} layers with weights, and a batch of {batch}, give no stages for so many ranks"
        yield Prediction("pipeline", ranks, batch, impossible=why)
    for stages in counts:
        pipeline_batch = -(-batch // (ranks // stages))
        for power in range(int(math.log2(pipeline_batch)) + 1):
            yield _piped(work, ranks, batch, conditions, stages, pipeline_batch, 2**power)


def _piped(
    work: Workload, ranks: int, batch: int, conditions: Conditions, stages: int, pipeline_batch: int, micro: int
) -> Prediction:
    network, slow, copies = conditions.network, _slowest(conditions, ranks), ranks // stages
    part = pipeline_batch / micro
    latency, bandwidth = network.link(stages)
    layers = work.layers
    cost = [sum(work.seconds(layer, p, part) for p in ("forward", "backward")) for layer in layers]
    ends = _cut(cost, stages)
    starts = [0, *ends[:-1]]
    slots: list[float] = []
    bare: list[float] = []
    sums: list[float] = []
    sends: list[float] = []
    memory: list[float] = []
    updates: list[float] = []
    for start, end in zip(starts, ends, strict=True):
        held = layers[start:end]
        edges = [layers[i - 1].crossing for i in (start, end) if 0 < i < len(layers)]
        weights = sum(layer.weights for layer in held)
        bare.append(slow * sum(cost[start:end]))
        # A stage cannot go on before its activations have left: both sides wait for the link.
        slots.append(bare[-1] + sum(latency + e * part / bandwidth for e in edges))
        sums.append(network.all_reduce(weights, copies, conditions.algorithm, stride=stages))
        sends.append(sum(e * pipeline_batch for e in edges) + sent(weights, copies))
        cut = _cut_s(work, weights, conditions) if copies * micro > 1 else 0.0
        updates.append(slow * (cut + sum(work.seconds(layer, "update", 1) for layer in held)))
        memory.append(sum(2 * layer.weights + layer.state + layer.saved * pipeline_batch for layer in held))
    # The bubble: the last stage begins when all others have had the first micro-batch.
    idle = (stages - 1) * max(slots)
    compute = micro * max(bare) + max(updates)
    exposed = micro * (max(slots) - max(bare)) + max(sums)
    how = f"{stages} stages, {micro} micro-batch{'es' * (micro > 1)}" + (f", {copies} pipelines" if copies > 1 else "")
    return Prediction("pipeline", ranks, batch, how, compute + exposed + idle, compute, 0.0, exposed, idle, max(sends),
                      max(memory) + work.input * pipeline_batch + work.passing * part)  # fmt: skip


def _cut(costs: Sequence[float], parts: int) -> list[int]:
    """Ends of consecutive parts, none empty, of which the largest is as small as can be."""

    def ends_below(limit: float) -> list[int]:
        cuts: list[int] = []
        total = 0.0
        for i, cost in enumerate(costs):
            left = parts - 1 - len(cuts)  # parts to come, each of which takes one at least
            if i and left and (total + cost > limit or len(costs) - i <= left):
                cuts.append(i)
                total = 0.0
            total += cost
        return [*cuts, len(costs)]

    def largest(ends: Sequence[int]) -> float:
        return max(sum(costs[a:b]) for a, b in zip([0, *ends[:-1]], ends, strict=True))

    low, high = 0.0, sum(costs)
    best = ends_below(high)
    # Bisection by the largest part: whether a limit can be kept is one walk over the layers.
    for _ in range(30):
        middle = (low + high) / 2
        ends = ends_below(middle)
        if largest(ends) <= middle:
            best, high = ends, middle
        else:
            low = middle
    return best
