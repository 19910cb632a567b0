"""Functions of elements, and reductions along axes."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from minicnn import ops as p
from minicnn.keras.dispatch import function
from minicnn.keras.ops.conversion import alike, as_bool, as_dtype, as_float, floored, inverted, named
from minicnn.layers.activations import ACTIVATIONS
from minicnn.program.graph import Value

_OF_ONE: dict[str, Callable[[Any], Any]] = {
    **{n: getattr(p, n) for n in ("exp", "expm1", "erf", "log", "log1p", "sqrt")},
    **{n: f for n, f in ACTIVATIONS.items() if n not in ("elu", "gelu", "leaky_relu", "softmax", "log_softmax")},
    "rsqrt": lambda x: 1.0 / p.sqrt(x),
    "reciprocal": lambda x: 1.0 / x,
    "floor": floored,
    "round": lambda x: floored(x + 0.5),
    "log2": lambda x: p.log(x) * (1 / math.log(2)),
}
_primitive: Callable[..., Any]
for _name, _primitive in _OF_ONE.items():
    named(_name, lambda x, f=_primitive: f(as_float(x)), f"`{_name}` of each element.")
for _name, _primitive in (("abs", p.abs), ("negative", p.negative), ("sign", p.sign), ("square", p.square)):
    named(_name, lambda x, f=_primitive: f(x), f"`{_name}` of each element.")

_OF_TWO: dict[str, Callable[[Any, Any], Any]] = {
    **{n: getattr(p, n) for n in ("add", "subtract", "multiply", "power", "maximum", "minimum", "equal", "less")},
    **{n: getattr(p, n) for n in ("greater", "greater_equal", "less_equal")},
    "divide": lambda a, b: p.divide(*alike(*(as_float(v) if isinstance(v, Value) else v for v in (a, b)))),
    "not_equal": lambda a, b: inverted(p.equal(a, b)),
    "logical_and": lambda a, b: p.where(as_bool(a), as_bool(b), np.asarray(False)),
    "logical_or": lambda a, b: p.where(as_bool(a), np.asarray(True), as_bool(b)),
}
for _name, _primitive in _OF_TWO.items():
    named(_name, lambda x1, x2, f=_primitive: f(*alike(x1, x2)), f"`{_name}` of each two elements.")

named("logical_not", lambda x: inverted(as_bool(x)), "Whether each element is 0.")
named("leaky_relu", lambda x, negative_slope=0.2: p.leaky_relu(x, negative_slope=negative_slope), "See `LeakyReLU`.")
named("elu", lambda x, alpha=1.0: p.elu(x, alpha=alpha), "See `ELU`.")
named("gelu", lambda x, approximate=True: p.gelu(x, approximate=approximate), "x times P(X <= x), X normal.")
named("softmax", lambda x, axis=-1: p.softmax(as_float(x), axis=axis), "exp(x) / sum(exp(x)) along an axis.")
named("log_softmax", lambda x, axis=-1: p.log_softmax(as_float(x), axis=axis), "The logarithm of `softmax`.")
named("clip", lambda x, x_min, x_max: p.minimum(p.maximum(x, x_min), x_max), "Elements kept within bounds.")
named("stop_gradient", lambda x: p.stop_gradient(x), "The same numbers as a constant for gradients.")
named("zeros_like", lambda x: x * 0, "0 in the shape of another array.")
named("ones_like", lambda x: x * 0 + 1, "1 in the shape of another array.")
named(
    "where", lambda condition, x1, x2: p.where(as_bool(condition), *alike(x1, x2)), "x1 where it holds, x2 elsewhere."
)


@function
def cast(x: Any, dtype: str) -> Any:
    """Elements in another type; for int64 in int32."""
    return as_bool(x) if dtype == "bool" else as_dtype(x, "int32" if dtype == "int64" else dtype)


# Reductions -----------------------------------------------------------------------------------------------------------


def _variance(x: Value, axes: Any, keepdims: bool) -> Value:
    x = as_float(x)
    return p.mean(p.square(x - p.mean(x, axes=axes, keepdims=True)), axes=axes, keepdims=keepdims)


def _log_of_sum(x: Value, axes: Any, keepdims: bool) -> Value:
    most = p.max(x, axes=axes, keepdims=True)
    y = p.log(p.sum(p.exp(x - most), axes=axes, keepdims=True)) + most
    return y if keepdims else p.sum(y, axes=axes)


def _in_floats(primitive: Any, x: Value, **at: Any) -> Value:
    return as_dtype(primitive(as_float(x), **at), x.dtype if "int" in x.dtype else as_float(x).dtype)


_REDUCTIONS: dict[str, Callable[..., Any]] = {
    "sum": partial(_in_floats, p.sum),
    "mean": lambda x, **at: p.mean(as_float(x), **at),
    "max": partial(_in_floats, p.max),
    "min": lambda x, **at: -_in_floats(p.max, -x, **at),
    "var": _variance,
    "std": lambda x, **at: p.sqrt(_variance(x, **at)),
    "logsumexp": _log_of_sum,
    "norm": lambda x, **at: p.sqrt(p.sum(p.square(as_float(x)), **at)),
    "any": lambda x, **at: p.greater(p.max(p.cast(as_bool(x), dtype="float32"), **at), 0.5),
    "all": lambda x, **at: p.less(p.max(p.cast(inverted(as_bool(x)), dtype="float32"), **at), 0.5),
}


def _axes(axis: Any) -> Any:
    return axis if axis is None or isinstance(axis, int) else tuple(axis)


for _name, _primitive in _REDUCTIONS.items():
    named(
        _name,
        lambda x, axis=None, keepdims=False, f=_primitive: f(x, axes=_axes(axis), keepdims=keepdims),
        f"`{_name}` along one axis, several, or all.",
    )
named(
    "moments",
    lambda x, axes, keepdims=False: [
        p.mean(x, axes=_axes(axes), keepdims=keepdims), _variance(x, _axes(axes), keepdims)
    ],
    "Mean and variance along axes.",
)  # fmt: skip


@function
def argmax(x: Any, axis: int | None = None, keepdims: bool = False) -> Any:
    """Place of the first largest element along an axis, of all elements if None."""
    if axis is None:
        return p.argmax(p.reshape(as_float(x), shape=(x.size,)), axis=0)
    y, at = p.argmax(as_float(x), axis=axis), axis % x.ndim
    return p.reshape(y, shape=(*y.shape[:at], 1, *y.shape[at:])) if keepdims else y


named("argmin", lambda x, axis=None, keepdims=False: argmax(-x, axis, keepdims), "See `argmax`.")
