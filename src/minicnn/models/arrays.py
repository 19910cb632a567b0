"""Layers applied to arrays: each call is a prediction of a model of the layer alone, whose weights the layer keeps."""

from __future__ import annotations

from typing import Any

from minicnn.data.forms import dtype_name
from minicnn.layers.augmentation import RandomImages
from minicnn.layers.calling import ON_ARRAYS, Arguments
from minicnn.layers.layer import Layer
from minicnn.layers.symbolic import Input
from minicnn.models.model import Model
from minicnn.program.graph import ITEMSIZE


def call_on_arrays(layer: Layer, inputs: Any, training: bool | None) -> Any:
    """Results of a layer on arrays of a batch, as arrays of their kind."""
    several = inputs if isinstance(inputs, list | tuple) else [inputs]
    tensors = [Input(a.shape[1:], dtype=d if (d := dtype_name(a)) in ITEMSIZE else "float32") for a in several]
    arguments = inputs.with_tensors(tensors) if isinstance(inputs, Arguments) else tensors
    callers = layer._callers
    model = Model(tensors, layer(arguments if arguments is not tensors or several is inputs else tensors[0]))
    layer._callers = callers  # a call on arrays is none on tensors: see `Inspectable.output`
    model._training.draws = layer._array_calls
    layer._array_calls += 1
    return model(list(several), training=isinstance(layer, RandomImages) if training is None else training)


ON_ARRAYS["call"] = call_on_arrays
