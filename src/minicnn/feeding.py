"""Data on its way into a model: standard forms, checks, splits, and where batches come from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from minicnn.backends.base import Array, Backend
from minicnn.data.order import batch_indices, epoch_order
from minicnn.losses import Loss
from minicnn.program.graph import Spec
from minicnn.steps import Feed, input_names

Batch = tuple[Feed, dict[str, Array]]


def as_list(data: Any) -> list[Any]:
    """Several inputs as a list; one array as a list of one."""
    if isinstance(data, tuple) or (isinstance(data, list) and data and hasattr(data[0], "shape")):
        return list(data)
    if isinstance(data, Mapping):
        message = f"Several inputs are given as a list of arrays in the model's order. Received: a mapping with keys {list(data)}."
        raise TypeError(message)
    return [data]


def on_backend(array: Any, backend: Backend, dtype: str | None = None) -> Array:
    """An array on the backend: its own as it is, a host array copied once.

    Raises:
        TypeError: If the array is on another device or of no known kind.
    """
    if backend.owns(array):
        return (
            backend.asarray(array, dtype) if dtype and dtype_name(array) != dtype else backend.asarray(array)
        )
    return backend.asarray(host(array, str(backend)), dtype)


def host(array: Any, user: str = "NumPy") -> np.ndarray[Any, Any]:
    """An array of any library as a NumPy array, if it is in the host's memory."""
    if isinstance(array, np.ndarray | list | tuple | int | float):
        return np.asarray(array)
    try:
        return np.from_dlpack(array)
    except Exception as error:
        message = (
            f"Arrays are on the model's device, or in the host's memory. Received: {type(array).__module__}."
            f"{type(array).__name__} for {user}. Use the backend of that library, or convert the array to NumPy yourself."
        )
        raise TypeError(message) from error


def dtype_name(array: Any) -> str:
    """Name of an array's dtype in any library: "float32", "uint8" ..."""
    return str(getattr(array.dtype, "name", array.dtype)).rpartition(".")[2]


def spec_of(array: Array) -> Spec:
    """Shape and dtype of an array of any library."""
    return Spec(tuple(int(n) for n in array.shape), dtype_name(array))


@dataclass
class Standardizer:
    """Brings inputs, labels and weights into the form that a model's Programs take.

    Attributes:
        backend: Where arrays go.
        dtype: Floating-point type of the model.
        shapes: Shape of one sample of each input.
        losses: Loss of each output; empty where only predictions are made.
        classes: Length of the last axis of each output.
    """

    backend: Backend
    dtype: str
    shapes: Sequence[tuple[int, ...]]
    losses: Sequence[Loss]
    classes: Sequence[int]

    def inputs(self, x: Any) -> list[Array]:
        """Input arrays: uint8 stays, everything else becomes the model's floating-point type."""
        arrays = as_list(x)
        if len(arrays) != len(self.shapes):
            message = f"The model takes {len(self.shapes)} input arrays. Received: {len(arrays)}."
            raise ValueError(message)
        result = []
        for array, shape in zip(arrays, self.shapes, strict=True):
            array = array if hasattr(array, "shape") else np.asarray(array)
            if tuple(array.shape[1:]) != shape or not array.shape:
                message = (
                    f"The model takes inputs of shape (N, {', '.join(map(str, shape))}). Received: {tuple(array.shape)}. "
                    "Reshape the data, e.g. x[..., None] adds a channel axis."
                )
                raise ValueError(message)
            result.append(
                on_backend(array, self.backend, None if dtype_name(array) == "uint8" else self.dtype)
            )
        _same_length("inputs", result)
        return result

    def labels(self, y: Any, samples: int) -> list[Array]:
        """Label arrays: int32 class numbers for sparse losses, floating point for the others."""
        arrays = as_list(y)
        if len(arrays) != len(self.losses):
            message = f"The model takes labels for {len(self.losses)} outputs. Received: {len(arrays)}."
            raise ValueError(message)
        result = []
        for array, loss, classes in zip(arrays, self.losses, self.classes, strict=True):
            array = array if hasattr(array, "shape") else np.asarray(array)
            if loss.integer_labels:
                array = self._class_numbers(array, classes)
            result.append(on_backend(array, self.backend, "int32" if loss.integer_labels else self.dtype))
        _same_length("inputs and labels", result, samples)
        return result

    def _class_numbers(self, labels: Any, classes: int) -> Any:
        if len(labels.shape) == 2 and labels.shape[1] == 1:  # a column of labels, as Keras allows
            labels = labels[:, 0]
        values = (
            self.backend.to_numpy(labels) if self.backend.owns(labels) else host(labels, str(self.backend))
        )
        if values.size and (values.min() < 0 or values.max() >= classes or values.dtype.kind not in "iub"):
            message = (
                f"Labels of a sparse loss are integers from 0 to {classes - 1}, one class for each output unit. Received: "
                f"{values.dtype} from {values.min()} to {values.max()}. Relabel the data, or give the last layer more units."
            )
            raise ValueError(message)
        return labels

    def weights(self, weight: Any, samples: int) -> Array:
        """Sample weights, shape (N,)."""
        array = on_backend(
            weight if hasattr(weight, "shape") else np.asarray(weight), self.backend, self.dtype
        )
        if tuple(array.shape) != (samples,):
            message = f"sample_weight has one number for each sample: shape ({samples},). Received: {tuple(array.shape)}."
            raise ValueError(message)
        return array

    def batch(self, x: Any, y: Any = None, weight: Any = None) -> Batch:
        """One batch as a feed and its arrays by name."""
        xs = self.inputs(x)
        samples = xs[0].shape[0]
        ys = [] if y is None else self.labels(y, samples)
        named = dict(zip(input_names("x", len(xs)), xs, strict=True))
        named |= dict(zip(input_names("y", len(ys)), ys, strict=True))
        if weight is not None:
            named["sample_weight"] = self.weights(weight, samples)
        specs = (tuple(spec_of(a) for a in xs), tuple(spec_of(a) for a in ys))
        return Feed(samples, *specs, weighted=weight is not None), named


