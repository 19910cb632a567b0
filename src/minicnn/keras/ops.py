"""Functions of `keras.ops`, composed of primitives: on Values, symbolic tensors and arrays.

Names and arguments are Keras's. Integers beside floating-point numbers become such.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Sequence
from functools import partial, reduce
from itertools import pairwise
from typing import Any

import numpy as np

from minicnn import ops as p
from minicnn.keras.dispatch import function
from minicnn.layers.activations import ACTIVATIONS
from minicnn.layers.arguments import pair, resolve_padding
from minicnn.layers.reshaping import resize as _resize
from minicnn.losses import BinaryCrossentropy, CategoricalCrossentropy, SparseCategoricalCrossentropy
from minicnn.ops.checks import normalize_axes
from minicnn.ops.random import SOURCE
from minicnn.program.graph import Value


def _alike(*arguments: Any) -> list[Any]:
    """Arguments in one type: a floating-point one, if there is any."""
    values = [v for v in arguments if isinstance(v, Value)]
    kinds = [v.dtype if isinstance(v, Value) else np.asarray(v).dtype.name for v in arguments]
    floats = [v.dtype for v in values if "float" in v.dtype]
    some = builtins.any("float" in kind for kind in kinds)
    dtype = floats[0] if floats else "float32" if some else values[0].dtype
    return [_to(v, dtype) if isinstance(v, Value) else np.asarray(v, dtype) for v in arguments]


def _to(x: Value, dtype: str) -> Value:
    return x if x.dtype == dtype else p.cast(x, dtype=dtype)


def _float(x: Value) -> Value:
    return x if "float" in x.dtype else p.cast(x, dtype="float32")


def _bool(x: Any) -> Any:
    return x if x.dtype == "bool" else _not(p.equal(x, 0)) if isinstance(x, Value) else np.asarray(x, bool)


def _not(x: Value) -> Value:
    return p.equal(p.cast(x, dtype="int32"), 0)


def _floor(x: Value) -> Value:
    whole = p.cast(p.cast(x, dtype="int32"), dtype=x.dtype)
    return whole - p.as_float(p.greater(whole, x), x.dtype)


def _named(name: str, definition: Callable[..., Any], what: str) -> None:
    definition.__name__ = definition.__qualname__ = name
    definition.__doc__ = what
    globals()[name] = function(definition)


# Elements -------------------------------------------------------------------------------------------------------------

_OF_ONE: dict[str, Callable[[Any], Any]] = {
    **{n: getattr(p, n) for n in ("exp", "expm1", "erf", "log", "log1p", "sqrt")},
    **{n: f for n, f in ACTIVATIONS.items() if n not in ("elu", "gelu", "leaky_relu", "softmax", "log_softmax")},
    "rsqrt": lambda x: 1.0 / p.sqrt(x),
    "reciprocal": lambda x: 1.0 / x,
    "floor": _floor,
    "round": lambda x: _floor(x + 0.5),
    "log2": lambda x: p.log(x) * (1 / math.log(2)),
}
_primitive: Callable[..., Any]
for _name, _primitive in _OF_ONE.items():
    _named(_name, lambda x, f=_primitive: f(_float(x)), f"`{_name}` of each element.")
for _name, _primitive in (("abs", p.abs), ("negative", p.negative), ("sign", p.sign), ("square", p.square)):
    _named(_name, lambda x, f=_primitive: f(x), f"`{_name}` of each element.")

_OF_TWO: dict[str, Callable[[Any, Any], Any]] = {
    **{n: getattr(p, n) for n in ("add", "subtract", "multiply", "power", "maximum", "minimum", "equal", "less")},
    **{n: getattr(p, n) for n in ("greater", "greater_equal", "less_equal")},
    "divide": lambda a, b: p.divide(*_alike(*(_float(v) if isinstance(v, Value) else v for v in (a, b)))),
    "not_equal": lambda a, b: _not(p.equal(a, b)),
    "logical_and": lambda a, b: p.where(_bool(a), _bool(b), np.asarray(False)),
    "logical_or": lambda a, b: p.where(_bool(a), np.asarray(True), _bool(b)),
}
for _name, _primitive in _OF_TWO.items():
    _named(_name, lambda x1, x2, f=_primitive: f(*_alike(x1, x2)), f"`{_name}` of each two elements.")

_named("logical_not", lambda x: _not(_bool(x)), "Whether each element is 0.")
_named("leaky_relu", lambda x, negative_slope=0.2: p.leaky_relu(x, negative_slope=negative_slope), "See `LeakyReLU`.")
_named("elu", lambda x, alpha=1.0: p.elu(x, alpha=alpha), "See `ELU`.")
_named("gelu", lambda x, approximate=True: p.gelu(x, approximate=approximate), "x times P(X <= x), X normal.")
_named("softmax", lambda x, axis=-1: p.softmax(_float(x), axis=axis), "exp(x) / sum(exp(x)) along an axis.")
_named("log_softmax", lambda x, axis=-1: p.log_softmax(_float(x), axis=axis), "The logarithm of `softmax`.")
_named("clip", lambda x, x_min, x_max: p.minimum(p.maximum(x, x_min), x_max), "Elements kept within bounds.")
_named("stop_gradient", lambda x: p.stop_gradient(x), "The same numbers as a constant for gradients.")
_named("zeros_like", lambda x: x * 0, "0 in the shape of another array.")
_named("ones_like", lambda x: x * 0 + 1, "1 in the shape of another array.")
_named(
    "where", lambda condition, x1, x2: p.where(_bool(condition), *_alike(x1, x2)), "x1 where it holds, x2 elsewhere."
)
_named(
    "cast",
    lambda x, dtype: _bool(x) if dtype == "bool" else _to(x, "int32" if dtype == "int64" else dtype),
    "Elements in another type; for int64 in int32.",
)

# Reductions -----------------------------------------------------------------------------------------------------------


def _variance(x: Value, axes: Any, keepdims: bool) -> Value:
    x = _float(x)
    return p.mean(p.square(x - p.mean(x, axes=axes, keepdims=True)), axes=axes, keepdims=keepdims)


def _log_of_sum(x: Value, axes: Any, keepdims: bool) -> Value:
    most = p.max(x, axes=axes, keepdims=True)
    y = p.log(p.sum(p.exp(x - most), axes=axes, keepdims=True)) + most
    return y if keepdims else p.sum(y, axes=axes)


def _in_floats(primitive: Any, x: Value, **at: Any) -> Value:
    return _to(primitive(_float(x), **at), x.dtype if "int" in x.dtype else _float(x).dtype)


_REDUCTIONS: dict[str, Callable[..., Any]] = {
    "sum": partial(_in_floats, p.sum),
    "mean": lambda x, **at: p.mean(_float(x), **at),
    "max": partial(_in_floats, p.max),
    "min": lambda x, **at: -_in_floats(p.max, -x, **at),
    "var": _variance,
    "std": lambda x, **at: p.sqrt(_variance(x, **at)),
    "logsumexp": _log_of_sum,
    "norm": lambda x, **at: p.sqrt(p.sum(p.square(_float(x)), **at)),
    "any": lambda x, **at: p.greater(p.max(p.cast(_bool(x), dtype="float32"), **at), 0.5),
    "all": lambda x, **at: p.less(p.max(p.cast(_not(_bool(x)), dtype="float32"), **at), 0.5),
}


def _axes(axis: Any) -> Any:
    return axis if axis is None or isinstance(axis, int) else tuple(axis)


for _name, _primitive in _REDUCTIONS.items():
    _named(
        _name,
        lambda x, axis=None, keepdims=False, f=_primitive: f(x, axes=_axes(axis), keepdims=keepdims),
        f"`{_name}` along one axis, several, or all.",
    )
_named(
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
        return p.argmax(p.reshape(_float(x), shape=(x.size,)), axis=0)
    y = p.argmax(_float(x), axis=axis)
    return expand_dims(y, axis) if keepdims else y


_named("argmin", lambda x, axis=None, keepdims=False: argmax(-x, axis, keepdims), "See `argmax`.")

# Shapes ---------------------------------------------------------------------------------------------------------------


def shape(x: Any) -> tuple[Any, ...]:
    """Lengths of the axes; None for those that are not known, as the batch of a symbolic tensor."""
    return tuple(x.shape) if hasattr(x, "shape") else np.shape(x)


def ndim(x: Any) -> int:
    """Number of axes."""
    return len(shape(x))


def size(x: Any) -> int:
    """Number of elements."""
    return math.prod(shape(x))


@function
def reshape(x: Any, newshape: Any) -> Any:
    """The same elements in another shape, of which one length may be -1; a first one of None is the batch's."""
    lengths = [newshape] if isinstance(newshape, int) else newshape
    known = [x.shape[0] if n is None and i == 0 else -1 if n is None else int(n) for i, n in enumerate(lengths)]
    left = x.size // builtins.max(1, math.prod(n for n in known if n != -1))
    return p.reshape(x, shape=tuple(left if n == -1 else n for n in known))


