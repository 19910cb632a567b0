"""Creating arrays, and converting others."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from minicnn.backends.numba_cuda import dtypes
from minicnn.backends.numba_cuda.arrays import Array, as_device, from_interface, from_numpy
from minicnn.backends.numba_cuda.arrays import empty as uninitialised
from minicnn.backends.numba_cuda.elementwise import astype, compute, contiguous
from minicnn.backends.numba_cuda.manipulation import broadcast_arrays, permute_dims, stack

_DEFAULTS = {"b": "bool", "i": "int64", "f": "float64"}


def _shape(shape: Any) -> tuple[int, ...]:
    return (int(shape),) if not isinstance(shape, tuple | list) else tuple(int(n) for n in shape)


def asarray(obj: Any, /, *, dtype: Any = None, device: Any = None, copy: bool | None = None) -> Array:
    """An array from numbers, nested lists of numbers or arrays, a NumPy array or another library's array on the GPU."""
    if isinstance(obj, Array):
        array = obj if device is None else obj.to_device(device)
        wanted = obj.dtype if dtype is None else dtypes.dtype(dtype)
        if wanted != array.dtype:
            if copy is False:
                raise ValueError(
                    f"A view has the type of its array. Received: {wanted} for {array.dtype} with copy=False."
                )
            return astype(array, wanted)
        return contiguous(array, copy=True) if copy else array
    if hasattr(obj, "__cuda_array_interface__"):
        return asarray(from_interface(obj), dtype=dtype, device=device, copy=copy)
    if copy is False:
        raise ValueError("Arrays of the host are copied to the GPU. Received: copy=False. Leave it out.")
    try:
        host = np.asarray(obj)
    except TypeError:
        if not _holds_arrays(obj):
            raise
        return stack([asarray(part, dtype=dtype, device=device) for part in obj])
    if dtype is None and not isinstance(obj, np.ndarray | np.generic):
        dtype = _DEFAULTS.get(host.dtype.kind, host.dtype)
    return from_numpy(host.astype(dtypes.dtype(dtype) if dtype is not None else host.dtype), as_device(device))


def _holds_arrays(obj: Any) -> bool:
    return isinstance(obj, Array) or (isinstance(obj, list | tuple) and any(_holds_arrays(part) for part in obj))


def from_dlpack(x: Any, /, *, device: Any = None, copy: bool | None = None) -> Array:
    """An array over the memory of another library's array on the GPU; a copy of one on the host."""
    if isinstance(x, Array):
        return asarray(x, device=device, copy=copy)
    if int(x.__dlpack_device__()[0]) == 1:
        return asarray(np.from_dlpack(x), device=device)
    return asarray(from_interface(x), device=device, copy=copy)


def empty(shape: Any, *, dtype: Any = None, device: Any = None) -> Array:
    """An array whose elements are whatever the memory holds."""
    return uninitialised(_shape(shape), dtypes.dtype(dtype or "float64"), as_device(device))


def full(shape: Any, fill_value: bool | int | float, *, dtype: Any = None, device: Any = None) -> Array:
    """One value everywhere."""
    if isinstance(fill_value, Array | np.generic):
        fill_value = fill_value.item()
    wanted = dtype or _DEFAULTS[np.asarray(fill_value).dtype.kind]
    array = uninitialised(_shape(shape), dtypes.dtype(wanted), as_device(device))
    if array.dtype.kind == "f":
        fill_value = float(fill_value)
    compute("a0", array, (), (fill_value,))
    return array


def zeros(shape: Any, *, dtype: Any = None, device: Any = None) -> Array:
    """Zeros."""
    return full(shape, 0, dtype=dtype or "float64", device=device)


def ones(shape: Any, *, dtype: Any = None, device: Any = None) -> Array:
    """Ones."""
    return full(shape, 1, dtype=dtype or "float64", device=device)


