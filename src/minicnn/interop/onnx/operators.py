"""What each operator of ONNX is in primitives.

An entry of `OPERATORS` is a function (emitter, attributes, *inputs) of Values that emits primitives and returns one, or
several. An input that is left out is None. What it cannot do it refuses with `UnsupportedError`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import array_api_compat.numpy as xp
import numpy as np

from minicnn import ops
from minicnn.interop.onnx.tensors import HostArray
from minicnn.program.graph import ITEMSIZE, Program, Value

Attributes = dict[str, Any]
MOST_KNOWN = 1 << 16  # elements of an array that is computed while a graph is read: a shape, axes, an index
MOST_ELEMENTS = 1 << 28  # of any array


class UnsupportedError(ValueError):
    """What an operator is asked for and primitives do not do."""


class Emitter:
    """Where operators are written, and what they can ask for.

    Attributes:
        program: The Program.
        opset: Version of the operators.
        training: Whether layers act as in training.
        draw: Gives uniform numbers of a shape.
        assign: Takes the new value of a moving statistic, by the Value of the old one.
        batch: The number of samples that the file was written for, if it is fixed, and that of the trace.
    """

    def __init__(
        self, program: Program, opset: int, *, training: bool = False, draw: Callable[..., Value] | None = None,
        assign: Callable[[Value, Value], None] | None = None, batch: tuple[int, int] | None = None,
    ) -> None:  # fmt: skip
        self.program, self.opset, self.training = program, opset, training
        self.draw, self.assign, self.batch = draw, assign, batch
        self._known: dict[int, tuple[Value, HostArray]] = {}

    def constant(self, data: Any, dtype: Any = None) -> Value:
        """A constant."""
        return self.program.constant(np.asarray(data, dtype))

    def known(self, x: Value) -> HostArray:
        """The elements of a small array that follows from constants."""
        if x.data is not None:
            return x.data
        if id(x) not in self._known:
            if x.node is None or x.size > MOST_KNOWN:
                raise UnsupportedError("a shape, an axis or an index that depends on the data")
            made = x.node.op.reference(*map(self.known, x.node.inputs), xp=xp, **x.node.attrs)
            made = made if len(x.node.outputs) > 1 else (made,)
            self._known |= {id(v): (v, np.asarray(a)) for v, a in zip(x.node.outputs, made, strict=True)}
        return self._known[id(x)][1]

    def integers(self, x: Value | None) -> list[int] | None:
        """The elements of a small array of integers."""
        return None if x is None else [int(n) for n in self.known(x).reshape(-1)]

    def axes(self, a: Attributes, x: Value | None, name: str = "axes") -> list[int] | None:
        """Axes, which are an attribute in older versions and an input in newer ones."""
        return a[name] if name in a else self.integers(x)


def _axis(axis: int, ndim: int) -> int:
    if not -ndim <= axis < max(ndim, 1):
        raise UnsupportedError(f"axis {axis} of {ndim}")
    return axis % max(ndim, 1)


def sized(shape: Sequence[int]) -> tuple[int, ...]:
    """A shape, if arrays of it are no attack on the memory."""
    if math.prod(shape) > MOST_ELEMENTS or any(n < 0 for n in shape):
        raise UnsupportedError(f"an array of shape {list(shape)}")
    return tuple(shape)


def _reshaped(x: Value, shape: Sequence[int]) -> Value:
    return x if x.shape == tuple(shape) else ops.reshape(x, shape=tuple(shape))


def permuted(x: Value, axes: Sequence[int]) -> Value:
    """Axes reordered; two permutations that undo each other are none."""
    axes = tuple(axes)
    if x.node is not None and x.node.op is ops.permute:
        before = x.node.attrs["axes"]
        if tuple(before[a] for a in axes) == tuple(range(x.ndim)):
            return x.node.inputs[0]
    return x if axes == tuple(range(x.ndim)) else ops.permute(x, axes=axes)


def _cast(x: Value, dtype: str) -> Value:
    if dtype not in ITEMSIZE:
        raise UnsupportedError(f"the type {dtype}")
    return x if x.dtype == dtype else ops.cast(x, dtype=dtype)


# Elementwise ----------------------------------------------------------------------------------------


def _unary(op: Any, *defaults: Any, **names: str) -> Callable[..., Value]:
    """One primitive on one array; its attributes by the operator's names for them, with defaults."""

    def emit(e: Emitter, a: Attributes, x: Value) -> Value:
        given = {ours: a.get(theirs, d) for (ours, theirs), d in zip(names.items(), defaults, strict=True)}
        return op(x, **given)

    return emit


