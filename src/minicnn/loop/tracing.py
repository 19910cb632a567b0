"""From a model to its Programs: the training step, the evaluation step and the prediction."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np

from minicnn import ops
from minicnn.backends.base import Array
from minicnn.distribution.passes import Shard, check_samples, reduce_totals, synchronize, write_out
from minicnn.distribution.split import split_kernels, sum_parts
from minicnn.layers.trace import Trace
from minicnn.layers.weight import Weight
from minicnn.loop.objective import PREFIX, SKIPPED, Objective
from minicnn.losses import Loss
from minicnn.losses.base import of_samples
from minicnn.metrics import Mean
from minicnn.optimizers import Optimizer
from minicnn.program.autodiff import gradients as differentiate
from minicnn.program.graph import Program, Spec, Value
from minicnn.program.passes import lower_precision, optimize, pool_before_relu, shorten_images

if TYPE_CHECKING:
    from minicnn.loop.step import Supervised

T = TypeVar("T", bound=Trace)
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

    def of(self, batch: int) -> Feed:
        """The same for another number of samples, which are given as they are."""
        x, y = (tuple(Spec((batch, *spec.shape[1:]), spec.dtype) for spec in specs) for specs in (self.x, self.y))
        return replace(self, batch=batch, x=x, y=y, gathered=False)


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


def trace_step(
    step: Supervised, kind: StepKind, feed: Feed, shard: Shard | None, trainable: Mapping[Any, bool]
) -> tuple[Program, dict[str, Weight]]:
    """Trace a model into the Program of one step.

    Args:
        step: The layers, and what they are trained for.
        kind: "train", "evaluate" or "predict".
        feed: What the step is given.
        shard: The shard of a larger batch that the step is for, if it is; then what all shards have in common is
            summed over them, by collectives.
        trainable: Whether the model, which is None, and layers in it are trainable; as they are now if not named.

    Returns:
        The Program after the passes that run for every backend, and the weights by path.
    """
    objective = None if kind == "predict" else step.compiled()[0]
    optimizer, precision = step.optimizer, PRECISIONS[step.precision]
    trace = begin_trace(Trace, step, kind, feed, shard, trainable)
    program = trace.program
    x, y, weight = declare_data(program, feed, precision.dtype)
    outputs = step.wired().trace(trace, x)
    if shard is not None:
        outputs = _synchronized(program, shard, outputs, trace)
    pool_before_relu(program, [*outputs, *trace.updates.values()])
    if objective is None:
        for name, value in zip(input_names("output", len(outputs)), outputs, strict=True):
            program.outputs[name] = value
    else:
        with program.scope("loss"):
            penalties = trace.penalties()
        # Penalties are no sums over samples: with shards they come after the sum over these.
        with program.scope("loss"):
            added = [mean_of(loss) for loss in trace.losses]
        common = [*penalties, *added] if shard is None else added
        loss = _loss(program, objective, outputs, y, weight, common, shard)
        with program.scope(METRICS):
            for log, mean in measured_means(trace).items():
                accumulate(program, log, totals_of(mean, trace))
        if kind == "train" and optimizer is not None:
            _train(program, trace, loss, optimizer, shard, penalties, scaled=precision.products == "float16")
        elif shard is not None:
            reduce_totals(program, shard, sum_of(loss), [])
            _penalize(program, shard, penalties)
    return finish_program(program, precision), trace.declared


def begin_trace(
    tracing: type[T], step: Supervised, kind: StepKind, feed: Feed, shard: Shard | None,
    trainable: Mapping[Any, bool], /, **more: Any,
) -> T:  # fmt: skip
    """The tracing of a step's Program, of the class `tracing`, which takes `more`: see `trace_step`."""
    precision = PRECISIONS[step.precision]
    trace = tracing(
        Program(kind), training=kind == "train" or feed.training, seed=step.seed, dtype=precision.dtype,
        images=precision.products or precision.dtype, trainable=trainable.get(None, True), noted=trainable,
        paths=step.paths, samples=feed.batch, **more,
    )  # fmt: skip
    if shard is not None:
        trace.batch, trace.samples = shard.batch, shard.samples
    return trace


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


