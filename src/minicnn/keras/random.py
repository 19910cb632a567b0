"""Functions of `keras.random`: within a layer numbers of that layer, elsewhere NumPy arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from minicnn import ops
from minicnn.ops.random import SOURCE


class SeedGenerator:
    """Seeds of draws: within a layer its seed, as each step and each draw there has numbers of its own.

    Args:
        seed: The seed; the model's if None.
    """

    def __init__(self, seed: int | None = None) -> None:
        self.seed = seed
        self.generator = np.random.default_rng(seed)


def _number(seed: Any) -> int | None:
    return seed.seed if isinstance(seed, SeedGenerator) else seed


def _generator(seed: Any) -> Any:
    """Source of arrays; without a seed NumPy's own, which `utils.set_random_seed` sets."""
    if isinstance(seed, SeedGenerator):
        return seed.generator
    return np.random.mtrand._rand if seed is None else np.random.default_rng(seed)


def normal(shape: Sequence[int], mean: Any = 0.0, stddev: Any = 1.0, dtype: str | None = None, seed: Any = None) -> Any:
    """Draw normal numbers."""
    if SOURCE.get():
        return ops.random_normal(shape, mean, stddev, seed=_number(seed))
    return _generator(seed).normal(mean, stddev, shape).astype(dtype or "float32")


def uniform(
    shape: Sequence[int], minval: Any = 0.0, maxval: Any = 1.0, dtype: str | None = None, seed: Any = None
) -> Any:
    """Draw uniform numbers."""
    if SOURCE.get():
        return ops.random_uniform(shape, minval, maxval, seed=_number(seed))
    return _generator(seed).uniform(minval, maxval, shape).astype(dtype or "float32")


def bernoulli(shape: Sequence[int], probability: Any = 0.5, seed: Any = None) -> Any:
    """Draw 1 with a probability, and else 0."""
    if SOURCE.get():
        return ops.random_bernoulli(shape, probability, seed=_number(seed))
    return (_generator(seed).uniform(size=shape) < probability).astype("float32")


def shuffle(x: Any, axis: int = 0, seed: Any = None) -> Any:
    """Put the elements of an array along an axis in another order."""
    x = np.asarray(x)
    return np.take(x, _generator(seed).permutation(x.shape[axis]), axis)