@function
def expand_dims(x: Any, axis: int) -> Any:
    """A new axis of length 1."""
    at = axis % (x.ndim + 1)
    return p.reshape(x, shape=(*x.shape[:at], 1, *x.shape[at:]))


@function
def squeeze(x: Any, axis: Any = None) -> Any:
    """Without axes of length 1."""
    gone = [a for a, n in enumerate(x.shape) if n == 1] if axis is None else normalize_axes("squeeze", axis, x.ndim)
    return p.reshape(x, shape=tuple(n for a, n in enumerate(x.shape) if a not in gone))


@function
def transpose(x: Any, axes: Sequence[int] | None = None) -> Any:
    """Axes in another order, reversed if None."""
    return p.permute(x, axes=tuple(range(x.ndim))[::-1] if axes is None else tuple(a % x.ndim for a in axes))


@function
def swapaxes(x: Any, axis1: int, axis2: int) -> Any:
    """Two axes exchanged."""
    order = list(range(x.ndim))
    order[axis1], order[axis2] = order[axis2], order[axis1]
    return p.permute(x, axes=tuple(order))


_named("ravel", lambda x: p.reshape(x, shape=(x.size,)), "All elements along one axis.")
_named("concatenate", lambda xs, axis=-1: p.concat(*_alike(*xs), axis=axis), "Arrays joined along an axis.")
_named("repeat", lambda x, repeats, axis: p.repeat(x, repeats=repeats, axis=axis), "Each element so many times.")
_named("broadcast_to", lambda x, shape: p.broadcast_to(x, shape=tuple(shape)), "The array repeated to a shape.")
_named(
    "stack",
    lambda xs, axis=0: p.concat(*(expand_dims(x, axis) for x in _alike(*xs)), axis=axis),
    "Arrays joined along a new axis.",
)
_named(
    "unstack",
    lambda x, num=None, axis=0: [x[(slice(None),) * (axis % x.ndim) + (i,)] for i in range(num or x.shape[axis])],
    "The arrays that an axis holds.",
)


