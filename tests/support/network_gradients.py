"""Gradients of a network's loss with respect to its trainable weights, by any backend in any precision."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from minicnn import Model, ops
from minicnn.layers.trace import Trace
from minicnn.layers.weight import Weight
from minicnn.losses import SparseCategoricalCrossentropy
from minicnn.program import Program, gradients
from minicnn.program.passes import optimize, pool_before_relu

Array = np.ndarray[Any, Any]


def gradient_program(model: Model, x: Array, y: Array, dtype: str) -> tuple[Program, Mapping[str, Weight]]:
    """A Program whose outputs are the gradients by path, and the weights that it reads."""
    program = Program("gradients")
    trace = Trace(program, training=True, seed=0, dtype=dtype, paths={})
    images, labels = program.input("x", x.shape, dtype), program.input("y", y.shape, "int32")
    (logits,) = model._graph.trace(trace, [images])
    pool_before_relu(program, [logits, *trace.updates.values()])
    loss = ops.mean(SparseCategoricalCrossentropy(from_logits=True).call(labels, logits))
    weights = {p: v for p, v in trace.weights.items() if trace.declared[p].trainable}
    program.outputs["loss"] = loss
    program.outputs |= zip(weights, gradients(program, loss, list(weights.values())), strict=True)
    return optimize(program), trace.declared


def network_gradients(
    model: Model, x: Array, y: Array, weights: Mapping[str, Array], backend: Any, dtype: str
) -> dict[str, Array]:
    """The gradients by path."""
    program, _ = gradient_program(model, x, y, dtype)
    given = {"x": x, "y": y.astype("int32"), **weights}
    arrays = {}
    for v in program.inputs:
        arrays[v.name] = backend.asarray(np.asarray(given.get(v.name, 0)).astype(v.dtype))
    return {k: backend.to_numpy(a) for k, a in backend.compile(program)(arrays).items()}


def largest_difference(found: Mapping[str, Array], expected: Mapping[str, Array]) -> tuple[float, str]:
    """Norm of the error over that of the gradient, or a hundredth of the largest: some are 0 but for rounding."""
    least = max(float(np.linalg.norm(g)) for g in expected.values()) / 100
    return max(
        (float(np.linalg.norm(found[p] - g)) / max(float(np.linalg.norm(g)), least), p) for p, g in expected.items()
    )
