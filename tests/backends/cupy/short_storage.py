"""Programs in mixed precision, what NumPy computes for them, and how far a result is from that."""

from __future__ import annotations

from typing import Any

import array_api_compat.numpy as xp
import numpy as np

from minicnn import Model, Sequential, layers
from minicnn.loop.tracing import FIRST_SCALE, GROWTH_STEPS, METRICS
from minicnn.losses import SparseCategoricalCrossentropy
from minicnn.optimizers import SGD
from minicnn.program import Program
from minicnn.program.passes import lower_precision, shorten_images

Array = np.ndarray[Any, Any]


def rounded(x: Array, dtype: str) -> Array:
    """float32 rounded to 16 bits, ties to even."""
    if dtype == "float16":
        return x.astype("float16").astype("float32")
    bits = x.astype("float32").view("uint32")
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype("uint32").view("float32")


def by_numpy(program: Program, arrays: dict[str, Array]) -> dict[str, Array]:
    """The Program node by node, its casts to 16 bits as roundings.

    Results of products are not rounded, nor are the operands of dense layers, which may be in a row-wise region.
    """
    values: dict[int, Array] = {id(v): arrays[v.name] for v in program.inputs}
    values |= {id(v): v.data for v in program.constants}
    for node in program.nodes:
        inputs = [values[id(v)] for v in node.inputs]
        dtype = node.attrs.get("dtype")
        if node.op.name == "cast" and dtype in ("bfloat16", "float16"):
            made: Any = rounded(inputs[0], dtype) if node.outputs[0].ndim == 4 else inputs[0]
        elif node.op.name == "cast":
            made = inputs[0].astype(dtype)
        else:
            made = node.op.reference(*inputs, xp=xp, **node.attrs)
        outputs = made if len(node.outputs) > 1 else (made,)
        values |= {id(v): np.asarray(a) for v, a in zip(node.outputs, outputs, strict=True)}
    named = program.outputs | program.updates
    return {name: values[id(v)] for name, v in named.items()}


def residual(channels: int, strides: int, *, overlapping: bool, depthwise: bool) -> Model:
    """Convolutions with normalisation, a residual block, and poolings, on images of 9 x 9."""
    x = layers.Input((9, 9, 3), dtype="uint8")
    y = layers.Rescaling(1 / 255)(x)
    y = layers.Conv2D(channels, 3, padding="same", use_bias=False)(y)
    y = layers.ReLU()(layers.BatchNormalization()(y))
    y = layers.MaxPooling2D(3, 2, padding="same")(y) if overlapping else layers.MaxPooling2D(2)(y)
    z = layers.Conv2D(channels, 3, strides=strides, padding="same", use_bias=False)(y)
    z = layers.ReLU()(layers.BatchNormalization()(z))
    if depthwise:
        z = layers.ReLU()(layers.BatchNormalization()(layers.DepthwiseConv2D(3, padding="same", use_bias=False)(z)))
    z = layers.BatchNormalization()(layers.Conv2D(channels, 1, use_bias=False)(z))
    shortcut = y
    if strides > 1:
        shortcut = layers.BatchNormalization()(layers.Conv2D(channels, 1, strides=strides, use_bias=False)(y))
    y = layers.ReLU()(layers.Add()([z, shortcut]))
    y = layers.Dropout(0.25)(layers.Conv2D(2 * channels, 3, padding="same", activation="relu")(y))
    return Model(x, layers.Dense(5)(layers.GlobalAveragePooling2D()(y)))


def steps(model: Model, batch: int, dtype: str) -> tuple[Program, Program, dict[str, Array]]:
    """A training step in float32 and in mixed precision, and what it is given."""
    model.compile(SGD(0.1, momentum=0.9), SparseCategoricalCrossentropy(from_logits=True), ["accuracy"])
    plain = model.program("train", batch_size=batch)
    short = plain.copy()
    assert shorten_images(short, dtype)
    assert lower_precision(short, dtype, keep=METRICS)
    rng, weights = np.random.default_rng(0), model.get_weights()
    arrays = {}
    for value in plain.inputs:
        if value.name in weights:
            arrays[value.name] = rounded(weights[value.name], dtype)  # as tensor cores do, where they multiply
        elif "int" in value.dtype and value.kind == "input":
            high = 256 if value.dtype == "uint8" else 5 if value.name == "y" else batch
            arrays[value.name] = rng.integers(0, high, value.shape).astype(value.dtype)
        else:
            arrays[value.name] = np.full(value.shape, 0.1 if value.name == "learning_rate" else 0, value.dtype)
    return plain, short, arrays


def distance(found: dict[str, Array], expected: dict[str, Array]) -> float:
    """The largest difference of an array, by the size of what is expected."""
    sizes = {k: np.linalg.norm(np.float64(a)) + 1e-3 for k, a in expected.items()}
    return max(float(np.linalg.norm(np.float64(found[k]) - expected[k]) / sizes[k]) for k in expected)


def small(backend: Any, precision: str) -> tuple[Sequential, Array, Array]:
    """A network of a convolution and a dense layer, and 32 samples for it."""
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 255, (32, 6, 6, 1)).astype("uint8"), rng.integers(0, 4, 32).astype("int32")
    parts = [layers.Input((6, 6, 1), dtype="uint8"), layers.Rescaling(1 / 255), layers.Conv2D(8, 3, activation="relu")]
    model = Sequential([*parts, layers.Flatten(), layers.Dense(4)], backend=backend)
    model.compile(SGD(0.1, momentum=0.9), SparseCategoricalCrossentropy(from_logits=True), precision=precision)
    return model, x, y


def check_scale(backend: Any) -> None:
    """A step whose gradients are not finite in float16 changes the scale of the loss alone."""
    model, x, y = small(backend, "mixed_float16")
    assert model.fit(x, y, 16, 1, 0).history["skipped_steps"] == [0]
    assert model._training.variables.get("loss_scale/factor") == FIRST_SCALE
    before = model.get_state()["arrays"]
    model._training.variables.set({"loss_scale/factor": np.float32(2.0**60), "loss_scale/steps": np.int32(7)})
    history = model.fit(x, y, 16, 1, 0).history
    assert history["skipped_steps"] == [2]
    assert np.isfinite(history["loss"][0])
    after = model.get_state()["arrays"]
    changed = {name for name in after if not np.array_equal(after[name], before[name])}
    assert changed == {"loss_scale/factor", "loss_scale/steps"}
    assert (after["loss_scale/factor"], after["loss_scale/steps"]) == (2.0**58, 0)
    model._training.variables.set(
        {"loss_scale/factor": np.float32(64.0), "loss_scale/steps": np.int32(GROWTH_STEPS - 1)}
    )
    assert model.fit(x, y, 16, 1, 0).history["skipped_steps"] == [0]
    after = model.get_state()["arrays"]
    assert (after["loss_scale/factor"], after["loss_scale/steps"]) == (128.0, 1)
