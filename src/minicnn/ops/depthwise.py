"""Depthwise convolution: every channel has kernels of its own.

    y[n, oh, ow, c * M + m] = sum over i, j of x[n, oh * SH + i * DH - top, ow * SW + j * DW - left, c] * w[i, j, c, m]

Shapes: x (N, H, W, C), w (KH, KW, C, M), y (N, OH, OW, C * M); see `convolution` for the layouts. (F. Chollet,
Xception, arXiv:1610.02357.) Each tap is one elementwise product, so no matrix product pays here.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

from minicnn.ops.checks import require_float, require_ndim, same_dtype
from minicnn.ops.convolution import NO_PADDING
from minicnn.ops.primitive import Array, Namespace, primitive
from minicnn.ops.windows import Axes, Padding, Pair, Window, fold, image_size, pad_image
from minicnn.program.graph import Node, Spec, Value

KERNEL_AXES = "kernel height, kernel width, channels, depth multiplier"


def _check(name: str, x: Spec, w: Spec, axes: Axes) -> None:
    require_ndim(name, "an image", x, 4, "batch, height, width, channels")
    require_ndim(name, "a kernel", w, 4, KERNEL_AXES)
    require_float(name, x)
    same_dtype(name, x, w)
    if w.shape[2] != x.shape[axes.c]:
        raise ValueError(
            f"{name} takes a kernel for the image's channels. "
            f"Received: {x} in which channels are axis {axes.c}, kernel {w}."
        )


def _split_multiplier(y: Array, axes: Axes, m: int, xp: Namespace) -> Array:
    """(.., C * M, ..) -> (.., C, M, ..): the depth multiplier on an axis after the channels."""
    shape = tuple(y.shape)
    return xp.reshape(y, (*shape[: axes.c], shape[axes.c] // m, m, *shape[axes.c + 1 :]))


def _kernel(w: Array, i: int, j: int, axes: Axes, xp: Namespace) -> Array:
    """Tap (i, j) of w as (C, M) with axes of length 1 for those that follow the channels."""
    return xp.reshape(w[i, j, :, :], (*w.shape[2:], *(1,) * (3 - axes.c)))


@primitive
def depthwise_conv2d(
    x: Array, w: Array, *, strides: Pair = (1, 1), padding: Padding = NO_PADDING, dilation: Pair = (1, 1),
    data_format: str = "NHWC", xp: Namespace,
) -> Array:  # fmt: skip
    """Depthwise convolution; arguments as in `conv2d`, w (KH, KW, C, M), result (N, OH, OW, C * M)."""
    axes = Axes.of(data_format)
    kh, kw, c, m = w.shape
    window = Window((kh, kw), strides, padding, dilation)
    oh, ow = window.output_size("depthwise_conv2d", x.shape[axes.h], x.shape[axes.w])
    taps = window.taps(pad_image(x, padding, axes, xp), axes, (oh, ow))
    # Channels do not mix, so that there is no matrix product: one multiplication a tap.
    y = reduce(
        xp.add,
        (
            xp.multiply(xp.expand_dims(tap, axis=axes.c + 1), _kernel(w, k // kw, k % kw, axes, xp))
            for k, tap in enumerate(taps)
        ),
    )
    return xp.reshape(y, axes.shape(x.shape[axes.n], oh, ow, c * m))


@depthwise_conv2d.shape
def _(x: Spec, w: Spec, *, strides: Pair, padding: Padding, dilation: Pair, data_format: str) -> Spec:
    axes = Axes.of(data_format)
    _check("depthwise_conv2d", x, w, axes)
    size = Window((w.shape[0], w.shape[1]), strides, padding, dilation).output_size(
        "depthwise_conv2d", *image_size(x, axes)
    )
    return Spec(axes.shape(x.shape[axes.n], *size, w.shape[2] * w.shape[3]), x.dtype)


@depthwise_conv2d.gradient
def _(node: Node, dy: Value) -> list[Value]:
    x, w = node.inputs
    axes = Axes.of(node.attrs["data_format"])
    return [
        depthwise_conv2d_input_gradient(dy, w, image=image_size(x.spec, axes), **node.attrs),
        depthwise_conv2d_weight_gradient(dy, x, kernel=w.shape[:2], **node.attrs),
    ]


@depthwise_conv2d.cost
def _(node: Node) -> int:
    return 2 * node.outputs[0].size * node.inputs[1].shape[0] * node.inputs[1].shape[1]


@primitive
def depthwise_conv2d_input_gradient(
    dy: Array, w: Array, *, image: Pair, strides: Pair = (1, 1), padding: Padding = NO_PADDING,
    dilation: Pair = (1, 1), data_format: str = "NHWC", xp: Namespace,
) -> Array:  # fmt: skip
    """Gradient of depthwise_conv2d with respect to x (N, H, W, C), with (H, W) = image."""
    axes = Axes.of(data_format)
    kh, kw, _, m = w.shape
    dy = _split_multiplier(dy, axes, m, xp)
    parts = [xp.sum(xp.multiply(dy, _kernel(w, i, j, axes, xp)), axis=axes.c + 1) for i in range(kh) for j in range(kw)]
    return fold(parts, Window((kh, kw), strides, padding, dilation), axes, image, xp)


@depthwise_conv2d_input_gradient.shape
def _(dy: Spec, w: Spec, *, image: Pair, strides: Pair, padding: Padding, dilation: Pair, data_format: str) -> Spec:
    axes = Axes.of(data_format)
    name = "depthwise_conv2d_input_gradient"
    require_ndim(name, "a gradient", dy, 4, "batch, output height, output width, channels * multiplier")
    require_ndim(name, "a kernel", w, 4, KERNEL_AXES)
    x = Spec(axes.shape(dy.shape[axes.n], *image, w.shape[2]), dy.dtype)
    _check(name, x, w, axes)
    size = Window((w.shape[0], w.shape[1]), strides, padding, dilation).output_size(name, *image)
    if (*size, w.shape[2] * w.shape[3]) != (*image_size(dy, axes), dy.shape[axes.c]):
        raise ValueError(
            f"{name} takes dy as depthwise_conv2d makes it from the image. Received: {dy}, image {image}, kernel {w}."
        )
    return x


@depthwise_conv2d_input_gradient.cost
def _(node: Node) -> int:
    return 2 * node.inputs[0].size * node.inputs[1].shape[0] * node.inputs[1].shape[1]


@depthwise_conv2d_input_gradient.gradient
def _(node: Node, d: Value) -> list[Value]:
    dy, w = node.inputs
    attrs: dict[str, Any] = {k: v for k, v in node.attrs.items() if k != "image"}
    return [depthwise_conv2d(d, w, **attrs), depthwise_conv2d_weight_gradient(dy, d, kernel=w.shape[:2], **attrs)]


@primitive
def depthwise_conv2d_weight_gradient(
    dy: Array, x: Array, *, kernel: Pair, strides: Pair = (1, 1), padding: Padding = NO_PADDING,
    dilation: Pair = (1, 1), data_format: str = "NHWC", xp: Namespace,
) -> Array:  # fmt: skip
    """Gradient of depthwise_conv2d with respect to w (KH, KW, C, M), with (KH, KW) = kernel."""
    axes = Axes.of(data_format)
    c = x.shape[axes.c]
    m = dy.shape[axes.c] // c
    size = (dy.shape[axes.h], dy.shape[axes.w])
    dy = _split_multiplier(dy, axes, m, xp)
    # Summed over batch and image at once: channels and their multiplier are what stays.
    others = tuple(a for a in range(5) if a not in (axes.c, axes.c + 1))
    taps = Window(kernel, strides, padding, dilation).taps(pad_image(x, padding, axes, xp), axes, size)
    dw = [xp.sum(xp.multiply(xp.expand_dims(tap, axis=axes.c + 1), dy), axis=others) for tap in taps]
    return xp.reshape(xp.stack(dw, axis=0), (*kernel, c, m))


@depthwise_conv2d_weight_gradient.shape
def _(dy: Spec, x: Spec, *, kernel: Pair, strides: Pair, padding: Padding, dilation: Pair, data_format: str) -> Spec:
    axes = Axes.of(data_format)
    name = "depthwise_conv2d_weight_gradient"
    require_ndim(name, "a gradient", dy, 4, "batch, output height, output width, channels * multiplier")
    require_ndim(name, "an image", x, 4, "batch, height, width, channels")
    c = x.shape[axes.c]
    size = Window(kernel, strides, padding, dilation).output_size(name, *image_size(x, axes))
    if dy.shape[axes.c] % c or (x.shape[axes.n], *size) != (dy.shape[axes.n], *image_size(dy, axes)):
        raise ValueError(f"{name} takes dy as depthwise_conv2d makes it from x. Received: {dy}, {x}, kernel {kernel}.")
    return Spec((*kernel, c, dy.shape[axes.c] // c), same_dtype(name, dy, x))


@depthwise_conv2d_weight_gradient.cost
def _(node: Node) -> int:
    kh, kw = node.attrs["kernel"]
    return int(2 * node.inputs[0].size * kh * kw)


@depthwise_conv2d_weight_gradient.gradient
def _(node: Node, d: Value) -> list[Value]:
    dy, x = node.inputs
    attrs: dict[str, Any] = {k: v for k, v in node.attrs.items() if k != "kernel"}
    image = image_size(x.spec, Axes.of(attrs["data_format"]))
    return [depthwise_conv2d(x, d, **attrs), depthwise_conv2d_input_gradient(dy, d, image=image, **attrs)]
