"""Operators of ONNX that move elements, make arrays, or multiply matrices, in primitives."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from minicnn import ops
from minicnn.interop.counterparts import NoCounterpartError
from minicnn.interop.onnx.emitting import (
    MOST_KNOWN,
    Attributes,
    Emitter,
    axis_at,
    box,
    permuted,
    reshaped,
    sized,
    taken,
)
from minicnn.program.graph import Value


def _reshape(e: Emitter, a: Attributes, x: Value, shape: Value | None = None) -> Value:
    target = a["shape"] if "shape" in a else e.integers(shape)
    if target is None:
        raise NoCounterpartError("a reshape without a shape")
    if not a.get("allowzero", 0):
        target = [x.shape[i] if n == 0 and i < x.ndim else n for i, n in enumerate(target)]
    if e.batch and target and target[0] == e.batch[0] and x.shape[:1] == (e.batch[1],) and -1 not in target[1:]:
        target = [e.batch[1], *target[1:]] if math.prod(target) != x.size else target
    elif e.batch and target and target[0] == e.batch[0] and x.shape[:1] == (e.batch[1],):
        target = [e.batch[1], *target[1:]]
    known = math.prod(n for n in target if n != -1)
    if target.count(-1) > 1 or (-1 in target and (not known or x.size % known)):
        raise NoCounterpartError(f"a reshape of {x.shape} to {target}")
    return reshaped(x, sized([x.size // known if n == -1 else n for n in target]))


def _flatten(e: Emitter, a: Attributes, x: Value) -> Value:
    axis = a.get("axis", 1)
    axis = axis + x.ndim if axis < 0 else axis
    return reshaped(x, (math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))


def _squeeze(e: Emitter, a: Attributes, x: Value, axes: Value | None = None) -> Value:
    over = e.axes(a, axes)
    gone = [i for i, n in enumerate(x.shape) if n == 1] if over is None else [axis_at(n, x.ndim) for n in over]
    if any(x.shape[n] != 1 for n in gone):
        raise NoCounterpartError(f"a squeeze of axes {gone} of {x.shape}")
    return reshaped(x, [n for i, n in enumerate(x.shape) if i not in gone])


def _unsqueeze(e: Emitter, a: Attributes, x: Value, axes: Value | None = None) -> Value:
    over = e.axes(a, axes) or []
    ndim = x.ndim + len(over)
    new, lengths = {axis_at(n, ndim) for n in over}, iter(x.shape)
    return reshaped(x, [1 if i in new else next(lengths) for i in range(ndim)])


def _concat(e: Emitter, a: Attributes, *xs: Value) -> Value:
    return xs[0] if len(xs) == 1 else ops.concat(*xs, axis=axis_at(a["axis"], xs[0].ndim))


def _slice(e: Emitter, a: Attributes, x: Value, *bounds: Value | None) -> Value:
    starts, ends, axes, steps = (
        (a["starts"], a["ends"], a.get("axes"), None) if "starts" in a
        else (e.integers(v) for v in (*bounds, None, None)[:4])
    )  # fmt: skip
    axes = list(range(len(starts or []))) if axes is None else [axis_at(n, x.ndim) for n in axes]
    for axis, start, end, step in zip(axes, starts or [], ends or [], steps or [1] * len(axes), strict=True):
        n = x.shape[axis]
        if step == 0:
            raise NoCounterpartError("a slice of step 0")
        if step < 0 and end < -n:  # before the first element, which Python calls None
            first, stop, step = slice(start, None, step).indices(n)
        else:
            first, stop, step = slice(start, end, step).indices(n)
        places = np.arange(first, stop, step)
        x = box(x, axis, first, max(first, stop)) if step == 1 else taken(x, axis, places)
    return x


def _split(e: Emitter, a: Attributes, x: Value, split: Value | None = None, *, outputs: int) -> tuple[Value, ...]:
    axis = axis_at(a.get("axis", 0), x.ndim)
    lengths = a["split"] if "split" in a else e.integers(split)
    if lengths is None:
        part = -(-x.shape[axis] // outputs)
        lengths = [min(part, x.shape[axis] - i * part) for i in range(outputs)]
    if sum(lengths) != x.shape[axis] or min(lengths, default=0) < 0 or len(lengths) != outputs:
        raise NoCounterpartError(f"a split of {x.shape[axis]} into {lengths}")
    ends = np.cumsum(lengths).tolist()
    return tuple(box(x, axis, end - n, end) for n, end in zip(lengths, ends, strict=True))


def _pad(e: Emitter, a: Attributes, x: Value, pads: Value | None = None, value: Value | None = None,
         axes: Value | None = None) -> Value:  # fmt: skip
    widths, over = e.axes(a, pads, "pads") or [], e.integers(axes)
    over = list(range(x.ndim)) if over is None else [axis_at(n, x.ndim) for n in over]
    pairs = dict(zip(over, zip(widths[: len(over)], widths[len(over) :], strict=True), strict=True))
    mode = a.get("mode", "constant")
    fill = a.get("value", 0.0) if value is None else e.known(value).reshape(-1)[0].item()
    sized([n + sum(pairs.get(i, (0, 0))) for i, n in enumerate(x.shape)])
    if mode == "constant":
        for i, (before, after) in pairs.items():
            x = box(x, i, max(0, -before), x.shape[i] - max(0, -after)) if min(before, after) < 0 else x
        both = [pairs.get(i, (0, 0)) for i in range(x.ndim)]
        return ops.pad(x, widths=tuple((max(0, p), max(0, q)) for p, q in both), value=fill)
    numpys = {"reflect": "reflect", "edge": "edge", "wrap": "wrap"}.get(mode)
    if numpys is None or any(min(p) < 0 for p in pairs.values()):
        raise NoCounterpartError(f"padding by {mode}")
    for i, widths_ in pairs.items():
        if any(widths_):
            x = taken(x, i, np.pad(np.arange(x.shape[i]), widths_, mode=numpys))  # type: ignore[call-overload]
    return x


def _expand(e: Emitter, a: Attributes, x: Value, shape: Value) -> Value:
    target = np.broadcast_shapes(x.shape, tuple(e.integers(shape) or ()))
    return ops.broadcast_to(x, shape=sized(target))


def _tile(e: Emitter, a: Attributes, x: Value, repeats: Value) -> Value:
    times = e.integers(repeats) or []
    sized([n * t for n, t in zip(x.shape, times, strict=True)])
    for axis, t in enumerate(times):
        x = taken(x, axis, np.tile(np.arange(x.shape[axis]), t)) if t != 1 else x
    return x


def _gather(e: Emitter, a: Attributes, x: Value, index: Value) -> Value:
    axis = axis_at(a.get("axis", 0), x.ndim)
    places = e.known(index)
    if places.size and not (-x.shape[axis] <= places.min() and places.max() < x.shape[axis]):
        raise NoCounterpartError(f"an index beyond {x.shape[axis]} elements")
    return taken(x, axis, places % max(x.shape[axis], 1))


def _constant(e: Emitter, a: Attributes) -> Value:
    types = {"value_float": "float32", "value_floats": "float32", "value_int": "int64", "value_ints": "int64"}
    for name, dtype in types.items():
        if name in a:
            return e.constant(a[name], dtype)
    if "value" not in a:
        raise NoCounterpartError("a constant that is no array of numbers")
    return e.constant(a["value"])


def _constant_of_shape(e: Emitter, a: Attributes, shape: Value) -> Value:
    value = np.asarray(a.get("value", np.zeros(1, np.float32))).reshape(())
    return ops.broadcast_to(e.constant(value), shape=sized(e.integers(shape) or ()))


def _range(e: Emitter, a: Attributes, start: Value, limit: Value, delta: Value) -> Value:
    first, stop, step = (e.known(v).item() for v in (start, limit, delta))
    if step == 0 or not 0 <= (stop - first) / step <= MOST_KNOWN:
        raise NoCounterpartError("a range that is long, or of step 0")
    return e.constant(np.arange(first, stop, step, dtype=start.dtype))


def _depth_to_space(e: Emitter, a: Attributes, x: Value) -> Value:
    n, c, h, w = x.shape
    b = a["blocksize"]
    if a.get("mode", "DCR") == "DCR":
        y = ops.permute(reshaped(x, (n, b, b, c // (b * b), h, w)), axes=(0, 3, 4, 1, 5, 2))
    else:
        y = ops.permute(reshaped(x, (n, c // (b * b), b, b, h, w)), axes=(0, 1, 4, 2, 5, 3))
    return reshaped(y, (n, c // (b * b), h * b, w * b))


def _space_to_depth(e: Emitter, a: Attributes, x: Value) -> Value:
    n, c, h, w = x.shape
    b = a["blocksize"]
    order = {"DCR": (0, 3, 5, 1, 2, 4), "CRD": (0, 1, 3, 5, 2, 4)}[a.get("mode", "DCR")]
    y = ops.permute(reshaped(x, (n, c, h // b, b, w // b, b)), axes=order)
    return reshaped(y, (n, c * b * b, h // b, w // b))


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
        raise NoCounterpartError(f"a product of {x.dtype}")
    if w.ndim == 2 and x.ndim >= 2:
        y = ops.matmul(reshaped(x, (math.prod(x.shape[:-1]), x.shape[-1])), w)
        return reshaped(y, (*x.shape[:-1], w.shape[1]))
    left = reshaped(x, (1, *x.shape)) if x.ndim == 1 else x
    right = reshaped(w, (*w.shape, 1)) if w.ndim == 1 else w
    m, k, n = left.shape[-2], left.shape[-1], right.shape[-1]
    shape = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    sized((*shape, m, k, n))
    product = reshaped(left, (*left.shape, 1)) * reshaped(right, (*right.shape[:-2], 1, k, n))
    y = ops.sum(product, axes=-2)
    return reshaped(y, (*shape, *(() if x.ndim == 1 else (m,)), *(() if w.ndim == 1 else (n,))))


SHAPES: dict[str, Callable[..., Any]] = {
    "Reshape": _reshape, "Flatten": _flatten, "Squeeze": _squeeze, "Unsqueeze": _unsqueeze, "Concat": _concat,
    "Transpose": lambda e, a, x: permuted(x, a.get("perm") or tuple(reversed(range(x.ndim)))),
    "Slice": _slice, "Split": _split, "Pad": _pad, "Expand": _expand, "Tile": _tile, "Gather": _gather,
    "Shape": lambda e, a, x: e.constant(np.asarray(x.shape, "int64")[a.get("start", 0) : a.get("end")]),
    "Size": lambda e, a, x: e.constant(x.size, "int64"),
    "Constant": _constant, "ConstantOfShape": _constant_of_shape, "Range": _range, "Trilu": _trilu,
    "DepthToSpace": _depth_to_space, "SpaceToDepth": _space_to_depth, "Gemm": _gemm, "MatMul": _matmul,
}  # fmt: skip
