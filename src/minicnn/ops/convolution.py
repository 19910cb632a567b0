"""Two-dimensional convolution (cross-correlation) and its two gradients.

    y[n, oh, ow, f] = sum over i, j, c of x[n, oh * SH + i * DH - top, ow * SW + j * DW - left, c] * w[i, j, c, f]

with zeros outside the image (V. Dumoulin, F. Visin, A guide to convolution arithmetic for deep learning,
arXiv:1603.07285). Shapes: x (N, H, W, C), w (KH, KW, C / groups, F), y (N, OH, OW, F); with
data_format "NCHW" or "HWCN" (batch last) x and y have their axes in that order, w stays. With
groups, the channels and filters are split into equal parts that do not see each other. What they cost is stated
where their references are described as one strategy among others: `minicnn.ops.strategies.unrolled`.
"""

from __future__ import annotations

import math
from typing import Any

from minicnn.ops.checks import require_float, require_ndim, same_dtype
from minicnn.ops.primitive import Array, Namespace, primitive
from minicnn.ops.windows import Axes, Padding, Pair, Window, fold, image_size, unfold
from minicnn.program.graph import Node, Spec, Value

NO_PADDING: Padding = ((0, 0), (0, 0))
KERNEL_AXES = "kernel height, kernel width, channels / groups, filters"


def _check(name: str, x: Spec, w: Spec, groups: int, axes: Axes) -> None:
    require_ndim(name, "an image", x, 4, "batch, height, width, channels")
    require_ndim(name, "a kernel", w, 4, KERNEL_AXES)
    require_float(name, x)
    same_dtype(name, x, w)
    channels, filters = x.shape[axes.c], w.shape[3]
    if groups < 1 or channels % groups or filters % groups or w.shape[2] * groups != channels:
        raise ValueError(
            f"{name} takes groups that divide the channels and the filters, and a kernel for channels / groups. "
            f"Received: {channels} channels, {filters} filters, groups={groups}, kernel {w}. "
            "Change groups or the number of filters."
        )


def split(x: Array, groups: int, axis: int) -> list[Array]:
    """Equal parts of x along one axis, as views."""
    if groups == 1:
        return [x]
    n = x.shape[axis] // groups
    index = [slice(None)] * x.ndim
    parts = []
    for g in range(groups):
        index[axis] = slice(g * n, (g + 1) * n)
        parts.append(x[tuple(index)])
    return parts


def join(parts: list[Array], axis: int, xp: Namespace) -> Array:
    """Inverse of `split`."""
    return parts[0] if len(parts) == 1 else xp.concat(parts, axis=axis)


def contract(columns: Array, w: Array, axes: Axes, xp: Namespace) -> Array:
    """Columns (N, OH, OW, K) times w (K, F) along the channel axis, in any layout."""
    a, b, c, d = columns.shape
    k, f = w.shape
    if axes.c == 3:
        return xp.reshape(xp.matmul(xp.reshape(columns, (a * b * c, k)), w), (a, b, c, f))
    # The weights come first where channels do, so that the product comes out in the image's own order without a copy.
    wt = xp.permute_dims(w, (1, 0))  # (F, K)
    if axes.c == 1:  # (N, K, OH * OW) -> (N, F, OH * OW)
        return xp.reshape(xp.matmul(wt, xp.reshape(columns, (a, k, c * d))), (a, f, c, d))
    # (OH * OW, K, N) -> (OH * OW, F, N)
    return xp.reshape(xp.matmul(wt, xp.reshape(columns, (a * b, k, d))), (a, b, f, d))


@primitive
def conv2d(
    x: Array, w: Array, *, strides: Pair = (1, 1), padding: Padding = NO_PADDING, dilation: Pair = (1, 1),
    groups: int = 1, data_format: str = "NHWC", xp: Namespace,
) -> Array:  # fmt: skip
    """Convolution as an unfolding of the image and one matrix product a group.

    Args:
        x: Images (N, H, W, C).
        w: Kernel (KH, KW, C / groups, F).
        strides: (SH, SW).
        padding: ((top, bottom), (left, right)) zeros.
        dilation: (DH, DW).
        groups: Parts of the channels that are convolved apart.
        data_format: Order of the axes of x and y.

    Returns:
        y (N, OH, OW, F).
    """
    axes = Axes.of(data_format)
    window = Window(w.shape[:2], strides, padding, dilation)
    size = window.output_size("conv2d", x.shape[axes.h], x.shape[axes.w])
    parts = []
    for xg, wg in zip(split(x, groups, axes.c), split(w, groups, 3), strict=True):
        columns = unfold(xg, window, axes, size, xp)
        k = wg.shape[0] * wg.shape[1] * wg.shape[2]
        parts.append(contract(columns, xp.reshape(wg, (k, wg.shape[3])), axes, xp))
    return join(parts, axes.c, xp)


