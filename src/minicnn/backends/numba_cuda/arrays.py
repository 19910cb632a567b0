"""The array: a shape and strides over the memory of a device."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from minicnn.backends._gpu.errors import explained
from minicnn.backends._gpu.runtime import ALIGNMENT, HostArray
from minicnn.backends.numba_cuda.device import THREADS, Device, Memory, Pointer, get_device, kernel
from minicnn.backends.numba_cuda.dtypes import DType
from minicnn.backends.numba_cuda.dtypes import dtype as checked_dtype
from minicnn.backends.numba_cuda.shim import SIMULATED
from minicnn.kernels.strides import row_major
from minicnn.program.spec import Shaped

Shape = tuple[int, ...]

# What operators and methods of an Array call: functions that make Arrays themselves, so `namespace` enters them.
OPERATORS: dict[str, Callable[..., Any]] = {}


class Array(Shaped):
    """An array of the Array API standard on a GPU.

    Attributes:
        shape: Lengths of its axes.
        dtype: NumPy's data type object.
        device: The device.
        start: Place of its first element in its memory, in elements.
        steps: Distance of neighbours along each axis, in elements.
        memory: The memory, which views share.
    """

    __slots__ = ("__weakref__", "device", "dtype", "memory", "shape", "start", "steps")
    __array_priority__ = 1000

    def __init__(self, memory: Memory, shape: Shape, steps: Shape, start: int, dtype: DType) -> None:
        self.memory, self.shape, self.steps, self.start, self.dtype = memory, shape, steps, start, dtype
        self.device: Device = memory.device

    # What it is ---------------------------------------------------------------------------------

    @property
    def strides(self) -> Shape:
        """Bytes between neighbours along each axis."""
        return tuple(s * self.itemsize for s in self.steps)

    @property
    def contiguous(self) -> bool:
        """True if the elements lie one after the other in row-major order."""
        wanted = row_major(self.shape)
        return self.size == 0 or all(n == 1 or s == w for n, s, w in zip(self.shape, self.steps, wanted, strict=True))

    @property
    def aligned(self) -> bool:
        """True if the array begins where kernels may load several elements at once."""
        return self.address % ALIGNMENT == 0

    @property
    def address(self) -> int:
        """Address of the array's first element."""
        return self.memory.address + self.start * self.itemsize

    @property
    def pointer(self) -> Pointer:
        """Pointer to the element that comes first in memory, which is not the array's first if it runs backwards."""
        back = sum((n - 1) * s for n, s in zip(self.shape, self.steps, strict=True) if s < 0)
        return Pointer(self.memory, (self.start + back) * self.itemsize, self.dtype)

    @property
    def T(self) -> Array:  # noqa: N802
        """The transposed matrix."""
        if self.ndim != 2:
            raise ValueError(f"T is for matrices. Received: an array of shape {self.shape}. Use permute_dims.")
        return self.view(self.shape[::-1], self.steps[::-1])

    @property
    def mT(self) -> Array:  # noqa: N802
        """The array with its last two axes exchanged."""
        if self.ndim < 2:
            raise ValueError(f"mT is for stacks of matrices. Received: an array of shape {self.shape}. Add an axis.")
        shape, steps = ((*t[:-2], t[-1], t[-2]) for t in (self.shape, self.steps))
        return self.view(shape, steps)

    def __repr__(self) -> str:
        return f"Array({np.array2string(self.numpy(), separator=', ')}, dtype={self.dtype.name}, device={self.device})"

    # Views and copies ---------------------------------------------------------------------------

    def view(self, shape: Shape, steps: Shape, offset: int = 0) -> Array:
        """Other axes over the same memory, `offset` elements further."""
        return Array(self.memory, shape, steps, self.start + offset, self.dtype)

    def numpy(self) -> HostArray:
        """A copy on the host."""
        source = OPERATORS["contiguous"](self)
        with explained():
            raw = source.memory.read(source.start * self.itemsize, self.nbytes)
        return raw.view(self.dtype).reshape(self.shape)

    def item(self) -> bool | int | float:
        """The only element as a Python number."""
        if self.size != 1:
            raise TypeError(
                f"A Python number comes from one element. Received: an array of shape {self.shape}. Index it."
            )
        number: bool | int | float = self.numpy().item()
        return number

    def to_device(self, device: Any, /, *, stream: Any = None) -> Array:
        """The array on a device, given as one or as "cuda:1"; itself if it is there already."""
        target = as_device(device)
        return self if target is self.device else from_numpy(self.numpy(), target)

    # Exchange -----------------------------------------------------------------------------------

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        if api_version not in (None, "2021.12", "2022.12", "2023.12", "2024.12", "2025.12"):
            raise ValueError(f"The namespace is that of the Array API standard 2025.12. Received: {api_version!r}.")
        return OPERATORS["namespace"]()

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape, "typestr": self.dtype.str, "data": (self.address if self.size else 0, False),
            # Stream 1, the default one: whoever takes the array must wait for what is in it.
            "strides": None if self.contiguous else self.strides, "version": 3, "stream": 1,
        }  # fmt: skip

    def __dlpack_device__(self) -> tuple[int, int]:
        """Kind 2 is CUDA, kind 1 the host, where the simulator keeps its memory."""
        return (1, 0) if SIMULATED else (2, self.device.number)

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[Any, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        if dl_device not in (None, self.__dlpack_device__()):
            # The host is the only other place to which a copy is promised.
            if dl_device != (1, 0) or copy is False:
                raise BufferError(
                    "An array is exported where it is, or copied to the host. "
                    f"Received: dl_device={dl_device}, copy={copy}. Use to_device."
                )
            return self.numpy().__dlpack__()
        source = OPERATORS["contiguous"](self, copy=True) if copy else self
        if SIMULATED:
            raw = np.asarray(source.memory.bytes.view(np.uint8)._ary)
            strided = np.ndarray(self.shape, self.dtype, raw, source.start * self.itemsize, source.strides)
            return strided.__dlpack__()
        from cuda.core.utils import StridedMemoryView

        self.device.synchronize()
        with explained():
            view = StridedMemoryView.from_cuda_array_interface(source, stream_ptr=-1)
            return view.__dlpack__(stream=stream, max_version=max_version)

    # Numbers ------------------------------------------------------------------------------------

    def __bool__(self) -> bool:
        return bool(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __index__(self) -> int:
        return operator.index(self.item())  # type: ignore[arg-type]  # refuses floats

    def __complex__(self) -> complex:
        return complex(self.item())

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() is for arrays with axes. Received: an array of shape ().")
        return self.shape[0]

    def __iter__(self) -> Iterator[Array]:
        return (self[k] for k in range(len(self)))

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError(
            # NumPy would otherwise copy element by element, or silently wait for the device.
            "Arrays do not move to the host unasked. Received: an array of numba_cuda. Use backend.to_numpy(array)."
        )

    # Indexing -----------------------------------------------------------------------------------

    def __getitem__(self, key: Any) -> Array:
        part: Array = OPERATORS["get"](self, key)
        return part

    def __setitem__(self, key: Any, value: Any) -> None:
        OPERATORS["put"](self, key, value)


def empty(shape: Shape, dtype: DType, device: Device) -> Array:
    """An array whose elements are whatever the memory holds."""
    with explained():
        memory = Memory(device, math.prod(shape) * dtype.itemsize)
    return Array(memory, tuple(shape), row_major(shape), 0, dtype)


def launch(text: str, numbers: Sequence[int], arrays: Sequence[Array], items: int = 0) -> None:
    """Launch a kernel of numbers and arrays, with a thread for each of so many items: the first number by default."""
    device, signature = arrays[0].device, (*["int64"] * len(numbers), *(f"{a.dtype.name}*" for a in arrays))
    # Kernels loop over their items, whatever the number of blocks.
    blocks = min(device.most_blocks, -(-(items or numbers[0]) // THREADS))
    device.launch(kernel(text, signature), blocks, THREADS, (*numbers, *(a.pointer for a in arrays)))


def from_numpy(data: HostArray, device: Device) -> Array:
    """A copy of an array of the host."""
    array = empty(data.shape, checked_dtype(data.dtype), device)
    with explained():
        array.memory.write(0, np.ascontiguousarray(data))
    return array


def as_device(device: Any) -> Device:
    """A device from itself, its name or None.

    Raises:
        ValueError: If there is no such device.
    """
    if isinstance(device, Device):
        return device
    name, _, number = str(device if device is not None else "cuda").partition(":")
    if name != "cuda" or (number and not number.isdigit()):
        raise ValueError(f"Arrays are on cuda, cuda:0, cuda:1 ... Received: {device!r}.")
    return get_device(int(number or 0))


def from_interface(data: Any) -> Array:
    """An array over the memory of another library's array on a GPU; work on it comes after what fills it."""
    device = get_device(int(data.__dlpack_device__()[1]) if hasattr(data, "__dlpack_device__") else 0)
    from cuda.core.utils import StridedMemoryView

    with explained(), device.active():
        # By DLPack, or else by the CUDA array interface: the stream waits for that of the other library.
        view = StridedMemoryView.from_any_interface(data, stream_ptr=int(device.stream))
    kind, shape = checked_dtype(view.dtype), tuple(view.shape)
    memory = Memory.at(device, int(view.ptr), math.prod(shape) * kind.itemsize, view)
    return Array(memory, shape, row_major(shape) if view.strides is None else tuple(view.strides), 0, kind)


# Operators ------------------------------------------------------------------------------------------------------

_BINARY = {
    "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "divide", "floordiv": "floor_divide",
    "mod": "remainder", "pow": "pow", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor",
    "lshift": "bitwise_left_shift", "rshift": "bitwise_right_shift", "matmul": "matmul",
}  # fmt: skip
_COMPARISONS = {
    "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal", "eq": "equal", "ne": "not_equal",
}  # fmt: skip
_UNARY = {"neg": "negative", "pos": "positive", "abs": "abs", "invert": "bitwise_invert"}


def _operator(name: str, kind: str) -> Any:
    def method(self: Array, *others: Any) -> Any:
        if not all(isinstance(o, Array | bool | int | float) for o in others):
            return NotImplemented
        # Python asks the right operand when the left one, a number, does not know how.
        operands = (*others, self) if kind == "reflected" else (self, *others)
        result = OPERATORS[name](*operands)
        if kind != "in place":
            return result
        if result.shape != self.shape or result.dtype != self.dtype:
            raise ValueError(
                f"An array changed in place keeps its shape and type. Received: {result.dtype}{list(result.shape)} for "
                f"{self.dtype}{list(self.shape)}. Use x = x {name} y."
            )
        # Written back through the view, so that whoever shares the memory sees it.
        self[...] = result
        return self

    return method


for _name, _full in _BINARY.items():
    setattr(Array, f"__{_name}__", _operator(_full, "plain"))
    setattr(Array, f"__r{_name}__", _operator(_full, "reflected"))
    setattr(Array, f"__i{_name}__", _operator(_full, "in place"))
for _name, _full in {**_COMPARISONS, **_UNARY}.items():
    setattr(Array, f"__{_name}__", _operator(_full, "plain"))
Array.__hash__ = None  # type: ignore[assignment]  # equality is element by element
