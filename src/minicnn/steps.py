"""From a model to its Programs: the training step, the evaluation step and the prediction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from minicnn import ops
from minicnn.layers.graph import Graph
from minicnn.layers.layer import Trace, Weight
from minicnn.losses import Loss
from minicnn.metrics import Metric
from minicnn.optimizers import Optimizer
from minicnn.program.autodiff import gradients
from minicnn.program.graph import Program, Spec, Value
from minicnn.program.passes import lower_precision, optimize, pool_before_relu

StepKind = Literal["train", "evaluate", "predict"]


@dataclass(frozen=True)
class Feed:
    """What a step is given.

    Attributes:
        batch: Samples in a step.
        x: Specs of the input arrays: of one batch, or of the whole data set if `gathered`.
        y: Specs of the label arrays, likewise; empty for predictions.
        weighted: Whether there is a weight for each sample.
        gathered: Whether each step picks its rows from whole arrays by an index.
    """

    batch: int
    x: tuple[Spec, ...]
    y: tuple[Spec, ...] = ()
    weighted: bool = False
    gathered: bool = False


@dataclass
class Objective:
    """What a model is trained for, one entry an output.

    Attributes:
        losses: Losses.
        loss_weights: Their weights in the sum that is minimised.
        metrics: Metrics of each output.
        names: Prefixes of the logs: empty for a single output.
    """

    losses: list[Loss]
    loss_weights: list[float]
    metrics: list[list[Metric]]
    names: list[str]


@dataclass(frozen=True)
class Precision:
    """A policy: the dtype of weights and activations, and that of products if it is another."""

    dtype: str
    products: str | None = None


PRECISIONS = {
    "float32": Precision("float32"),
    "float64": Precision("float64"),
    "mixed_bfloat16": Precision("float32", "bfloat16"),
}


def input_names(prefix: str, count: int) -> list[str]:
    """Names of data inputs: the prefix alone for one, numbered for several."""
    return [prefix] if count == 1 else [f"{prefix}{i}" for i in range(count)]


def trace_step(
    kind: StepKind,
    graph: Graph,
    feed: Feed,
    *,
    paths: dict[Weight, str],
    seed: int = 0,
    precision: Precision = PRECISIONS["float32"],
    objective: Objective | None = None,
    optimizer: Optimizer | None = None,
) -> tuple[Program, dict[str, Weight]]:
    """Trace a model into the Program of one step.

    Args:
        kind: "train", "evaluate" or "predict".
        graph: The layers.
        feed: What the step is given.
        paths: Names of weights, kept from trace to trace.
        seed: Seed of random layers.
        precision: Precision policy.
        objective: Losses and metrics, unless only predictions are made.
        optimizer: Optimizer, for training.

    Returns:
        The Program after the passes that every backend wants, and the weights by path.
    """
    program = Program(kind)
    trace = Trace(program, training=kind == "train", seed=seed, dtype=precision.dtype, paths=paths)
    x, y, weight = _data(program, feed, precision.dtype)
    outputs = graph.trace_graph(trace, x)
    pool_before_relu(program, [*outputs, *trace.updates.values()])
    if objective is None or kind == "predict":
        for name, value in zip(input_names("output", len(outputs)), outputs, strict=True):
            program.outputs[name] = value
    else:
        with program.scope("loss"):
            loss = _loss(program, objective, outputs, y, weight)
        if kind == "train" and optimizer is not None:
            _train(program, trace, loss, optimizer)
    if precision.products:
        lower_precision(program, precision.products)
    return optimize(program), trace.declared


def _data(program: Program, feed: Feed, dtype: str) -> tuple[list[Value], list[Value], Value | None]:
    """Inputs of one batch: as they are given, or picked from the whole data set by "index"."""
    specs = [*zip(input_names("x", len(feed.x)), feed.x, strict=True)]
    specs += zip(input_names("y", len(feed.y)), feed.y, strict=True)
    if feed.weighted:
        rows = feed.x[0].shape[0]
        specs.append(("sample_weight", Spec((rows,), dtype)))
    values = [program.input(name, spec.shape, spec.dtype) for name, spec in specs]
    with program.scope("data"):
        if feed.gathered:
            index = program.input("index", (feed.batch,), "int32")
            values = [ops.take(v, index) for v in values]
        n = len(feed.x)
        x = [ops.as_float(v, dtype) for v in values[:n]]
    return x, values[n : n + len(feed.y)], values[-1] if feed.weighted else None


def _loss(
    program: Program, objective: Objective, outputs: Sequence[Value], y: Sequence[Value], weight: Value | None
) -> Value:
    """Mean loss of the batch; sums for the logs become updates of "metric/..." inputs."""
    batch, dtype = outputs[0].shape[0], outputs[0].dtype
    ones = ops.broadcast_to(program.constant(1.0, dtype), shape=(batch,))
    if weight is None:
        weight = ones
    count = ops.sum(ones)
    total: Value | None = None
    for output, target, loss, share, metrics, name in zip(
        outputs, y, objective.losses, objective.loss_weights, objective.metrics, objective.names, strict=True
    ):
        each = loss.call(target, output)
        if each.ndim > 1:  # several predictions a sample
            each = ops.mean(each, axes=tuple(range(1, each.ndim)))
        weighted = ops.sum(each if weight is ones else each * weight)
        if len(outputs) > 1:
            _accumulate(program, f"{name}loss", {"total": weighted, "count": count})
        for metric in metrics:
            _accumulate(program, f"{name}{metric.name}", metric.totals(target, output, weight))
        part = weighted if share == 1.0 else weighted * share
        total = part if total is None else total + part
    if total is None:
        message = "A model has at least one output. Received: none."
        raise ValueError(message)
    _accumulate(program, "loss", {"total": total, "count": count})
    mean = total * (1.0 / batch)
    program.outputs["loss"] = mean
    return mean


def _accumulate(program: Program, metric: str, totals: dict[str, Value]) -> None:
    for key, value in totals.items():
        name = f"metric/{metric}/{key}"
        program.updates[name] = program.input(name, value.shape, value.dtype, kind="metric") + value


def _train(program: Program, trace: Trace, loss: Value, optimizer: Optimizer) -> None:
    parameters = {p: v for p, v in trace.weights.items() if trace.declared[p].trainable}
    if not parameters:
        message = "Training needs at least one trainable weight. Received: a model without any. Add a layer that has some."
        raise ValueError(message)
    found = gradients(program, loss, list(parameters.values()))
    step = trace.step()
    optimizer.apply(program, parameters, found, step)
    for path, value in trace.updates.items():
        program.updates[path] = value
    with program.scope("", "update"):
        program.updates["step"] = step + 1