def _binary(op: Any) -> Callable[..., Value]:
    def emit(e: Emitter, a: Attributes, x: Value, y: Value) -> Value:
        if a.get("broadcast") or "axis" in a:
            raise UnsupportedError("broadcasting of version 6")
        return op(x, y)

    return emit


def _variadic(op: Any) -> Callable[..., Value]:
    return lambda e, a, *xs: reduce(op, xs)


def _div(e: Emitter, a: Attributes, x: Value, y: Value) -> Value:
    if "float" in x.dtype:
        return ops.divide(x, y)
    n, d = e.known(x).astype(object), e.known(y).astype(object)
    if not np.all(d != 0):
        raise UnsupportedError("a division of integers by zero")
    quotient = np.vectorize(lambda p, q: abs(p) // abs(q) * (1 if (p < 0) == (q < 0) else -1), otypes=[object])(n, d)
    return e.constant(quotient.astype(x.dtype))


def _pow(e: Emitter, a: Attributes, x: Value, y: Value) -> Value:
    if "float" not in x.dtype:
        raise UnsupportedError(f"powers of {x.dtype}")
    return ops.power(x, _cast(y, x.dtype))


def _neg(e: Emitter, a: Attributes, x: Value) -> Value:
    return ops.negative(x) if "float" in x.dtype else ops.subtract(e.constant(0, x.dtype), x)


def _abs(e: Emitter, a: Attributes, x: Value) -> Value:
    return ops.abs(x) if "float" in x.dtype else ops.maximum(x, ops.subtract(e.constant(0, x.dtype), x))


def _relu(e: Emitter, a: Attributes, x: Value) -> Value:
    return ops.relu(x) if "float" in x.dtype else ops.maximum(x, e.constant(0, x.dtype))


def _logical(e: Emitter, x: Value, y: Value, kind: str) -> Value:
    other = ops.where(y, e.constant(False), e.constant(True)) if kind == "Xor" else e.constant(kind == "Or")
    return ops.where(x, other, y) if kind != "And" else ops.where(x, y, e.constant(False))


def _clip(e: Emitter, a: Attributes, x: Value, low: Value | None = None, high: Value | None = None) -> Value:
    if "min" in a or "max" in a:
        low = e.constant(a["min"], x.dtype) if "min" in a else None
        high = e.constant(a["max"], x.dtype) if "max" in a else None
    x = x if low is None else ops.maximum(x, _reshaped(low, ()))
    return x if high is None else ops.minimum(x, _reshaped(high, ()))


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
        raise UnsupportedError(f"a cast of {x.dtype} to {dtype}, of numbers that may be out of range")
    return _cast(x, dtype)


# Reductions -----------------------------------------------------------------------------------------


def _reduction(emit: Callable[..., Value]) -> Callable[..., Value]:
    def rule(e: Emitter, a: Attributes, x: Value, axes: Value | None = None) -> Value:
        over = e.axes(a, axes)
        if not over and over is not None and not a.get("noop_with_empty_axes", 0):
            over = None
        if over is None and a.get("noop_with_empty_axes", 0):
            over = []
        if x.size == 0 or "float" not in x.dtype:
            raise UnsupportedError(f"a reduction of {x.spec}")
        reduced = None if over is None else tuple(sorted({_axis(n, x.ndim) for n in over}))
        return emit(x, {"axes": reduced, "keepdims": bool(a.get("keepdims", 1))})

    return rule


def _log_sum_exp(x: Value, how: Any) -> Value:
    top = ops.max(x, axes=how["axes"], keepdims=True)
    total = ops.log(ops.sum(ops.exp(x - top), **how))
    return total + _reshaped(top, total.shape)


def _arg(e: Emitter, a: Attributes, x: Value, sign: float = 1.0) -> Value:
    axis = _axis(a.get("axis", 0), x.ndim)
    if a.get("select_last_index", 0) or "float" not in x.dtype:
        raise UnsupportedError("the last of equal elements, or integers")
    place = ops.cast(ops.argmax(x if sign > 0 else -x, axis=axis), dtype="int64")
    kept = a.get("keepdims", 1)
    return _reshaped(place, (*x.shape[:axis], 1, *x.shape[axis + 1 :])) if kept else place


def _along_axis(op: Any) -> Callable[..., Value]:
    """Softmax; before version 13 over all axes from one on, taken as one."""

    def rule(e: Emitter, a: Attributes, x: Value) -> Value:
        if e.opset >= 13:
            return op(x, axis=_axis(a.get("axis", -1), x.ndim))
        axis = a.get("axis", 1) % max(x.ndim, 1)
        flat = _reshaped(x, (math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))
        return _reshaped(op(flat, axis=-1), x.shape)

    return rule


# Shapes ---------------------------------------------------------------------------------------------


def _reshape(e: Emitter, a: Attributes, x: Value, shape: Value | None = None) -> Value:
    target = a["shape"] if "shape" in a else e.integers(shape)
    if target is None:
        raise UnsupportedError("a reshape without a shape")
    if not a.get("allowzero", 0):
        target = [x.shape[i] if n == 0 and i < x.ndim else n for i, n in enumerate(target)]
    if e.batch and target and target[0] == e.batch[0] and x.shape[:1] == (e.batch[1],) and -1 not in target[1:]:
        target = [e.batch[1], *target[1:]] if math.prod(target) != x.size else target
    elif e.batch and target and target[0] == e.batch[0] and x.shape[:1] == (e.batch[1],):
        target = [e.batch[1], *target[1:]]
    known = math.prod(n for n in target if n != -1)
    if target.count(-1) > 1 or (-1 in target and (not known or x.size % known)):
        raise UnsupportedError(f"a reshape of {x.shape} to {target}")
    return _reshaped(x, sized([x.size // known if n == -1 else n for n in target]))


def _flatten(e: Emitter, a: Attributes, x: Value) -> Value:
    axis = a.get("axis", 1)
    axis = axis + x.ndim if axis < 0 else axis
    return _reshaped(x, (math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))


def _squeeze(e: Emitter, a: Attributes, x: Value, axes: Value | None = None) -> Value:
    given = e.axes(a, axes)
    gone = [i for i, n in enumerate(x.shape) if n == 1] if given is None else [_axis(n, x.ndim) for n in given]
    if any(x.shape[n] != 1 for n in gone):
        raise UnsupportedError(f"a squeeze of axes {gone} of {x.shape}")
    return _reshaped(x, [n for i, n in enumerate(x.shape) if i not in gone])


def _unsqueeze(e: Emitter, a: Attributes, x: Value, axes: Value | None = None) -> Value:
    given = e.axes(a, axes) or []
    ndim = x.ndim + len(given)
    new, lengths = {_axis(n, ndim) for n in given}, iter(x.shape)
    return _reshaped(x, [1 if i in new else next(lengths) for i in range(ndim)])


def _concat(e: Emitter, a: Attributes, *xs: Value) -> Value:
    return xs[0] if len(xs) == 1 else ops.concat(*xs, axis=_axis(a["axis"], xs[0].ndim))


def _box(x: Value, axis: int, start: int, stop: int) -> Value:
    return ops.slice_(x, bounds=tuple((start, stop) if i == axis else (0, n) for i, n in enumerate(x.shape)))


def _taken(x: Value, axis: int, index: HostArray) -> Value:
    """Elements along one axis by their places."""
    order = (axis, *(i for i in range(x.ndim) if i != axis))
    rows = ops.take(permuted(x, order), x.program.constant(index.astype("int32").reshape(-1)))
    made = permuted(rows, tuple(order.index(i) for i in range(x.ndim)))
    return _reshaped(made, sized((*x.shape[:axis], *index.shape, *x.shape[axis + 1 :])))


def _slice(e: Emitter, a: Attributes, x: Value, *given: Value | None) -> Value:
    starts, ends, axes, steps = (
        (a["starts"], a["ends"], a.get("axes"), None) if "starts" in a
        else (e.integers(v) for v in (*given, None, None)[:4])
    )  # fmt: skip
    axes = list(range(len(starts or []))) if axes is None else [_axis(n, x.ndim) for n in axes]
    for axis, start, end, step in zip(axes, starts or [], ends or [], steps or [1] * len(axes), strict=True):
        n = x.shape[axis]
        if step == 0:
            raise UnsupportedError("a slice of step 0")
        if step < 0 and end < -n:  # before the first element, which Python calls None
            first, stop, step = slice(start, None, step).indices(n)
        else:
            first, stop, step = slice(start, end, step).indices(n)
        places = np.arange(first, stop, step)
        x = _box(x, axis, first, max(first, stop)) if step == 1 else _taken(x, axis, places)
    return x


def _split(e: Emitter, a: Attributes, x: Value, split: Value | None = None, *, outputs: int) -> tuple[Value, ...]:
    axis = _axis(a.get("axis", 0), x.ndim)
    lengths = a["split"] if "split" in a else e.integers(split)
    if lengths is None:
        part = -(-x.shape[axis] // outputs)
        lengths = [min(part, x.shape[axis] - i * part) for i in range(outputs)]
    if sum(lengths) != x.shape[axis] or min(lengths, default=0) < 0 or len(lengths) != outputs:
        raise UnsupportedError(f"a split of {x.shape[axis]} into {lengths}")
    ends = np.cumsum(lengths).tolist()
    return tuple(_box(x, axis, end - n, end) for n, end in zip(lengths, ends, strict=True))


def _pad(e: Emitter, a: Attributes, x: Value, pads: Value | None = None, value: Value | None = None,
         axes: Value | None = None) -> Value:  # fmt: skip
    widths, over = e.axes(a, pads, "pads") or [], e.integers(axes)
    over = list(range(x.ndim)) if over is None else [_axis(n, x.ndim) for n in over]
    pairs = dict(zip(over, zip(widths[: len(over)], widths[len(over) :], strict=True), strict=True))
    mode = a.get("mode", "constant")
    fill = a.get("value", 0.0) if value is None else e.known(value).reshape(-1)[0].item()
    sized([n + sum(pairs.get(i, (0, 0))) for i, n in enumerate(x.shape)])
    if mode == "constant":
        for i, (before, after) in pairs.items():
            x = _box(x, i, max(0, -before), x.shape[i] - max(0, -after)) if min(before, after) < 0 else x
        both = [pairs.get(i, (0, 0)) for i in range(x.ndim)]
        return ops.pad(x, widths=tuple((max(0, p), max(0, q)) for p, q in both), value=fill)
    numpys = {"reflect": "reflect", "edge": "edge", "wrap": "wrap"}.get(mode)
    if numpys is None or any(min(p) < 0 for p in pairs.values()):
        raise UnsupportedError(f"padding by {mode}")
    for i, widths_ in pairs.items():
        if any(widths_):
            x = _taken(x, i, np.pad(np.arange(x.shape[i]), widths_, mode=numpys))  # type: ignore[call-overload]
    return x


def _expand(e: Emitter, a: Attributes, x: Value, shape: Value) -> Value:
    target = np.broadcast_shapes(x.shape, tuple(e.integers(shape) or ()))
    return ops.broadcast_to(x, shape=sized(target))


def _tile(e: Emitter, a: Attributes, x: Value, repeats: Value) -> Value:
    times = e.integers(repeats) or []
    sized([n * t for n, t in zip(x.shape, times, strict=True)])
    for axis, t in enumerate(times):
        x = _taken(x, axis, np.tile(np.arange(x.shape[axis]), t)) if t != 1 else x
    return x


def _gather(e: Emitter, a: Attributes, x: Value, index: Value) -> Value:
    axis = _axis(a.get("axis", 0), x.ndim)
    places = e.known(index)
    if places.size and not (-x.shape[axis] <= places.min() and places.max() < x.shape[axis]):
        raise UnsupportedError(f"an index beyond {x.shape[axis]} elements")
    return _taken(x, axis, places % max(x.shape[axis], 1))


def _constant(e: Emitter, a: Attributes) -> Value:
    types = {"value_float": "float32", "value_floats": "float32", "value_int": "int64", "value_ints": "int64"}
    for name, dtype in types.items():
        if name in a:
            return e.constant(a[name], dtype)
    if "value" not in a:
        raise UnsupportedError("a constant that is no array of numbers")
    return e.constant(a["value"])


def _constant_of_shape(e: Emitter, a: Attributes, shape: Value) -> Value:
    value = np.asarray(a.get("value", np.zeros(1, np.float32))).reshape(())
    return ops.broadcast_to(e.constant(value), shape=sized(e.integers(shape) or ()))


def _range(e: Emitter, a: Attributes, start: Value, limit: Value, delta: Value) -> Value:
    first, stop, step = (e.known(v).reshape(()) for v in (start, limit, delta))
    if step == 0 or not 0 <= (stop - first) / step <= MOST_KNOWN:
        raise UnsupportedError("a range that is long, or of step 0")
    return e.constant(np.arange(first, stop, step, dtype=first.dtype))


def _depth_to_space(e: Emitter, a: Attributes, x: Value) -> Value:
    n, c, h, w = x.shape
    b = a["blocksize"]
    if a.get("mode", "DCR") == "DCR":
        y = ops.permute(_reshaped(x, (n, b, b, c // (b * b), h, w)), axes=(0, 3, 4, 1, 5, 2))
    else:
        y = ops.permute(_reshaped(x, (n, c // (b * b), b, b, h, w)), axes=(0, 1, 4, 2, 5, 3))
    return _reshaped(y, (n, c // (b * b), h * b, w * b))


def _space_to_depth(e: Emitter, a: Attributes, x: Value) -> Value:
    n, c, h, w = x.shape
    b = a["blocksize"]
    order = {"DCR": (0, 3, 5, 1, 2, 4), "CRD": (0, 1, 3, 5, 2, 4)}[a.get("mode", "DCR")]
    y = ops.permute(_reshaped(x, (n, c, h // b, b, w // b, b)), axes=order)
    return _reshaped(y, (n, c * b * b, h // b, w // b))


def _trilu(e: Emitter, a: Attributes, x: Value, k: Value | None = None) -> Value:
    offset = (e.integers(k) or [0])[0]
    rows, columns = np.arange(x.shape[-2])[:, None], np.arange(x.shape[-1])
    kept = columns >= rows + offset if a.get("upper", 1) else columns <= rows + offset
    return ops.where(e.constant(kept), x, e.constant(0, x.dtype))


# Products -------------------------------------------------------------------------------------------


def _gemm(e: Emitter, a: Attributes, x: Value, w: Value, c: Value | None = None) -> Value:
    y = ops.matmul(x, w, transpose_a=bool(a.get("transA", 0)), transpose_b=bool(a.get("transB", 0)))
    alpha, beta = a.get("alpha", 1.0), a.get("beta", 1.0)
    y = y if alpha == 1.0 else y * alpha
    return y if c is None else y + (c if beta == 1.0 else c * beta)


def _matmul(e: Emitter, a: Attributes, x: Value, w: Value) -> Value:
    if "float" not in x.dtype:
        raise UnsupportedError(f"a product of {x.dtype}")
    if w.ndim == 2 and x.ndim >= 2:
        y = ops.matmul(_reshaped(x, (math.prod(x.shape[:-1]), x.shape[-1])), w)
        return _reshaped(y, (*x.shape[:-1], w.shape[1]))
    left = _reshaped(x, (1, *x.shape)) if x.ndim == 1 else x
    right = _reshaped(w, (*w.shape, 1)) if w.ndim == 1 else w
    m, k, n = left.shape[-2], left.shape[-1], right.shape[-1]
    shape = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    sized((*shape, m, k, n))
    product = _reshaped(left, (*left.shape, 1)) * _reshaped(right, (*right.shape[:-2], 1, k, n))
    y = ops.sum(product, axes=-2)
    return _reshaped(y, (*shape, *(() if x.ndim == 1 else (m,)), *(() if w.ndim == 1 else (n,))))


# Table ----------------------------------------------------------------------------------------------


def _of(emit: Callable[[Value], Value]) -> Callable[..., Value]:
    return lambda e, a, x: emit(x)


OPERATORS: dict[str, Callable[..., Any]] = {
    "Abs": _abs, "Neg": _neg, "Relu": _relu, "Div": _div, "Pow": _pow, "Clip": _clip, "PRelu": _prelu, "Selu": _selu,
    "Celu": _celu, "HardSigmoid": _hard_sigmoid, "Gelu": _gelu, "Swish": _swish, "Shrink": _shrink, "Cast": _to,
    **{k: _unary(op) for k, op in {
        "Sign": ops.sign, "Sqrt": ops.sqrt, "Exp": ops.exp, "Log": ops.log, "Sigmoid": ops.sigmoid, "Tanh": ops.tanh,
        "Softplus": ops.softplus, "Erf": ops.erf,
    }.items()},
    "LeakyRelu": _unary(ops.leaky_relu, 0.01, negative_slope="alpha"),
    "Elu": _unary(ops.elu, 1.0, alpha="alpha"),
    **{k: _binary(op) for k, op in {
        "Add": ops.add, "Sub": ops.subtract, "Mul": ops.multiply, "Equal": ops.equal, "Greater": ops.greater,
        "Less": ops.less, "GreaterOrEqual": ops.greater_equal, "LessOrEqual": ops.less_equal,
    }.items()},
    "Max": _variadic(ops.maximum), "Min": _variadic(ops.minimum), "Sum": _variadic(ops.add),
    "Mean": lambda e, a, *xs: reduce(ops.add, xs) / float(len(xs)),
    "And": lambda e, a, x, y: _logical(e, x, y, "And"),
    "Or": lambda e, a, x, y: _logical(e, x, y, "Or"),
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
    "Reshape": _reshape, "Flatten": _flatten, "Squeeze": _squeeze, "Unsqueeze": _unsqueeze, "Concat": _concat,
    "Transpose": lambda e, a, x: permuted(x, a.get("perm") or tuple(reversed(range(x.ndim)))),
    "Slice": _slice, "Split": _split, "Pad": _pad, "Expand": _expand, "Tile": _tile, "Gather": _gather,
    "Shape": lambda e, a, x: e.constant(np.asarray(x.shape, "int64")[a.get("start", 0) : a.get("end")]),
    "Size": lambda e, a, x: e.constant(x.size, "int64"),
    "Constant": _constant, "ConstantOfShape": _constant_of_shape, "Range": _range, "Trilu": _trilu,
    "DepthToSpace": _depth_to_space, "SpaceToDepth": _space_to_depth, "Gemm": _gemm, "MatMul": _matmul,
}  # fmt: skip


def np_to_onnx(dtype: str) -> int:
    """ONNX's number of an element type."""
    from onnx import helper

    return helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
