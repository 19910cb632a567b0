"""Arrays on their way to a model: which library they are of, their number, and their copies on a backend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from minicnn.backends.base import Array, Backend
from minicnn.data.forms import Batches, as_list, dtype_name, exchangeable, host, numeric, on_gpu
from minicnn.program.graph import Spec


def by_place(what: str, arrays: Mapping[str, Any], names: Sequence[str]) -> list[Any]:
    """Arrays by name as a list in the model's order.

    Raises:
        ValueError: If the names are not those of the model.
    """
    if set(arrays) != set(names):
        raise ValueError(
            f"Given by name, {what} have the model's names: {', '.join(repr(n) if n else 'none' for n in names)}. "
            f"Received: {', '.join(map(repr, arrays))}. Give them in the model's order, or name its layers."
        )
    return [arrays[name] for name in names]


def samples_of(data: Any) -> list[Any]:
    """Arrays by which one can tell the library that data are of: the data, or the first batch of a loader.

    A PyTorch DataLoader stands for itself: it gives tensors, and its workers are better not started for that. Of what
    can be iterated over only once nothing is taken.
    """
    if not isinstance(data, Batches):
        return as_list(data)
    loader = data.loader
    if any(c.__module__.partition(".")[0] == "torch" for c in type(loader).__mro__):
        import torch

        return [torch.empty(0)]
    if not hasattr(loader, "__len__") or iter(loader) is iter(loader):
        return []
    first = next(iter(loader), None)
    return [a for part in as_list(first) for a in as_list(part)]


def spec_of(array: Array) -> Spec:
    """Shape and dtype of an array of any library."""
    return Spec(tuple(int(n) for n in array.shape), dtype_name(array))


def taken_over(array: Any, backend: Backend) -> Any:
    """An array on a GPU as one of the backend's over the same memory, if it computes on GPUs; any other as it is."""
    if backend.owns(array) or not on_gpu(array):
        return array
    return backend.over(exchangeable(array, ("bfloat16", "float16")))  # numba_cuda has neither


def on_backend(array: Any, backend: Backend, dtype: str | None = None) -> Array:
    """An array on the backend: its own as it is, a host array copied once.

    Raises:
        TypeError: If the array is on another device or of no known kind.
        ValueError: If it is of the backend's library, but on another device.
    """
    if type(array) is np.ndarray and array.dtype.isnative and dtype in (None, dtype_name(array)):
        return backend.asarray(host(array, backend))
    with np.errstate(over="ignore"):  # numbers beyond the type become infinite: what that means, their user says
        if backend.owns(array) and not isinstance(array, np.ndarray):
            return backend.asarray(array, dtype if dtype != dtype_name(array) else None)
        on_host = host(array, backend)
        return backend.asarray(on_host.astype(on_host.dtype.newbyteorder("="), copy=False), dtype)


def one_row(arrays: Any) -> Any:
    """Arrays with one row of zeros in place of none."""
    if isinstance(arrays, tuple | list):
        return type(arrays)(map(one_row, arrays))
    dtype = dtype_name(arrays)
    return np.zeros((1, *arrays.shape[1:]), "float32" if dtype == "bfloat16" else dtype)


def same_length(what: str, *arrays: Any, samples: int | None = None, least: int = 1) -> int:
    """Number of samples, which all arrays have in common.

    Raises:
        ValueError: If they have not, or there are fewer than `least`.
    """
    lengths = [int(a.shape[0]) if a.shape else None for a in arrays] + ([] if samples is None else [samples])
    if len(set(lengths)) > 1 or lengths[0] is None:
        counts = ", ".join("a single number" if n is None else str(n) for n in lengths)
        raise ValueError(f"All {what} have the same number of samples. Received: {counts}.")
    if lengths[0] < least:
        shapes = ", ".join(str(tuple(a.shape)) for a in arrays)
        raise ValueError(
            f"There is at least one sample in {what}. Received: none, in arrays of shape {shapes}. Look at what "
            "selected the data."
        )
    return lengths[0]


def split_off(
    x: Any, y: Any, weight: Any, fraction: float, inputs: int, outputs: int
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """(x, y, weight) of a first part and of a last part that is `fraction` of the samples, as Keras does.

    Args:
        x: Inputs.
        y: Labels.
        weight: Sample weights or None.
        fraction: Share of the samples between 0 and 1.
        inputs: Number of inputs of the model.
        outputs: Number of its outputs.

    Raises:
        ValueError: If a part would be empty, or the arrays differ in length.
    """
    if not 0 < fraction < 1:
        raise ValueError(f"validation_split is a share of the samples between 0 and 1. Received: {fraction}.")
    xs = [numeric(a, "Inputs") for a in as_list(x, inputs)]
    ys = [numeric(a, "Labels") for a in as_list(y, outputs)]
    ws = [] if weight is None else [numeric(weight, "Sample weights")]
    samples = same_length("inputs, labels and weights", *xs, *ys, *ws)
    at = int(samples * (1 - fraction) + 1e-9)  # 1 - 0.9 is a little below 0.1
    if at in (0, samples):
        raise ValueError(
            f"validation_split leaves samples for training and validation. Received: {fraction} of {samples} samples."
        )

    def part(rows: slice) -> tuple[Any, ...]:
        cut = [[a[rows, ...] for a in arrays] for arrays in (xs, ys, ws)]
        return cut[0], cut[1], cut[2][0] if ws else None

    return part(slice(0, at)), part(slice(at, samples))
