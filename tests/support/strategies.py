"""Hypothesis strategies: shapes and a seed are drawn, the elements come from NumPy's generator.

So examples are small, replay exactly and shrink in what matters; every geometry has a non-empty output by
construction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

Array = np.ndarray[Any, Any]
Pair = tuple[int, int]
Padding = tuple[Pair, Pair]

DATA_FORMATS = ("NHWC", "NCHW", "HWCN")
seeds = st.integers(0, 2**32 - 1)


def normal(shape: tuple[int, ...], seed: int, *more: int) -> Array:
    """Standard normal numbers."""
    return np.random.default_rng([seed, *more]).standard_normal(shape)


def distinct_values(shape: tuple[int, ...], seed: int, low: float = -2.0, high: float = 2.0) -> Array:
    """Evenly spaced numbers in random order: no ties, however small the step of a difference."""
    values = np.linspace(low, high, int(np.prod(shape)) + 1)[1:]
    return np.random.default_rng(seed).permutation(values).reshape(shape)


def away_from_zero(shape: tuple[int, ...], seed: int, gap: float = 1e-2) -> Array:
    """Normal numbers moved away from 0 by `gap`: no kink of relu or abs within the step of a difference."""
    x = normal(shape, seed)
    return x + np.where(x >= 0, gap, -gap)


def to_format(x: Array, data_format: str) -> Array:
    """An NHWC array in another layout, contiguous."""
    return np.ascontiguousarray(np.transpose(x, ["NHWC".index(a) for a in data_format]))


def from_format(x: Array, data_format: str) -> Array:
    """An array of some layout in NHWC."""
    return np.transpose(x, [data_format.index(a) for a in "NHWC"])


@dataclass(frozen=True)
class WindowCase:
    """Geometry of a convolution or pooling; arrays are NHWC and HWIO."""

    n: int
    image: Pair
    channels: int
    kernel: Pair
    strides: Pair
    padding: Padding
    dilation: Pair
    groups: int
    filters: int
    data_format: str
    seed: int

    @property
    def output(self) -> Pair:
        """(OH, OW)."""
        oh, ow = (
            (n + sum(p) - d * (k - 1) - 1) // s + 1
            for n, p, d, k, s in zip(self.image, self.padding, self.dilation, self.kernel, self.strides, strict=True)
        )
        return oh, ow

    @property
    def x(self) -> Array:
        """Image (N, H, W, C), all elements different."""
        return distinct_values((self.n, *self.image, self.channels), self.seed)

    @property
    def w(self) -> Array:
        """Kernel (KH, KW, C / groups, F)."""
        return normal((*self.kernel, self.channels // self.groups, self.filters), self.seed, 1)

    @property
    def depthwise_w(self) -> Array:
        """Kernel (KH, KW, C, M) with M = F / groups."""
        return normal((*self.kernel, self.channels, self.filters // self.groups), self.seed, 2)

    @property
    def sliding(self) -> dict[str, Any]:
        """Attributes of a depthwise convolution."""
        return {
            "strides": self.strides,
            "padding": self.padding,
            "dilation": self.dilation,
            "data_format": self.data_format,
        }

    @property
    def convolution(self) -> dict[str, Any]:
        """Attributes of a convolution."""
        return self.sliding | {"groups": self.groups}

    @property
    def pooling(self) -> dict[str, Any]:
        """Attributes of a pooling."""
        return {
            "kernel": self.kernel,
            "strides": self.strides,
            "padding": self.padding,
            "data_format": self.data_format,
        }

    @property
    def terms(self) -> int:
        """Upper bound of the terms that one element of a result or gradient sums."""
        kh, kw = self.kernel
        oh, ow = self.output
        return max(kh * kw * max(self.channels, self.filters), self.n * oh * ow)


def _pairs(low: int, high: int) -> st.SearchStrategy[Pair]:
    return st.tuples(st.integers(low, high), st.integers(low, high))


@st.composite
def _window_cases(draw: st.DrawFn, *, pooling: bool) -> WindowCase:
    kernel = draw(_pairs(1, 3))
    strides = draw(_pairs(1, 4 if pooling else 3))
    dilation = (1, 1) if pooling else draw(_pairs(1, 2))
    widest = [k - 1 if pooling else 2 for k in kernel]
    padding = tuple((draw(st.integers(0, p)), draw(st.integers(0, p))) for p in widest)
    output, spare = draw(_pairs(1, 3)), draw(_pairs(0, 2))
    image = tuple(
        max(d * (k - 1) + 1 + (o - 1) * s + r - sum(p), 1)
        for d, k, o, s, r, p in zip(dilation, kernel, output, strides, spare, padding, strict=True)
    )
    groups = 1 if pooling else draw(st.integers(1, 3))
    return WindowCase(
        n=draw(st.integers(1, 3)),
        image=(image[0], image[1]),
        channels=groups * draw(st.integers(1, 3)),
        kernel=kernel,
        strides=strides,
        padding=(padding[0], padding[1]),
        dilation=dilation,
        groups=groups,
        filters=groups * draw(st.integers(1, 3)),
        data_format=draw(st.sampled_from(DATA_FORMATS)),
        seed=draw(seeds),
    )


def conv_cases() -> st.SearchStrategy[WindowCase]:
    """Convolutions: asymmetric padding, strides, dilation and groups."""
    return _window_cases(pooling=False)


def pool_cases() -> st.SearchStrategy[WindowCase]:
    """Poolings: windows that overlap, touch or leave gaps, and padding smaller than the window."""
    return _window_cases(pooling=True)


def shapes(min_dims: int = 0, max_dims: int = 3) -> st.SearchStrategy[tuple[int, ...]]:
    """Small shapes without empty axes."""
    return st.lists(st.integers(1, 3), min_size=min_dims, max_size=max_dims).map(tuple)


@st.composite
def broadcastable(draw: st.DrawFn, count: int = 2) -> list[tuple[int, ...]]:
    """Shapes that broadcast against each other."""
    full = draw(shapes(max_dims=3))
    result = []
    for _ in range(count):
        kept = full[draw(st.integers(0, len(full))) :]
        result.append(tuple(1 if draw(st.booleans()) else n for n in kept))
    return result


@st.composite
def axes_of(draw: st.DrawFn, ndim: int) -> tuple[int, ...]:
    """Distinct axes, some counted from the end."""
    chosen = draw(st.lists(st.integers(0, ndim - 1), unique=True, max_size=ndim)) if ndim else []
    return tuple(a - ndim if draw(st.booleans()) else a for a in chosen)
