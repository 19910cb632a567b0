"""Operators of ONNX on images, channels first, in primitives: convolutions, poolings, normalisations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from minicnn import ops
from minicnn.interop.counterparts import NoCounterpartError
from minicnn.interop.onnx.emitting import (
    Attributes,
    Emitter,
    axis_at,
    box,
    permuted,
    reshaped,
    sized,
    taken,
)
from minicnn.ops.normalization import unit_of
from minicnn.ops.windows import padding_behind
from minicnn.program.graph import Value

NCHW = "NCHW"
Pairs = tuple[tuple[int, int], tuple[int, int]]


def _flat(x: Value) -> Value:
    """An image or a sequence (N, C, L) as an image (N, C, H, W)."""
    if x.ndim not in (3, 4):
        raise NoCounterpartError(f"windows over {x.ndim - 2} axes")
    return x if x.ndim == 4 else reshaped(x, (*x.shape[:2], 1, x.shape[2]))


def _back(y: Value, ndim: int) -> Value:
    return y if ndim == 4 else reshaped(y, (*y.shape[:2], y.shape[3]))


def _pair(lengths: Sequence[int] | None, default: int = 1, ndim: int = 4) -> tuple[int, int]:
    values = [default] * (ndim - 2) if lengths is None else list(lengths)
    return (values[0], values[1]) if len(values) == 2 else (default, values[0])


def _padding(a: Attributes, x: Value, kernel: Any, strides: Any, dilation: Any, ndim: int) -> Pairs:
    """((top, bottom), (left, right)), also where the operator says how it follows from the size of its output."""
    auto = a.get("auto_pad", "NOTSET")
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        pairs = []
        for n, k, s, d in zip(x.shape[2:], kernel, strides, dilation, strict=True):
            total = max(0, (-(-n // s) - 1) * s + d * (k - 1) + 1 - n)
            less, more = total // 2, total - total // 2
            pairs.append((less, more) if auto == "SAME_UPPER" else (more, less))
        return (pairs[0], pairs[1])
    if auto not in ("NOTSET", "VALID"):
        raise NoCounterpartError(f"auto_pad={auto}")
    pads = a.get("pads", [0, 0, 0, 0]) if auto == "NOTSET" else [0, 0, 0, 0]
    if ndim == 3:
        pads = [0, pads[0], 0, pads[1]] if len(pads) == 2 else [0, 0, 0, 0]
    return ((pads[0], pads[2]), (pads[1], pads[3]))


def _geometry(a: Attributes, x: Value, kernel: tuple[int, int], ndim: int) -> tuple[dict[str, Any], Pairs]:
    if min(*kernel, *_pair(a.get("strides"), ndim=ndim), *_pair(a.get("dilations"), ndim=ndim)) < 1:
        raise NoCounterpartError("a window, strides or dilations below 1")
    strides, dilation = _pair(a.get("strides"), ndim=ndim), _pair(a.get("dilations"), ndim=ndim)
    padding = _padding(a, x, kernel, strides, dilation, ndim)
    sized([*x.shape[:2], *(n + sum(p) for n, p in zip(x.shape[2:], padding, strict=True))])
    return {"strides": strides, "dilation": dilation, "data_format": NCHW}, padding


def _with_bias(y: Value, b: Value | None) -> Value:
    return y if b is None else y + reshaped(b, (b.size, 1, 1))


def _conv(e: Emitter, a: Attributes, x: Value, w: Value, b: Value | None = None) -> Value:
    ndim, x, w = x.ndim, _flat(x), _flat(w)
    geometry, padding = _geometry(a, x, (w.shape[2], w.shape[3]), ndim)
    groups = a.get("group", 1)
    kernel = permuted(w, (2, 3, 1, 0))  # (KH, KW, C / groups, F)
    if groups == x.shape[1] > 1 and w.shape[1] == 1 and w.shape[0] % groups == 0:
        kernel = reshaped(kernel, (*w.shape[2:], groups, w.shape[0] // groups))
        y = ops.depthwise_conv2d(x, kernel, padding=padding, **geometry)
    else:
        y = ops.conv2d(x, kernel, padding=padding, groups=groups, **geometry)
    return _back(_with_bias(y, b), ndim)


def _conv_transpose(e: Emitter, a: Attributes, x: Value, w: Value, b: Value | None = None) -> Value:
    ndim, x, w = x.ndim, _flat(x), _flat(w)
    if a.get("auto_pad", "NOTSET") != "NOTSET" or "output_shape" in a:
        raise NoCounterpartError("padding by the shape of the output")
    geometry, padding = _geometry(a, x, (w.shape[2], w.shape[3]), ndim)
    beyond = _pair(a.get("output_padding"), 0, ndim)
    image = tuple(
        (n - 1) * s + d * (k - 1) + 1 - sum(p) + o
        for n, s, d, k, p, o in zip(
            x.shape[2:], geometry["strides"], geometry["dilation"], w.shape[2:], padding, beyond, strict=True
        )
    )
    sized([*x.shape[:2], *image])
    kernel = permuted(w, (2, 3, 1, 0))  # (KH, KW, C / groups, F): F are what comes in
    groups = a.get("group", 1)
    y = ops.conv2d_input_gradient(x, kernel, image=image, padding=padding, groups=groups, **geometry)
    return _back(_with_bias(y, b), ndim)


def _frame(a: Attributes, x: Value, geometry: dict[str, Any], padding: Pairs, kernel: tuple[int, int]) -> Pairs:
    """Padding for which a window that begins within the image, or in front of it, is whole: `ceil_mode`."""
    if not a.get("ceil_mode", 0):
        return padding
    sides = zip(x.shape[2:], kernel, geometry["strides"], padding, strict=True)
    pairs = [(before, padding_behind(n, k, s, before, after)) for n, k, s, (before, after) in sides]
    return (pairs[0], pairs[1])


def _pool(e: Emitter, a: Attributes, x: Value, average: bool) -> Value:
    ndim, x = x.ndim, _flat(x)
    kernel = _pair(a["kernel_shape"], ndim=ndim)
    geometry, padding = _geometry(a, x, kernel, ndim)
    framed = _frame(a, x, geometry, padding, kernel)
    if geometry.pop("dilation") != (1, 1) or "float" not in x.dtype:
        raise NoCounterpartError("dilated pooling, or that of integers")
    if not average:
        if any(p >= k for pair, k in zip(framed, kernel, strict=True) for p in pair):
            raise NoCounterpartError("a window in the padding alone")
        return _back(ops.max_pool2d(x, kernel=kernel, padding=framed, **geometry), ndim)
    counted = bool(a.get("count_include_pad", 0))
    if any(p >= k for pair, k in zip(framed, kernel, strict=True) for p in pair) or (counted and framed != padding):
        raise NoCounterpartError("a window in the padding alone, or one that counts what ceil_mode adds")
    return _back(ops.average_pool2d(x, kernel=kernel, padding=framed, count_padding=counted, **geometry), ndim)


def _max_pool(e: Emitter, a: Attributes, x: Value) -> Value:
    if a.get("storage_order", 0):
        raise NoCounterpartError("column-major indices")
    return _pool(e, a, x, average=False)


def _over_image(reduce: Any) -> Callable[..., Value]:
    return lambda e, a, x: reduce(x, axes=tuple(range(2, x.ndim)), keepdims=True)


# Normalisations -------------------------------------------------------------------------------------


def _channels(v: Value, x: Value) -> Value:
    return reshaped(v, (v.size, *(1,) * (x.ndim - 2)))


def _batch_normalization(e: Emitter, a: Attributes, x: Value, scale: Value, b: Value, mean: Value, var: Value) -> Value:
    """By the batch's own statistics in training, where the moving ones take part of these."""
    if not a.get("spatial", 1) or a.get("training_mode", 0):
        raise NoCounterpartError("the statistics of single pixels, or training that the file asks for")
    epsilon = a.get("epsilon", 1e-5)
    if not e.training or e.assign is None:
        factor = scale / ops.sqrt(var + epsilon)
        return x * _channels(factor, x) + _channels(b - mean * factor, x)
    axes, unit = (0, *range(2, x.ndim)), unit_of(epsilon, x.dtype)
    y, average, square = ops.normalize(x, _channels(scale, x), _channels(b, x), axes=axes, epsilon=epsilon, unit=unit)
    kept = a.get("momentum", 0.9)
    for moving, now in ((mean, average), (var, square * unit**2)):
        e.assign(moving, moving * kept + reshaped(now, moving.shape) * (1 - kept))
    return y


