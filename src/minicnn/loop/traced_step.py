"""TracedStep: the tracing of a training or evaluation step: weights, losses, gradients, shards and logs."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from minicnn import ops
from minicnn.distribution.passes import Shard, check_samples, constant_of, in_buckets, in_common
from minicnn.distribution.segments import COLLECTIVES
from minicnn.distribution.split import splitting, sum_parts
from minicnn.layers.trace import Trace
from minicnn.layers.weight import Weight
from minicnn.loop.held import Measured
from minicnn.loop.objective import read_mean
from minicnn.loop.spread import Spread, check_mean, spread
from minicnn.loop.tracing import (
    METRICS,
    PRECISIONS,
    StepKind,
    accumulate,
    loss_of_output,
    loss_scale,
    mean_of,
    measured_means,
    several,
    skip_unless,
    totals_of,
    unscaled,
)
from minicnn.optimizers import Optimizer
from minicnn.program.autodiff import depends_on
from minicnn.program.autodiff import gradients as differentiate
from minicnn.program.graph import Value
from minicnn.program.passes import makers_of, pool_before_relu, replace_in_place

if TYPE_CHECKING:
    from minicnn.loop.step import Step


@dataclass
class TracedStep(Trace):
    """The tracing of a training or evaluation step.

    Attributes:
        source: The step that is traced.
        kind: "train" or "evaluate".
        shard: The shard of a batch that the step is for; None for a whole one.
        data: Names of the inputs whose first axis counts samples.
        total_loss: The loss that is logged.
        output_losses: Sums over the samples of the losses of all outputs.
        metrics: Metrics that were measured.
    """

    source: Step = field(kw_only=True)
    kind: StepKind = "train"
    shard: Shard | None = None
    data: frozenset[str] = frozenset()
    total_loss: Value | None = None
    output_losses: list[Value] = field(default_factory=list)
    metrics: list[Measured] = field(default_factory=list)
    _scale: Value | None = None
    _finite: list[Value] = field(default_factory=list)
    _guarded: dict[int, int] = field(default_factory=dict)  # of how many of these new weights depend, by id
    _sums: dict[int, Value] = field(default_factory=dict)  # of means that were made of them, by id
    _totals: dict[int, Value] = field(default_factory=dict)  # over all shards, by id of what this one adds
    _settled: set[int] = field(default_factory=set)  # ids of nodes
    _stepped: set[tuple[str, str]] = field(default_factory=set)  # optimizers and paths
    _parts: list[Value] = field(default_factory=list)  # gradients of split kernels

    # Weights --------------------------------------------------------------------------------------

    def current(self, weight: Weight) -> Value:
        """The number of a weight at this point of the step.

        Raises:
            ValueError: If no layer that the model holds has it.
        """
        if weight not in self.paths:
            raise ValueError(
                "The weights of a step are those of layers that its model holds, as attributes. Received: "
                f"{weight!r} of none of them. Set it, or the layer or model that has it, in the constructor."
            )
        return self.value(weight, self.paths[weight])

    def assign(self, weight: Weight, value: Value) -> None:
        """See `Trace.assign`."""
        self.current(weight)
        super().assign(weight, value)

    def leave(self, first: int, results: Sequence[Value]) -> None:
        """See `Trace.leave`: nobody holds what the layers hand to each other, so that it may become something else."""
        if self.shard is not None:  # what layers add to the loss may be a mean over samples, and so may what they log
            makers, nodes = makers_of(self.program, results), self.program.nodes
            checked = {id(n) for n in nodes[first:] if any(id(v) in makers for v in n.outputs)}
            check_samples(nodes, self.shard, checked=checked)
        needed = [*results, *self.updates.values(), *self.losses, *(value for _, value in self.measured)]
        pool_before_relu(self.program, needed, first)

    def trained_weights(self) -> list[Weight]:
        """Weights met so far that training changes."""
        return [weight for path, weight in self.declared.items() if self.weights[path].kind == "parameter"]

    def apply(self, optimizer: Optimizer, gradients: Sequence[Value | None], weights: Sequence[Weight]) -> None:
        """Let an optimizer take a step; what is traced after it sees the new weights."""
        if self.kind != "train":
            raise RuntimeError("An optimizer takes steps in train_step. Received: apply in test_step. Leave it out.")
        if len(gradients) != len(weights) or not all(isinstance(weight, Weight) for weight in weights):
            raise ValueError(
                "apply takes gradients and as many weights, in the same order. Received: "
                f"{len(gradients)} gradients, {len(weights)} of {type(weights[0] if weights else None).__name__}. "
                "layer.trainable_weights has those of a layer."
            )
        pairs = {w: g for w, g in zip(weights, gradients, strict=True) if g is not None}
        if not pairs:
            raise ValueError(
                "Training needs at least one trainable weight. Received: a model without. Add a layer that has some, "
                "or set trainable=True on one and compile again."
            )
        parameters = {self.paths.get(weight, ""): self.current(weight) for weight in pairs}
        name, program = optimizer._name, self.program
        twice = [path for path in parameters if ("", path) in self._stepped] if name is None else []
        if twice:
            raise ValueError(
                "The optimizer of compile takes one step on each weight in a training step. Received: a second one on "
                f"{twice[0]!r}. Hold the optimizer in an attribute of the model: those take as many as you like."
            )
        self._stepped |= {(name or "", path) for path in parameters}
        for path in parameters:
            self.weights[path].kind = "parameter"
        counter = "step" if name is None else f"{name}/step"
        count = self.step() if name is None else self._counter(counter)
        optimizer.apply(program, parameters, list(pairs.values()), count)
        with program.scope("", "update"):
            for path in parameters:
                constraint = self.declared[path].constraint
                if constraint is not None:
                    program.updates[path] = constraint(program.updates[path])
                if self._finite:  # what the step computes from here on, and logs, is finite as well
                    program.updates[path] = ops.where(self._all_finite(), program.updates[path], parameters[path])
                    self._guarded[id(program.updates[path])] = len(self._finite)
                self.updates[path] = program.updates[path]
            if name is not None:  # one that may take several steps counts them itself
                program.updates[counter] = count + 1

    def _counter(self, name: str) -> Value:
        program = self.program
        known = name in program.updates or any(v.name == name for v in program.inputs)
        if not known:
            return program.input(name, (), "int32", kind="counter")
        return program.updates.get(name, program.value(name))

    # Losses and gradients -------------------------------------------------------------------------

    def loss(self, y: Any, y_pred: Any, weight: Value | None) -> Value:
        """The loss that the model was compiled for, with penalties and what layers add: a mean over the samples."""
        objective, shard = self.source.compiled()[0], self.shard
        program, samples, parts = self.program, self.samples, list[Value]()
        self.output_losses.clear()
        scalars = [] if shard is None else [value for value in self.losses if not value.shape]
        kinds = self._spread() if scalars else {}
        for value in scalars:
            check_mean("What a layer adds to the loss", value, kinds.get(id(value), "same"))
        targets, outputs = (several(part) if objective.losses else [] for part in (y, y_pred))
        for loss, target, output, share in zip(objective.losses, targets, outputs, objective.loss_weights, strict=True):
            total = loss_of_output(program, loss, target, output, weight, shard)
            self.output_losses.append(total)
            with program.scope("loss"):
                parts.append(total if share == 1.0 else total * share)
        with program.scope("loss"):
            penalties = self.penalties()
            common = [] if shard is None else penalties  # the same on all shards
            added = [*(penalties if shard is None else ()), *map(mean_of, self.losses)]
            parts += [part * float(samples) for part in added]
            if not parts and not common:
                raise ValueError(
                    "A model is trained for a loss. Received: none. Give compile a loss, let a layer call add_loss, or "
                    "compute one in train_step."
                )
            if parts:
                total = reduce(operator.add, parts)
                mean = total * (1.0 / samples)
                self._sums[id(mean)] = total
                common = [mean, *common]
            self.total_loss = reduce(operator.add, common)
        return self.total_loss

    def gradients(self, loss: Value, of: Sequence[Any]) -> list[Value]:
        """See `gradients`."""
        values = [self.current(v) if isinstance(v, Weight) else v for v in of]
        weights = [v for v in of if isinstance(v, Weight)]
        self._check_current(loss, weights)
        scaled = PRECISIONS[self.source.precision].products == "float16" and bool(weights)
        if scaled and self._scale is None:
            self._scale = loss_scale(self.program)
        factor = self._scale if scaled else None
        if self.shard is None:
            slopes = differentiate(self.program, loss if factor is None else loss * factor, values)
        else:
            slopes = self._over_shards(loss, values, factor, self.shard)
        if factor is None:
            return slopes
        slopes, finite = unscaled(self.program, slopes, factor)
        self._finite.append(finite)
        return slopes

    def _over_shards(self, loss: Value, values: Sequence[Value], factor: Value | None, shard: Shard) -> list[Value]:
        kinds = self._spread()
        kind = kinds.get(id(loss), "same")
        of_samples = [kinds.get(id(v), "same") == "samples" for v in values]
        program, share = self.program, 1.0 / shard.batch
        if kind == "sum" and all(of_samples):  # each sample has its own
            return differentiate(program, loss, values)
        check_mean("The loss of a step", loss, kind)
        mean, common = self._terms(loss, kinds)
        slopes: list[Value] = []
        if kind != "same":
            summed = self.sum_of(mean)
            slopes = differentiate(program, summed if factor is None else summed * (factor * share), values)
            with program.scope("shards", "backward"):
                for i in [i for i, value in enumerate(values) if value.name in program.parts]:
                    of_samples[i] = True  # what only groups of shards have to sum
                    slopes[i] = ops.all_reduce(slopes[i], group=shard.alike) if shard.groups > 1 else slopes[i]
                # What is logged goes in the same messages.
                logged = [total for metric in self.metrics for total in metric.totals.values()]
                logged += [summed] if loss is self.total_loss else []
                shared = [g for g, alone in zip(slopes, of_samples, strict=True) if not alone]
                totals = iter(self._over_all([*logged, *shared], shard)[len(logged) :])
                slopes = [g if alone else next(totals) for g, alone in zip(slopes, of_samples, strict=True)]
                slopes = [g * share for g in slopes] if factor is None else slopes
            self._parts += [g for g, value in zip(slopes, values, strict=True) if value.name in program.parts]
        if common:
            alike = reduce(operator.add, common)
            after = depends_on(program, values)
            gathered = [v for n in program.nodes if n.op.name in COLLECTIVES for v in n.outputs if id(v) in after]
            if id(alike) in depends_on(program, gathered):  # all shards would differentiate all samples
                raise ValueError(
                    "Where a batch is cut into shards, each shard has the loss of its own samples. Received: a loss of "
                    f"what is gathered alone, {alike!r}. Let self.gather(x) stand on one side only, and x on the other."
                )
            slopes, makers = slopes or list(values), makers_of(program, [alike])
            concerned = [i for i, v in enumerate(values) if kind == "same" or id(v) in makers]
            more = differentiate(program, alike if factor is None else alike * factor, [values[i] for i in concerned])
            with program.scope("shards", "backward"):
                for i, gradient in zip(concerned, more, strict=True):
                    slopes[i] = gradient if kind == "same" else slopes[i] + gradient
        return slopes

    def _terms(self, loss: Value, kinds: Mapping[int, Spread]) -> tuple[Value, list[Value]]:
        """The part of a loss that is a mean over samples, and what is added that is the same on all shards."""
        common: list[Value] = []
        while kinds.get(id(loss), "same") != "same" and id(loss) not in self._sums and loss.node is not None:
            alike = [v for v in loss.node.inputs if kinds.get(id(v), "same") == "same" and not v.shape]
            if loss.node.op.name != "add" or not alike:
                return loss, common
            common += alike
            (loss,) = [v for v in loss.node.inputs if v is not alike[0]]
        return (loss, common) if kinds.get(id(loss), "same") != "same" else (loss, [loss])

    def _all_finite(self) -> Value:
        """True if all gradients so far are, in float16."""
        return reduce(lambda a, b: ops.where(a, b, a), self._finite)

    def _check_current(self, loss: Value, weights: Sequence[Weight]) -> None:
        changed = [w for w in weights if self.paths[w] in self.updates]
        for weight in changed:
            now, before = self.current(weight), self.weights[self.paths[weight]]
            if id(loss) not in depends_on(self.program, [now]) and id(loss) in depends_on(self.program, [before]):
                raise ValueError(
                    "Gradients are taken before an optimizer changes the weights, or of a loss that is computed "
                    f"afterwards. Received: a loss of {self.paths[weight]!r} as it was. Move gradients before apply."
                )

    def sum_of(self, mean: Value) -> Value:
        """The sum over the samples of the step of which something is the mean."""
        if id(mean) not in self._sums:
            self._sums[id(mean)] = mean * float(self.samples)
        return self._sums[id(mean)]

    # Shards ---------------------------------------------------------------------------------------

    def numbers(self) -> Value:
        """See `Steps.sample_numbers`."""
        return self.program.constant(np.arange(self.samples, dtype="int32")) if self.shard is None else self.rows()

    def gather(self, x: Value) -> Value:
        """See `Steps.gather`."""
        if not x.shape or x.shape[0] != self.samples:
            raise ValueError(
                f"gather takes numbers of the step's {self.samples} samples, along the first axis. Received: {x!r}. "
                "What is the same for all samples needs no gathering."
            )
        shard = self.shard
        if shard is None:
            return x
        # Sums with zeros are exact, and shards need not be of one size.
        rows = ops.take_gradient(ops.as_float(x, self.dtype), self.rows(), rows=shard.batch)
        whole = ops.all_reduce(rows, group=shard.group)
        return whole if whole.dtype == x.dtype else ops.cast(whole, dtype=x.dtype)

    def _over_all(self, values: Sequence[Value], shard: Shard) -> list[Value]:
        """Sums over all shards, in as few messages as are worth it."""
        # All shards know how many samples they have together.
        known = {id(v) for v in values if id(v) in self._totals or constant_of(v) == shard.samples}
        new = [v for v in values if id(v) not in known]
        self._totals |= zip(map(id, new), in_buckets(self.program, shard, new), strict=True)
        whole = self.program.constant(float(shard.batch), self.dtype)
        return [self._totals.get(id(v), whole) for v in values]

    def _spread(self) -> dict[int, Spread]:
        """Spread of each Value, once batches are normalised as such, and kernels split."""
        shard, program = self.shard, self.program
        if shard is not None and shard.count > 1:
            if shard.layout and not self._settled:
                free = [self.paths[w] for w in self.trained_weights() if w.regularizer is w.constraint is None]
                replace_in_place(program, splitting(program, shard, free))
            settled = in_common(shard, self.by_shard, short=self.images != self.dtype)
            replace_in_place(program, lambda node: None if id(node) in self._settled else settled(node))
            self._settled |= set(map(id, program.nodes))
        return spread(program, self.samples, self.data, self._sums)

    # Logs -----------------------------------------------------------------------------------------

    def finish(self, logs: Mapping[str, Any]) -> dict[str, Callable[[Any], Any]]:
        """Hand back what the step returns and changes; returns how logs are read, in their order."""
        program, shard = self.program, self.shard
        kinds = self._spread() if shard is not None else {}
        sums: dict[str, dict[str, Value]] = {}
        readers: dict[str, Callable[[Any], Any]] = {}
        with program.scope(METRICS, "forward"):
            for name, value in {**logs, **measured_means(self)}.items():
                if isinstance(value, Measured):
                    if value.totals:
                        sums[name], readers[name] = dict(value.totals), value.reader
                    continue
                readers[name] = read_mean
                program.outputs[name] = self._scalar(name, value)
                sums[name] = totals_of(program.outputs[name], self)
                if shard is None:
                    sums[name]["total"] = self.sum_of(program.outputs[name])
        if shard is not None:
            with program.scope("shards", "backward" if self.kind == "train" else "forward"):
                self._sum_logs(sums, kinds, shard)
        with program.scope(METRICS, "forward"):
            measured = {f"metric/{name}/{key}" for name, totals in sums.items() for key in totals}
            for name, totals in sums.items():
                accumulate(program, name, totals)
            if "loss" not in program.outputs and program.outputs:  # by which NaN is noticed
                program.outputs["loss"] = reduce(operator.add, program.outputs.values())
        if self.kind == "train":
            for path, value in self.updates.items():
                if shard is not None and kinds.get(id(value)) == "mean":
                    (value,) = [ops.all_reduce(value * float(self.samples), group=shard.group) * (1.0 / shard.batch)]
                program.updates[path] = value
            with program.scope("", "update"):
                program.updates["step"] = self.step() + 1
            if self._scale is not None and self._finite:
                guarded = {n for n, v in program.updates.items() if self._guarded.get(id(v)) == len(self._finite)}
                skip_unless(program, self._all_finite(), self._scale, measured | guarded)
            if shard is not None and program.parts:
                optimizer = self.source.compiled()[1]
                for path in list(program.parts):
                    for name in (path, *optimizer.state_names(path, self.weights[path].shape)):
                        program.parts[name] = shard.split.shards
                        self._parts.append(program.value(name))
                sum_parts(program, shard, self._parts)
        return readers

    def _sum_logs(self, sums: dict[str, dict[str, Value]], kinds: Mapping[int, Spread], shard: Shard) -> None:
        """Put sums over all shards into the place of those of the step, and means of the batch into its outputs."""
        outputs, common = self.program.outputs, dict[str, list[Value]]()
        for name, mean in outputs.items():
            kind = kinds.get(id(mean), "same")
            check_mean(f"The log {name!r}", mean, kind)
            part, common[name] = (mean, []) if kind == "same" else self._terms(mean, kinds)
            sums[name]["total"] = self.sum_of(part)
        every = [(name, key, value) for name, totals in sums.items() for key, value in totals.items()]
        for (name, key, _), total in zip(every, self._over_all([v for *_, v in every], shard), strict=True):
            sums[name][key] = total
        for name, alike in common.items():
            outputs[name] = sums[name]["total"] * (1.0 / shard.batch)
            if alike:
                penalty = reduce(operator.add, alike)
                outputs[name] = outputs[name] + penalty
                sums[name]["total"] = sums[name]["total"] + penalty * float(shard.batch)

    def _scalar(self, name: str, value: Any) -> Value:
        if isinstance(value, int | float | np.number) and not isinstance(value, bool):
            return self.program.constant(float(value), self.dtype)
        if not isinstance(value, Value) or value.shape:
            raise TypeError(
                "A step returns a dictionary of logs: scalars, of which the epoch has the mean over its samples, or "
                f"results of metrics. Received: {name!r} = {value!r:.80}. Take ops.mean of it."
            )
        return ops.as_float(value, self.dtype)
