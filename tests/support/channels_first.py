"""Programs of a network with its channels first, from its definition with the channels last."""

from __future__ import annotations

from dataclasses import replace

from minicnn import Model
from minicnn.layers import BatchNormalization, Concatenate
from minicnn.loop.tracing import StepKind
from minicnn.program import Program, Spec


def channels_first(model: Model) -> Model:
    """The model with every layer told that its images are (N, C, H, W); weights stay. For `program_of` only."""
    for layer in model.layers:
        if hasattr(layer, "data_format"):
            layer.data_format = "channels_first"
        elif isinstance(layer, BatchNormalization | Concatenate):
            layer.axis = 1
    return model


def program_of(model: Model, kind: StepKind, batch: int) -> Program:
    """The Program of such a model."""
    step = model._training.step
    feed = step.feed(batch)
    h, w, c = feed.x[0].shape[1:]
    return step.trace(kind, replace(feed, x=(Spec((batch, c, h, w), feed.x[0].dtype),)))
