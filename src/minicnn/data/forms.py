"""Forms in which users give data: arrays of any library, nested lists, or loaders of batches."""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import array_api_compat
import numpy as np

from minicnn.program.graph import ITEMSIZE

HostArray = np.ndarray[Any, Any]


def as_list(data: Any, count: int = 1) -> list[Any]:
    """Several arrays as a list; one array as a list of one.

    Args:
        data: An array, a nested list of numbers, or a list or tuple of arrays.
        count: How many arrays are wanted; with more than one, nested lists may stand for them as well.
    """
    if isinstance(data, Mapping):
        raise TypeError(f"Several arrays are a list in the model's order. Received: a mapping with keys {list(data)}.")
    if isinstance(data, list | tuple) and data and (count > 1 or all(getattr(a, "shape", ()) for a in data)):
        return list(data)
    return [data]


@dataclass(frozen=True, eq=False)
class Batches:
    """Iterable that gives batches itself, as opposed to arrays: see `as_data`.

    Attributes:
        loader: The iterable that the user gave.
    """

    loader: Any


def as_data(x: Any) -> Any:
    """Batches around what gives batches itself; an array or a list of arrays as it is.

    A list is a loader if it holds batches, which are tuples of arrays.
    """
    if isinstance(x, Batches | np.ndarray):
        return x
    if isinstance(x, list):
        distinct = {id(batch): batch for batch in x}.values()  # one batch may be there many times
        loads = bool(x) and all(isinstance(batch, tuple) and _holds_arrays(batch) for batch in distinct)
    else:
        loads = isinstance(x, Iterable) and not hasattr(x, "shape") and not isinstance(x, tuple | Mapping | str | bytes)
    return Batches(x) if loads else x


def shuffles(loader: Any) -> bool:
    """True if a loader is known to give samples in another order than that of the data."""
    sampler = getattr(loader, "sampler", None)  # of PyTorch
    return getattr(loader, "shuffle", False) is True or type(sampler).__name__ == "RandomSampler"


def _holds_arrays(batch: tuple[Any, ...]) -> bool:
    parts = [part for entry in batch for part in (entry if isinstance(entry, list | tuple) else [entry])]
    return any(hasattr(part, "shape") for part in parts)


def dtype_name(array: Any) -> str:
    """Name of an array's dtype in any library: "float32", "uint8" ..."""
    dtype = array.dtype
    return _numpy_name(dtype) if isinstance(dtype, np.dtype) else str(getattr(dtype, "name", dtype)).rpartition(".")[2]


@cache
def _numpy_name(dtype: np.dtype[Any]) -> str:
    return str(dtype.name)  # which NumPy puts together each time


def numeric(data: Any, what: str) -> Any:
    """An array of numbers as it is, lists and numbers as a NumPy array.

    Args:
        data: Array of any library, or nested lists.
        what: What it is, for the error message.

    Raises:
        TypeError: If it does not hold numbers, or nested lists have no common shape.
    """
    array = data
    if isinstance(data, np.ma.MaskedArray):
        raise TypeError(
            f"{what} are arrays without a mask, which would be ignored. Received: a masked array. Call filled(value), "
            "and give sample_weight 0 where a sample is not to count."
        )
    taken = hasattr(data, "__dlpack__") or _on_device(data) or _stays(data)
    if not (hasattr(data, "dtype") and taken):  # lists, tables, h5py ...
        try:
            array = np.asarray(data)
        except ValueError as error:
            raise TypeError(
                f"{what} are an array, or nested lists of numbers of one shape. Received: {error}."
            ) from error
    if dtype_name(array) not in ITEMSIZE:
        raise TypeError(
            f"{what} are integers or floating-point numbers. Received: {type(data).__name__} with dtype "
            f"{dtype_name(array)}. Convert it, e.g. to float32."
        )
    return array


def host(array: Any, user: object = "NumPy") -> HostArray:
    """An array of any library as a NumPy array, if it is in the host's memory.

    Args:
        array: Array; one of NumPy is returned as it is.
        user: For whom, for the error message; a backend says its name there.

    Raises:
        TypeError: If it is on a device, or of a library that hands nothing over.
    """
    if type(array) is np.ndarray and array.dtype.kind in "biufc":  # most often, and for each batch
        return array
    known = isinstance(array, np.ndarray | np.generic) or not (hasattr(array, "__dlpack__") or _on_device(array))
    try:
        array = exchangeable(array)
        exchanged = np.asarray(array) if known else np.from_dlpack(array)
    except Exception as error:
        raise TypeError(
            f"Arrays are on the model's device, or in the host's memory. Received: {type(array).__module__}."
            f"{type(array).__name__} for {user} ({error}). Use the backend of that library, or convert the array to "
            "NumPy yourself."
        ) from error
    return exchanged


def exchangeable(array: Any, unknown: Sequence[str] = ("bfloat16",)) -> Any:
    """An array as another library takes it: without a tape, and in float32 where it is of a type unknown there."""
    if getattr(array, "requires_grad", False):  # a tensor of PyTorch, whose tape nobody needs here
        array = array.detach()
    if hasattr(array, "dtype") and dtype_name(array) in unknown:
        xp = array_api_compat.array_namespace(array)
        array = xp.astype(array, xp.float32)
    return array


def on_gpu(array: Any) -> bool:
    """True if an array of any library is in the memory of a GPU of NVIDIA."""
    if isinstance(array, np.ndarray) or not hasattr(array, "__dlpack_device__"):
        return _on_device(array)
    try:
        return int(array.__dlpack_device__()[0]) in (2, 13)  # what CUDA allocated, and what it moves as needed
    except (BufferError, ValueError):  # spread over devices, or on one that DLPack does not name
        return False


def mapped(array: Any) -> bool:
    """True if an array's elements are in a file that is mapped into memory, as those of np.memmap."""
    while isinstance(array, np.ndarray):
        array = array.base
    return isinstance(array.obj if isinstance(array, memoryview) else array, mmap.mmap)


def _on_device(array: Any) -> bool:
    return hasattr(array, "__cuda_array_interface__")


def _stays(array: Any) -> bool:
    """True for an array on a device that NumPy could read, which would copy all of it to the host."""
    return getattr(type(array), "on_device", False) is True
