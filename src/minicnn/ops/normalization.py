"""Normalisation to mean 0 and variance 1 over chosen axes: batch, layer and group normalisation in one.

    y = (x - mean) / sqrt(variance + epsilon) * scale + offset

Mean and (biased) variance are taken over `axes`; scale and offset broadcast against x. Sources: batch
arXiv:1502.03167, layer arXiv:1607.06450, group arXiv:1803.08494.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from functools import reduce
from typing import Any

from minicnn.ops.arrays import copy_of
from minicnn.ops.checks import broadcast_shape, normalize_axes, require_float, same_dtype
from minicnn.ops.elementwise import abs, greater, maximum, sqrt, square, where
from minicnn.ops.manipulation import total
from minicnn.ops.primitive import Array, Namespace, primitive
from minicnn.ops.reduction import Axes, broadcast_to, sum, sum_to_shape
from minicnn.ops.reduction import mean as ops_mean
from minicnn.program.graph import Node, Spec, Value

AxesTuple = tuple[int, ...]


# Squares within the range of float32 ------------------------------------------------------------


def unit_of(epsilon: float, dtype: str) -> float:
    """Unit in which to take squares that are added to epsilon, so that those of large numbers do not overflow.

    The largest power of two for which squares that epsilon does not hide, epsilon / 2^24 and more, are normal numbers:
    so no result has another bit. For epsilon 1e-3 it is 2^45, and float32 holds the squares of numbers up to 6e32.
    Numbers that were stored in float16 need none, and their multiples in other units would not fit into it.
    """
    # A power of two, so that scaling is exact.
    exponent = (math.frexp(epsilon)[1] + 100) // 2
    return 2.0**exponent if epsilon and exponent > 0 and dtype in ("float32", "bfloat16") else 1.0


def in_units(node: Node) -> tuple[Callable[[Any], Any], float]:
    """Function to the unit of a normalisation or its gradient, and epsilon in squares of that unit."""
    unit = node.attrs["unit"]
    return lambda x: x if unit == 1 else x * (1 / unit), node.attrs["epsilon"] / unit**2


def factor_for_squares(*arrays: Value, axes: Axes = None) -> Value:
    """Factor, a power of two, after which squares of arrays can be added up: 1, or 2^-80 if their sizes exceed 2^50.

    Along axes of one array it has length 1. It is no function of them in derivatives, as what it is a factor of is
    divided by it again. Sizes are added, as shards can do with sums what they cannot with a maximum.
    """
    size = total([sum(abs(x), axes=axes, keepdims=axes is not None) for x in arrays])
    # Scaled only where squares could overflow: everywhere else bits stay as they are.
    return where(greater(size, 2.0**50), size.program.constant(2.0**-80, size.dtype), 1.0)


def directions(x: Value, axes: Axes, least: float) -> Value:
    """Vectors along axes over their Euclidean length, whose square is taken to be `least` where it is less."""
    factor = factor_for_squares(x, axes=axes)
    x = x * factor
    squares = sum(square(x), axes=axes, keepdims=True)
    return x / sqrt(maximum(squares, square(factor) * least))


# The primitive ----------------------------------------------------------------------------------


@primitive(flops=8)
def normalize(
    x: Array, scale: Array, offset: Array, *, axes: AxesTuple, epsilon: float, unit: float = 1.0, xp: Namespace
) -> tuple[Array, Array, Array]:
    """Normalise, scale and shift.

    Args:
        x: Any shape.
        scale: Broadcastable to x.
        offset: Shape of scale.
        axes: Axes over which mean and variance are taken.
        epsilon: Added to the variance.
        unit: Of what is squared: the variance is taken, and given back, in units of unit^2. See `unit_of`.

    Returns:
        y (shape of x), mean and variance (length 1 along `axes`). Only y can be differentiated.
    """
    mean = xp.mean(x, axis=axes, keepdims=True)
    centred = x - mean
    # Two passes, as E[x^2] - E[x]^2 cancels where the mean is large beside the deviation.
    variance = xp.mean(xp.square(centred * (1 / unit) if unit != 1 else centred), axis=axes, keepdims=True)
    return centred * (scale * (1 / unit) / xp.sqrt(variance + epsilon / unit**2)) + offset, mean, variance


@normalize.shape
def _(x: Spec, scale: Spec, offset: Spec, *, axes: AxesTuple, epsilon: float, unit: float) -> tuple[Spec, Spec, Spec]:
    require_float("normalize", x)
    same_dtype("normalize", x, scale, offset)
    if scale.shape != offset.shape or broadcast_shape("normalize", x, scale) != x.shape:
        raise ValueError(
            f"normalize takes scale and offset of one shape that broadcasts to x. Received: {x}, {scale}, {offset}."
        )
    reduced = normalize_axes("normalize", axes, x.ndim)
    statistic = Spec(tuple(1 if a in reduced else n for a, n in enumerate(x.shape)), x.dtype)
    return x, statistic, statistic


@normalize.gradient
def _(node: Node, dy: Value | None, dmean: Value | None, dvariance: Value | None) -> list[Value | None]:
    x, scale, _ = node.inputs
    _, mean, variance = node.outputs
    gradients: list[Value | None] = [None, None, None]
    if dy is not None:
        gradients = list(normalize_gradient(dy, x, scale, mean, variance, **node.attrs))
    of_x = [] if gradients[0] is None else [gradients[0]]
    each, unit = mean.size / x.size, node.attrs["unit"]
    if dmean is not None:
        of_x.append(broadcast_to(dmean * each, shape=x.shape))
    if dvariance is not None:  # which is in squares of the unit
        of_x.append((x - mean) * (dvariance * (2.0 * each / unit**2)))
    return [reduce(operator.add, of_x), *gradients[1:]]


@primitive(flops=14)
def normalize_gradient(
    dy: Array, x: Array, scale: Array, mean: Array, variance: Array, *, axes: AxesTuple, epsilon: float,
    unit: float = 1.0, xp: Namespace,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """Gradients of normalize with respect to x, scale and offset.

    With u = (x - mean) / sqrt(variance + epsilon) and g = dy * scale:
    dx = (g - mean(g) - u * mean(g * u)) / sqrt(variance + epsilon), dscale = sum(dy * u), doffset = sum(dy),
    the sums over the axes along which scale was broadcast.

    Args:
        dy: Gradient of y, shape of x.
        x: As in normalize; so are scale, mean, variance, axes, epsilon and unit.
    """
    inverse = 1 / unit / xp.sqrt(variance + epsilon / unit**2)
    u = (x - mean) * inverse
    g = dy * scale
    dx = (g - xp.mean(g, axis=axes, keepdims=True) - u * xp.mean(g * u, axis=axes, keepdims=True)) * inverse
    return dx, _sum_to(dy * u, tuple(scale.shape), xp), _sum_to(dy, tuple(scale.shape), xp)


def _sum_to(x: Array, shape: tuple[int, ...], xp: Namespace) -> Array:
    lead = x.ndim - len(shape)
    axes = (*range(lead), *(a for a, n in enumerate(shape, lead) if n == 1))
    return xp.reshape(xp.sum(x, axis=axes), shape) if axes else copy_of(x, xp)


@normalize_gradient.shape
def _(
    dy: Spec, x: Spec, scale: Spec, mean: Spec, variance: Spec, *, axes: AxesTuple, epsilon: float, unit: float
) -> tuple[Spec, Spec, Spec]:
    same_dtype("normalize_gradient", dy, x, scale, mean, variance)
    if dy.shape != x.shape:
        raise ValueError(f"normalize_gradient takes dy of the shape of x. Received: {dy} and {x}.")
    return x, scale, scale


@normalize_gradient.gradient
def _(node: Node, ddx: Value | None, ddscale: Value | None, ddoffset: Value | None) -> list[Value | None]:
    # By the chain rule through u, g, their means and 1 / sqrt(variance + epsilon), as they stand in the docstring.
    dy, x, scale, mean, variance = node.inputs
    axes, unit = node.attrs["axes"], node.attrs["unit"]

    def mean_of(v: Value) -> Value:
        mean: Value = ops_mean(v, axes=axes, keepdims=True)
        return mean

    def sum_of(v: Value) -> Value:
        total: Value = sum(v, axes=axes, keepdims=True)
        return total

    shifted = variance + node.attrs["epsilon"] / unit**2
    inverse = (1.0 / unit) / sqrt(shifted)
    u, g = (x - mean) * inverse, dy * scale
    of_u, of_dy, of_inverse, of_scale = list[Value](), list[Value](), list[Value](), None
    if ddx is not None:
        w, share = ddx * inverse, mean_of(g * u)
        across = mean_of(w * u)
        of_g = w - mean_of(w) - u * across
        of_u.append(-(g * across + w * share))
        of_dy.append(of_g * scale)
        of_inverse.append(sum_of(ddx * (g - mean_of(g) - u * share)))
        of_scale = sum_to_shape(of_g * dy, shape=scale.shape)
    if ddscale is not None:
        of_u.append(dy * ddscale)
        of_dy.append(u * ddscale)
    if ddoffset is not None:
        of_dy.append(broadcast_to(ddoffset, shape=dy.shape))
    gradients: list[Value | None] = [reduce(operator.add, of_dy), None, of_scale, None, None]
    if of_u:
        gradient_of_u = reduce(operator.add, of_u)
        of_inverse.append(sum_of(gradient_of_u * (x - mean)))
        gradients[1], gradients[3] = gradient_of_u * inverse, -sum_of(gradient_of_u * inverse)
        gradients[4] = reduce(operator.add, of_inverse) * inverse / shifted * -0.5
    return gradients
