"""NumPy behind a namespace that takes the Array API at its word: every index is a copy, and no array can be changed."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import array_api_compat.numpy as compat
import numpy as np

from minicnn.backends.base import Backend


class CopyingArray:
    """An array that shares memory with no other and is never written to."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, data: Any) -> None:
        self._data = np.array(data)
        self._data.flags.writeable = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the axes."""
        return self._data.shape

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return self._data.ndim

    @property
    def size(self) -> int:
        """Number of elements."""
        return self._data.size

    @property
    def dtype(self) -> Any:
        """Type of the elements."""
        return self._data.dtype

    @property
    def device(self) -> str:
        """The only device."""
        return "cpu"

    def __array_namespace__(self, *, api_version: str | None = None) -> CopyingNamespace:
        return xp

    def __getitem__(self, key: Any) -> CopyingArray:
        return CopyingArray(self._data[_plain(key)])

    def __bool__(self) -> bool:
        return bool(self._data)

    def __int__(self) -> int:
        return int(self._data)

    def __float__(self) -> float:
        return float(self._data)

    def __repr__(self) -> str:
        return f"CopyingArray({self._data!r})"


def _operator(function: Callable[..., Any], *, reflected: bool = False) -> Callable[..., Any]:
    def method(*given: Any) -> Any:
        if not all(isinstance(g, CopyingArray | bool | int | float) for g in given):
            return NotImplemented
        return CopyingArray(function(*(_plain(g) for g in (given[::-1] if reflected else given))))

    return method


for _name in (
    "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and_", "or_", "xor", "lshift", "rshift",
):  # fmt: skip
    _function = getattr(operator, _name)
    setattr(CopyingArray, f"__{_name.rstrip('_')}__", _operator(_function))
    setattr(CopyingArray, f"__r{_name.rstrip('_')}__", _operator(_function, reflected=True))
for _name in ("lt", "le", "gt", "ge", "eq", "ne", "neg", "pos", "abs", "invert"):
    setattr(CopyingArray, f"__{_name}__", _operator(getattr(operator, _name)))


class CopyingNamespace:
    """A namespace with the names of another, on copying arrays."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if isinstance(found, type | np.dtype | float | int) or found is None:
            return found
        if not callable(found):
            return CopyingNamespace(found)  # an extension

        def function(*args: Any, **kwargs: Any) -> Any:
            return _wrapped(found(*map(_plain, args), **{k: _plain(v) for k, v in kwargs.items()}))

        return function


def _plain(value: Any) -> Any:
    if isinstance(value, CopyingArray):
        return value._data
    return type(value)(_plain(v) for v in value) if type(value) in (list, tuple) else value


def _wrapped(value: Any) -> Any:
    if type(value) in (list, tuple):
        return type(value)(_wrapped(v) for v in value)
    return CopyingArray(value) if isinstance(value, np.ndarray | np.generic) else value


xp = CopyingNamespace(compat)


class CopyingBackend(Backend):
    """The references on such arrays."""

    name = "copying"
    xp = xp

    def asarray(self, data: Any, dtype: str | None = None) -> CopyingArray:
        """See `Backend.asarray`."""
        return CopyingArray(np.asarray(_plain(data), dtype=dtype))

    def to_numpy(self, array: Any) -> np.ndarray[Any, Any]:
        """See `Backend.to_numpy`."""
        return np.array(array._data)

    def owns(self, array: Any) -> bool:
        """See `Backend.owns`."""
        return isinstance(array, CopyingArray)
