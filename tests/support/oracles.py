"""Naive loops that compute what the primitives promise, one element at a time and independent of minicnn."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Pair = tuple[int, int]
Padding = tuple[Pair, Pair]


def _terms(
    image: Pair, output: Pair, kernel: Pair, strides: Pair, padding: Padding, dilation: Pair
) -> Iterator[tuple[int, int, int, int, int, int]]:
    """(oh, ow, i, j, h, w) for each tap (i, j) of each output position that lies inside the image."""
    for oh, ow, i, j in itertools.product(*map(range, (*output, *kernel))):
        h = oh * strides[0] + i * dilation[0] - padding[0][0]
        w = ow * strides[1] + j * dilation[1] - padding[1][0]
        if 0 <= h < image[0] and 0 <= w < image[1]:
            yield oh, ow, i, j, h, w


def _output(image: Pair, kernel: Pair, strides: Pair, padding: Padding, dilation: Pair) -> Pair:
    """Number of places for the kernel in the padded image, by trying them all."""
    counts = []
    for size, k, s, p, d in zip(image, kernel, strides, padding, dilation, strict=True):
        places = [o for o in range(size + sum(p)) if o * s + d * (k - 1) < size + sum(p)]
        counts.append(len(places))
    return counts[0], counts[1]


def conv2d(x: Array, w: Array, strides: Pair, padding: Padding, dilation: Pair, groups: int) -> Array:
    """Convolution of x (N, H, W, C) with w (KH, KW, C / groups, F)."""
    n, height, width, _ = x.shape
    kh, kw, c, f = w.shape
    output = _output((height, width), (kh, kw), strides, padding, dilation)
    y = np.zeros((n, *output, f))
    for oh, ow, i, j, row, column in _terms((height, width), output, (kh, kw), strides, padding, dilation):
        for b, k, m in itertools.product(range(n), range(f), range(c)):
            group = k // (f // groups)
            y[b, oh, ow, k] += x[b, row, column, group * c + m] * w[i, j, m, k]
    return y


def conv2d_gradients(
    dy: Array, x: Array, w: Array, strides: Pair, padding: Padding, dilation: Pair, groups: int
) -> tuple[Array, Array]:
    """Gradients of sum(dy * conv2d(x, w)) with respect to x and w."""
    n, height, width, _ = x.shape
    kh, kw, c, f = w.shape
    dx, dw = np.zeros(x.shape), np.zeros(w.shape)
    output = dy.shape[1:3]
    for oh, ow, i, j, row, column in _terms((height, width), output, (kh, kw), strides, padding, dilation):
        for b, k, m in itertools.product(range(n), range(f), range(c)):
            channel = k // (f // groups) * c + m
            dx[b, row, column, channel] += dy[b, oh, ow, k] * w[i, j, m, k]
            dw[i, j, m, k] += dy[b, oh, ow, k] * x[b, row, column, channel]
    return dx, dw


def _windows(x: Array, kernel: Pair, strides: Pair, padding: Padding) -> tuple[Pair, dict[Any, list[Pair]]]:
    image = x.shape[1:3]
    output = _output(image, kernel, strides, padding, (1, 1))
    windows: dict[Any, list[Pair]] = {}
    for oh, ow, _, _, row, column in _terms(image, output, kernel, strides, padding, (1, 1)):
        windows.setdefault((oh, ow), []).append((row, column))
    return output, windows


def max_pool2d(x: Array, dy: Array | None, kernel: Pair, strides: Pair, padding: Padding) -> tuple[Array, Array]:
    """Maximum of each window of x (N, H, W, C), and dy (ones if None) at the first maximum of each."""
    output, windows = _windows(x, kernel, strides, padding)
    y, dx = np.zeros((x.shape[0], *output, x.shape[3])), np.zeros(x.shape)
    for (oh, ow), places in windows.items():
        for b, c in itertools.product(range(x.shape[0]), range(x.shape[3])):
            best = places[0]
            for place in places[1:]:
                if x[(b, *place, c)] > x[(b, *best, c)]:
                    best = place
            y[b, oh, ow, c] = x[(b, *best, c)]
            dx[(b, *best, c)] += 1.0 if dy is None else dy[b, oh, ow, c]
    return y, dx


def average_pool2d(x: Array, kernel: Pair, strides: Pair, padding: Padding, count_padding: bool) -> Array:
    """Mean of each window of x (N, H, W, C)."""
    output, windows = _windows(x, kernel, strides, padding)
    y = np.zeros((x.shape[0], *output, x.shape[3]))
    for (oh, ow), places in windows.items():
        count = kernel[0] * kernel[1] if count_padding else len(places)
        for b, c in itertools.product(range(x.shape[0]), range(x.shape[3])):
            y[b, oh, ow, c] = math.fsum(float(x[(b, *p, c)]) for p in places) / count
    return y


def normalize(
    x: Array, scale: Array, offset: Array, axes: tuple[int, ...], epsilon: float
) -> tuple[Array, Array, Array]:
    """Normalisation, slice by slice; axes count from 0."""
    y, scale, offset = np.zeros(x.shape), np.broadcast_to(scale, x.shape), np.broadcast_to(offset, x.shape)
    shape = tuple(1 if a in axes else n for a, n in enumerate(x.shape))
    mean, variance = np.zeros(shape), np.zeros(shape)
    for at in itertools.product(*map(range, shape)):
        index = tuple(slice(None) if a in axes else i for a, i in enumerate(at))
        values = [float(v) for v in x[index].ravel()]
        mean[at] = math.fsum(values) / len(values)
        variance[at] = math.fsum((v - mean[at]) ** 2 for v in values) / len(values)
        y[index] = (x[index] - mean[at]) / math.sqrt(variance[at] + epsilon) * scale[index] + offset[index]
    return y, mean, variance


PHILOX_32 = (32, (0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85))
PHILOX_64 = (64, (0xD2E7470EE14C6C93, 0xCA5A826395121157), (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B))


def philox(counter: list[int], key: list[int], variant: tuple[int, Pair, Pair] = PHILOX_32) -> list[int]:
    """Ten rounds of Philox with four words, in Python's unbounded integers (Salmon et al., SC11, section 3.3)."""
    bits, multipliers, weyl = variant
    mask = (1 << bits) - 1
    c, k = list(counter), list(key)
    for _ in range(10):
        first, second = multipliers[0] * c[0], multipliers[1] * c[2]
        c = [second >> bits ^ c[1] ^ k[0], second & mask, first >> bits ^ c[3] ^ k[1], first & mask]
        k = [(k[0] + weyl[0]) & mask, (k[1] + weyl[1]) & mask]
    return c


def random_uniform(step: int, shape: tuple[int, ...], seed: int, stream: int) -> Array:
    """What random_uniform documents, word by word."""
    words: list[int] = []
    while len(words) < math.prod(shape):
        counter = [len(words) // 4, 0, step % 2**32, stream % 2**32]
        words += philox(counter, [seed % 2**32, seed // 2**32 % 2**32])
    values = [(word >> 8) / 2**24 for word in words[: math.prod(shape)]]
    return np.array(values).reshape(shape)
