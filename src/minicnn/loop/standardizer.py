"""Standardizer: inputs, labels and weights in the form that a model's Programs take, each checked once."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np

from minicnn.backends.base import Array, Backend
from minicnn.data.forms import HostArray, as_list, dtype_name, host, numeric
from minicnn.layers.options import Shape
from minicnn.loop.adapters import on_backend, one_row, same_length, spec_of, taken_over
from minicnn.loop.tracing import Feed, Run
from minicnn.losses import Loss
from minicnn.losses.base import extremes
from minicnn.metrics import Metric
from minicnn.states import beyond

BLOCK = 2**20  # elements that are looked at together


@dataclass
class Standardizer:
    """Brings inputs, labels and weights into the form that a model's Programs take.

    Attributes:
        backend: Where arrays go.
        dtype: Floating-point type of the model.
        inputs: Shape of one sample of each input; None for a length that is not known.
        outputs: Shape of one sample of each output.
        losses: Loss of each output; empty where only predictions are made.
        class_weight: Weight of each class number, or None.
        parts: Whether it is given parts of the data: then the weights of a part may all be zero.
        metrics: Metrics of each output, which check floating-point targets as losses do.
        declared: Element type that the model's author gave each input.
        free: Whether it is for a step of one's own, which takes labels or none, and those of no loss in any form. Then
            without `inputs` it takes inputs of any shape.
    """

    backend: Backend
    dtype: str
    inputs: Sequence[Shape]
    outputs: Sequence[Shape]
    losses: Sequence[Loss] = ()
    class_weight: Mapping[int, float] | None = None
    parts: bool = False
    metrics: Sequence[Sequence[Metric]] = ()
    declared: Sequence[str] = ()
    free: bool = False

    def __post_init__(self) -> None:
        self._table = None if self.class_weight is None else self._weight_table(self.class_weight)

    def checked(self, data: Any) -> list[Any]:
        """Input arrays wherever they are, one for each input of the model; only predictions may be of no samples.

        Raises:
            TypeError: If they do not hold numbers.
            ValueError: If number, shape or length are wrong.
        """
        shapes = self.inputs
        arrays = [numeric(a, "Inputs") for a in as_list(data, len(shapes))]
        if self.free and not shapes:
            shapes = [a.shape[1:] for a in arrays]
        if len(arrays) != len(shapes):
            raise ValueError(
                f"The model takes {len(shapes)} input array{'s' * (len(shapes) > 1)}. Received: {len(arrays)}. "
                "np.stack makes one array of a list of samples."
            )
        for array, shape in zip(arrays, shapes, strict=True):
            sample = tuple(array.shape[1:])
            if not array.shape or not _fits(sample, shape):
                remedy = "Reshape the data, e.g. x[..., None] adds a channel axis"
                if _fits(tuple(array.shape), shape):
                    remedy = "The first axis counts the samples: x[None] gives a single one that axis"
                elif len(shape) == 3 and _fits((*sample[1:], *sample[:1]), shape):
                    remedy = "Channels are the last axis: np.transpose(x, (0, 2, 3, 1)) moves them there"
                raise ValueError(
                    f"The model takes inputs of shape ({', '.join(map(str, ('N', *shape)))}). Received: "
                    f"{tuple(array.shape)}. {remedy}."
                )
            if 0 in sample:
                raise ValueError(
                    "A sample has at least one element along each axis. Received: inputs of shape "
                    f"{tuple(array.shape)}. Leave out such samples."
                )
        same_length("inputs", *arrays, least=1 if self.losses or self.free else 0)
        return arrays

    def _inputs(self, arrays: list[Any]) -> list[Array]:
        """Input arrays that were `checked`: uint8 stays, everything else becomes the model's floating-point type.

        Of no samples that are to be predicted there is one of zeros, which has the Program of a batch.
        """
        if not arrays[0].shape[0]:
            arrays = list(map(one_row, arrays))
        for array, declared in zip(arrays, self.declared, strict=False):
            if "int" in declared and "float" in dtype_name(array):
                self._check_whole(array, declared)
        for array in arrays if self.losses or self.free else ():
            if not self._finite(array):
                warnings.warn(
                    "Inputs are finite numbers, or what depends on them is NaN: the loss, then all weights. Received: "
                    f"NaN, or infinity as {self.dtype}, in inputs of shape {tuple(array.shape)}. Leave out such "
                    "samples, or replace the numbers, as by np.nan_to_num(x).",
                    stacklevel=2,
                )
        return [on_backend(a, self.backend, None if dtype_name(a) == "uint8" else self.dtype) for a in arrays]

    def _check_whole(self, array: Any, declared: str) -> None:
        """Raise a ValueError unless floating-point numbers are those that an integer input takes."""
        owned = self.backend.owns(array)
        if self._elsewhere(array):
            return
        rows = max(1, BLOCK // max(1, math.prod(array.shape[1:])))
        for start in range(0, int(array.shape[0]), rows):
            block = array[start : start + rows, ...]
            block = self.backend.to_numpy(block) if owned else host(block, self.backend)
            if not (block == np.rint(block)).all() and np.isfinite(block).all():  # of others _finite speaks
                raise ValueError(
                    f"An input that is declared as {declared} takes whole numbers, which the layers may scale. "
                    f"Received: {dtype_name(array)} with fractions, from {block.min():g} to {block.max():g}. Give the "
                    "numbers before they were scaled, or declare Input(..., dtype='float32') and scale no more."
                )

    def _elsewhere(self, array: Any) -> bool:
        """True if an array is a loader's and on a device, for which nobody waits."""
        return self.parts and self.backend.owns(array) and not isinstance(array, np.ndarray)

    def _finite(self, array: Any) -> bool:
        """True if all elements are finite in the model's type, as far as one can tell without waiting for a device."""
        owned = self.backend.owns(array)
        if "float" not in dtype_name(array) or self._elsewhere(array):
            return True
        most = float(np.finfo(self.dtype).max)
        if owned and not isinstance(array, np.ndarray):
            least, largest = extremes(array, self.backend)
            return -most <= least <= largest <= most
        on_host = host(array, self.backend)
        with np.errstate(all="ignore"):  # the sum of squares is one pass, but may be too large
            short = np.sqrt(np.vdot(on_host, on_host)) <= most
            return bool(short or (np.isfinite(on_host).all() and beyond(on_host, self.dtype) is None))

    def _labels(self, data: Any, samples: int) -> list[Array]:
        """Label arrays: int32 class numbers for sparse losses, floating point for the others."""
        arrays = as_list(data, len(self.outputs))
        if len(arrays) != len(self.losses):
            raise ValueError(f"The model takes labels for {len(self.losses)} outputs. Received: {len(arrays)}.")
        result = []
        measured = self.metrics or [()] * len(arrays)
        for labels, loss, metrics, shape in zip(arrays, self.losses, measured, self.outputs, strict=True):
            array = taken_over(numeric(labels, "Labels"), self.backend)
            same_length("inputs and labels", array, samples=samples)
            if loss.integer_labels:
                result.append(self._class_numbers(array, shape, loss.ignore_class))
                for metric in metrics:
                    metric.check_labels(result[-1], self.backend)
                continue
            sound = self._finite(array)
            array = on_backend(array, self.backend, self.dtype)
            if shape[-1:] == (1,) and array.ndim == len(shape):  # as Keras: one target for a single output
                array = self.backend.asarray(self.backend.xp.reshape(array, (*array.shape, 1)))
            loss.check_targets(array, self.backend)  # which says more, where it knows a domain
            if not sound:
                raise ValueError(
                    f"Targets are finite numbers. Received: NaN, or infinity as {self.dtype}, in targets of shape "
                    f"{tuple(array.shape)}. Leave out such samples."
                )
            for metric in () if loss.soft_labels else metrics:
                metric.check_targets(array, self.backend)
            result.append(array)
        return result

    def _free(self, data: Any, samples: int) -> list[Array]:
        """Label arrays of no loss: integers and bools as int32, floating-point numbers in the model's type."""
        arrays = [taken_over(numeric(a, "Labels"), self.backend) for a in as_list(data, len(self.outputs))]
        for array in arrays:
            same_length("inputs and labels", array, samples=samples)
        return [on_backend(a, self.backend, self.dtype if "float" in dtype_name(a) else "int32") for a in arrays]

    def _class_numbers(self, labels: Any, shape: Shape, ignored: int | None) -> Array:
        if len(labels.shape) == len(shape) + 1 and labels.shape[-1] == 1:  # a column of labels, as Keras allows
            labels = labels[..., 0]
        classes = shape[-1] or 0
        values = self.backend.to_numpy(labels) if self.backend.owns(labels) else host(labels, self.backend)
        if ignored is not None:
            values = values[values != ignored]
        if values.size and (values.dtype.kind not in "iub" or values.min() < 0 or values.max() >= classes):
            remedy = "Relabel the data, or give the last layer more units"
            if tuple(labels.shape[1:]) == shape:
                remedy = "One-hot labels take the loss 'categorical_crossentropy', or y.argmax(-1)"
            elif values.dtype.kind not in "iub":
                remedy += "; whole numbers take y.astype(int)"
            raise ValueError(
                f"Labels of a sparse loss are integers from 0 to {classes - 1}, one class for each output unit"
                f"{'' if ignored is None else f', or ignore_class, {ignored}'}. Received: {values.dtype} from "
                f"{values.min()} to {values.max()}. {remedy}."
            )
        return on_backend(labels, self.backend, "int32")

    def _weight_table(self, class_weight: Mapping[int, float]) -> HostArray:
        if len(self.outputs) > 1 or len(self.outputs[0]) != 1:
            raise ValueError(
                "class_weight is for a model with one output of one prediction a sample. Received: outputs of shape "
                f"{', '.join(map(str, self.outputs))}. Use sample_weight."
            )
        classes = max(self.outputs[0][0] or 0, 2)  # a single unit tells two classes apart
        table = np.ones(classes, self.dtype)
        entries = class_weight.items() if isinstance(class_weight, Mapping) else [(None, class_weight)]
        for label, weight in entries:
            known = isinstance(label, Real | np.bool_) and label in range(classes) and isinstance(weight, Real)
            if not known or not weight >= 0:
                raise ValueError(
                    f"class_weight maps class numbers from 0 to {classes - 1} to weights of at least 0. Received: "
                    f"{class_weight!r}."
                )
            table[int(label)] = weight
        return table

    def _weights(self, weight: Any, labels: Sequence[Array]) -> Array | None:
        """Sample weights times class weights, shape (N,) or (N, ...); None if there are neither."""
        result = None
        if weight is not None:
            weight = taken_over(numeric(weight, "Sample weights"), self.backend)
            result = on_backend(weight, self.backend, self.dtype)
            pairs = zip(labels, self.losses, strict=True) if self.losses else ()
            places = {tuple(y.shape if loss.integer_labels else y.shape[:-1]) for y, loss in pairs}
            known = sorted({tuple(labels[0].shape[:1]), *(places if len(places) == 1 else ())}, key=len)
            if tuple(result.shape) not in known:
                raise ValueError(
                    f"sample_weight is a number for each sample{', or for each prediction' * (len(known) - 1)}: shape "
                    f"{' or '.join(map(str, known))}. Received: {tuple(result.shape)}."
                )
        if self._table is not None:
            values = self.backend.to_numpy(labels[0])
            if values.ndim > 1:  # one-hot rows, or a single 0 or 1
                values = values.argmax(axis=1) if values.shape[1] > 1 else values[:, 0] > 0.5
            by_class = self.backend.asarray(self._table[values.astype(np.int64)])
            result = by_class if result is None else self.backend.asarray(result * by_class)
        if result is not None:
            self._check_weights(result)
        return result

    def _check_weights(self, weights: Array) -> None:
        least, most = extremes(weights, self.backend)
        if not 0 <= least <= most < math.inf or (most == 0 and not self.parts):
            raise ValueError(
                "Sample weights, times class weights where there are any, are finite numbers of at least 0, not all of "
                f"them 0. Received: from {least} to {most}. Leave out samples that are not to count."
            )

    def batch(self, x: Any, y: Any = None, weight: Any = None) -> Run:
        """One step on a batch as it was given."""
        return self.run(self.checked(x), y, weight)

    def run(self, x: list[Any], y: Any = None, weight: Any = None) -> Run:
        """One step on arrays whose inputs were `checked`."""
        xs = self._inputs([taken_over(a, self.backend) for a in x])
        samples = int(xs[0].shape[0])
        ys = self._labels(y, samples) if self.losses and (y is not None or not self.free) else []
        if self.free and not self.losses and y is not None:
            ys = self._free(y, samples)
        weights = self._weights(weight, ys) if ys else None
        specs = (tuple(spec_of(a) for a in xs), tuple(spec_of(a) for a in ys))
        feed = Feed(samples, *specs, weight=None if weights is None else tuple(weights.shape[1:]))
        arrays = dict(zip(feed.names, (*xs, *ys), strict=True))
        if weights is not None:
            arrays["sample_weight"] = weights
        return Run(feed, arrays)


def _fits(sample: tuple[int, ...], shape: Shape) -> bool:
    """True if a sample has a shape, of which lengths that are not known are None."""
    return len(sample) == len(shape) and all(n in (None, m) for n, m in zip(shape, sample, strict=True))