def _loss(
    program: Program, objective: Objective, outputs: Sequence[Value], y: Sequence[Value], weight: Value | None,
    penalties: Sequence[Value], shard: Shard | None,
) -> Value:  # fmt: skip
    """Mean loss of the batch, with penalties; sums for the logs become updates of "metric/..." inputs."""
    batch, dtype = outputs[0].shape[0], outputs[0].dtype
    program.counted = whole = batch if shard is None else shard.batch
    with program.scope("loss"):
        ones = ops.broadcast_to(program.constant(1.0, dtype), shape=(batch,))
        count = ops.sum(ones)
    parts: list[Value] = []
    for output, target, loss, share, metrics, name in zip(
        outputs, y, objective.losses, objective.loss_weights, objective.metrics, objective.names, strict=True
    ):
        weighted = loss_of_output(program, loss, target, output, weight, shard)
        with program.scope("loss"):
            parts.append(weighted if share == 1.0 else weighted * share)
        with program.scope(METRICS):
            if len(outputs) > 1:
                accumulate(program, f"{name}loss", {"total": weighted, "count": count})
            for metric in metrics:
                totals = metric.totals(target, output, ones if weight is None else weight)
                accumulate(program, f"{name}{metric.name}", totals)
                if not isinstance(metric, Mean):  # it may count every prediction
                    program.counted = max(program.counted, output.size // batch * whole)
    with program.scope("loss"):
        total = reduce(operator.add, [*parts, *(penalty * float(batch) for penalty in penalties)])
        program.outputs["loss"] = mean = total * (1.0 / batch)
    with program.scope(METRICS):
        accumulate(program, "loss", {"total": total, "count": count})
    return mean


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


def sum_of(mean: Value) -> Value:
    """The sum that a mean was made of by a factor."""
    return mean if mean.node is None else mean.node.inputs[0]


def _synchronized(program: Program, shard: Shard, outputs: Sequence[Value], trace: Trace) -> list[Value]:
    """Normalise over all shards; the model's outputs are other Values then, and so are the layers' updates."""
    more = [*trace.losses, *(value for _, value in trace.measured)]
    program.outputs = {str(i): v for i, v in enumerate([*outputs, *more])}
    program.updates = trace.updates
    check_samples(program.nodes, shard)
    free = [
        path for path, value in trace.weights.items()
        if value.kind == "parameter" and trace.declared[path].regularizer is trace.declared[path].constraint is None
    ]  # fmt: skip
    split_kernels(program, shard, free)
    synchronize(program, shard, trace.by_shard, short=trace.images != trace.dtype)
    values, trace.updates = list(program.outputs.values()), program.updates
    program.outputs, program.updates = {}, {}
    outputs, more = values[: len(outputs)], values[len(outputs) :]
    trace.losses, rest = more[: len(trace.losses)], more[len(trace.losses) :]
    trace.measured = [(name, value) for (name, _), value in zip(trace.measured, rest, strict=True)]
    return list(outputs)


def _penalize(program: Program, shard: Shard, penalties: Sequence[Value]) -> Value | None:
    """The sum of the penalties, if there are any, added to the loss that all shards have."""
    if not penalties:
        return None
    with program.scope("loss"):
        penalty = reduce(operator.add, penalties)
        program.outputs["loss"] = program.outputs["loss"] + penalty
    with program.scope(METRICS):
        total = f"{PREFIX}loss/total"
        program.updates[total] = program.updates[total] + penalty * float(shard.batch)
    return penalty


def _train(
    program: Program, trace: Trace, loss: Value, optimizer: Optimizer, shard: Shard | None,
    penalties: Sequence[Value], *, scaled: bool,
) -> None:  # fmt: skip
    parameters = {p: v for p, v in trace.weights.items() if v.kind == "parameter"}
    if not parameters:
        raise ValueError(
            "Training needs at least one trainable weight. Received: a model without. Add a layer that has some, or "
            "set trainable=True on one and compile again."
        )
    scale = loss_scale(program) if scaled else None
    factor = scale  # of the gradients; a shard differentiates the sum, whose gradients are as large as the mean's so
    if scale is not None and shard is not None:
        factor = scale * (1.0 / shard.batch)
    summed = loss if shard is None else sum_of(loss)
    gradients = differentiate(program, summed if factor is None else summed * factor, list(parameters.values()))
    if shard is not None:
        gradients = reduce_totals(program, shard, summed, gradients, [path in program.parts for path in parameters])
        limited = [i for i, path in enumerate(parameters) if trace.declared[path].regularizer is not None]
        penalty = _penalize(program, shard, penalties)
        if penalty is not None:
            penalty = penalty if factor is None else penalty * factor
            more = differentiate(program, penalty, [list(parameters.values())[i] for i in limited])
            with program.scope("shards", "backward"):
                for i, gradient in zip(limited, more, strict=True):
                    gradients[i] = gradients[i] + gradient
    step, reduced = trace.step(), gradients
    finite = None
    if factor is not None:
        gradients, finite = unscaled(program, gradients, factor)
    measured = set(program.updates)
    optimizer.apply(program, parameters, gradients, step)
    for path, value in trace.updates.items():
        program.updates[path] = value
    with program.scope("", "update"):
        for path in parameters:
            constraint = trace.declared[path].constraint
            if constraint is not None:
                program.updates[path] = constraint(program.updates[path])
        program.updates["step"] = step + 1
    if scale is not None and finite is not None:
        skip_unless(program, finite, scale, measured)
    if shard is not None and program.parts:
        split = [gradient for path, gradient in zip(parameters, reduced, strict=True) if path in program.parts]
        for path in list(program.parts):
            for name in (path, *optimizer.state_names(path, parameters[path].shape)):
                program.parts[name] = shard.split.shards
                split.append(program.value(name))
        sum_parts(program, shard, split)


# Loss scaling: gradients in float16 need it, because what is below 2^-24 is zero there. As in P. Micikevicius et al.,
# Mixed precision training, arXiv:1710.03740, and Keras's LossScaleOptimizer.


def loss_scale(program: Program) -> Value:
    """The factor of the loss, carried from step to step; state begins at zero, which stands for the first factor."""
    with program.scope("loss"):
        carried = program.input(SCALE, (), "float32", kind="optimizer")
        return ops.where(ops.equal(carried, 0.0), FIRST_SCALE, carried)


def unscaled(program: Program, scaled: Sequence[Value], scale: Value) -> tuple[list[Value], Value]:
    """The gradients of the loss itself, and whether all of them are finite."""
    with program.scope("loss_scale", "update"):
        # Zero times infinity or NaN is NaN, anything else zero.
        zero = reduce(operator.add, (ops.sum(g * 0.0) for g in scaled))
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
