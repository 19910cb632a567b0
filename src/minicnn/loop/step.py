"""Step: the aim of a training, and its Programs, which are traced from `train_step` and `test_step`."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

import minicnn
from minicnn.distribution.passes import Shard
from minicnn.layers.trace import Trace
from minicnn.loop.held import held_weights
from minicnn.loop.objective import read_logs
from minicnn.loop.step_methods import Steps
from minicnn.loop.traced_step import TracedStep
from minicnn.loop.tracing import PRECISIONS, Feed, StepKind, declare_data, finish_program, input_names
from minicnn.ops.random import SOURCE
from minicnn.optimizers import Optimizer
from minicnn.program.graph import Program, Spec, Value
from minicnn.program.passes import pool_before_relu

if TYPE_CHECKING:
    from minicnn.layers.graph import Graph
    from minicnn.layers.layer import Layer
    from minicnn.layers.weight import Weight
    from minicnn.loop.objective import Objective

T = TypeVar("T", bound=Trace)
Readers = dict[str, Callable[[Mapping[str, Any]], Any]]


@dataclass
class Step:
    """The aim of a training, with layers and optimizer; Programs are traced from it.

    Attributes:
        seed: Seed of random layers.
        graph: The layers; None as long as they are not wired.
        objective: Losses and metrics; None before a model is compiled, as `optimizer`.
        optimizer: The optimizer.
        precision: Name of the precision policy.
        trainable: Whether the model, and each layer in it, was trainable when it was compiled; as they are now if
            empty. The model is None.
        author: The model, if it has a `train_step` or a part of one of its own; else the step is that of `Steps`.
        warned: Whether it was said that layers are trainable now that were not then, or no longer.
        paths: Name of each weight, kept from one trace to the next.
        seen: What the latest step was given.
    """

    seed: int
    graph: Graph | None = None
    objective: Objective | None = None
    optimizer: Optimizer | None = None
    precision: str = "float32"
    trainable: dict[Layer | None, bool] = field(default_factory=dict)
    author: Any = None
    warned: bool = False
    paths: dict[Weight, str] = field(default_factory=dict)
    seen: Feed | None = None
    _readers: Readers = field(default_factory=dict)  # of the logs that were traced

    def wired(self) -> Graph:
        """The graph; a RuntimeError if there is none."""
        if self.graph is None:
            raise RuntimeError(
                "A model knows its shapes once it is built. Received: a model without Input that has seen no data, or "
                "with a step of its own and no call. Begin the layers with Input(shape), or call "
                "build((None, *shape)); of a model with a step alone ask the models that it holds."
            )
        return self.graph

    def compiled(self) -> tuple[Objective, Optimizer]:
        """Objective and optimizer; a RuntimeError if the model is not compiled."""
        if self.objective is None or self.optimizer is None:
            raise RuntimeError(
                "A model is trained or evaluated after compile(). Received: a model without. Call it first."
            )
        return self.objective, self.optimizer

    @property
    def dtype(self) -> str:
        """Floating-point type of weights and activations."""
        return PRECISIONS[self.precision].dtype

    def feed(self, batch: int) -> Feed:
        """The feed of a step on so many samples; lengths that are not known have a trial size."""
        graph = self.wired()
        x = tuple(Spec((batch, *t.trial()), t.dtype) for t in graph.inputs)
        y: tuple[Spec, ...] = ()
        if self.objective is not None and self.objective.losses:
            y = tuple(
                Spec((batch, *t.trial()[:-1]), "int32") if loss.integer_labels
                else Spec((batch, *t.trial()), self.dtype)
                for t, loss in zip(graph.outputs, self.objective.losses, strict=True)
            )  # fmt: skip
        return Feed(batch, x, y)

    # Optimizers and logs --------------------------------------------------------------------------

    def further_optimizers(self) -> dict[str, Optimizer]:
        """Optimizers by the names of the author's attributes that hold them, without that of `compile`."""
        held = {} if self.author is None else vars(self.author)
        return {name: v for name, v in held.items() if isinstance(v, Optimizer) and v is not self.optimizer}

    def rates(self, taken: int, count: int) -> Mapping[str, Sequence[float]]:
        """Learning rates of the next steps, by the name of their input."""
        every = {"learning_rate": self.compiled()[1]} | self._further
        return {name: [optimizer.rate(taken + k) for k in range(count)] for name, optimizer in every.items()}

    @cached_property
    def _further(self) -> dict[str, Optimizer]:  # looked up once, as it is asked for in each step
        return {f"{name}/learning_rate": optimizer for name, optimizer in self.further_optimizers().items()}

    def logs(self, totals: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, Any]:
        """Losses and metrics by name, from the sums of the inputs whose kind is "metric"; empty if nothing was run."""
        compiled = dict(self.compiled()[0].readers())  # totals may be restored before a step is traced
        return read_logs(totals, self._readers | {log: r for log, r in compiled.items() if log not in self._readers})

    # Programs -------------------------------------------------------------------------------------

    def trace(self, kind: StepKind, feed: Feed, shard: Shard | None = None) -> Program:
        """The Program of one step.

        Args:
            kind: "train", "evaluate" or "predict".
            feed: What the step is given.
            shard: The shard of a larger batch that the step is for, if it is; then what all shards have in common is
                summed over them, by collectives.

        Returns:
            The Program after the passes that run for every backend.

        Raises:
            RuntimeError: If the model is not compiled, unless it is a prediction.
            TypeError: If the step does with a Value what only a number can, such as to choose a branch by it; a note
                says in which line.
        """
        if kind == "predict":
            return self.declare(feed)[0]
        self.compiled()
        author = self.author
        if author is not None and shard is not None and shard.layout:
            raise ValueError(
                "A step of one's own is shared out by its data. Received: a distribution that splits kernels, too. Use "
                "DataParallel."
            )
        trace = self._begin(TracedStep, kind, feed, self.trainable, source=self, kind=kind, shard=shard)
        program, precision = trace.program, PRECISIONS[self.precision]
        if shard is not None:
            trace.batch, trace.samples = shard.batch, shard.samples
        program.tracing = trace
        program.counted = feed.batch if shard is None else shard.batch
        x, y, weight = declare_data(program, feed, precision.dtype)
        trace.data = frozenset({"index", "rows"} if feed.gathered else {v.name for v in program.inputs} | {"rows"})
        if author is not None:
            for held, path in held_weights(author):
                self.paths.setdefault(held, path)
            vars(self).pop("_further", None)  # there may be others than at the latest trace
        logs = self._run(trace, _as_given(x, y, weight))
        if author is not None:
            author._training.adopt(trace.declared)
        self._readers |= trace.finish(logs)
        program.tracing = None
        return finish_program(program, precision)

    def declare(self, feed: Feed, trainable: Mapping[Any, bool] | None = None) -> tuple[Program, dict[str, Weight]]:
        """The Program of a prediction, and the weights that it reads by path; `trainable` stands for the attribute."""
        trace = self._begin(Trace, "predict", feed, self.trainable if trainable is None else trainable)
        program, precision = trace.program, PRECISIONS[self.precision]
        x, _, _ = declare_data(program, feed, precision.dtype)
        outputs = self.wired().trace(trace, x)
        pool_before_relu(program, [*outputs, *trace.updates.values()])
        program.outputs.update(zip(input_names("output", len(outputs)), outputs, strict=True))
        return finish_program(program, precision), trace.declared

    def _begin(self, tracing: type[T], name: StepKind, feed: Feed, trainable: Mapping[Any, bool], **more: Any) -> T:
        """The tracing of a Program, of the class `tracing`, which takes `more`."""
        precision = PRECISIONS[self.precision]
        return tracing(
            Program(name), training=name == "train" or feed.training, seed=self.seed, dtype=precision.dtype,
            images=precision.products or precision.dtype, trainable=trainable.get(None, True), noted=trainable,
            paths=self.paths, samples=feed.batch, **more,
        )  # fmt: skip

    def _run(self, trace: TracedStep, data: Any) -> Mapping[str, Any]:
        """Logs that `train_step` or `test_step` returns."""
        model = Steps(self.wired()) if self.author is None else self.author
        bound, name = model._in_step(trace), "train_step" if trace.kind == "train" else "test_step"
        source = SOURCE.set(bound.random_uniform)
        try:
            logs = getattr(bound, name)(data)
        except (TypeError, ValueError, RuntimeError) as error:
            if self.author is not None:
                _note_line(error, f"{type(model).__name__}.{name}")
            raise
        finally:
            SOURCE.reset(source)
        if not isinstance(logs, Mapping):
            raise TypeError(
                f"{name} returns a dictionary of logs. Received: {type(logs).__name__} from that of "
                f"{type(model).__name__}. Return such as {{'loss': loss}}."
            )
        return logs


def _as_given(x: Sequence[Value], y: Sequence[Value], weight: Value | None) -> Any:
    """Data as Keras packs them: x alone, (x, y) or (x, y, weight), each of several arrays a list."""
    inputs, labels = (part[0] if len(part) == 1 else list(part) for part in (x, y))
    if weight is not None:
        return inputs, labels if y else None, weight
    return (inputs, labels) if y else inputs


def _note_line(error: BaseException, step: str) -> None:
    """Say which line of the author's it was."""
    home, line = Path(minicnn.__file__).parent, None
    place = error.__traceback__
    while place is not None:
        code = place.tb_frame.f_code
        if home not in Path(code.co_filename).parents:
            line = code.co_filename, place.tb_lineno
        place = place.tb_next
    text = f"In {step}"
    if line is not None:
        source = linecache.getline(*line).strip()
        text += f", {line[0]}, line {line[1]}" + (f": {source}" if source else "")
    error.add_note(f"{text}.")
