"""Initializers by their classes' names."""

from __future__ import annotations

from typing import Any

from minicnn.configured import decode as deserialize  # noqa: F401
from minicnn.configured import encode as serialize  # noqa: F401
from minicnn.initializers import *  # noqa: F403
from minicnn.initializers import INITIALIZERS
from minicnn.initializers import get_initializer as get  # noqa: F401


def _named(name: str) -> Any:
    def initializer(seed: int | None = None) -> Any:
        return INITIALIZERS[name]

    initializer.__doc__ = f"The initializer {name!r}; the model has the seed."
    return initializer


Zeros, Ones, GlorotUniform, GlorotNormal, HeUniform, HeNormal, LecunUniform, LecunNormal = map(
    _named,
    ("zeros", "ones", "glorot_uniform", "glorot_normal", "he_uniform", "he_normal", "lecun_uniform", "lecun_normal"),
)
zeros, ones, glorot_uniform, glorot_normal = Zeros, Ones, GlorotUniform, GlorotNormal
he_uniform, he_normal, lecun_uniform, lecun_normal = HeUniform, HeNormal, LecunUniform, LecunNormal
