"""Normalisation by mean and variance: batch, layer and group normalisation; and local response normalisation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Unpack

import numpy as np

from minicnn import ops
from minicnn.initializers import Initializer, known_initializer
from minicnn.layers.arguments import axis_of, number
from minicnn.layers.image import ImageLayer
from minicnn.layers.layer import Layer
from minicnn.layers.options import LayerOptions, LimitedOptions
from minicnn.ops.checks import positive
from minicnn.ops.normalization import unit_of
from minicnn.program.graph import Value


class Normalizing(Layer):
    """Base class of normalisations: gain gamma and offset beta, which all may have.

    Args:
        epsilon: Added to the variance.
        center: Whether beta is added.
        scale: Whether gamma is a factor.
        beta_initializer: First values of beta (C,).
        gamma_initializer: First values of gamma (C,).
    """

    _limited = (("gamma", "gamma"), ("beta", "beta"))

    def __init__(
        self,
        epsilon: float,
        center: bool,
        scale: bool,
        beta_initializer: str | Initializer,
        gamma_initializer: str | Initializer,
        **options: Unpack[LimitedOptions],
    ) -> None:
        super().__init__(**options)
        self.epsilon = number("epsilon", epsilon, least=0)
        self.center = center
        self.scale = scale
        self.beta_initializer = known_initializer(beta_initializer)
        self.gamma_initializer = known_initializer(gamma_initializer)

    def _declare(self, shape: Sequence[int]) -> None:
        self.gamma = self.add_weight("gamma", shape, self.gamma_initializer) if self.scale else None
        self.beta = self.add_weight("beta", shape, self.beta_initializer) if self.center else None

    def _normalize(self, x: Value, axes: tuple[int, ...], shape: tuple[int, ...]) -> tuple[Value, Value, Value]:
        """Normalised x, mean and variance in squares of `unit_of`; gamma and beta in the given shape, else 1 and 0."""

        def weight(value: Value | None, otherwise: float) -> Any:
            if value is None:
                return np.full(shape, otherwise, dtype=x.dtype)
            return value if value.shape == shape else ops.reshape(value, shape=shape)

        y, mean, variance = ops.normalize(
            x, weight(self.gamma, 1.0), weight(self.beta, 0.0), axes=axes, epsilon=self.epsilon,
            unit=unit_of(self.epsilon, self._tracing().images),
        )  # fmt: skip
        return y, mean, variance


class BatchNormalization(Normalizing):
    """Each channel normalised over the batch (arXiv:1502.03167).

    In training y = gamma * (x - mean) / sqrt(variance + epsilon) + beta with the batch's own mean and
    (biased) variance, and moving = moving * momentum + batch * (1 - momentum) for both. In inference the
    moving statistics take their place, and so they do in training where the layer is frozen (`trainable=False`), as in
    Keras. In PyTorch momentum is one minus this one, epsilon 1e-5, and the
    moving variance is unbiased.

    Args:
        axis: The channels' axis; 1 for "channels_first".
        momentum: Share of the moving statistics that stays at each step.
        moving_mean_initializer: First values of moving_mean (C,).
        moving_variance_initializer: First values of moving_variance (C,).
        synchronized: Whether a batch that a distribution or `accumulate` cuts into shards is normalised as one. If
            False each shard has its own mean and variance, which no rank waits for, and the moving statistics take the
            mean over shards. In Keras False is the default.

    Input shape:
        (N, ...), with C channels along `axis`.

    Example:
        >>> BatchNormalization(momentum=0.9)
        BatchNormalization(momentum=0.9)
    """

    def __init__(
        self,
        axis: int = -1,
        momentum: float = 0.99,
        epsilon: float = 1e-3,
        center: bool = True,
        scale: bool = True,
        beta_initializer: str | Initializer = "zeros",
        gamma_initializer: str | Initializer = "ones",
        moving_mean_initializer: str | Initializer = "zeros",
        moving_variance_initializer: str | Initializer = "ones",
        *,
        synchronized: bool = True,
        **options: Unpack[LimitedOptions],
    ) -> None:
        super().__init__(epsilon, center, scale, beta_initializer, gamma_initializer, **options)
        self.axis = axis
        self.synchronized = synchronized
        self.momentum = number("momentum", momentum, least=0)
        if self.momentum > 1:
            raise ValueError(f"momentum is from 0 to 1. Received: momentum={momentum}.")
        self.moving_mean_initializer = known_initializer(moving_mean_initializer)
        self.moving_variance_initializer = known_initializer(moving_variance_initializer)

    def build(self, input_shape: Any) -> None:
        """Declare gamma, beta, moving_mean and moving_variance, each (C,)."""
        shape = (input_shape[axis_of("BatchNormalization", self.axis, len(input_shape))],)
        self._declare(shape)
        self.moving_mean = self.add_weight("moving_mean", shape, self.moving_mean_initializer, trainable=False)
        self.moving_variance = self.add_weight(
            "moving_variance", shape, self.moving_variance_initializer, trainable=False
        )

    def call(self, inputs: Any, *, training: bool = False) -> Any:
        """Normalise by the batch's statistics in training unless frozen, by the moving ones otherwise."""
        axis = axis_of("BatchNormalization", self.axis, inputs.ndim)
        channels = inputs.shape[axis]
        shape = (channels, *(1,) * (inputs.ndim - 1 - axis))
        if not (training and self.trainable):
            return self._infer(inputs, shape)
        axes = tuple(a for a in range(inputs.ndim) if a != axis)
        y, mean, variance = self._normalize(inputs, axes, shape)
        if not self.synchronized:
            self._tracing().by_shard.add(id(mean.node))
        unit = unit_of(self.epsilon, self._tracing().images)
        for name, moving, batch in (
            ("moving_mean", self.moving_mean, mean),
            ("moving_variance", self.moving_variance, variance * unit**2),
        ):
            batch = ops.reshape(batch, shape=(channels,))
            self.assign(name, moving * self.momentum + batch * (1 - self.momentum))
        return y

    def _infer(self, x: Value, shape: tuple[int, ...]) -> Value:
        """One multiply and one add: x * factor + shift, both computed for each channel first."""
        factor = 1.0 / ops.sqrt(self.moving_variance + self.epsilon)
        if self.gamma is not None:
            factor = self.gamma * factor
        shift = -(self.moving_mean * factor)
        if self.beta is not None:
            shift = self.beta + shift
        if len(shape) > 1:
            factor, shift = ops.reshape(factor, shape=shape), ops.reshape(shift, shape=shape)
        return x * factor + shift


