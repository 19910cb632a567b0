"""Convolutions and poolings of images, channels first, in ONNX.

Kernels are (KH, KW, C / groups, F) here and (F, C / groups, KH, KW) there. The gradient of a convolution with respect
to its input is a ConvTranspose, that with respect to its kernel a Conv in which the batch takes the place of the
channels, and strides that of dilation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from minicnn.interop.onnx.tensors import XP, Tensor, concat, pad, permute_dims, reshape, sliced, stack
from minicnn.ops.pooling import LOWEST, _first_maximum
from minicnn.ops.windows import Axes, Window
from minicnn.program.graph import Node

AXES, LAST = Axes.of("NCHW"), Axes.of("NHWC")
FEW = 100  # positions of an image: for fewer ONNX Runtime's Conv, which multiplies image by image, has short rows


def _window(node: Node, kernel: Sequence[int]) -> Window:
    attrs = node.attrs
    return Window((kernel[0], kernel[1]), attrs["strides"], attrs["padding"], attrs.get("dilation", (1, 1)))


def _geometry(window: Window, *, dilated: bool = True) -> dict[str, Any]:
    """A window as attributes of an operator."""
    (top, bottom), (left, right) = window.padding
    attributes = {
        "kernel_shape": list(window.kernel),
        "strides": list(window.strides),
        "pads": [top, left, bottom, right],
    }
    return attributes | ({"dilations": list(window.dilation)} if dilated else {})


def _conv(x: Tensor, w: Tensor, window: Window, groups: int) -> Tensor:
    """X (N, C, H, W) with w (F, C / groups, KH, KW)."""
    size = window.output_size("conv2d", *x.shape[2:])
    return x.sheet.emit("Conv", [x, w], (x.shape[0], w.shape[0], *size), x.dtype, group=groups, **_geometry(window))


def _transposed(dy: Tensor, w: Tensor, window: Window, groups: int, image: Sequence[int]) -> Tensor:
    """The transpose of `_conv` for an image of a size: dy (N, F, OH, OW) with w (F, C / groups, KH, KW)."""
    sides = zip(image, dy.shape[2:], *_of_axes(window), strict=True)
    beyond = [n + sum(p) - ((o - 1) * s + d * (k - 1) + 1) for n, o, k, s, p, d in sides]
    shape = (dy.shape[0], w.shape[1] * groups, *image)
    geometry = _geometry(window) | {"output_padding": beyond}
    return dy.sheet.emit("ConvTranspose", [dy, w], shape, dy.dtype, group=groups, **geometry)


def _of_axes(window: Window) -> tuple[Any, Any, Any, Any]:
    return window.kernel, window.strides, window.padding, window.dilation


def _kernel_gradient(dy: Tensor, x: Tensor, window: Window, groups: int) -> Tensor:
    """The gradient of `_conv` with respect to its kernel, (C / groups, F, KH, KW)."""
    n, c = x.shape[:2]
    # (N, G, C / G, H, W) -> (C / G, G * N, H, W): the samples are what is summed over.
    image = permute_dims(reshape(x, (n, groups, c // groups, *x.shape[2:])), (2, 1, 0, 3, 4))
    image = reshape(image, (c // groups, groups * n, *x.shape[2:]))
    padding = []
    for size, o, k, s, (before, after), d in zip(x.shape[2:], dy.shape[2:], *_of_axes(window), strict=True):
        needed = s * (o - 1) + 1 + d * (k - 1) - size - before
        padding.append((before, max(0, min(after, needed))))
    swapped = Window(
        (dy.shape[2], dy.shape[3]), window.dilation, (padding[0], padding[1]), window.strides
    )  # fmt: skip
    dw = _conv(image, permute_dims(dy, (1, 0, 2, 3)), swapped, groups)
    # Where the last rows of the image are in no window there are products for taps that the kernel does not have.
    return sliced(dw, [(0, m, 1) for m in (*dw.shape[:2], *window.kernel)])


def _filters_first(w: Tensor) -> Tensor:
    """A kernel (KH, KW, C, F) as (F, C, KH, KW).

    ONNX Runtime does so once with what a file holds. Else it moves one axis at a time six times as fast as all of
    them, and would make one step of the two if a Reshape, through which it sees, stood in the place of Flatten.
    """
    if w.name in w.sheet.held:
        return permute_dims(w, (3, 2, 0, 1))
    kh, kw, c, f = w.shape
    swapped = permute_dims(w, (0, 1, 3, 2))
    flat = w.sheet.emit("Flatten", [swapped], (kh * kw, f * c), w.dtype, axis=2)
    return reshape(permute_dims(flat, (1, 0)), (f, c, kh, kw))


def _taps(x: Tensor, window: Window, size: Sequence[int]) -> list[Tensor]:
    """Elements that each tap of a window meets, as rows (N * OH * OW, C)."""
    framed = pad(permute_dims(x, (0, 2, 3, 1)), ((0, 0), *window.padding, (0, 0)))
    return [reshape(tap, (-1, x.shape[1])) for tap in window.taps(framed, LAST, (size[0], size[1]))]


def _products(taps: Sequence[Tensor], kernels: Sequence[Tensor], shape: Sequence[int], transposed: int = 0) -> Tensor:
    """The sum of the products of taps with their kernels, as images of a shape (N, F, OH, OW)."""
    n, f, oh, ow = shape
    total: list[Tensor] = []
    for tap, kernel in zip(taps, kernels, strict=True):
        total = [tap.sheet.emit("Gemm", [tap, kernel, *total], (n * oh * ow, f), tap.dtype, transB=transposed)]
    return permute_dims(reshape(total[0], (n, oh, ow, f)), (0, 3, 1, 2))


def _small(node: Node, size: Sequence[int]) -> bool:
    """True where products over all images at once are faster than a convolution, image by image."""
    return node.attrs["groups"] == 1 and size[0] * size[1] < FEW


def _kernels(w: Tensor) -> list[Tensor]:
    """The matrix (C, F) of each tap."""
    return [w[i, j] for i in range(w.shape[0]) for j in range(w.shape[1])]


def _conv2d(node: Node, x: Tensor, w: Tensor) -> Tensor:
    window, shape = _window(node, w.shape), node.outputs[0].shape
    if _small(node, shape[2:]) and w.name not in w.sheet.held:  # of a held kernel it makes more of a Conv
        return _products(_taps(x, window, shape[2:]), _kernels(w), shape)
    return _conv(x, _filters_first(w), window, node.attrs["groups"])


def _conv2d_input_gradient(node: Node, dy: Tensor, w: Tensor) -> Tensor:
    window, image, shape = _window(node, w.shape), node.attrs["image"], node.outputs[0].shape
    frame = [tuple(d * (k - 1) - p for p in pair) for k, _, pair, d in zip(*_of_axes(window), strict=True)]
    if _small(node, image) and window.strides == (1, 1) and min(map(min, frame)) >= 0:
        # A convolution of dy with the kernel turned round.
        turned = Window(window.kernel, padding=(frame[0], frame[1]), dilation=window.dilation)
        return _products(_taps(dy, turned, image), _kernels(w)[::-1], shape, 1)
    return _transposed(dy, _filters_first(w), window, node.attrs["groups"], image)


def _conv2d_weight_gradient(node: Node, dy: Tensor, x: Tensor) -> Tensor:
    window, groups = _window(node, node.attrs["kernel"]), node.attrs["groups"]
    c, f = x.shape[1], dy.shape[1]
    if groups == 1 and window.kernel[0] * window.kernel[1] <= c:  # else products have too few rows
        rows = reshape(permute_dims(dy, (0, 2, 3, 1)), (-1, f))
        taps = _taps(x, window, dy.shape[2:])
        parts = [dy.sheet.emit("Gemm", [tap, rows], (c, f), dy.dtype, transA=1) for tap in taps]
        return reshape(concat(parts), (*window.kernel, c, f))
    return permute_dims(_kernel_gradient(dy, x, window, groups), (2, 3, 0, 1))


def _depthwise(w: Tensor) -> Tensor:
    """(KH, KW, C, M) as the kernel (C * M, 1, KH, KW) of a convolution with a group for each channel."""
    kh, kw, c, m = w.shape
    return reshape(permute_dims(w, (2, 3, 0, 1)), (c * m, 1, kh, kw))


def _depthwise_conv2d(node: Node, x: Tensor, w: Tensor) -> Tensor:
    return _conv(x, _depthwise(w), _window(node, w.shape), w.shape[2])


def _depthwise_input_gradient(node: Node, dy: Tensor, w: Tensor) -> Tensor:
    return _transposed(dy, _depthwise(w), _window(node, w.shape), w.shape[2], node.attrs["image"])


def _depthwise_weight_gradient(node: Node, dy: Tensor, x: Tensor) -> Tensor:
    c = x.shape[1]
    dw = _kernel_gradient(dy, x, _window(node, node.attrs["kernel"]), c)  # (1, C * M, KH, KW)
    return permute_dims(reshape(dw, (c, dy.shape[1] // c, *node.attrs["kernel"])), (2, 3, 0, 1))


def _max_pool2d(node: Node, x: Tensor) -> Tensor:
    window = _window(node, node.attrs["kernel"])
    return x.sheet.emit("MaxPool", [x], node.outputs[0].shape, x.dtype, **_geometry(window, dilated=False))


def _average_pool2d(node: Node, x: Tensor) -> Tensor:
    geometry = _geometry(_window(node, node.attrs["kernel"]), dilated=False)
    counted = int(node.attrs["count_padding"])
    return x.sheet.emit("AveragePool", [x], node.outputs[0].shape, x.dtype, count_include_pad=counted, **geometry)


def _average_pool2d_gradient(node: Node, dy: Tensor) -> Tensor:
    """Each element of dy, over how many it is the mean of, goes to all elements of its window."""
    window, image = _window(node, node.attrs["kernel"]), node.attrs["image"]
    c, taps = dy.shape[1], window.kernel[0] * window.kernel[1]
    counts = np.full((1, 1, *dy.shape[2:]), taps, dy.dtype)
    if not node.attrs["count_padding"]:
        inside = np.pad(np.ones((1, 1, *image), dy.dtype), ((0, 0), (0, 0), *window.padding))
        counts = np.sum(window.taps(inside, AXES, (dy.shape[2], dy.shape[3])), axis=0)
    share = dy * dy.sheet.constant(1 / counts, dy.dtype)
    return _transposed(share, dy.sheet.constant(np.ones((c, 1, *window.kernel), dy.dtype)), window, c, image)


def _max_pool2d_gradient(node: Node, dy: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Dy where a tap is the first maximum of its window, put back by a convolution with one tap for each.

    Windows that lie side by side are put together instead, without products.
    """
    window, c = _window(node, node.attrs["kernel"]), x.shape[1]
    size = (dy.shape[2], dy.shape[3])
    framed = pad(x, ((0, 0), (0, 0), *window.padding), LOWEST)
    masks = _first_maximum(window.taps(framed, AXES, size), XP)
    parts = [dy if mask is None else XP.where(mask, dy, 0.0) for mask in masks]
    taps, (k, _) = len(parts), window.kernel
    if window.kernel == window.strides == (k, k) and not any(map(any, window.padding)):
        columns = concat(parts, axis=1)  # (N, taps * C, OH, OW)
        shape = (*x.shape[:2], *(n * k for n in size))
        dx = columns.sheet.emit("DepthToSpace", [columns], shape, dy.dtype, blocksize=k, mode="DCR")
        return pad(dx, ((0, 0), (0, 0), *((0, n - m) for n, m in zip(x.shape[2:], shape[2:], strict=True))))
    # (N, C, taps, OH, OW) -> (N, C * taps, OH, OW)
    columns = reshape(stack(parts, axis=2), (dy.shape[0], c * taps, *size))
    kernel = np.tile(np.eye(taps, dtype=dy.dtype).reshape(taps, 1, *window.kernel), (c, 1, 1, 1))
    return _transposed(columns, dy.sheet.constant(kernel), window, c, x.shape[2:])


WINDOWS: dict[str, Callable[..., Tensor]] = {
    "conv2d": _conv2d,
    "conv2d_input_gradient": _conv2d_input_gradient,
    "conv2d_weight_gradient": _conv2d_weight_gradient,
    "depthwise_conv2d": _depthwise_conv2d,
    "depthwise_conv2d_input_gradient": _depthwise_input_gradient,
    "depthwise_conv2d_weight_gradient": _depthwise_weight_gradient,
    "max_pool2d": _max_pool2d,
    "max_pool2d_gradient": _max_pool2d_gradient,
    "average_pool2d": _average_pool2d,
    "average_pool2d_gradient": _average_pool2d_gradient,
}
