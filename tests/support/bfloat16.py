"""Networks in `mixed_bfloat16` on the numba backend beside the policy in NumPy, and exact products of bfloat16."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from minicnn import Model, Sequential
from minicnn.backends import backend_class
from minicnn.layers import (
    Activation,
    Add,
    AveragePooling2D,
    BatchNormalization,
    Concatenate,
    Conv2D,
    Dense,
    DepthwiseConv2D,
    Flatten,
    GlobalAveragePooling2D,
    Input,
    Layer,
    MaxPooling2D,
)
from minicnn.loop.tracing import StepKind
from minicnn.optimizers import SGD
from minicnn.tolerance import EPSILON
from support import rounded
from support.tolerances import STEP

SHAPE = (6, 5, 3)
SHORT, WORD = "mixed_bfloat16", np.uint32
Array = np.ndarray[Any, Any]


def strict(threads: int = 2, **options: Any) -> Any:
    return backend_class("numba")(strict=True, threads=threads, **options)  # type: ignore[call-arg]


def without_nan(bits: Array) -> Array:
    """Bits of float32, those of any NaN equal."""
    return np.where(np.isnan(bits.view(np.float32)), WORD(0x7FC00000), bits)


def exact(bits: int) -> Fraction:
    """The finite number of float32's bits; denormal numbers are 0."""
    value = np.array(bits, WORD).view(np.float32)
    return Fraction(0) if abs(value) < 2.0**-126 else Fraction(float(value))


def nearest(x: Fraction) -> Fraction:
    """A number rounded to 24 bits, to an even one from the middle; 0 below the normal numbers."""
    if x == 0:
        return x
    exponent = len(bin(abs(x.numerator))) - len(bin(x.denominator))
    exponent -= abs(x) < Fraction(2) ** exponent
    unit = Fraction(2) ** (exponent - 23)
    result = Fraction(round(x / unit)) * unit
    return result if abs(result) >= Fraction(2) ** -126 else Fraction(0)


def plain(*layers: Layer) -> Callable[[Any], Model]:
    """A network of layers, given the backend."""
    return lambda backend: Sequential([Input(SHAPE), *layers], backend=backend, seed=1)


def residual(backend: Any) -> Model:
    x = Input(SHAPE)
    a = Activation("relu")(BatchNormalization()(Conv2D(4, 3, padding="same", use_bias=False)(x)))
    b = Conv2D(4, 3, padding="same")(a)
    joined = Concatenate()([Activation("relu6")(Add()([a, b])), Conv2D(3, 1, activation="relu")(a)])
    return Model(x, Dense(5)(GlobalAveragePooling2D()(joined)), backend=backend, seed=1)


# Functions, because a layer belongs to one model.
NETWORKS: dict[str, Callable[[Any], Model]] = {
    "odd channels": lambda backend: plain(
        Conv2D(5, 3, padding="same", activation="relu"), MaxPooling2D(), Conv2D(3, 2, strides=2), Flatten(), Dense(5)
    )(backend),
    "pairs": lambda backend: plain(
        Conv2D(6, 3, padding="same", activation="relu"), MaxPooling2D(3, 2), Conv2D(18, 2, groups=2, padding="same"),
        Conv2D(20, 2, padding="same"), Flatten(), Dense(17, activation="relu"), Dense(5),
    )(backend),
    "depthwise": lambda backend: plain(
        Conv2D(4, 1, activation="relu6"), DepthwiseConv2D(3, padding="same"), BatchNormalization(),
        AveragePooling2D(2), Conv2D(3, 2, dilation_rate=2, padding="same", activation="relu"), Flatten(), Dense(5),
    )(backend),
    "residual": residual,
}  # fmt: skip


def compiled(name: str, backend: Any) -> Model:
    model = NETWORKS[name](backend)
    model.compile(SGD(0.1), "mse", precision=SHORT)
    return model


def step_and_policy(model: Model, kind: StepKind, batch: int) -> tuple[dict[str, Array], dict[str, Array]]:
    """Results of a step by the backend's kernels, and by the policy in NumPy."""
    program, rng = model.program(kind, batch_size=batch), np.random.default_rng(3)
    inputs: dict[str, Array] = {}
    for value in program.inputs:
        made = rng.integers(0, 3, value.shape) if "int" in value.dtype else rng.standard_normal(value.shape)
        inputs[value.name] = np.asarray(model.get_weights().get(value.name, made), value.dtype)
    return model.backend.compile(program.copy())(inputs), rounded.results(program, inputs)


def assert_close(found: dict[str, Array], expected: dict[str, Array], rtol: float = EPSILON["bfloat16"] / 8) -> None:
    for name, array in expected.items():
        # Sums in another order are rounded to another bfloat16 now and then.
        off = np.linalg.norm(np.asarray(found[name], "float64") - array)
        assert off <= rtol * np.linalg.norm(array) + STEP, name