class LayerNormalization(Normalizing):
    """Each sample normalised over one or more of its axes (arXiv:1607.06450).

    Args:
        axis: The axis, or several; gamma and beta have these axes too.
        beta_initializer: First values of beta.
        gamma_initializer: First values of gamma.

    Raises:
        ValueError: If an axis is the batch or outside the input.
    """

    def __init__(
        self,
        axis: int | Sequence[int] = -1,
        epsilon: float = 1e-3,
        center: bool = True,
        scale: bool = True,
        beta_initializer: str | Initializer = "zeros",
        gamma_initializer: str | Initializer = "ones",
        **options: Unpack[LimitedOptions],
    ) -> None:
        super().__init__(epsilon, center, scale, beta_initializer, gamma_initializer, **options)
        self.axis = axis if isinstance(axis, int) else tuple(axis)

    def _axes(self, ndim: int) -> tuple[int, ...]:
        numbers = (self.axis,) if isinstance(self.axis, int) else self.axis
        axes = tuple(sorted({axis_of("LayerNormalization", a, ndim) for a in numbers}))
        if len(axes) != len(numbers) or not axes:
            raise ValueError(f"LayerNormalization takes distinct axes, at least one. Received: axis={self.axis}.")
        return axes

    def build(self, input_shape: Any) -> None:
        """Declare gamma and beta, with the lengths of the normalised axes."""
        self._declare([input_shape[a] for a in self._axes(len(input_shape))])

    def call(self, inputs: Any) -> Any:
        axes = self._axes(inputs.ndim)
        shape = tuple(inputs.shape[a] if a in axes else 1 for a in range(axes[0], inputs.ndim))
        return self._normalize(inputs, axes, shape)[0]


