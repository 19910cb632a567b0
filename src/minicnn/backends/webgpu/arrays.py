"""Arrays on an adapter, and the namespace in which references run on the host."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from minicnn.backends._gpu.host_namespace import host
from minicnn.backends._gpu.slabs import Memory
from minicnn.program.spec import Shaped

DTYPES = ("float32", "float16", "int32", "uint32", "int16", "uint16", "int8", "uint8", "bool")


def check_dtype(dtype: Any) -> None:
    """Refuse a type that WGSL does not have.

    Raises:
        TypeError: If it is one.
    """
    if np.dtype(dtype).name not in DTYPES:
        raise TypeError(
            f"Arrays of webgpu have one of the types {', '.join(DTYPES)}: WGSL has no others. Received: "
            f"{np.dtype(dtype).name}. Convert it, such as by array.astype('float32'), or use another backend."
        )


class Array(Shaped, NDArrayOperatorsMixin):
    """A contiguous array in the memory of an adapter. In expressions it is a NumPy array with its elements.

    Attributes:
        memory: The memory.
        start: Its first byte there.
        shape: Shape.
        dtype: NumPy's type of the elements.
        on_device: True: whoever takes data leaves the array where it is.
    """

    on_device: ClassVar[bool] = True
    __slots__ = ("__weakref__", "dtype", "memory", "shape", "start")

    def __init__(self, memory: Memory, start: int, shape: tuple[int, ...], dtype: Any) -> None:
        self.memory, self.start, self.shape, self.dtype = memory, start, tuple(shape), np.dtype(dtype)

    @property
    def device(self) -> str:
        """Name of the adapter, such as "adapter:0"."""
        return self.memory.runtime.name

    def __len__(self) -> int:
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        host = self.memory.runtime.read(self)
        return host if dtype is None else host.astype(dtype, copy=False)

    def __array_ufunc__(self, function: Any, method: str, *inputs: Any, **options: Any) -> Any:
        return getattr(function, method)(*map(host, inputs), **options)

    def __float__(self) -> float:
        return float(np.asarray(self))

    def __int__(self) -> int:
        return int(np.asarray(self))

    def __getitem__(self, key: Any) -> Any:
        """A view of whole rows from one on; a NumPy array of anything else."""
        first = key[0] if isinstance(key, tuple) and len(key) == 2 and key[1] is ... else key
        if first is ...:
            return self
        row = self.nbytes // max(1, len(self))
        if isinstance(first, slice) and first.step in (None, 1):
            begin, end, _ = first.indices(len(self))
            return Array(self.memory, self.start + begin * row, (max(0, end - begin), *self.shape[1:]), self.dtype)
        if isinstance(first, int | np.integer) and -len(self) <= first < len(self):
            return Array(self.memory, self.start + int(first) % len(self) * row, self.shape[1:], self.dtype)
        return np.asarray(self)[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        target = self[key]
        if not isinstance(target, Array):
            raise IndexError(f"Rows of an array of webgpu are written from one on, all together. Received: {key!r}.")
        runtime = self.memory.runtime
        if isinstance(value, Array) and value.dtype == target.dtype and _repeats(value.shape, target.shape):
            runtime.copy(value, target)
        else:
            runtime.send(np.ascontiguousarray(np.broadcast_to(host(value), target.shape), target.dtype), target)

    def __repr__(self) -> str:
        return f"{np.asarray(self)!r} on {self.device}"


def first_byte(array: Array) -> int:
    """The first byte of an array in its slab."""
    return int(array.memory.first + array.start)


def _repeats(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    """Whether all elements of one array, again and again, are what its broadcasting to a shape has."""
    while shape[:1] == (1,):
        shape = shape[1:]
    return shape == target[len(target) - len(shape) :]
