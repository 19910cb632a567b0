"""Operators of ONNX in terms of primitives.

An entry of `OPERATORS` is a function (emitter, attributes, *inputs) of Values that emits primitives and returns one, or
several. An input that is left out is None. What it cannot do it refuses with `NoCounterpartError`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from minicnn import ops
from minicnn.interop.counterparts import NoCounterpartError
from minicnn.interop.onnx.emitting import Attributes, Emitter, axis_at, reshaped
from minicnn.interop.onnx.images import IMAGES
from minicnn.interop.onnx.moving import SHAPES
from minicnn.interop.onnx.tensors import BINARY, COMPARISONS, UNARY
from minicnn.program.graph import ITEMSIZE, Value


def _cast(x: Value, dtype: str) -> Value:
    if dtype not in ITEMSIZE:
        raise NoCounterpartError(f"the type {dtype}")
    return x if x.dtype == dtype else ops.cast(x, dtype=dtype)


# Elementwise ----------------------------------------------------------------------------------------


def _unary(op: Any, *defaults: Any, **names: str) -> Callable[..., Value]:
    """One primitive on one array; its attributes by the operator's names for them, with defaults."""

    def emit(e: Emitter, a: Attributes, x: Value) -> Value:
        attrs = {ours: a.get(theirs, d) for (ours, theirs), d in zip(names.items(), defaults, strict=True)}
        return op(x, **attrs)

    return emit


def _binary(op: Any) -> Callable[..., Value]:
    def emit(e: Emitter, a: Attributes, x: Value, y: Value) -> Value:
        if a.get("broadcast") or "axis" in a:
            raise NoCounterpartError("broadcasting of version 6")
        return op(x, y)

    return emit


def _variadic(op: Any) -> Callable[..., Value]:
    return lambda e, a, *xs: reduce(op, xs)