@function
def split(x: Any, indices_or_sections: Any, axis: int = 0) -> Any:
    """Parts along an axis: so many equal ones, or those between places."""
    places, n = indices_or_sections, x.shape[axis]
    if isinstance(places, int):
        if n % places:
            raise ValueError(f"split makes equal parts. Received: {places} of an axis of length {n}. Give the places.")
        places = range(n // places, n, n // places)
    return [x[(slice(None),) * (axis % x.ndim) + (slice(a, b),)] for a, b in pairwise([0, *places, n])]


@function
def tile(x: Any, repeats: Any) -> Any:
    """The array beside itself, so many times along each axis."""
    times = [1] * x.ndim + ([repeats] if isinstance(repeats, int) else list(repeats))
    return reduce(lambda y, at: p.concat(*[y] * at[1], axis=at[0]), enumerate(times[-x.ndim :]), x)


@function
def pad(x: Any, pad_width: Any, mode: str = "constant", constant_values: float | None = None) -> Any:
    """A frame of a constant, so many elements before and after along each axis."""
    if mode != "constant":
        raise ValueError(f"pad frames by a constant. Received: mode={mode!r}.")
    widths = [pad_width] * x.ndim if isinstance(pad_width, int) else pad_width
    pairs = tuple((w, w) if isinstance(w, int) else tuple(w) for w in widths)
    return p.pad(x, widths=pairs, value=constant_values or 0.0)


@function
def take(x: Any, indices: Any, axis: int | None = None) -> Any:
    """Elements at whole numbers along an axis, of all elements if None."""
    if axis is None:
        x, axis = p.reshape(x, shape=(x.size,)), 0
    at, rows = axis % x.ndim, _to(indices, "int32") if isinstance(indices, Value) else np.asarray(indices, np.int32)
    flat = p.reshape(rows, shape=(rows.size,)) if isinstance(rows, Value) else rows.reshape(-1) % np.int32(x.shape[at])
    selection = p.take(p.permute(x, axes=(at, *(a for a in range(x.ndim) if a != at))), flat)
    selection = p.permute(selection, axes=(*range(1, at + 1), 0, *range(at + 1, x.ndim)))
    return p.reshape(selection, shape=(*selection.shape[:at], *rows.shape, *selection.shape[at + 1 :]))


@function
def roll(x: Any, shift: int, axis: int) -> Any:
    """The elements along an axis moved on, those at its end to its start."""
    at, by = (slice(None),) * (axis % x.ndim), -shift % x.shape[axis]
    return p.concat(x[(*at, slice(by, None))], x[(*at, slice(None, by))], axis=axis) if by else x


_named("flip", lambda x, axis: take(x, list(range(x.shape[axis]))[::-1], axis), "The elements, last first.")

# Arrays ---------------------------------------------------------------------------------------------------------------


def zeros(shape: Any, dtype: str = "float32") -> Any:
    """An array of 0."""
    return _in_step(np.zeros(shape, dtype))


def ones(shape: Any, dtype: str = "float32") -> Any:
    """An array of 1."""
    return _in_step(np.ones(shape, dtype))


def _in_step(array: np.ndarray[Any, Any]) -> Any:
    """A constant of the step that is traced, if one is: NumPy adds no Value in place to an array."""
    step = getattr(getattr(SOURCE.get(), "__self__", None), "_step", None)
    return array if step is None else step.program.constant(array)


def arange(start: Any, stop: Any = None, step: Any = 1, dtype: str | None = None) -> Any:
    """Numbers from start, which is 0 if it stands alone, to below stop."""
    numbers = np.arange(*((start,) if stop is None else (start, stop, step)))
    return numbers.astype(dtype or ("int32" if numbers.dtype.kind == "i" else "float32"))


def convert_to_numpy(x: Any) -> np.ndarray[Any, Any]:
    """A NumPy array."""
    return x.numpy() if hasattr(x, "numpy") else np.asarray(x)


def convert_to_tensor(x: Any, dtype: str | None = None) -> Any:
    """A tensor for layers: a symbolic one as it is, else an array, of float32 for float64."""
    if isinstance(x, Value) or hasattr(x, "connect"):
        return x if dtype is None else globals()["cast"](x, dtype)
    array = np.asarray(x, dtype)
    return array.astype("float32") if dtype is None and array.dtype == np.float64 else array


# Networks -------------------------------------------------------------------------------------------------------------


@function
def matmul(x1: Any, x2: Any) -> Any:
    """Products of matrices: the last two axes, for each of the first."""
    a, b = _alike(x1, x2)
    if len(b.shape) > 2:  # rows times columns, and their sum
        return p.sum(p.reshape(a, shape=(*a.shape, 1)) * p.reshape(b, shape=(*b.shape[:-2], 1, *b.shape[-2:])), axes=-2)
    y = p.matmul(a if len(a.shape) == 2 else p.reshape(a, shape=(math.prod(a.shape[:-1]), a.shape[-1])), b)
    return y if len(a.shape) == 2 else p.reshape(y, shape=(*a.shape[:-1], b.shape[-1]))


@function
def one_hot(x: Any, num_classes: int, axis: int = -1, dtype: str = "float32") -> Any:
    """1 at each class number along a new axis, 0 elsewhere."""
    y = p.one_hot(_to(x, "int32"), classes=num_classes, dtype=dtype)
    return y if axis == -1 else p.permute(y, axes=tuple(np.insert(np.arange(x.ndim), axis, x.ndim).tolist()))


@function
def binary_crossentropy(target: Any, output: Any, from_logits: bool = False) -> Any:
    """-t log(p) - (1 - t) log(1 - p) of each element."""
    t, o = (p.reshape(v, shape=(*output.shape, 1)) for v in _alike(target, output))
    return p.reshape(BinaryCrossentropy(from_logits).call(t, o), shape=output.shape)


@function
def categorical_crossentropy(target: Any, output: Any, from_logits: bool = False) -> Any:
    """-sum(t log(p)) along the last axis."""
    return CategoricalCrossentropy(from_logits).call(*_alike(target, output))


@function
def sparse_categorical_crossentropy(target: Any, output: Any, from_logits: bool = False) -> Any:
    """-log(p) of the class number that each label is."""
    return SparseCategoricalCrossentropy(from_logits).call(_to(target, "int32"), output)


@function
def conv(inputs: Any, kernel: Any, strides: Any = 1, padding: str = "valid", dilation_rate: Any = 1) -> Any:
    """Convolution of images, channels last, with a kernel (KH, KW, C, F)."""
    steps, apart = pair("strides", strides), pair("dilation_rate", dilation_rate)
    edges = resolve_padding(padding, inputs.shape[1:3], (kernel.shape[0], kernel.shape[1]), steps, apart)
    return p.conv2d(inputs, kernel, strides=steps, padding=edges, dilation=apart)


def _pooled(primitive: Any, x: Value, pool_size: Any, strides: Any, padding: str) -> Any:
    size, steps = pair("pool_size", pool_size), pair("strides", pool_size if strides is None else strides)
    return primitive(
        x, kernel=size, strides=steps, padding=resolve_padding(padding, (x.shape[1], x.shape[2]), size, steps)
    )


for _name, _primitive in (("max_pool", p.max_pool2d), ("average_pool", p.average_pool2d)):
    _named(
        _name,
        lambda inputs, pool_size, strides=None, padding="valid", f=_primitive: _pooled(
            f, inputs, pool_size, strides, padding
        ),
        "Pooling of images, channels last.",
    )


class image:  # noqa: N801  a name of Keras
    """Functions of images (N, H, W, C)."""

    @staticmethod
    @function
    def resize(images: Any, size: Any, interpolation: str = "bilinear") -> Any:
        """Images, or one without the first axis, in another size."""
        x = _float(images) if images.ndim == 4 else p.reshape(_float(images), shape=(1, *images.shape))
        y = p.permute(_resize(p.permute(x, axes=(0, 3, 1, 2)), *pair("size", size), interpolation), axes=(0, 2, 3, 1))
        return y if images.ndim == 4 else p.reshape(y, shape=y.shape[1:])

    @staticmethod
    @function
    def extract_patches(
        images: Any, size: Any, strides: Any = None, dilation_rate: Any = 1, padding: str = "valid"
    ) -> Any:
        """Windows, each with its pixels along the last axis: (N, OH, OW, KH KW C)."""
        h, w = pair("size", size)
        pixels = h * w * images.shape[-1]
        kernel = np.eye(pixels, dtype=images.dtype).reshape(h, w, images.shape[-1], pixels)
        return conv(images, kernel, (h, w) if strides is None else strides, padding, dilation_rate)


def __getattr__(name: str) -> Any:  # for type checkers, which see no names that a table gives
    raise AttributeError(f"minicnn.keras.ops has no {name!r}: docs/keras.md says what it has.")
