"""First values of weights, drawn with NumPy's Philox so that every backend starts from the same numbers."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from minicnn.configured import Configured, register
from minicnn.names import look_up

# Standard deviation of a standard normal distribution cut off at +-2.
_TRUNCATED_STDDEV = 0.87962566103423978


Mode = Literal["fan_in", "fan_out", "fan_avg"]
Distribution = Literal["truncated_normal", "uniform", "untruncated_normal"]


class Initializer(Configured):
    """Gives the first values of a weight; a subclass that keeps its arguments can be saved with its layer."""

    def __call__(self, shape: Sequence[int], rng: np.random.Generator) -> np.ndarray[Any, Any]:
        """Values of the given shape, in float64.

        Args:
            shape: Shape of the weight.
            rng: Source of randomness.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Constant(Initializer):
    """The same value everywhere."""

    value: float = 0.0

    def __call__(self, shape: Sequence[int], rng: np.random.Generator) -> np.ndarray[Any, Any]:
        return np.full(shape, float(self.value))


@dataclass(frozen=True)
class VarianceScaling(Initializer):
    """Values of variance scale / fan, where fan is the number of inputs, outputs, or their mean.

    (X. Glorot, Y. Bengio, AISTATS 2010; K. He et al., arXiv:1502.01852; Y. LeCun et al., Efficient
    backprop, 1998.)

    Attributes:
        scale: Positive factor.
        mode: "fan_in", "fan_out" or "fan_avg".
        distribution: "truncated_normal" (cut off at two standard deviations), "untruncated_normal"
            or "uniform".

    Raises:
        ValueError: If one of them is something else.
    """

    scale: float = 1.0
    mode: Mode = "fan_in"
    distribution: Distribution = "truncated_normal"

    def __post_init__(self) -> None:
        if self.scale <= 0 or self.mode not in get_args(Mode) or self.distribution not in get_args(Distribution):
            raise ValueError(
                f"VarianceScaling takes scale > 0, mode in {get_args(Mode)} and distribution in "
                f"{get_args(Distribution)}. Received: {self}."
            )

    def __call__(self, shape: Sequence[int], rng: np.random.Generator) -> np.ndarray[Any, Any]:
        fan_in, fan_out = fans(shape)
        fan = {"fan_in": fan_in, "fan_out": fan_out, "fan_avg": (fan_in + fan_out) / 2}[self.mode]
        variance = self.scale / max(1.0, fan)
        if self.distribution == "uniform":
            limit = math.sqrt(3 * variance)
            return rng.uniform(-limit, limit, size=shape)
        if self.distribution == "untruncated_normal":
            return rng.normal(0.0, math.sqrt(variance), size=shape)
        # Cutting off the tails lessens the variance, which is made up for here, as in Keras.
        return truncated_normal(shape, rng) * (math.sqrt(variance) / _TRUNCATED_STDDEV)


@dataclass(frozen=True)
class RandomNormal(Initializer):
    """Normal values."""

    mean: float = 0.0
    stddev: float = 0.05

    def __call__(self, shape: Sequence[int], rng: np.random.Generator) -> np.ndarray[Any, Any]:
        return rng.normal(self.mean, self.stddev, size=shape)


@dataclass(frozen=True)
class RandomUniform(Initializer):
    """Uniform values."""

    minval: float = -0.05
    maxval: float = 0.05

    def __call__(self, shape: Sequence[int], rng: np.random.Generator) -> np.ndarray[Any, Any]:
        return rng.uniform(self.minval, self.maxval, size=shape)


INITIALIZERS: dict[str, Initializer] = {
    "zeros": Constant(0.0),
    "ones": Constant(1.0),
    "constant": Constant(0.0),
    "glorot_uniform": VarianceScaling(1.0, "fan_avg", "uniform"),
    "glorot_normal": VarianceScaling(1.0, "fan_avg", "truncated_normal"),
    "he_uniform": VarianceScaling(2.0, "fan_in", "uniform"),
    "he_normal": VarianceScaling(2.0, "fan_in", "truncated_normal"),
    "lecun_uniform": VarianceScaling(1.0, "fan_in", "uniform"),
    "lecun_normal": VarianceScaling(1.0, "fan_in", "truncated_normal"),
    "random_normal": RandomNormal(),
    "random_uniform": RandomUniform(),
    "normal": RandomNormal(),
    "uniform": RandomUniform(),
}

register(Constant, RandomNormal, RandomUniform, VarianceScaling)


def get_initializer(identifier: str | Initializer) -> Initializer:
    """An initialiser by name, or the one given."""
    if isinstance(identifier, Initializer):
        return identifier
    return look_up("An initializer", INITIALIZERS, identifier, "an Initializer")


def known_initializer(identifier: str | Initializer) -> str | Initializer:
    """Check that there is an initialiser of a name, and return it."""
    get_initializer(identifier)
    return identifier


def fans(shape: Sequence[int]) -> tuple[int, int]:
    """Inputs and outputs of one unit: the last two axes, times the taps of a kernel (KH, KW, C, F)."""
    if len(shape) < 2:
        n = math.prod(shape)
        return n, n
    taps = math.prod(shape[:-2])
    return taps * shape[-2], taps * shape[-1]


def truncated_normal(shape: Sequence[int], rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Standard normal values, those beyond +-2 drawn again."""
    x = rng.standard_normal(math.prod(shape))
    outside = np.flatnonzero(np.abs(x) > 2)
    while len(outside):
        redrawn = x[outside] = rng.standard_normal(len(outside))
        outside = outside[np.abs(redrawn) > 2]
    return x.reshape(shape)


def generator(seed: int, name: str) -> np.random.Generator:
    """The source of randomness for one named weight: it does not depend on any other."""
    # By name: a layer's weights do not depend on which other layers there are, nor on the order in which they are
    # built.
    key = np.asarray([seed & (2**64 - 1), zlib.crc32(name.encode())], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key))