def _div(e: Emitter, a: Attributes, x: Value, y: Value) -> Value:
    if "float" in x.dtype:
        return ops.divide(x, y)
    n, d = e.known(x).astype(object), e.known(y).astype(object)
    if not np.all(d != 0):
        raise NoCounterpartError("a division of integers by zero")
    quotient = np.vectorize(lambda p, q: abs(p) // abs(q) * (1 if (p < 0) == (q < 0) else -1), otypes=[object])(n, d)
    return e.constant(quotient.astype(x.dtype))


def _pow(e: Emitter, a: Attributes, x: Value, y: Value) -> Value:
    if "float" not in x.dtype:
        raise NoCounterpartError(f"powers of {x.dtype}")
    return ops.power(x, _cast(y, x.dtype))


def _neg(e: Emitter, a: Attributes, x: Value) -> Value:
    return ops.negative(x) if "float" in x.dtype else ops.subtract(e.constant(0, x.dtype), x)


def _abs(e: Emitter, a: Attributes, x: Value) -> Value:
    return ops.abs(x) if "float" in x.dtype else ops.maximum(x, ops.subtract(e.constant(0, x.dtype), x))


def _relu(e: Emitter, a: Attributes, x: Value) -> Value:
    return ops.relu(x) if "float" in x.dtype else ops.maximum(x, e.constant(0, x.dtype))


def _clip(e: Emitter, a: Attributes, x: Value, low: Value | None = None, high: Value | None = None) -> Value:
    if "min" in a or "max" in a:
        low = e.constant(a["min"], x.dtype) if "min" in a else None
        high = e.constant(a["max"], x.dtype) if "max" in a else None
    x = x if low is None else ops.maximum(x, reshaped(low, ()))
    return x if high is None else ops.minimum(x, reshaped(high, ()))


def _where_positive(x: Value, y: Value, otherwise: Value) -> Value:
    return ops.where(ops.greater(x, 0.0), y, otherwise)


def _prelu(e: Emitter, a: Attributes, x: Value, slope: Value) -> Value:
    return _where_positive(x, x, x * slope)


def _selu(e: Emitter, a: Attributes, x: Value) -> Value:
    alpha, gamma = a.get("alpha", 1.67326319217681884765625), a.get("gamma", 1.05070102214813232421875)
    return ops.elu(x, alpha=alpha) * gamma


def _celu(e: Emitter, a: Attributes, x: Value) -> Value:
    alpha = a.get("alpha", 1.0)
    return ops.maximum(x, 0.0) + ops.minimum(ops.expm1(ops.minimum(x, 0.0) * (1 / alpha)) * alpha, 0.0)


def _hard_sigmoid(e: Emitter, a: Attributes, x: Value) -> Value:
    return ops.maximum(ops.minimum(x * a.get("alpha", 0.2) + a.get("beta", 0.5), 1.0), 0.0)


def _gelu(e: Emitter, a: Attributes, x: Value) -> Value:
    return ops.gelu(x, approximate=a.get("approximate", "none") == "tanh")


def _swish(e: Emitter, a: Attributes, x: Value) -> Value:
    return x * ops.sigmoid(x * a.get("alpha", 1.0))


def _shrink(e: Emitter, a: Attributes, x: Value) -> Value:
    lambd, bias = a.get("lambd", 0.5), a.get("bias", 0.0)
    return ops.where(ops.less(x, -lambd), x + bias, ops.where(ops.greater(x, lambd), x - bias, 0.0))


def _to(e: Emitter, a: Attributes, x: Value) -> Value:
    from onnx import helper

    dtype = helper.tensor_dtype_to_np_dtype(a["to"]).name
    if "float" in x.dtype and "float" not in dtype and dtype != "bool":
        raise NoCounterpartError(f"a cast of {x.dtype} to {dtype}, of numbers that may be out of range")
    return _cast(x, e.dtype if dtype == "float32" else dtype)


# Reductions -----------------------------------------------------------------------------------------


def _reduction(emit: Callable[..., Value]) -> Callable[..., Value]:
    def rule(e: Emitter, a: Attributes, x: Value, axes: Value | None = None) -> Value:
        over = e.axes(a, axes)
        if not over and over is not None and not a.get("noop_with_empty_axes", 0):
            over = None
        if over is None and a.get("noop_with_empty_axes", 0):
            over = []
        if x.size == 0 or "float" not in x.dtype:
            raise NoCounterpartError(f"a reduction of {x.spec}")
        reduced = None if over is None else tuple(sorted({axis_at(n, x.ndim) for n in over}))
        return emit(x, {"axes": reduced, "keepdims": bool(a.get("keepdims", 1))})

    return rule


def _log_sum_exp(x: Value, how: Any) -> Value:
    top = ops.max(x, axes=how["axes"], keepdims=True)
    total = ops.log(ops.sum(ops.exp(x - top), **how))
    return total + reshaped(top, total.shape)


def _arg(e: Emitter, a: Attributes, x: Value, sign: float = 1.0) -> Value:
    axis = axis_at(a.get("axis", 0), x.ndim)
    if a.get("select_last_index", 0) or "float" not in x.dtype:
        raise NoCounterpartError("the last of equal elements, or integers")
    place = ops.cast(ops.argmax(x if sign > 0 else -x, axis=axis), dtype="int64")
    kept = a.get("keepdims", 1)
    return reshaped(place, (*x.shape[:axis], 1, *x.shape[axis + 1 :])) if kept else place


def _along_axis(op: Any) -> Callable[..., Value]:
    """Softmax; before version 13 over all axes from one on, taken as one."""

    def rule(e: Emitter, a: Attributes, x: Value) -> Value:
        if e.opset >= 13:
            return op(x, axis=axis_at(a.get("axis", -1), x.ndim))
        axis = a.get("axis", 1) % max(x.ndim, 1)
        flat = reshaped(x, (math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))
        return reshaped(op(flat, axis=-1), x.shape)

    return rule


# Table ----------------------------------------------------------------------------------------------


def _of(emit: Callable[[Value], Value]) -> Callable[..., Value]:
    return lambda e, a, x: emit(x)


OPERATORS: dict[str, Callable[..., Any]] = {
    **{kind: _unary(getattr(ops, name)) for name, kind in UNARY.items() if hasattr(ops, name)},
    **{kind: _binary(getattr(ops, name)) for name, kind in (BINARY | COMPARISONS).items() if hasattr(ops, name)},
    "Abs": _abs, "Neg": _neg, "Relu": _relu, "Div": _div, "Pow": _pow, "Clip": _clip, "PRelu": _prelu, "Selu": _selu,
    "Celu": _celu, "HardSigmoid": _hard_sigmoid, "Gelu": _gelu, "Swish": _swish, "Shrink": _shrink, "Cast": _to,
    "LeakyRelu": _unary(ops.leaky_relu, 0.01, negative_slope="alpha"),
    "Elu": _unary(ops.elu, 1.0, alpha="alpha"),
    "Max": _variadic(ops.maximum), "Min": _variadic(ops.minimum), "Sum": _variadic(ops.add),
    "Mean": lambda e, a, *xs: reduce(ops.add, xs) / float(len(xs)),
    "And": lambda e, a, x, y: ops.where(x, y, e.constant(False)),
    "Or": lambda e, a, x, y: ops.where(x, e.constant(True), y),
    "Xor": lambda e, a, x, y: ops.where(x, ops.where(y, e.constant(False), e.constant(True)), y),
    "Not": lambda e, a, x: ops.where(x, e.constant(False), e.constant(True)),
    "Where": lambda e, a, c, x, y: ops.where(c, x, y),
    "Identity": _of(lambda x: x),
    "Reciprocal": _of(lambda x: 1.0 / x),
    "Softsign": _of(lambda x: x / (ops.abs(x) + 1.0)),
    "HardSwish": lambda e, a, x: x * ops.maximum(ops.minimum(x * (1 / 6) + 0.5, 1.0), 0.0),
    "Mish": _of(lambda x: x * ops.tanh(ops.softplus(x))),
    "ThresholdedRelu": lambda e, a, x: ops.where(ops.greater(x, a.get("alpha", 1.0)), x, 0.0),
    "CastLike": lambda e, a, x, like: _to(e, {"to": np_to_onnx(like.dtype)}, x),
    "ReduceSum": _reduction(lambda x, how: ops.sum(x, **how)),
    "ReduceMean": _reduction(lambda x, how: ops.mean(x, **how)),
    "ReduceMax": _reduction(lambda x, how: ops.max(x, **how)),
    "ReduceMin": _reduction(lambda x, how: -ops.max(-x, **how)),
    "ReduceL1": _reduction(lambda x, how: ops.sum(ops.abs(x), **how)),
    "ReduceL2": _reduction(lambda x, how: ops.sqrt(ops.sum(ops.square(x), **how))),
    "ReduceSumSquare": _reduction(lambda x, how: ops.sum(ops.square(x), **how)),
    "ReduceLogSum": _reduction(lambda x, how: ops.log(ops.sum(x, **how))),
    "ReduceLogSumExp": _reduction(_log_sum_exp),
    "ArgMax": _arg, "ArgMin": lambda e, a, x: _arg(e, a, x, -1.0),
    "Softmax": _along_axis(ops.softmax), "LogSoftmax": _along_axis(ops.log_softmax),
    **SHAPES, **IMAGES,
}  # fmt: skip


def np_to_onnx(dtype: str) -> int:
    """ONNX's number of an element type."""
    from onnx import helper

    return helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
