"""Maximum and average pooling over windows, and their gradients.

Shapes: x (N, H, W, C), y (N, OH, OW, C), or in the order of `data_format`. Padding never wins a maximum
and is never counted in an average (as in Keras), unless `count_padding` says so (as in PyTorch by default).
"""

from __future__ import annotations

from functools import reduce

from minicnn.ops.arrays import copy_of, full, masked
from minicnn.ops.checks import require_float, require_ndim, same_dtype
from minicnn.ops.convolution import NO_PADDING
from minicnn.ops.primitive import Array, Namespace, Primitive, primitive
from minicnn.ops.windows import Axes, Padding, Pair, Window, fold, image_size, pad_image
from minicnn.program.graph import Node, Spec, Value

LOWEST = float("-inf")


def _output(name: str, x: Spec, window: Window, data_format: str) -> Spec:
    axes = Axes.of(data_format)
    require_ndim(name, "an image", x, 4, "batch, height, width, channels")
    require_float(name, x)
    if any(p >= k for pair, k in zip(window.padding, window.kernel, strict=True) for p in pair):
        message = (
            f"{name} takes padding smaller than the window, so that no window lies in the padding alone. "
            f"Received: padding {window.padding}, window {window.kernel}."
        )
        raise ValueError(message)
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
        xp: Namespace of the arrays.

    Returns:
        y (N, OH, OW, C).
    """
    axes = Axes.of(data_format)
    size = Window(kernel, strides, padding).output_size("max_pool2d", x.shape[axes.h], x.shape[axes.w])
    y = pad_image(x, padding, axes, xp, LOWEST)
    # The maximum of a window is the maximum of its rows' maxima: KH + KW taps instead of KH * KW.
    for window, oh, ow in (
        (Window((1, kernel[1]), (1, strides[1])), y.shape[axes.h], size[1]),
        (Window((kernel[0], 1), (strides[0], 1)), size[0], size[1]),
    ):
        taps = window.taps(y, axes, (oh, ow))
        y = reduce(xp.maximum, taps)
    return copy_of(y, xp) if kernel[0] * kernel[1] == 1 else y


@max_pool2d.shape
def _(x: Spec, *, kernel: Pair, strides: Pair, padding: Padding, data_format: str) -> Spec:
    return _output("max_pool2d", x, Window(kernel, strides, padding), data_format)


@max_pool2d.gradient
def _(node: Node, dy: Value) -> Value:
    return max_pool2d_gradient(dy, node.inputs[0], node.outputs[0], **node.attrs)


@primitive
def max_pool2d_gradient(
    dy: Array, x: Array, y: Array, *, kernel: Pair, strides: Pair, padding: Padding = NO_PADDING,
    data_format: str = "NHWC", xp: Namespace,
) -> Array:  # fmt: skip
    """Gradient of max_pool2d: dy goes to the first maximum of each window in row-major order.

    Args:
        dy: Gradient of y.
        x: Images (N, H, W, C).
        y: Result of max_pool2d (N, OH, OW, C).
        kernel: As in max_pool2d; so are strides, padding and data_format.
        strides: See kernel.
        padding: See kernel.
        data_format: See kernel.
        xp: Namespace of the arrays.

    Returns:
        dx (N, H, W, C).
    """
    axes = Axes.of(data_format)
    window = Window(kernel, strides, padding)
    taps = window.taps(pad_image(x, padding, axes, xp, LOWEST), axes, (y.shape[axes.h], y.shape[axes.w]))
    parts, free = [], None  # free: the windows that have not met their maximum yet
    for tap in taps[:-1]:
        hit = xp.equal(tap, y)
        if free is not None:
            hit = xp.logical_and(hit, free)
        parts.append(masked(dy, hit, xp))
        free = xp.logical_not(hit) if free is None else xp.logical_xor(free, hit)
    # NaN equals nothing: where no earlier tap was the maximum, the last one takes the gradient.
    parts.append(dy if free is None else masked(dy, free, xp))
    return fold(parts, window, axes, (x.shape[axes.h], x.shape[axes.w]), xp)


@max_pool2d_gradient.shape
def _(dy: Spec, x: Spec, y: Spec, *, kernel: Pair, strides: Pair, padding: Padding, data_format: str) -> Spec:
    expected = _output("max_pool2d_gradient", x, Window(kernel, strides, padding), data_format)
    same_dtype("max_pool2d_gradient", dy, x, y)
    if not dy.shape == y.shape == expected.shape:
        message = f"max_pool2d_gradient takes dy and y of shape {expected.shape}. Received: {dy} and {y}."
        raise ValueError(message)
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
        xp: Namespace of the arrays.

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
    inside = full(axes.shape(1, x.shape[axes.h], x.shape[axes.w], 1), 1.0, x, xp)
    return 1.0 / reduce(xp.add, window.taps(pad_image(inside, window.padding, axes, xp), axes, size))


@average_pool2d.shape
def _(x: Spec, *, kernel: Pair, strides: Pair, padding: Padding, count_padding: bool, data_format: str) -> Spec:
    return _output("average_pool2d", x, Window(kernel, strides, padding), data_format)


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
    dy: Spec,
    *,
    image: Pair,
    kernel: Pair,
    strides: Pair,
    padding: Padding,
    count_padding: bool,
    data_format: str,
) -> Spec:
    axes = Axes.of(data_format)
    require_ndim("average_pool2d_gradient", "a gradient", dy, 4, "batch, output height, output width, channels")
    x = Spec(axes.shape(dy.shape[axes.n], *image, dy.shape[axes.c]), dy.dtype)
    expected = _output("average_pool2d_gradient", x, Window(kernel, strides, padding), data_format)
    if dy.shape != expected.shape:
        message = f"average_pool2d_gradient takes dy of shape {expected.shape} for image {image}. Received: {dy}."
        raise ValueError(message)
    return x


@average_pool2d_gradient.gradient
def _(node: Node, d: Value) -> Value:
    return average_pool2d(d, **{k: v for k, v in node.attrs.items() if k != "image"})


_per_window(max_pool2d, 1, -1)
_per_window(max_pool2d_gradient, 1, 0)
_per_window(average_pool2d, 1, -1)
_per_window(average_pool2d_gradient, 1, 0)