def _like(make: Callable[..., Array]) -> Callable[..., Array]:
    def create(x: Array, /, *, dtype: Any = None, device: Any = None) -> Array:
        return make(x.shape, dtype=dtype or x.dtype, device=device or x.device)

    create.__name__, create.__doc__ = f"{make.__name__}_like", f"Like x: {make.__doc__}"
    return create


empty_like, zeros_like, ones_like = map(_like, (empty, zeros, ones))


def full_like(x: Array, /, fill_value: bool | int | float, *, dtype: Any = None, device: Any = None) -> Array:
    """Like x, one value."""
    return full(x.shape, fill_value, dtype=dtype or x.dtype, device=device or x.device)


def arange(start: Any, /, stop: Any = None, step: Any = 1, *, dtype: Any = None, device: Any = None) -> Array:
    """start, start + step ... below stop."""
    start, stop = (0, start) if stop is None else (start, stop)
    floating = any(isinstance(v, float) for v in (start, stop, step))
    count = max(0, math.ceil((stop - start) / step))
    array = uninitialised((count,), dtypes.dtype(dtype or ("float64" if floating else "int64")), as_device(device))
    compute("a0 + i * a1", array, (), (start, step))
    return array


def linspace(
    start: float, stop: float, /, num: int, *, dtype: Any = None, device: Any = None, endpoint: bool = True
) -> Array:
    """Evenly spaced numbers."""
    array = uninitialised((num,), dtypes.dtype(dtype or "float64"), as_device(device))
    steps = max(1, num - 1 if endpoint else num)
    last = num - 1 if endpoint and num > 1 else -1
    text = "(a1 if i == a3 else a0 + i * a2)"
    compute(text, array, (), (float(start), float(stop), (float(stop) - float(start)) / steps, last))
    return array


def eye(n_rows: int, n_cols: int | None = None, /, *, k: int = 0, dtype: Any = None, device: Any = None) -> Array:
    """Ones on a diagonal, zeros elsewhere."""
    columns = n_rows if n_cols is None else n_cols
    matrix = uninitialised((n_rows, columns), dtypes.dtype(dtype or "float64"), as_device(device))
    compute("(1 if i % a0 - i // a0 == a1 else 0)", matrix, (), (columns, k))
    return matrix


def tril(x: Array, /, *, k: int = 0) -> Array:
    """The elements on and below a diagonal of each matrix, zeros above."""
    return _triangle(x, "<=", k)


def triu(x: Array, /, *, k: int = 0) -> Array:
    """The elements on and above a diagonal of each matrix, zeros below."""
    return _triangle(x, ">=", k)


def _triangle(x: Array, test: str, k: int) -> Array:
    if x.ndim < 2:
        raise ValueError(f"A triangle is of matrices. Received: an array of shape {x.shape}. Add an axis.")
    triangle = uninitialised(x.shape, x.dtype, x.device)
    zero = f"np.{x.dtype.name}(0)" if x.dtype.kind != "b" else "False"
    compute(f"(x0 if i % a0 - i // a0 % a1 {test} a2 else {zero})", triangle, (x,), (x.shape[-1], x.shape[-2], k))
    return triangle


def meshgrid(*arrays: Array, indexing: str = "xy") -> tuple[Array, ...]:
    """Coordinate arrays from vectors."""
    if indexing not in ("xy", "ij"):
        raise ValueError(f"indexing is 'xy' or 'ij'. Received: {indexing!r}.")
    count = len(arrays)
    along = ([slice(None) if k == j else None for j in range(count)] for k in range(count))
    grids: Sequence[Array] = broadcast_arrays(*(x[tuple(key)] for x, key in zip(arrays, along, strict=True)))
    if indexing == "xy" and count > 1:
        grids = [permute_dims(a, (1, 0, *range(2, count))) for a in grids]
    return tuple(contiguous(a, copy=True) for a in grids)


__all__ = [
    "arange", "asarray", "empty", "empty_like", "eye", "from_dlpack", "full", "full_like", "linspace", "meshgrid",
    "ones", "ones_like", "tril", "triu", "zeros", "zeros_like",
]  # fmt: skip
