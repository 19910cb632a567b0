"""Data, losses and sums of a step as its Program is traced; the scale of losses in float16."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, Literal

import numpy as np

from minicnn import ops
from minicnn.backends.base import Array
from minicnn.distribution.passes import Shard, check_samples, write_out
from minicnn.layers.trace import Trace
from minicnn.loop.objective import PREFIX, SKIPPED
from minicnn.losses import Loss
from minicnn.losses.base import of_samples
from minicnn.program.graph import Program, Spec, Value
from minicnn.program.passes import lower_precision, optimize, shorten_images

StepKind = Literal["train", "evaluate", "predict"]

# Scope of the nodes that measure how good the predictions are.
METRICS = "metrics"
# The factor by which losses are multiplied in float16: at first, and after how many finite steps it doubles.
FIRST_SCALE, GROWTH_STEPS = 2.0**15, 2000
SCALE = "loss_scale/factor"  # its name


@dataclass(frozen=True)
class Feed:
    """Shapes and types of a step's data.

    Attributes:
        batch: Samples in a step.
        x: Specs of the input arrays: of one batch, or of the whole data set if `gathered`.
        y: Specs of the label arrays, likewise; empty for predictions.
        weight: Shape of the weights of a sample, () for one of all its predictions; None without weights.
        gathered: Whether each step picks its rows from whole arrays by an index.
        training: Whether the layers of a prediction act as in training.
    """

    batch: int
    x: tuple[Spec, ...]
    y: tuple[Spec, ...] = ()
    weight: tuple[int, ...] | None = None
    gathered: bool = False
    training: bool = False

    @property
    def names(self) -> list[str]:
        """Names of the inputs and labels among a Program's inputs."""
        return [*input_names("x", len(self.x)), *input_names("y", len(self.y))]

    def of(self, batch: int, rows: int | None = None) -> Feed:
        """The same for another number of samples: given as they are, or picked from arrays of so many rows."""
        first = batch if rows is None else rows
        x, y = (tuple(Spec((first, *spec.shape[1:]), spec.dtype) for spec in specs) for specs in (self.x, self.y))
        return replace(self, batch=batch, x=x, y=y, gathered=rows is not None)


@dataclass(frozen=True)
class Run:
    """Steps that are taken together.

    Attributes:
        feed: What each step is given.
        arrays: Its arrays; whole ones of which each step picks rows, if there is an index.
        steps: Number of steps.
        index: Row numbers of each step, int32 (steps, batch), or None.
    """

    feed: Feed
    arrays: dict[str, Array]
    steps: int = 1
    index: np.ndarray[Any, Any] | None = None


@dataclass(frozen=True)
class Types:
    """The dtype of weights and activations, and that of products if it is another."""

    dtype: str
    products: str | None = None


Precision = Literal["float32", "float64", "mixed_bfloat16", "mixed_float16"]
PRECISIONS: dict[str, Types] = {
    "float32": Types("float32"),
    "float64": Types("float64"),
    "mixed_bfloat16": Types("float32", "bfloat16"),
    "mixed_float16": Types("float32", "float16"),
}


def input_names(prefix: str, count: int) -> list[str]:
    """Names of data inputs: the prefix alone for one, numbered for several."""
    return [prefix] if count == 1 else [f"{prefix}{i}" for i in range(count)]


def finish_program(program: Program, precision: Types) -> Program:
    """The Program of a step after the passes that run for every backend."""
    write_out(program)
    if precision.products:
        shorten_images(program, precision.products)
        lower_precision(program, precision.products, keep=METRICS)  # counts stay exact
    return optimize(program)


def declare_data(program: Program, feed: Feed, dtype: str) -> tuple[list[Value], list[Value], Value | None]:
    """Inputs of one batch: as they are given, or picked from the whole data set by "index"."""
    specs = [*zip(feed.names, (*feed.x, *feed.y), strict=True)]
    if feed.weight is not None:
        specs.append(("sample_weight", Spec((feed.x[0].shape[0], *feed.weight), dtype)))
    values = [program.input(name, spec.shape, spec.dtype) for name, spec in specs]
    with program.scope("data"):
        if feed.gathered:
            index = program.input("index", (feed.batch,), "int32")
            values = [ops.take(v, index) for v in values]
        n = len(feed.x)
        x = [ops.as_float(v, dtype) for v in values[:n]]
    return x, values[n : n + len(feed.y)], values[-1] if feed.weight is not None else None


