"""Maximum and average pooling over windows, and their gradients.

Shapes: x (N, H, W, C), y (N, OH, OW, C), or in the order of `data_format`. Padding never wins a maximum
and is never counted in an average (as in Keras), unless `count_padding` says so (as in PyTorch by default).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import pairwise

from minicnn.ops.arrays import copy_of, full, masked
from minicnn.ops.checks import require_float, require_ndim, same_dtype
from minicnn.ops.convolution import NO_PADDING
from minicnn.ops.primitive import Array, Namespace, Primitive, primitive
from minicnn.ops.reduction import broadcast_to
from minicnn.ops.windows import Axes, Padding, Pair, Window, fold, image_size, pad_image
from minicnn.program.graph import Node, Spec, Value

LOWEST = float("-inf")


def pooled_spec(name: str, x: Spec, window: Window, data_format: str) -> Spec:
    """The result of a pooling of images x; raises where a primitive of this name does not take them."""
    axes = Axes.of(data_format)
    require_ndim(name, "an image", x, 4, "batch, height, width, channels")
    require_float(name, x)
    if any(p >= k for pair, k in zip(window.padding, window.kernel, strict=True) for p in pair):
        raise ValueError(
            f"{name} takes padding smaller than the window, so that no window lies in the padding alone. "
            f"Received: padding {window.padding}, window {window.kernel}."
        )
    size = window.output_size(name, *image_size(x, axes))
    return Spec(axes.shape(x.shape[axes.n], *size, x.shape[axes.c]), x.dtype)


def _per_window(op: Primitive, flops: int, at: int) -> None:
    """FLOPs of an operation that does `flops` operations per tap of each output position."""

    @op.cost
    def cost(node: Node) -> int:
        values = (*node.inputs, *node.outputs)
        kh, kw = node.attrs["kernel"]
        return int(values[at].size * kh * kw * flops)


@primitive
def max_pool2d(
    x: Array, *, kernel: Pair, strides: Pair, padding: Padding = NO_PADDING, data_format: str = "NHWC",
    xp: Namespace,
) -> Array:  # fmt: skip
    """Largest element of each window.

    Args:
        x: Images (N, H, W, C).
        kernel: Window (KH, KW).
        strides: (SH, SW).
        padding: ((top, bottom), (left, right)), each smaller than the window.
        data_format: Order of the axes of x and y.

    Returns:
        y (N, OH, OW, C).
    """
    axes = Axes.of(data_format)
    # The maximum of a window is the maximum of its rows' maxima: KH + KW taps instead of KH * KW.
    for window in _directions(kernel, strides, padding):
        x = reduce(xp.maximum, _taps(x, window, axes, xp))
    # A primitive never returns its input.
    return copy_of(x, xp) if kernel[0] * kernel[1] == 1 else x


def _directions(kernel: Pair, strides: Pair, padding: Padding) -> tuple[Window, Window]:
    """Windows along rows, and across the results."""
    none = (0, 0)
    return (
        Window((1, kernel[1]), (1, strides[1]), (none, padding[1])),
        Window((kernel[0], 1), (strides[0], 1), (padding[0], none)),
    )


def _taps(x: Array, window: Window, axes: Axes, xp: Namespace) -> list[Array]:
    """The taps of x, with padding that never wins."""
    size = window.output_size("max_pool2d", x.shape[axes.h], x.shape[axes.w])
    return window.taps(pad_image(x, window.padding, axes, xp, LOWEST), axes, size)


@max_pool2d.shape
def _(x: Spec, *, kernel: Pair, strides: Pair, padding: Padding, data_format: str) -> Spec:
    return pooled_spec("max_pool2d", x, Window(kernel, strides, padding), data_format)


@max_pool2d.gradient
def _(node: Node, dy: Value) -> Value:
    return max_pool2d_gradient(dy, node.inputs[0], node.outputs[0], **node.attrs)


@primitive
def max_pool2d_gradient(
    dy: Array, x: Array, y: Array, *, kernel: Pair, strides: Pair, padding: Padding = NO_PADDING,
    data_format: str = "NHWC", xp: Namespace,
) -> Array:  # fmt: skip
    """Gradient of max_pool2d: dy goes to the first maximum of each window in row-major order.

    Beside a NaN it goes to one element of the window, whichever.

    The place is found by comparing elements of x with each other, never with y: a compiler may compute x anew
    wherever it is read, each time with other roundings, and then no element need be equal to the maximum.

    Args:
        dy: Gradient of y.
        x: Images (N, H, W, C).
        y: Result of max_pool2d (N, OH, OW, C), for kernels that read x and y as they are in memory.
        kernel: As in max_pool2d; so are strides, padding and data_format.

    Returns:
        dx (N, H, W, C).
    """
    axes = Axes.of(data_format)
    # Windows that share elements share the maxima of their rows too.
    windows = [Window(kernel, strides, padding)] if kernel == strides else _directions(kernel, strides, padding)
    for window, image, hits in reversed(_maxima(x, windows, axes, xp)):
        parts = (dy if hit is None else masked(dy, hit, xp) for hit in hits)
        dy = fold(parts, window, axes, image, xp)
    return dy


def _maxima(
    x: Array, windows: Sequence[Window], axes: Axes, xp: Namespace
) -> list[tuple[Window, Pair, list[Array | None]]]:
    """Windows one after the other, each with the size of the image under it and the places of its maxima there."""
    result = []
    for window in windows:
        taps = _taps(x, window, axes, xp)
        result.append((window, (x.shape[axes.h], x.shape[axes.w]), _first_maximum(taps, xp)))
        if window is not windows[-1]:
            x = reduce(xp.maximum, taps)
    return result


def _first_maximum(taps: list[Array], xp: Namespace) -> list[Array | None]:
    """Masks of the first of some arrays that holds their maximum, one for each; None for one alone."""
    best = taps[0]
    no_larger: list[Array] = []
    for before, tap in pairwise(taps):
        best = xp.maximum(best, before) if no_larger else before
        no_larger.append(tap <= best)  # beside a NaN none is
    masks: list[Array] = []
    free = None  # where no later tap is larger than all before it
    # From the last tap back: a tap is the first maximum if no later one is larger and none before it is as large.
    for mask in reversed(no_larger):
        still = mask if free is None else xp.logical_and(mask, free)
        masks.append(xp.logical_not(mask) if free is None else xp.logical_xor(free, still))
        free = still
    return [free, *reversed(masks)]


@max_pool2d_gradient.shape
def _(dy: Spec, x: Spec, y: Spec, *, kernel: Pair, strides: Pair, padding: Padding, data_format: str) -> Spec:
    expected = pooled_spec("max_pool2d_gradient", x, Window(kernel, strides, padding), data_format)
    same_dtype("max_pool2d_gradient", dy, x, y)
    if not dy.shape == y.shape == expected.shape:
        raise ValueError(f"max_pool2d_gradient takes dy and y of shape {expected.shape}. Received: {dy} and {y}.")
    return x


@primitive
def average_pool2d(
    x: Array, *, kernel: Pair, strides: Pair, padding: Padding = NO_PADDING, count_padding: bool = False,
    data_format: str = "NHWC", xp: Namespace,
) -> Array:  # fmt: skip
    """Mean of each window.

    Args:
        x: Images (N, H, W, C).
        kernel: Window (KH, KW).
        strides: (SH, SW).
        padding: ((top, bottom), (left, right)), each smaller than the window.
        count_padding: Whether zeros of the padding count as elements.
        data_format: Order of the axes of x and y.

    Returns:
        y (N, OH, OW, C).
    """
    axes = Axes.of(data_format)
    window = Window(kernel, strides, padding)
    size = window.output_size("average_pool2d", x.shape[axes.h], x.shape[axes.w])
    total = reduce(xp.add, window.taps(pad_image(x, padding, axes, xp), axes, size))
    return xp.multiply(total, _reciprocal_counts(x, window, axes, size, count_padding, xp))


def _reciprocal_counts(x: Array, window: Window, axes: Axes, size: Pair, count_padding: bool, xp: Namespace) -> Array:
    """1 / number of elements that each window averages, broadcastable against y."""
    kh, kw = window.kernel
    if count_padding or window.padding == NO_PADDING:
        return full((1, 1, 1, 1), 1.0 / (kh * kw), x, xp)
    # The counts of a window are an average pooling of ones, for one image and one channel.
    inside = full(axes.shape(1, x.shape[axes.h], x.shape[axes.w], 1), 1.0, x, xp)
    return 1.0 / reduce(xp.add, window.taps(pad_image(inside, window.padding, axes, xp), axes, size))


@average_pool2d.shape
def _(x: Spec, *, kernel: Pair, strides: Pair, padding: Padding, count_padding: bool, data_format: str) -> Spec:
    return pooled_spec("average_pool2d", x, Window(kernel, strides, padding), data_format)


@average_pool2d.gradient
def _(node: Node, dy: Value) -> Value:
    image = image_size(node.inputs[0].spec, Axes.of(node.attrs["data_format"]))
    return average_pool2d_gradient(dy, image=image, **node.attrs)


@primitive
def average_pool2d_gradient(
    dy: Array, *, image: Pair, kernel: Pair, strides: Pair, padding: Padding = NO_PADDING,
    count_padding: bool = False, data_format: str = "NHWC", xp: Namespace,
) -> Array:  # fmt: skip
    """Gradient of average_pool2d with respect to x (N, H, W, C), with (H, W) = image."""
    axes = Axes.of(data_format)
    window = Window(kernel, strides, padding)
    n, c = dy.shape[axes.n], dy.shape[axes.c]
    size = (dy.shape[axes.h], dy.shape[axes.w])
    like = xp.broadcast_to(full((1, 1, 1, 1), 0.0, dy, xp), axes.shape(n, *image, c))
    share = xp.multiply(dy, _reciprocal_counts(like, window, axes, size, count_padding, xp))
    return fold([share] * (kernel[0] * kernel[1]), window, axes, image, xp)


@average_pool2d_gradient.shape
def _(
    dy: Spec, *, image: Pair, kernel: Pair, strides: Pair, padding: Padding, count_padding: bool, data_format: str
) -> Spec:
    axes = Axes.of(data_format)
    require_ndim("average_pool2d_gradient", "a gradient", dy, 4, "batch, output height, output width, channels")
    x = Spec(axes.shape(dy.shape[axes.n], *image, dy.shape[axes.c]), dy.dtype)
    expected = pooled_spec("average_pool2d_gradient", x, Window(kernel, strides, padding), data_format)
    if dy.shape != expected.shape:
        raise ValueError(
            f"average_pool2d_gradient takes dy of shape {expected.shape} for image {image}. Received: {dy}."
        )
    return x


@average_pool2d_gradient.gradient
def _(node: Node, d: Value) -> Value:
    return average_pool2d(d, **{k: v for k, v in node.attrs.items() if k != "image"})


_per_window(max_pool2d, 1, -1)
_per_window(max_pool2d_gradient, 1, 0)
_per_window(average_pool2d, 1, -1)
_per_window(average_pool2d_gradient, 1, 0)


@max_pool2d_gradient.gradient
def _(node: Node, gradient: Value) -> list[Value | None]:
    # It is linear in dy; which element of a window it goes to does not depend on x, as long as there is one maximum.
    window = {name: node.attrs[name] for name in ("kernel", "strides", "padding", "data_format")}
    if window["kernel"] != window["strides"] or window["padding"] != NO_PADDING:
        raise TypeError(
            "Gradients of gradients go through a max-pooling whose windows do not overlap. Received: kernel "
            f"{window['kernel']} with strides {window['strides']} in {node.scope!r}. Let the strides be "
            "the kernel, without padding, or take average_pool2d."
        )
    dy, x, y = node.inputs
    ones = broadcast_to(dy.program.constant(1.0, dy.dtype), shape=dy.shape)
    picked = gradient * max_pool2d_gradient(ones, x, y, **node.attrs)
    elements = float(window["kernel"][0] * window["kernel"][1])
    return [average_pool2d(picked, **window) * elements, None, None]