def _same_length(what: str, arrays: Sequence[Array], samples: int | None = None) -> None:
    lengths = {int(a.shape[0]) for a in arrays} | ({samples} if samples is not None else set())
    if len(lengths) > 1:
        message = f"All {what} have the same number of samples. Received: {sorted(lengths)}."
        raise ValueError(message)
    if 0 in lengths:
        message = f"There is at least one sample in {what}. Received: none."
        raise ValueError(message)


class ArraySource:
    """Batches picked by index from whole arrays on the device."""

    def __init__(
        self, standardizer: Standardizer, x: Any, y: Any, weight: Any, *, batch_size: int, last_batch: str
    ) -> None:
        self._whole, self._arrays = standardizer.batch(x, y, weight)
        self._backend = standardizer.backend
        self.samples = self._whole.batch
        self.batch_size, self.last_batch = batch_size, last_batch

    def __len__(self) -> int:
        full, rest = divmod(self.samples, self.batch_size)
        return full + (rest > 0 and self.last_batch != "drop")

    def epoch(self, *, shuffle: bool, seed: int, epoch: int, skip: int = 0) -> Iterator[Batch]:
        """Batches of one epoch, the first `skip` left out."""
        order = epoch_order(self.samples, shuffle=shuffle, seed=seed, epoch=epoch)
        for i, index in enumerate(batch_indices(order, self.batch_size, self.last_batch)):
            if i >= skip:
                feed = Feed(len(index), self._whole.x, self._whole.y, self._whole.weighted, gathered=True)
                yield feed, {**self._arrays, "index": self._backend.asarray(index, "int32")}


class LoaderSource:
    """Batches as a loader gives them: an iterable of (x, y) or (x, y, sample_weight)."""

    def __init__(self, standardizer: Standardizer, loader: Any) -> None:
        self._standardizer, self._loader = standardizer, loader

    def __len__(self) -> int:
        return len(self._loader)

    def epoch(self, *, shuffle: bool, seed: int, epoch: int, skip: int = 0) -> Iterator[Batch]:
        """Batches of one epoch, the first `skip` left out; the loader itself decides on their order."""
        if hasattr(self._loader, "set_epoch"):
            self._loader.set_epoch(epoch)
        for i, batch in enumerate(self._loader):
            if not isinstance(batch, tuple | list) or len(batch) not in (2, 3):
                message = f"A loader gives (x, y) or (x, y, sample_weight). Received: {type(batch).__name__}."
                raise ValueError(message)
            if i >= skip:
                yield self._standardizer.batch(*batch)


Source = ArraySource | LoaderSource


def is_loader(x: Any) -> bool:
    """Whether x gives batches itself, rather than being an array or a list of arrays."""
    return hasattr(x, "__iter__") and not hasattr(x, "shape") and not isinstance(x, list | tuple | Mapping)


def split(arrays: Sequence[Any], fraction: float) -> tuple[list[Any], list[Any]]:
    """Arrays cut into a first part and a last part that is `fraction` of the samples, as Keras does."""
    if not 0 < fraction < 1:
        message = f"validation_split is a share of the samples between 0 and 1. Received: {fraction}."
        raise ValueError(message)
    samples = next(len(a) for a in arrays if a is not None)
    at = int(samples * (1 - fraction))
    if at in (0, samples):
        message = f"validation_split leaves samples for training and validation. Received: {fraction} of {samples} samples."
        raise ValueError(message)
    return [None if a is None else a[:at] for a in arrays], [None if a is None else a[at:] for a in arrays]


def weigh_classes(y: Any, class_weight: Mapping[int, float], sample_weight: Any) -> np.ndarray[Any, Any]:
    """Sample weights that follow from class weights, times those given."""
    labels = host(y)
    if labels.ndim == 2 and labels.shape[1] > 1:
        labels = labels.argmax(axis=1)
    labels = labels.reshape(-1).astype(np.int64)
    table = np.ones(int(labels.max(initial=0)) + 1)
    for label, weight in class_weight.items():
        if label < 0 or weight < 0:
            message = (
                f"class_weight maps class numbers to weights of at least 0. Received: {label}: {weight}."
            )
            raise ValueError(message)
        if label < len(table):
            table[label] = weight
    weights: np.ndarray[Any, Any] = table[labels]
    return weights if sample_weight is None else weights * host(sample_weight)
