"""Step: the function of which a model's Programs are traced; the built-in one trains layers for losses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from minicnn.distribution.passes import Shard
from minicnn.loop.tracing import PRECISIONS, Feed, StepKind, trace_step
from minicnn.program.graph import Program, Spec

if TYPE_CHECKING:
    from minicnn.layers.graph import Graph
    from minicnn.layers.layer import Layer
    from minicnn.layers.weight import Weight
    from minicnn.loop.objective import Objective
    from minicnn.optimizers import Optimizer


class Step(Protocol):
    """A function that is traced, and what a training has to know of it.

    A Program's inputs say all else: which are data, and which a training carries from step to step.
    """

    def trace(self, kind: StepKind, feed: Feed, shard: Shard | None = None) -> Program:
        """The Program of one step on a batch, or on a shard of one."""

    def rates(self, taken: int, count: int) -> Mapping[str, Sequence[float]]:
        """Numbers that are new in each of the next steps, by the name of their input: learning rates."""

    def logs(self, totals: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, Any]:
        """Losses and metrics by name, from the sums of the inputs whose kind is "metric"."""


@dataclass
class Supervised:
    """The built-in step: the losses of a graph's outputs, their gradients, and an optimizer's updates.

    Attributes:
        seed: Seed of random layers.
        graph: The layers; None as long as they are not wired.
        objective: Losses and metrics; None before a model is compiled, as `optimizer`.
        optimizer: The optimizer.
        precision: Name of the precision policy.
        trainable: Whether the model, and each layer in it, was trainable when it was compiled; as they are now if
            empty. The model is None.
        warned: Whether it was said that layers are trainable now that were not then, or no longer.
        paths: Name of each weight, kept from one trace to the next.
    """

    seed: int
    graph: Graph | None = None
    objective: Objective | None = None
    optimizer: Optimizer | None = None
    precision: str = "float32"
    trainable: dict[Layer | None, bool] = field(default_factory=dict)
    warned: bool = False
    paths: dict[Weight, str] = field(default_factory=dict)

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

    def trace(self, kind: StepKind, feed: Feed, shard: Shard | None = None) -> Program:
        """See `Step`.

        Raises:
            RuntimeError: If the model is not compiled, unless it is a prediction.
        """
        return self.declare(kind, feed, shard)[0]

    def declare(
        self, kind: StepKind, feed: Feed, shard: Shard | None = None, trainable: Mapping[Any, bool] | None = None
    ) -> tuple[Program, dict[str, Weight]]:
        """The Program, and the weights that it reads by path; `trainable` stands for the attribute."""
        return trace_step(self, kind, feed, shard, self.trainable if trainable is None else trainable)

    def rates(self, taken: int, count: int) -> Mapping[str, Sequence[float]]:
        """See `Step`."""
        _, optimizer = self.compiled()
        return {"learning_rate": [optimizer.rate(taken + k) for k in range(count)]}

    def logs(self, totals: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, Any]:
        """See `Step`."""
        return self.compiled()[0].logs(totals)
