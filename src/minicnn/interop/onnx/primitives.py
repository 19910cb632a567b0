"""Primitives in terms of ONNX's operators.

Where ONNX has an operator of its own, an entry of `RULES` names it. Any other primitive is written by its reference,
which is called with the namespace of `tensors`: so is one of the caller's own, as long as its reference needs no more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.polynomial import chebyshev

from minicnn.interop.onnx.tensors import UNARY, XP, Sheet, Tensor, astype, expand_dims, reshape, sliced
from minicnn.interop.onnx.tensors import pad as padded
from minicnn.interop.onnx.windows import WINDOWS
from minicnn.ops.activations import _ERFC, _ERFC_TERMS_32
from minicnn.ops.random import _signed, philox
from minicnn.ops.transforms import _corners
from minicnn.program.graph import Node

Results = Tensor | tuple[Tensor, ...]
Rule = Callable[..., Results]  # (node, *tensors) -> its results


def written(sheet: Sheet, node: Node, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Write a node; returns its results.

    Args:
        sheet: Where to.
        node: The node.
        inputs: Its inputs.
    """
    sheet.scope = node.scope
    rule = RULES.get(node.op.name)
    results: Any = rule(node, *inputs) if rule else node.op.reference(*inputs, xp=XP, **node.attrs)
    results = results if isinstance(results, tuple) else (results,)
    return tuple(_as_said(sheet, r, v.shape, v.dtype) for r, v in zip(results, node.outputs, strict=True))


def _as_said(sheet: Sheet, result: Any, shape: tuple[int, ...], dtype: str) -> Tensor:
    """A result, if it is as the shape rule says; what a reference leaves to broadcasting is made longer."""
    result = result if isinstance(result, Tensor) else sheet.constant(result, dtype)
    result = XP.broadcast_to(result, shape)
    if result.dtype != dtype:
        raise TypeError(f"a result of {result.dtype} instead of {dtype}")
    return result


def _operator(kind: str, **names: str) -> Rule:
    """The rule of a primitive that is one operator on its inputs: attributes of the operator by the primitive's."""

    def rule(node: Node, *inputs: Tensor) -> Tensor:
        y = node.outputs[0]
        attributes = {theirs: node.attrs[ours] for theirs, ours in names.items()}
        return inputs[0].sheet.emit(kind, inputs, y.shape, y.dtype, **attributes)

    return rule


def _relu6(node: Node, x: Tensor) -> Tensor:
    return x.sheet.emit("Clip", [x, x.sheet.constant(0, x.dtype), x.sheet.constant(6, x.dtype)], x.shape, x.dtype)


def _relu_gradient(node: Node, dy: Tensor, y: Tensor) -> Tensor:
    return XP.where(y > 0.0, dy, 0.0)


def _silu(node: Node, x: Tensor) -> Tensor:
    return x * XP.sigmoid(x)


def _gelu(node: Node, x: Tensor) -> Tensor:
    approximate = "tanh" if node.attrs["approximate"] else "none"
    return x.sheet.emit("Gelu", [x], x.shape, x.dtype, approximate=approximate)


def _erfc(node: Node, x: Tensor) -> Tensor:
    """As the reference, but by Horner's rule: half as many operators as Clenshaw's recurrence."""
    z = XP.minimum(XP.abs(x), 28.0)
    t = 2.0 / (z + 2.0)
    u = t * 2.0 - 1.0
    *lower, p = chebyshev.cheb2poly(_ERFC[:_ERFC_TERMS_32])
    for c in reversed(lower):
        p = u * float(p) + float(c) if isinstance(p, float) else u * p + float(c)
    y = t * XP.exp(p - z * z)
    return XP.where(x < 0.0, 2.0 - y, y)


def _matmul(node: Node, a: Tensor, b: Tensor) -> Tensor:
    """Gemm, which takes factors transposed as they are, where one is."""
    ta, tb = node.attrs["transpose_a"], node.attrs["transpose_b"]
    y = node.outputs[0]
    if not ta and not tb:
        return XP.matmul(a, b)
    return a.sheet.emit("Gemm", [a, b], y.shape, y.dtype, transA=int(ta), transB=int(tb))


def _slice(node: Node, x: Tensor) -> Tensor:
    return sliced(x, [(start, stop, 1) for start, stop in node.attrs["bounds"]])


