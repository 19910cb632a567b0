"""Features made ready within the model: normalised by statistics of the data, or numbers of classes as rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Unpack

import numpy as np

from minicnn import ops
from minicnn.data.forms import Batches, as_data, host, numeric
from minicnn.initializers import Initializer, known_initializer
from minicnn.layers.arguments import axis_of
from minicnn.layers.layer import Layer
from minicnn.layers.options import LayerOptions
from minicnn.ops.checks import positive

BLOCK = 2**18  # elements that are summed together


class Normalization(Layer):
    """(inputs - mean) / sqrt(variance), with the mean and variance of the data: see `adapt`.

    Where the variance is 0, as that of a feature which is always the same, the deviation is 1, as in scikit-learn.

    Args:
        axis: The axis, or several, that have a mean and a variance for each index; one for all numbers if None.
        mean: Means, if they are known; then there are no weights.
        variance: Variances, likewise.
        invert: Whether to compute inputs * sqrt(variance) + mean instead.

    Raises:
        ValueError: If only one of mean and variance is given.

    Example:
        >>> layer = Normalization()
        >>> layer.adapt([[1.0, 2.0], [3.0, 6.0]])
    """

    def __init__(
        self, axis: int | Sequence[int] | None = -1, mean: Any = None, variance: Any = None, invert: bool = False,
        **options: Unpack[LayerOptions],
    ) -> None:  # fmt: skip
        super().__init__(**options)
        if (mean is None) != (variance is None):
            raise ValueError(
                f"mean and variance are given both, or neither. Received: mean={mean!r}, variance={variance!r}."
            )
        self.axis = axis if axis is None or isinstance(axis, int) else tuple(axis)
        self.mean = None if mean is None else np.asarray(mean, np.float64).tolist()
        self.variance = None if variance is None else np.asarray(variance, np.float64).tolist()
        self.invert = invert

    def _axes(self, ndim: int) -> tuple[int, ...]:
        axes = () if self.axis is None else (self.axis,) if isinstance(self.axis, int) else self.axis
        return tuple(axis_of("Normalization", axis, ndim) for axis in axes)

    def build(self, input_shape: Any) -> None:
        """Declare mean and variance, unless they were given."""
        shape = [input_shape[axis] for axis in self._axes(len(input_shape))]
        self._adapted = (
            () if self.mean is not None
            else (self.add_weight("mean", shape, "zeros", trainable=False),
                  self.add_weight("variance", shape, "ones", trainable=False))
        )  # fmt: skip

    def adapt(self, data: Any) -> None:
        """Take the mean and the variance of data, in place of those that there are.

        Args:
            data: Samples as the layer is to get them, (N, ...); or a loader of them, or of batches (x, y), as `fit`
                takes it, which comes to an end.

        Raises:
            ValueError: If mean and variance were given to the constructor, or there is no sample or one that is not
                finite.
        """
        if self.mean is not None:
            raise ValueError(
                "adapt finds mean and variance. Received: a Normalization that was given them. Leave them out."
            )
        data = as_data(data)
        count, first, mean, squares = 0, np.zeros(()), np.zeros(()), np.zeros(())
        for batch in data.loader if isinstance(data, Batches) else [(data,)]:
            samples = np.atleast_1d(host(numeric(batch[0] if isinstance(batch, tuple | list) else batch, "Samples")))
            self._build_once((None, *samples.shape[1:]))
            axes = self._axes(samples.ndim)
            rest = tuple(axis for axis in range(samples.ndim) if axis not in axes)
            rows = max(1, BLOCK // max(1, math.prod(samples.shape[1:])))
            for start in range(0, len(samples), rows):
                block = samples[start : start + rows].astype(np.float64)
                if not np.isfinite(block).all():
                    raise ValueError(
                        "adapt takes finite numbers. Received: NaN or infinity in samples of shape "
                        f"{samples.shape}. Leave out such samples, or replace the numbers, as by np.nan_to_num(x)."
                    )
                # Differences from one sample, which are 0 where a feature is constant; blocks are put together by the
                # formula of T. F. Chan et al. (1979), which loses no digits.
                if not count:
                    first = block[tuple(slice(None if axis in axes else 1) for axis in range(block.ndim))].copy()
                block -= first
                size = block.size // max(1, first.size)
                center = block.mean(axis=rest, keepdims=True)
                squares = squares + np.square(block - center).sum(axis=rest, keepdims=True)
                squares += np.square(center - mean) * (count * size / (count + size))
                mean = mean + (center - mean) * (size / (count + size))
                count += size
        if not count:
            raise ValueError("adapt takes at least one sample. Received: none. Look at what selected the data.")
        for weight, statistic in zip(self._adapted, (first + mean, squares / count), strict=True):
            weight.cell.put(statistic.reshape(weight.shape))

    def call(self, inputs: Any) -> Any:
        axes = self._axes(inputs.ndim)
        shape = tuple(n if axis in axes else 1 for axis, n in enumerate(inputs.shape))
        statistics: Any = self._adapted
        if self.mean is not None:
            statistics = (inputs.program.constant(v, inputs.dtype) for v in (self.mean, self.variance))
        mean, variance = (ops.reshape(v, shape=shape if v.size > 1 else (1,) * inputs.ndim) for v in statistics)
        deviation = ops.where(ops.greater(variance, 0.0), ops.maximum(ops.sqrt(variance), 1e-7), 1.0)
        return inputs * deviation + mean if self.invert else (inputs - mean) / deviation


class CategoryEncoding(Layer):
    """Class numbers as rows of zeros and ones, or of counts.

    Args:
        num_tokens: Number of classes.
        output_mode: "one_hot" gives a row for each number, "multi_hot" one for each sample with 1 for every class that
            it has, "count" how often it has it.

    Input shape:
        (N, K), whole numbers from 0 to num_tokens - 1.

    Output shape:
        (N, num_tokens); for "one_hot" (N, K, num_tokens) if K is above 1.
    """

    def __init__(self, num_tokens: int, output_mode: str = "multi_hot", **options: Unpack[LayerOptions]) -> None:
        super().__init__(**options)
        self.num_tokens = positive("num_tokens", num_tokens)
        if output_mode not in ("one_hot", "multi_hot", "count"):
            raise ValueError(
                f"output_mode is 'one_hot', 'multi_hot' or 'count'. Received: output_mode={output_mode!r}."
            )
        self.output_mode = output_mode

    def call(self, inputs: Any) -> Any:
        numbers = ops.cast(inputs, dtype="int32")
        rows = ops.one_hot(numbers, classes=self.num_tokens, dtype=inputs.dtype)
        if self.output_mode == "one_hot":
            last = inputs.shape[-1] == 1 and inputs.ndim > 1
            return ops.reshape(rows, shape=(*inputs.shape[:-1], self.num_tokens)) if last else rows
        counts = ops.sum(rows, axes=-2) if inputs.ndim > 1 else rows
        return ops.minimum(counts, 1.0) if self.output_mode == "multi_hot" else counts


class Embedding(Layer):
    """The row of a table for each whole number: a gather, whose gradient adds up what goes to one row.

    Args:
        input_dim: Number of rows.
        output_dim: Length of a row.
        embeddings_initializer: First values of the table (input_dim, output_dim).

    Input shape:
        (N, ...), numbers from 0 to input_dim - 1; others are an error only where the array library checks.

    Output shape:
        (N, ..., output_dim).

    Example:
        >>> from minicnn.layers import Input
        >>> Embedding(10, 4)(Input((3,))).shape
        (None, 3, 4)
    """

    _limited = (("embeddings", "embeddings"),)

    def __init__(
        self, input_dim: int, output_dim: int, embeddings_initializer: str | Initializer = "uniform", **options: Any
    ) -> None:
        super().__init__(**options)
        self.input_dim, self.output_dim = positive("input_dim", input_dim), positive("output_dim", output_dim)
        self.embeddings_initializer = known_initializer(embeddings_initializer)

    def build(self, input_shape: Any) -> None:
        """Declare the table."""
        self.embeddings = self.add_weight("embeddings", (self.input_dim, self.output_dim), self.embeddings_initializer)

    def call(self, inputs: Any) -> Any:
        """Gather."""
        rows = ops.reshape(ops.cast(inputs, dtype="int32"), shape=(inputs.size,))
        return ops.reshape(ops.take(self.embeddings, rows), shape=(*inputs.shape, self.output_dim))
