"""Sums, maxima and the like along axes, and searching: always in the same order, so with the same bits."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from minicnn.backends.numba_cuda import dtypes
from minicnn.backends.numba_cuda.arrays import Array, empty, launch
from minicnn.backends.numba_cuda.creation import full
from minicnn.backends.numba_cuda.device import THREADS
from minicnn.backends.numba_cuda.dtypes import DType
from minicnn.backends.numba_cuda.elementwise import FUNCTIONS, contiguous
from minicnn.backends.numba_cuda.manipulation import axes_of, axis_of, concat, moveaxis, permute_dims
from minicnn.kernels.strides import collapse

Axis = int | Sequence[int] | None
Fold = Callable[..., Array]

# A block makes one result: a thread takes every THREADS-th term, then halves of the block add up.
_BLOCK = """def kernel(results, terms, o_step, r_step, p0, out):
    parts = cuda.shared.array({threads}, np.{kind})
    thread = cuda.threadIdx.x
    for o in range(cuda.blockIdx.x, results, cuda.gridDim.x):
        total = np.{kind}({start})
        for r in range(thread, terms, {threads}):
            x = p0[o * o_step + r * r_step]
            y = np.{kind}({term})
            total = np.{kind}({join})
        parts[thread] = total
        cuda.syncthreads()
        half = {threads} // 2
        while half > 0:
            if thread < half:
                total = parts[thread]
                y = parts[thread + half]
                parts[thread] = np.{kind}({join})
            cuda.syncthreads()
            half //= 2
        if thread == 0:
            out[o] = parts[0]
        cuda.syncthreads()
"""
# A thread makes one result, where there are few terms.
_THREAD = """def kernel(results, terms, o_step, r_step, p0, out):
    for o in range(cuda.grid(1), results, cuda.gridsize(1)):
        total = np.{kind}({start})
        for r in range(terms):
            x = p0[o * o_step + r * r_step]
            y = np.{kind}({term})
            total = np.{kind}({join})
        out[o] = total
"""
# Terms up to which a barrier for each halving takes longer than adding up one by one.
_FEW = 32


def _matrix(x: Array, axes: Sequence[int]) -> tuple[Array, int, int, int, int]:
    """The array, results, terms, and the steps from one result and one term to the next."""
    kept = [a for a in range(x.ndim) if a not in axes]
    moved = permute_dims(x, (*kept, *axes))
    shape, count = moved.shape, len(kept)
    results, terms = math.prod(shape[:count]), math.prod(shape[count:])
    (outer,), (inner,) = (collapse(shape[part], [moved.steps[part]])[1] for part in (slice(count), slice(count, None)))
    # Kernels know one step for results and one for terms: anything else is copied into that order first.
    if len(outer) > 1 or len(inner) > 1 or sorted((0, *moved.steps))[0] < 0:
        return contiguous(moved, copy=True), results, terms, terms, 1
    o_step = outer[0] if results > 1 else 0
    return moved, results, terms, o_step, inner[0] if terms > 1 else 0


def _shape(x: Array, axes: Sequence[int], keepdims: bool) -> tuple[int, ...]:
    """The shape of a result over some axes."""
    return tuple(1 if a in axes else n for a, n in enumerate(x.shape) if keepdims or a not in axes)


def _reduce(x: Array, axis: Axis, keepdims: bool, kind: Any, join: str, start: str, term: str = "x") -> Array:
    axes = axes_of(axis, x.ndim)
    totals = empty(_shape(x, axes, keepdims), np.dtype(kind), x.device)
    if totals.size:
        source, *numbers = _matrix(x, axes)
        results, few = numbers[0], numbers[1] <= _FEW
        # A bool is a byte in memory.
        name = "uint8" if totals.dtype.kind == "b" else totals.dtype.name
        text = (_THREAD if few else _BLOCK).format(threads=THREADS, kind=name, start=start, term=term, join=join)
        launch(text, numbers, (source, totals), results if few else results * THREADS)
    return totals


def _numeric(name: str, x: Array, *, floating: bool = False) -> None:
    if x.dtype.kind not in ("f" if floating else "iuf"):
        raise TypeError(
            f"{name} is for {'floats' if floating else 'numbers'}. Received: {x.dtype}. Convert with astype."
        )


def _wide(x: Array, dtype: Any) -> DType:
    if dtype is not None:
        return dtypes.dtype(dtype)
    # As the standard says: sums of small integers overflow quickly.
    return np.dtype({"i": "int64", "u": "uint64"}.get(x.dtype.kind, x.dtype.name))


def sum(x: Array, /, *, axis: Axis = None, dtype: Any = None, keepdims: bool = False) -> Array:  # noqa: A001
    """Sums; of integers as 64-bit integers."""
    _numeric("sum", x)
    return _reduce(x, axis, keepdims, _wide(x, dtype), "total + y", "0")


def prod(x: Array, /, *, axis: Axis = None, dtype: Any = None, keepdims: bool = False) -> Array:
    """Products; of integers as 64-bit integers."""
    _numeric("prod", x)
    return _reduce(x, axis, keepdims, _wide(x, dtype), "total * y", "1")


def _some(name: str, x: Array, axis: Axis) -> None:
    _numeric(name, x)
    if _count(x, axis) == 0:
        raise ValueError(f"{name} is of at least one element. Received: shape {x.shape}, axis {axis}.")


def _fold(name: str, text: str, join: str, start: str = "p0[o * o_step]", kind: str | None = None) -> Fold:
    """A function that joins elements; where a type is named, in that type whether they differ from 0."""

    def fold(x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
        if kind is None:
            _some(name, x, axis)
        return _reduce(x, axis, keepdims, kind or x.dtype, join, start, "1 if x != 0 else 0" if kind else "x")

    fold.__name__, fold.__qualname__, fold.__doc__ = name, name, text
    return fold


max = _fold("max", "Maxima; NaN where there is one.", "larger(total, y)")  # noqa: A001
min = _fold("min", "Minima; NaN where there is one.", "smaller(total, y)")  # noqa: A001
all = _fold("all", "True where all elements differ from 0.", "total * y", "1", "bool")  # noqa: A001
any = _fold("any", "True where some element differs from 0.", "larger(total, y)", "0", "bool")  # noqa: A001
count_nonzero = _fold("count_nonzero", "Number of elements that differ from 0.", "total + y", "0", "int64")


def _count(x: Array, axis: Axis) -> int:
    return math.prod(x.shape[a] for a in axes_of(axis, x.ndim))


def mean(x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """Means."""
    _numeric("mean", x, floating=True)
    return FUNCTIONS["divide"](sum(x, axis=axis, keepdims=keepdims), float(_count(x, axis) or math.nan))


def var(x: Array, /, *, axis: Axis = None, correction: float = 0.0, keepdims: bool = False) -> Array:
    """Variances: the sum of squared distances from the mean over the count less `correction`."""
    _numeric("var", x, floating=True)
    # Two passes: E[x^2] - E[x]^2 would cancel where the mean is large.
    centred = FUNCTIONS["subtract"](x, mean(x, axis=axis, keepdims=True))
    total = sum(FUNCTIONS["square"](centred), axis=axis, keepdims=keepdims)
    return FUNCTIONS["divide"](total, float(_count(x, axis) - correction) or math.nan)


def std(x: Array, /, *, axis: Axis = None, correction: float = 0.0, keepdims: bool = False) -> Array:
    """Standard deviations."""
    return FUNCTIONS["sqrt"](var(x, axis=axis, correction=correction, keepdims=keepdims))


# Searching and running sums -------------------------------------------------------------------------------------

_FIRST = """def kernel(results, terms, o_step, r_step, p0, out):
    for o in range(cuda.grid(1), results, cuda.gridsize(1)):
        best = p0[o * o_step]
        at = 0
        for r in range(1, terms):
            x = p0[o * o_step + r * r_step]
            if x {test} best or (x != x and best == best):
                best = x
                at = r
        out[o] = at