def _pad(node: Node, x: Tensor) -> Tensor:
    return padded(x, node.attrs["widths"], node.attrs["value"])


def _take_gradient(node: Node, dy: Tensor, index: Tensor) -> Tensor:
    return _scattered(dy, index, node.attrs["rows"])


def _scattered(dy: Tensor, index: Tensor, rows: int) -> Tensor:
    """Rows of dy summed by their index."""
    shape = (rows, *dy.shape[1:])
    zero = dy.sheet.constant(np.zeros(shape, dy.dtype))
    places = expand_dims(astype(index, "int64"), 1)
    return dy.sheet.emit("ScatterND", [zero, places, dy], shape, dy.dtype, reduction="add")


def _affine_gradient(node: Node, dy: Tensor, matrix: Tensor) -> Tensor:
    n, *size, c = dy.shape
    image, mode = node.attrs["image"], node.attrs["fill_mode"]
    rows = n * math.prod(image)
    dx: Tensor | None = None
    corners = _corners(matrix, image, (size[0], size[1]), node.attrs["interpolation"], mode, XP)
    for index, weight, inside in corners:
        part = dy if weight is None else dy * weight
        part = XP.where(inside, part, 0.0) if mode == "constant" else part
        part = _scattered(reshape(part, (-1, c)), index, rows)
        dx = part if dx is None else dx + part
    return reshape(dx, (n, *image, c)) if dx is not None else dy


def _random_uniform(node: Node, step: Tensor) -> Tensor:
    """The reference, but that the number of blocks, a count rounded up, is made of the count of the elements."""
    sheet, attrs = step.sheet, node.attrs
    n = math.prod(attrs["shape"])
    first, count, four = (sheet.constant(v, "int32") for v in (0, n, 4))
    blocks = sheet.emit("Range", [first, count, four], (-(-n // 4),), "int32") / 4
    zero = blocks * 0
    counter = (blocks, zero, zero + step, zero + _signed(attrs["stream"]))
    words = philox(counter, (attrs["seed"] & 0xFFFFFFFF, attrs["seed"] >> 32 & 0xFFFFFFFF))
    bits = reshape(XP.stack(words, axis=1), (-1,))
    inputs = [bits, *(sheet.integers([v]) for v in (0, n, 0))]
    bits = sheet.emit("Slice", inputs, (n,), "int32")
    return reshape(astype((bits >> 8) & 0xFFFFFF, attrs["dtype"]) * 2.0**-24, attrs["shape"])


def _max_gradient(node: Node, dy: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """One axis after the other, from the last, each by the place of its maximum."""
    axes = [a % x.ndim for a in _axes(node.attrs["axes"], x.ndim)]
    best, masks = x, []
    for axis in sorted(axes, reverse=True):
        place = expand_dims(XP.argmax(best, axis=axis), axis)
        numbers = np.arange(best.shape[axis], dtype="int64").reshape(-1, *[1] * (x.ndim - 1 - axis))
        masks.append(place == x.sheet.constant(numbers))
        best = XP.max(best, axis=axis, keepdims=True)
    dx = reshape(dy, best.shape)
    for mask in reversed(masks):
        dx = XP.where(mask, dx, 0.0)
    return dx


def _axes(axes: Any, ndim: int) -> Sequence[int]:
    return range(ndim) if axes is None else (axes,) if isinstance(axes, int) else axes


RULES: dict[str, Rule] = {
    **{name: _operator(UNARY[name]) for name in ("relu", "sigmoid", "softplus", "erf")},
    "relu6": _relu6,
    "relu_gradient": _relu_gradient,
    "leaky_relu": _operator("LeakyRelu", alpha="negative_slope"),
    "elu": _operator("Elu", alpha="alpha"),
    "silu": _silu,
    "erfc": _erfc,
    "gelu": _gelu,
    "softmax": _operator("Softmax", axis="axis"),
    "log_softmax": _operator("LogSoftmax", axis="axis"),
    "matmul": _matmul,
    "slice_": _slice,
    "pad": _pad,
    "take_gradient": _take_gradient,
    "max_gradient": _max_gradient,
    "affine_transform_gradient": _affine_gradient,
    "random_uniform": _random_uniform,
    **WINDOWS,
}
