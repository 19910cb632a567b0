"""Features made ready within the model: normalised by statistics of the data, or class numbers as rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

import numpy as np

from minicnn import ops
from minicnn.layers.arguments import axis_of
from minicnn.layers.layer import Layer, Options
from minicnn.ops.checks import positive


class Normalization(Layer):
    """(inputs - mean) / sqrt(variance), with the mean and variance of the data: see `adapt`.

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
        **options: Unpack[Options],
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
        given = () if self.axis is None else (self.axis,) if isinstance(self.axis, int) else self.axis
        return tuple(axis_of("Normalization", axis, ndim) for axis in given)

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
            data: Samples as the layer is to get them, (N, ...).

        Raises:
            ValueError: If mean and variance were given to the constructor.
        """
        if self.mean is not None:
            raise ValueError(
                "adapt finds mean and variance. Received: a Normalization that was given them. Leave them out."
            )
        samples = np.asarray(data, np.float64)
        self.build_once((None, *samples.shape[1:]))
        rest = tuple(axis for axis in range(samples.ndim) if axis not in self._axes(samples.ndim))
        for weight, statistic in zip(self._adapted, (samples.mean(axis=rest), samples.var(axis=rest)), strict=True):
            weight.cell.put(np.asarray(statistic))

    def call(self, inputs: Any) -> Any:
        axes = self._axes(inputs.ndim)
        shape = tuple(n if axis in axes else 1 for axis, n in enumerate(inputs.shape))
        found: Any = self._adapted
        if self.mean is not None:
            found = (inputs.program.constant(v, inputs.dtype) for v in (self.mean, self.variance))
        mean, variance = (ops.reshape(v, shape=shape if v.size > 1 else (1,) * inputs.ndim) for v in found)
        deviation = ops.maximum(ops.sqrt(variance), 1e-7)
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

    def __init__(self, num_tokens: int, output_mode: str = "multi_hot", **options: Unpack[Options]) -> None:
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
