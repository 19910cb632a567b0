"""Layers that act in training only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

from minicnn import ops
from minicnn.layers.arguments import number
from minicnn.layers.image import ImageLayer
from minicnn.layers.layer import Layer
from minicnn.layers.options import LayerOptions
from minicnn.ops.checks import positive
from minicnn.program.graph import Value


def _rate(value: Any) -> float:
    rate = number("rate", value)
    if not 0 <= rate < 1:
        raise ValueError(f"rate is at least 0 and below 1. Received: rate={value!r}.")
    return rate


def _drop(layer: Dropout | SpatialDropout2D, x: Value, shape: Sequence[int], *, per_sample: bool = True) -> Value:
    """x / (1 - rate) where a uniform number is at least the rate, 0 elsewhere; numbers have `shape`."""
    keep = ops.greater_equal(layer.random_uniform(shape, seed=layer.seed, per_sample=per_sample), layer.rate)
    return ops.where(keep, x * (1.0 / (1.0 - layer.rate)), 0.0)


class Dropout(Layer):
    """Random elements set to 0 in training, the others divided by 1 - rate; nothing in inference.

    The masks depend on the seed, the layer's path in the model and the number of the training step, so
    they are the same on every backend.

    Args:
        rate: Probability that an element is set to 0, at least 0 and below 1 (Keras allows 1 too).
        noise_shape: Shape of the mask, with 1 where elements along an axis share their fate and None
            for the input's length; the input's shape if None.
        seed: Seed of the masks; the model's if None.

    Raises:
        ValueError: If an argument is out of range, or noise_shape does not broadcast to the input.

    Example:
        >>> Dropout(0.5)
        Dropout(0.5)
    """

    def __init__(
        self,
        rate: float,
        noise_shape: Sequence[int | None] | None = None,
        seed: int | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__(**options)
        self.rate = _rate(rate)
        self.noise_shape = (
            None if noise_shape is None
            else tuple(n if n is None else positive("Each length of noise_shape", n) for n in noise_shape)
        )  # fmt: skip
        self.seed = seed

    def call(self, inputs: Any, *, training: bool = False) -> Any:
        if not training or not self.rate:
            return inputs
        if self.noise_shape is None:
            return _drop(self, inputs, inputs.shape)
        lengths = self.noise_shape
        shape = tuple(n if m is None else m for n, m in zip(inputs.shape, lengths, strict=False))
        if len(lengths) != inputs.ndim or any(m not in (1, n) for n, m in zip(inputs.shape, shape, strict=True)):
            raise ValueError(
                "noise_shape has one entry for each axis of the input: its length, 1 or None. Received: "
                f"noise_shape={lengths} for input shape {inputs.shape}."
            )
        return _drop(self, inputs, shape, per_sample=lengths[0] != 1)


class GaussianNoise(Layer):
    """Normal numbers added in training; nothing in inference. They are drawn as `Dropout`'s masks are.

    Args:
        stddev: Standard deviation, at least 0.
        seed: Seed of the numbers; the model's if None.

    Raises:
        ValueError: If stddev is negative.
    """

    def __init__(self, stddev: float, seed: int | None = None, **options: Unpack[LayerOptions]) -> None:
        super().__init__(**options)
        self.stddev = number("stddev", stddev, least=0)
        self.seed = seed

    def call(self, inputs: Any, *, training: bool = False) -> Any:
        if not training or not self.stddev:
            return inputs
        return inputs + ops.random_normal(inputs.shape, stddev=self.stddev, seed=self.seed, per_sample=True)


class SpatialDropout2D(ImageLayer):
    """Random channels set to 0 in training, the others divided by 1 - rate (arXiv:1411.4280).

    Args:
        rate: Probability that a channel is set to 0, at least 0 and below 1.
        seed: Seed of the masks; the model's if None.
    """

    def __init__(
        self, rate: float, data_format: str = "channels_last", seed: int | None = None, **options: Unpack[LayerOptions]
    ) -> None:
        super().__init__(data_format, **options)
        self.rate = _rate(rate)
        self.seed = seed

    def call(self, inputs: Any, *, training: bool = False) -> Any:
        axes = self._axes(inputs.shape)
        if not training or not self.rate:
            return inputs
        return _drop(self, inputs, axes.shape(inputs.shape[0], 1, 1, inputs.shape[axes.c]))