@conv2d.shape
def _(x: Spec, w: Spec, *, strides: Pair, padding: Padding, dilation: Pair, groups: int, data_format: str) -> Spec:
    axes = Axes.of(data_format)
    _check("conv2d", x, w, groups, axes)
    window = Window((w.shape[0], w.shape[1]), strides, padding, dilation)
    oh, ow = window.output_size("conv2d", *image_size(x, axes))
    return Spec(axes.shape(x.shape[axes.n], oh, ow, w.shape[3]), x.dtype)


@conv2d.gradient
def _(node: Node, dy: Value) -> list[Value]:
    x, w = node.inputs
    axes = Axes.of(node.attrs["data_format"])
    return [
        # The image's size is told, as several sizes have the same output where the stride leaves a rest.
        conv2d_input_gradient(dy, w, image=image_size(x.spec, axes), **node.attrs),
        conv2d_weight_gradient(dy, x, kernel=w.shape[:2], **node.attrs),
    ]


@primitive
def conv2d_input_gradient(
    dy: Array, w: Array, *, image: Pair, strides: Pair = (1, 1), padding: Padding = NO_PADDING,
    dilation: Pair = (1, 1), groups: int = 1, data_format: str = "NHWC", xp: Namespace,
) -> Array:  # fmt: skip
    """Gradient of conv2d with respect to its input; forward pass of a transposed convolution.

    dy times the transposed kernel gives what each tap contributes; the contributions are summed where the
    taps were read from.

    Args:
        dy: Gradient of y (N, OH, OW, F).
        w: Kernel (KH, KW, C / groups, F).
        image: (H, W) of x.
        strides: As in conv2d; so are padding, dilation, groups and data_format.

    Returns:
        dx (N, H, W, C).
    """
    axes = Axes.of(data_format)
    window = Window((w.shape[0], w.shape[1]), strides, padding, dilation)
    taps = w.shape[0] * w.shape[1]
    parts = []
    for dyg, wg in zip(split(dy, groups, axes.c), split(w, groups, 3), strict=True):
        transposed = xp.permute_dims(xp.reshape(wg, (taps * wg.shape[2], wg.shape[3])), (1, 0))
        columns = contract(dyg, transposed, axes, xp)  # (N, OH, OW, taps * C)
        # Each position meets one window: there is nothing to add up.
        if taps == 1 and strides == (1, 1) and padding == NO_PADDING:
            parts.append(columns)
        else:
            parts.append(fold(split(columns, taps, axes.c), window, axes, image, xp))
    return join(parts, axes.c, xp)


@conv2d_input_gradient.shape
def _(
    dy: Spec, w: Spec, *, image: Pair, strides: Pair, padding: Padding, dilation: Pair, groups: int, data_format: str
) -> Spec:
    axes = Axes.of(data_format)
    name = "conv2d_input_gradient"
    require_ndim(name, "a gradient", dy, 4, "batch, output height, output width, filters")
    require_ndim(name, "a kernel", w, 4, KERNEL_AXES)
    x = Spec(axes.shape(dy.shape[axes.n], *image, w.shape[2] * groups), dy.dtype)
    _check(name, x, w, groups, axes)
    size = Window((w.shape[0], w.shape[1]), strides, padding, dilation).output_size(name, *image)
    if (*size, w.shape[3]) != (*image_size(dy, axes), dy.shape[axes.c]):
        raise ValueError(
            f"{name} takes dy as conv2d makes it from the image: height, width and filters {(*size, w.shape[3])}. "
            f"Received: {dy} in {data_format}. Check image, strides, padding and dilation."
        )
    return x