class GroupNormalization(Normalizing):
    """Groups of channels of each sample, with all their positions, normalised together (arXiv:1803.08494).

    Args:
        groups: Number of groups, which divides the channels; -1 makes each channel a group (instance
            normalisation, arXiv:1607.08022).
        axis: The channels' axis; 1 for "channels_first".

    Input shape:
        (N, ...), with C channels along `axis`.

    Raises:
        ValueError: If groups does not divide the channels.
    """

    def __init__(
        self,
        groups: int = 32,
        axis: int = -1,
        epsilon: float = 1e-3,
        center: bool = True,
        scale: bool = True,
        beta_initializer: str | Initializer = "zeros",
        gamma_initializer: str | Initializer = "ones",
        **options: Unpack[LimitedOptions],
    ) -> None:
        super().__init__(epsilon, center, scale, beta_initializer, gamma_initializer, **options)
        if isinstance(groups, bool) or not isinstance(groups, int) or (groups < 1 and groups != -1):
            raise ValueError(
                f"groups is an integer of at least 1, or -1 for one a channel. Received: groups={groups!r}."
            )
        self.groups = groups
        self.axis = axis

    def build(self, input_shape: Any) -> None:
        """Declare gamma and beta, each (C,)."""
        channels = input_shape[axis_of("GroupNormalization", self.axis, len(input_shape))]
        if self.groups != -1 and channels % self.groups:
            raise ValueError(
                f"groups divides the channels. Received: groups={self.groups}, {channels} channels. "
                "Choose a divisor, or -1 for one group a channel."
            )
        self._declare((channels,))

    def call(self, inputs: Any) -> Any:
        """Split the channels into groups, normalise each, join them again."""
        shape = inputs.shape
        axis = axis_of("GroupNormalization", self.axis, len(shape))
        groups = shape[axis] if self.groups == -1 else self.groups
        members, after = shape[axis] // groups, math.prod(shape[axis + 1 :])
        x = ops.reshape(inputs, shape=(shape[0], math.prod(shape[1:axis]), groups, members, after))
        y, _, _ = self._normalize(x, (1, 3, 4), (groups, members, 1))
        return ops.reshape(y, shape=shape)


class LocalResponseNormalization(ImageLayer):
    """Each element divided by the activity of its neighbour channels.

    y = x / (k + alpha / size * sum of x ** 2 over the window of channels) ** beta, where the window of
    channel c is the channels from c - size // 2 to c + (size - 1) // 2 that exist (A. Krizhevsky et al.,
    NIPS 2012, section 3.3). Keras has no such layer; arguments, defaults and result are those of
    torch.nn.LocalResponseNorm.

    Args:
        size: Channels in a window.
        alpha: Weight of the mean square.
        beta: Exponent.
        k: Added to the weighted mean square.
    """

    def __init__(
        self,
        size: int = 5,
        alpha: float = 1e-4,
        beta: float = 0.75,
        k: float = 1.0,
        data_format: str = "channels_last",
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__(data_format, **options)
        self.size = positive("size", size)
        self.alpha = number("alpha", alpha, least=0)
        self.beta = number("beta", beta)
        self.k = number("k", k, least=0)

    def call(self, inputs: Any) -> Any:
        """Average the squares along the channels, pooling images with H * W rows or columns; divide."""
        axes = self._axes(inputs.shape)
        n, positions = inputs.shape[0], inputs.shape[axes.h] * inputs.shape[axes.w]
        channels = inputs.shape[axes.c]
        last = axes.c == 3
        neighbours = (self.size // 2, (self.size - 1) // 2)
        squares = ops.reshape(
            ops.square(inputs), shape=(n, positions, channels, 1) if last else (n, channels, positions, 1)
        )
        means = ops.average_pool2d(
            squares,
            kernel=(1, self.size) if last else (self.size, 1),
            strides=(1, 1),
            padding=((0, 0), neighbours) if last else (neighbours, (0, 0)),
            count_padding=True,
        )
        scale = ops.reshape(means, shape=inputs.shape) * self.alpha + self.k
        return inputs * ops.power(scale, -self.beta)
