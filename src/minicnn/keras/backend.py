"""The small part of `keras.backend` that scripts for images use: functions of `minicnn.keras.ops` under its names."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np

from minicnn.arguments import plain
from minicnn.keras import ops, random
from minicnn.keras.ops import *  # noqa: F403

dot, pow = ops.matmul, ops.power  # noqa: A001
permute_dimensions, gather, random_uniform = ops.transpose, ops.take, random.uniform
int_shape, flatten, random_normal = ops.shape, ops.ravel, random.normal


def batch_flatten(x: Any) -> Any:
    """All elements of a sample along one axis."""
    return ops.reshape(x, (ops.shape(x)[0], -1))


def l2_normalize(x: Any, axis: Any = None) -> Any:
    """Divided by the Euclidean norm along an axis."""
    return x / ops.sqrt(ops.maximum(ops.sum(ops.square(x), axis, True), 1e-12))


def constant(value: Any, dtype: str | None = None) -> Any:
    """An array."""
    return np.asarray(value, dtype or "float32")


def epsilon() -> float:
    """A small number beside 1, which losses keep probabilities from 0 and 1."""
    return 1e-7


def floatx() -> str:
    """The type of floating-point numbers where nothing else is said."""
    return "float32"


def image_data_format() -> str:
    """The order of an image's axes where nothing else is said."""
    return "channels_last"


def set_image_data_format(data_format: str) -> None:
    """Accept the order that holds anyway.

    Raises:
        ValueError: If it is another one.
    """
    if data_format != "channels_last":
        raise ValueError(f"Each layer has its order of axes. Received: {data_format!r} for all. Give it data_format.")


def backend() -> str:
    """Keras's word for the library that computes."""
    return "minicnn"


def clear_session() -> None:
    """Let unreachable models go; there is no other state to clear."""
    gc.collect()


def get_value(x: Any) -> Any:
    """The numbers of a weight, or a number as it is."""
    return x.numpy() if hasattr(x, "numpy") else plain(x)


eval = get_value  # noqa: A001
variable = constant