@conv2d_input_gradient.gradient
def _(node: Node, d: Value) -> list[Value]:
    # The map dy -> dx is the transpose of conv2d, so its gradient is conv2d again.
    dy, w = node.inputs
    attrs: dict[str, Any] = {k: v for k, v in node.attrs.items() if k != "image"}
    return [conv2d(d, w, **attrs), conv2d_weight_gradient(dy, d, kernel=w.shape[:2], **attrs)]


@primitive
def conv2d_weight_gradient(
    dy: Array, x: Array, *, kernel: Pair, strides: Pair = (1, 1), padding: Padding = NO_PADDING,
    dilation: Pair = (1, 1), groups: int = 1, data_format: str = "NHWC", xp: Namespace,
) -> Array:  # fmt: skip
    """Gradient of conv2d with respect to its kernel: the unfolded image transposed, times dy.

    Args:
        dy: Gradient of y (N, OH, OW, F).
        x: Images (N, H, W, C).
        kernel: (KH, KW).
        strides: As in conv2d; so are padding, dilation, groups and data_format.

    Returns:
        dw (KH, KW, C / groups, F).
    """
    axes = Axes.of(data_format)
    window = Window(kernel, strides, padding, dilation)
    size = (dy.shape[axes.h], dy.shape[axes.w])
    c, f = x.shape[axes.c] // groups, dy.shape[axes.c] // groups
    parts = []
    for dyg, xg in zip(split(dy, groups, axes.c), split(x, groups, axes.c), strict=True):
        columns = unfold(xg, window, axes, size, xp)
        dw = outer(columns, dyg, axes, xp)  # (KH * KW * C, F)
        parts.append(xp.reshape(dw, (*kernel, c, f)))
    return join(parts, 3, xp)


def outer(columns: Array, dy: Array, axes: Axes, xp: Namespace) -> Array:
    """Sum over batch and positions of columns (.., K) times dy (.., F) -> (K, F), in any layout."""
    k, f = columns.shape[axes.c], dy.shape[axes.c]
    if axes.c == 3:
        positions = math.prod(columns.shape[:3])
        columns = xp.permute_dims(xp.reshape(columns, (positions, k)), (1, 0))
        return xp.matmul(columns, xp.reshape(dy, (positions, f)))
    # NCHW: (N, K, OH * OW); HWCN: (OH * OW, K, N). One product an outer index, then their sum, unless
    # the products would be larger than the columns.
    b = columns.shape[0] if axes.c == 1 else columns.shape[0] * columns.shape[1]
    p = math.prod(columns.shape[axes.c + 1 :])
    columns, dy = xp.reshape(columns, (b, k, p)), xp.reshape(dy, (b, f, p))
    if f <= p:
        return xp.sum(xp.matmul(columns, xp.permute_dims(dy, (0, 2, 1))), axis=0)
    return xp.tensordot(columns, dy, axes=((0, 2), (0, 2)))


@conv2d_weight_gradient.shape
def _(
    dy: Spec, x: Spec, *, kernel: Pair, strides: Pair, padding: Padding, dilation: Pair, groups: int, data_format: str
) -> Spec:
    axes = Axes.of(data_format)
    name = "conv2d_weight_gradient"
    require_ndim(name, "a gradient", dy, 4, "batch, output height, output width, filters")
    require_ndim(name, "an image", x, 4, "batch, height, width, channels")
    w = Spec((*kernel, x.shape[axes.c] // groups, dy.shape[axes.c]), x.dtype)
    _check(name, x, w, groups, axes)
    same_dtype(name, dy, x)
    size = Window(kernel, strides, padding, dilation).output_size(name, *image_size(x, axes))
    if (x.shape[axes.n], *size) != (dy.shape[axes.n], *image_size(dy, axes)):
        raise ValueError(
            f"{name} takes dy as conv2d makes it from x: batch, height and width {(x.shape[axes.n], *size)}. "
            f"Received: {dy} in {data_format}. Check kernel, strides, padding and dilation."
        )
    return w


@conv2d_weight_gradient.gradient
def _(node: Node, d: Value) -> list[Value]:
    dy, x = node.inputs
    attrs: dict[str, Any] = {k: v for k, v in node.attrs.items() if k != "kernel"}
    axes = Axes.of(attrs["data_format"])
    return [conv2d(x, d, **attrs), conv2d_input_gradient(dy, d, image=image_size(x.spec, axes), **attrs)]
