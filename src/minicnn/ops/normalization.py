"""Normalisation to mean 0 and variance 1 over chosen axes: batch, layer and group normalisation in one.

    y = (x - mean) / sqrt(variance + epsilon) * scale + offset

Mean and (biased) variance are taken over `axes`; scale and offset broadcast against x. Sources: batch
arXiv:1502.03167, layer arXiv:1607.06450, group arXiv:1803.08494.
"""

from __future__ import annotations

from minicnn.ops.arrays import copy_of
from minicnn.ops.checks import broadcast_shape, normalize_axes, require_float, same_dtype
from minicnn.ops.primitive import Array, Namespace, primitive
from minicnn.program.graph import Node, Spec, Value

AxesTuple = tuple[int, ...]


@primitive(flops=8)
def normalize(
    x: Array, scale: Array, offset: Array, *, axes: AxesTuple, epsilon: float, xp: Namespace
) -> tuple[Array, Array, Array]:
    """Normalise, scale and shift.

    Args:
        x: Any shape.
        scale: Broadcastable to x.
        offset: Shape of scale.
        axes: Axes over which mean and variance are taken.
        epsilon: Added to the variance.

    Returns:
        y (shape of x), mean and variance (length 1 along `axes`). Only y can be differentiated.
    """
    mean = xp.mean(x, axis=axes, keepdims=True)
    centred = x - mean
    variance = xp.mean(xp.square(centred), axis=axes, keepdims=True)
    return centred * (scale / xp.sqrt(variance + epsilon)) + offset, mean, variance


@normalize.shape
def _(x: Spec, scale: Spec, offset: Spec, *, axes: AxesTuple, epsilon: float) -> tuple[Spec, Spec, Spec]:
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
def _(node: Node, dy: Value | None, dmean: Value | None, dvariance: Value | None) -> list[Value]:
    if dy is None or dmean is not None or dvariance is not None:
        raise TypeError(
            "Only the first result of normalize can be differentiated. Received a gradient of its mean or variance. "
            "Compute them with ops.mean where the loss needs them."
        )
    x, scale, _ = node.inputs
    _, mean, variance = node.outputs
    dx, dscale, doffset = normalize_gradient(dy, x, scale, mean, variance, **node.attrs)
    return [dx, dscale, doffset]


@primitive(flops=14)
def normalize_gradient(
    dy: Array, x: Array, scale: Array, mean: Array, variance: Array, *, axes: AxesTuple, epsilon: float,
    xp: Namespace,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """Gradients of normalize with respect to x, scale and offset.

    With u = (x - mean) / sqrt(variance + epsilon) and g = dy * scale:
    dx = (g - mean(g) - u * mean(g * u)) / sqrt(variance + epsilon), dscale = sum(dy * u), doffset = sum(dy),
    the sums over the axes along which scale was broadcast.

    Args:
        dy: Gradient of y, shape of x.
        x: As in normalize; so are scale, mean, variance, axes and epsilon.
    """
    inverse = 1.0 / xp.sqrt(variance + epsilon)
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
    dy: Spec, x: Spec, scale: Spec, mean: Spec, variance: Spec, *, axes: AxesTuple, epsilon: float
) -> tuple[Spec, Spec, Spec]:
    same_dtype("normalize_gradient", dy, x, scale, mean, variance)
    if dy.shape != x.shape:
        raise ValueError(f"normalize_gradient takes dy of the shape of x. Received: {dy} and {x}.")
    return x, scale, scale
