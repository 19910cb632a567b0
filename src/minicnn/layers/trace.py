"""Trace: what layers know of the Program that they emit their nodes into."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from minicnn.layers.weight import Weight
from minicnn.program.graph import Program, Value


@dataclass
class Trace:
    """One tracing of layers into a Program.

    Attributes:
        program: The Program that is built.
        training: Whether it is a training step.
        seed: Seed of the model.
        dtype: Floating-point type of weights and activations.
        images: The type in which images are stored.
        trainable: Whether the layers that are traced now may be trained.
        noted: Whether a layer is trainable, where that is not to be asked of the layer itself.
        paths: Name of each weight in the model, kept from one trace to the next.
        weights: Values of the weights met so far, by path.
        declared: The declarations behind `weights`.
        updates: New values of weights that layers assign, by path.
        batch: Samples of the whole batch, where the step is for a part of one: see `rows`.
        samples: Samples of the part, or of the batch.
        by_shard: Ids of the nodes that normalise each part of a batch by itself.
        losses: What layers add to the loss: see `Layer.add_loss`.
        measured: What layers log, by name: see `Layer.add_metric`.
    """

    program: Program
    training: bool = False
    seed: int = 0
    dtype: str = "float32"
    images: str = "float32"
    trainable: bool = True
    noted: Mapping[Any, bool] = field(default_factory=dict)
    paths: dict[Weight, str] = field(default_factory=dict)
    weights: dict[str, Value] = field(default_factory=dict)
    declared: dict[str, Weight] = field(default_factory=dict)
    updates: dict[str, Value] = field(default_factory=dict)
    streams: dict[str, int] = field(default_factory=dict)
    batch: int | None = None
    samples: int = 0
    by_shard: set[int] = field(default_factory=set)
    losses: list[Value] = field(default_factory=list)
    measured: list[tuple[str, Value]] = field(default_factory=list)

    def value(self, weight: Weight, path: str) -> Value:
        """The Program's input for a weight, declared when first met, or what was assigned to it since."""
        path = self.paths.setdefault(weight, path)
        if path not in self.weights:
            kind: Any = "parameter" if weight.trainable and self.trainable else "statistic"
            self.weights[path] = self.program.input(path, weight.shape, self.dtype, kind=kind)
            self.declared[path] = weight
        if self.declared[path] is not weight:
            raise ValueError(
                f"Weights of a model have different paths. Received: {path!r} twice. Give sublayers different names."
            )
        return self.updates.get(path, self.weights[path])

    def step(self) -> Value:
        """The counter of training steps, an int32 scalar."""
        try:
            return self.program.value("step")
        except KeyError:
            return self.program.input("step", (), "int32", kind="counter")

    def penalties(self) -> list[Value]:
        """The penalties that regularizers of trained weights add to the loss."""
        weights = ((self.declared[path], value) for path, value in self.weights.items() if value.kind == "parameter")
        return [weight.regularizer(value) for weight, value in weights if weight.regularizer is not None]

    def assign(self, weight: Weight, value: Value) -> None:
        """Replace the number of a weight, for what is traced after this as well."""
        self.updates[self.paths[weight]] = value

    def leave(self, first: int, results: Sequence[Value]) -> None:
        """Called when a model's layers have emitted their nodes, from that number on; only the results are read."""

    def rows(self) -> Value:
        """Numbers of the step's samples in the whole batch, int32 (samples,)."""
        try:
            return self.program.value("rows")
        except KeyError:
            return self.program.input("rows", (self.samples,), "int32")

    def stream(self, path: str) -> int:
        """A number for the random draws of one layer, the same in every trace."""
        count = self.streams[path] = self.streams.get(path, 0) + 1
        return zlib.crc32(f"{path}#{count}".encode())
