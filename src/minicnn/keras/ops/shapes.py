"""Functions that move elements, and that make arrays."""

from __future__ import annotations

import builtins
import math
from collections.abc import Sequence
from functools import reduce
from itertools import pairwise
from typing import Any

import numpy as np

from minicnn import ops as p
from minicnn.keras.dispatch import function
from minicnn.keras.ops.conversion import alike, as_dtype, named
from minicnn.keras.ops.elements import cast
from minicnn.ops.checks import normalize_axes
from minicnn.ops.random import SOURCE
from minicnn.program.graph import Value


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


named("ravel", lambda x: p.reshape(x, shape=(x.size,)), "All elements along one axis.")
named("concatenate", lambda xs, axis=-1: p.concat(*alike(*xs), axis=axis), "Arrays joined along an axis.")
named("repeat", lambda x, repeats, axis: p.repeat(x, repeats=repeats, axis=axis), "Each element so many times.")
named("broadcast_to", lambda x, shape: p.broadcast_to(x, shape=tuple(shape)), "The array repeated to a shape.")
named(
    "stack",
    lambda xs, axis=0: p.concat(*(expand_dims(x, axis) for x in alike(*xs)), axis=axis),
    "Arrays joined along a new axis.",
)
named(
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
    at, rows = (
        axis % x.ndim,
        as_dtype(indices, "int32") if isinstance(indices, Value) else np.asarray(indices, np.int32),
    )
    flat = p.reshape(rows, shape=(rows.size,)) if isinstance(rows, Value) else rows.reshape(-1) % np.int32(x.shape[at])
    selection = p.take(p.permute(x, axes=(at, *(a for a in range(x.ndim) if a != at))), flat)
    selection = p.permute(selection, axes=(*range(1, at + 1), 0, *range(at + 1, x.ndim)))
    return p.reshape(selection, shape=(*selection.shape[:at], *rows.shape, *selection.shape[at + 1 :]))


@function
def roll(x: Any, shift: int, axis: int) -> Any:
    """The elements along an axis moved on, those at its end to its start."""
    at, by = (slice(None),) * (axis % x.ndim), -shift % x.shape[axis]
    return p.concat(x[(*at, slice(by, None))], x[(*at, slice(None, by))], axis=axis) if by else x


named("flip", lambda x, axis: take(x, list(range(x.shape[axis]))[::-1], axis), "The elements, last first.")

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
        return x if dtype is None else cast(x, dtype)
    array = np.asarray(x, dtype)
    return array.astype("float32") if dtype is None and array.dtype == np.float64 else array