def loss_of_output(
    program: Program, loss: Loss, target: Value, output: Value, weight: Value | None, shard: Shard | None
) -> Value:
    """The sum of the losses of all samples."""
    with program.scope("loss"):
        first = len(program.nodes)
        each = of_samples("A loss", loss.name, loss.call(target, output), target, output, weight)
        if shard is not None:
            check_samples(program.nodes[first:], shard, type(loss).__name__)
        weighted: Value = ops.sum(each)
        counted = loss.counted(target, output)
        return weighted if counted is None else weighted * _enlargement(counted, shard)


def _enlargement(counted: Value, shard: Shard | None) -> Value:
    """The factor from a mean over all predictions of a batch, of which some are 0, to that over those that count."""
    total, every = ops.sum(counted), counted.size
    if shard is not None:
        total, every = ops.all_reduce(total, group=shard.group), every // shard.samples * shard.batch
    return float(every) / ops.maximum(total, 1.0)


def accumulate(program: Program, log: str, totals: Mapping[str, Value]) -> None:
    """Let a step add to the totals of a log."""
    for key, value in totals.items():
        name = f"{PREFIX}{log}/{key}"
        program.updates[name] = program.input(name, value.shape, value.dtype, kind="metric") + value


def several(part: Any) -> list[Any]:
    """A list or tuple of Values as a list, one Value as a list of one."""
    return list(part) if isinstance(part, list | tuple) else [part]


def mean_of(value: Value) -> Value:
    """A scalar as it is, the mean of other Values."""
    return ops.mean(value) if value.shape else value


def measured_means(trace: Trace) -> dict[str, Value]:
    """Logs of layers, each the mean of all that have the name."""
    several: dict[str, list[Value]] = {}
    for log, value in trace.measured:
        several.setdefault(log, []).append(mean_of(value))
    return {log: v[0] if len(v) == 1 else reduce(operator.add, v) * (1 / len(v)) for log, v in several.items()}


def totals_of(mean: Value, trace: Trace) -> dict[str, Value]:
    """Summands of an epoch's sums that a mean over the samples of a step gives."""
    samples = float(trace.samples)
    return {"total": mean * samples, "count": trace.program.constant(samples, trace.dtype)}


# Loss scaling: gradients in float16 need it, because what is below 2^-24 is zero there. As in P. Micikevicius et al.,
# Mixed precision training, arXiv:1710.03740, and Keras's LossScaleOptimizer.


def loss_scale(program: Program) -> Value:
    """The factor of the loss, carried from step to step; state begins at zero, which stands for the first factor."""
    with program.scope("loss"):
        carried = program.input(SCALE, (), "float32", kind="optimizer")
        return ops.where(ops.equal(carried, 0.0), FIRST_SCALE, carried)


def unscaled(program: Program, scaled: Sequence[Value], scale: Value) -> tuple[list[Value], Value]:
    """The gradients of the loss itself, and whether all of them are finite."""
    # A part of the gradients' making: what is of the update is stored, and each of these products would be.
    with program.scope("loss_scale", "backward"):
        # Zero times infinity or NaN is NaN, anything else zero.
        zero = ops.total([ops.sum(g * 0.0) for g in scaled])
    with program.scope("loss_scale", "update"):
        inverse = 1.0 / scale
        return [g * inverse for g in scaled], ops.equal(zero, 0.0)


def skip_unless(program: Program, finite: Value, scale: Value, measured: set[str]) -> None:
    """A step whose gradients are not finite changes nothing but the scale, which is halved, and is counted."""
    with program.scope("loss_scale", "update"):
        for name in [n for n in program.updates if n not in measured]:
            program.updates[name] = ops.where(finite, program.updates[name], program.value(name))
        steps = program.input("loss_scale/steps", (), "int32", kind="counter")
        grown = ops.greater_equal(steps, GROWTH_STEPS - 1)
        zero = program.constant(0, "int32")
        program.updates["loss_scale/steps"] = ops.where(finite, ops.where(grown, zero, steps + 1), zero)
        larger = ops.where(grown, scale * 2.0, scale)
        program.updates[SCALE] = ops.where(finite, larger, ops.maximum(scale * 0.5, 1.0))
    with program.scope(METRICS, "update"):
        accumulate(program, SKIPPED, {"total": 1.0 - ops.cast(finite, dtype="float32")})