"""
_RUNNING = """def kernel(results, terms, o_step, r_step, p0, out):
    for o in range(cuda.grid(1), results, cuda.gridsize(1)):
        total = np.{kind}({start})
        for r in range(terms):
            total = np.{kind}(total {join} np.{kind}(p0[o * o_step + r * r_step]))
            out[o * terms + r] = total
"""


def _search(name: str, test: str, x: Array, axis: int | None, keepdims: bool) -> Array:
    _some(name, x, axis)
    axes = axes_of(axis, x.ndim)
    indices = empty(_shape(x, axes, keepdims), np.dtype("int64"), x.device)
    if indices.size:
        source, *numbers = _matrix(x, axes)
        launch(_FIRST.format(test=test), numbers, (source, indices))
    return indices


def argmax(x: Array, /, *, axis: int | None = None, keepdims: bool = False) -> Array:
    """Place of the first maximum."""
    return _search("argmax", ">", x, axis, keepdims)


def argmin(x: Array, /, *, axis: int | None = None, keepdims: bool = False) -> Array:
    """Place of the first minimum."""
    return _search("argmin", "<", x, axis, keepdims)


def _running(name: str, x: Array, axis: int | None, dtype: Any, include_initial: bool) -> Array:
    _numeric(name, x)
    if axis is None and x.ndim != 1:
        raise ValueError(f"{name} needs an axis unless x is a vector. Received: shape {x.shape}.")
    at = axis_of(0 if axis is None else axis, x.ndim)
    kind, product = _wide(x, dtype), name == "cumulative_prod"
    source, *numbers = _matrix(x, (at,))
    running = empty(moveaxis(x, at, -1).shape, kind, x.device)
    if running.size:
        text = _RUNNING.format(kind=kind.name, start=int(product), join="*" if product else "+")
        launch(text, numbers, (source, running))
    result = contiguous(moveaxis(running, -1, at))
    if include_initial:
        first = full((*x.shape[:at], 1, *x.shape[at + 1 :]), int(product), dtype=kind, device=x.device)
        result = concat([first, result], axis=at)
    return result


def cumulative_sum(x: Array, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False) -> Array:
    """Sums of the first 1, 2 ... elements along an axis."""
    return _running("cumulative_sum", x, axis, dtype, include_initial)


def cumulative_prod(x: Array, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False) -> Array:
    """Products of the first 1, 2 ... elements along an axis."""
    return _running("cumulative_prod", x, axis, dtype, include_initial)


def diff(
    x: Array, /, *, axis: int = -1, n: int = 1, prepend: Array | None = None, append: Array | None = None
) -> Array:
    """Differences of neighbours along an axis, n times."""
    at = axis_of(axis, x.ndim)
    ends, before = [a for a in (prepend, x, append) if a is not None], [slice(None)] * at
    differences = concat(ends, axis=at) if len(ends) > 1 else x
    for _ in range(n):
        differences = FUNCTIONS["subtract"](
            differences[(*before, slice(1, None))], differences[(*before, slice(None, -1))]
        )
    return contiguous(differences, copy=differences is x)


__all__ = [
    "all", "any", "argmax", "argmin", "count_nonzero", "cumulative_prod", "cumulative_sum", "diff", "max", "mean",
    "min", "prod", "std", "sum", "var",
]  # fmt: skip