def _normalized(x: Value, scale: Value, b: Value, axes: Sequence[int], epsilon: float) -> Value:
    unit = unit_of(epsilon, x.dtype)
    y: Value = ops.normalize(x, scale, b, axes=tuple(axes), epsilon=epsilon, unit=unit)[0]
    return y


def _instance_normalization(e: Emitter, a: Attributes, x: Value, scale: Value, b: Value) -> Value:
    return _normalized(x, _channels(scale, x), _channels(b, x), range(2, x.ndim), a.get("epsilon", 1e-5))


def _layer_normalization(e: Emitter, a: Attributes, x: Value, scale: Value, b: Value | None = None) -> Value:
    axis = axis_at(a.get("axis", -1), x.ndim)
    zero = e.constant(np.zeros(scale.shape), x.dtype) if b is None else b
    return _normalized(x, scale, zero, range(axis, x.ndim), a.get("epsilon", 1e-5))


def _group_normalization(e: Emitter, a: Attributes, x: Value, scale: Value, b: Value) -> Value:
    groups, c = a["num_groups"], x.shape[1]
    if e.opset < 21:
        raise NoCounterpartError("scales of groups, as before version 21")
    split = reshaped(x, (x.shape[0], groups, c // groups, *x.shape[2:]))
    each = (groups, c // groups, *(1,) * (x.ndim - 2))
    y = _normalized(split, reshaped(scale, each), reshaped(b, each), range(2, split.ndim), a.get("epsilon", 1e-5))
    return reshaped(y, x.shape)


def _local_response(e: Emitter, a: Attributes, x: Value) -> Value:
    size = a["size"]
    before, after = (size - 1) // 2, size // 2
    frame = ((0, 0), (before, after), *((0, 0),) * (x.ndim - 2))
    squares, c = ops.pad(ops.square(x), widths=frame), x.shape[1]
    total = box(squares, 1, 0, c)
    for i in range(1, size):
        total = total + box(squares, 1, i, i + c)
    base = total * (a.get("alpha", 1e-4) / size) + a.get("bias", 1.0)
    return x / ops.power(base, a.get("beta", 0.75))


def _dropout(e: Emitter, a: Attributes, x: Value, ratio: Value | None = None, mode: Value | None = None) -> Value:
    """Nothing in predictions; in training what `layers.Dropout` does, with numbers of its own."""
    if mode is not None and e.draw is None and bool(e.known(mode)):
        raise NoCounterpartError("random numbers of the runtime's own")
    rate = a.get("ratio", 0.5) if ratio is None else float(e.known(ratio))
    if not e.training or e.draw is None or rate == 0:
        return x
    return ops.where(ops.greater_equal(e.draw(x.shape), rate), x * (1.0 / (1.0 - rate)), 0.0)


ROUNDINGS: dict[str, Callable[..., Any]] = {
    "floor": np.floor, "ceil": np.ceil, "round_prefer_floor": lambda v: np.ceil(v - 0.5),
    "round_prefer_ceil": lambda v: np.floor(v + 0.5),
}  # fmt: skip


def _resize(e: Emitter, a: Attributes, x: Value, roi: Value | None = None, scales: Value | None = None,
            sizes: Value | None = None) -> Value:  # fmt: skip
    """To the nearest pixel, along each axis by a list of places."""
    stretched = a.get("keep_aspect_ratio_policy", "stretch") == "stretch"
    if a.get("mode", "nearest") != "nearest" or a.get("axes") or not stretched:
        raise NoCounterpartError(f"a resize by {a.get('mode')}, or of some axes")
    how = a.get("coordinate_transformation_mode", "half_pixel")
    rounding = a.get("nearest_mode", "round_prefer_floor")
    lengths = e.integers(sizes) if sizes is not None and sizes.size else None
    if lengths is not None:
        factors: Any = [m / n for m, n in zip(lengths, x.shape, strict=True)]
    else:
        factors = a.get("scales") if scales is None else [float(f) for f in e.known(scales).reshape(-1)]
        if factors is None or len(factors) != x.ndim or not all(0 < f < 1e4 for f in factors):
            raise NoCounterpartError("a resize without a scale for each axis")
        lengths = [math.floor(n * f) for n, f in zip(x.shape, factors, strict=True)]
    sized(lengths)
    for axis, (n, m, f) in enumerate(zip(x.shape, lengths, factors, strict=True)):
        if n == m and f == 1:
            continue
        at = np.arange(m, dtype=np.float64)
        if how == "half_pixel":
            at = (at + 0.5) / f - 0.5
        elif how == "asymmetric":
            at = at / f
        elif how == "align_corners":
            at = at * (n - 1) / (m - 1) if m > 1 else at * 0
        else:
            raise NoCounterpartError(f"coordinates by {how}")
        places = ROUNDINGS[rounding](at)
        x = taken(x, axis, np.clip(places, 0, n - 1).astype(np.int64))
    return x


IMAGES: dict[str, Callable[..., Any]] = {
    "Conv": _conv, "ConvTranspose": _conv_transpose, "MaxPool": _max_pool,
    "AveragePool": lambda e, a, x: _pool(e, a, x, average=True),
    "GlobalAveragePool": _over_image(ops.mean), "GlobalMaxPool": _over_image(ops.max),
    "BatchNormalization": _batch_normalization, "InstanceNormalization": _instance_normalization,
    "LayerNormalization": _layer_normalization, "GroupNormalization": _group_normalization, "LRN": _local_response,
    "Dropout": _dropout, "Resize": _resize,
}  # fmt: skip
