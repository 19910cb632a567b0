"""Activations as layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

from minicnn import ops
from minicnn.initializers import Initializer, known_initializer
from minicnn.layers.activations import ActivationArgument, get_activation, known_activation
from minicnn.layers.arguments import axis_of, number
from minicnn.layers.layer import Layer
from minicnn.layers.options import LayerOptions, LimitedOptions


class Activation(Layer):
    """An activation function as a layer.

    Args:
        activation: Name, or function of a Value. Names: linear, relu, relu6, leaky_relu (slope 0.2), elu,
            selu, celu, gelu (by the error function), silu or swish, hard_silu or hard_swish, mish, sigmoid,
            hard_sigmoid, log_sigmoid, tanh, softplus, softsign, exponential, softmax and log_softmax (last axis).

    Raises:
        ValueError: If the name is unknown.

    Example:
        >>> Activation("relu")
        Activation('relu')
    """

    def __init__(self, activation: ActivationArgument, **options: Unpack[LayerOptions]) -> None:
        super().__init__(**options)
        self.activation = known_activation(activation)

    def call(self, inputs: Any) -> Any:
        return get_activation(self.activation)(inputs)


class ReLU(Layer):
    """Rectified linear unit.

    y = min(x, max_value) where x > threshold, negative_slope * (x - threshold) elsewhere.

    Args:
        max_value: Largest result; no limit if None.
        negative_slope: Slope below the threshold.
        threshold: Where the slope changes.

    Raises:
        ValueError: If an argument is negative.

    Example:
        >>> ReLU(max_value=6.0)
        ReLU(max_value=6.0)
    """

    def __init__(
        self,
        max_value: float | None = None,
        negative_slope: float = 0.0,
        threshold: float = 0.0,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__(**options)
        self.max_value = None if max_value is None else number("max_value", max_value, least=0)
        self.negative_slope = number("negative_slope", negative_slope, least=0)
        self.threshold = number("threshold", threshold, least=0)

    def call(self, inputs: Any) -> Any:
        """Choose the primitive that fits, else compose."""
        if self.threshold:
            y = ops.where(ops.greater(inputs, self.threshold), inputs, (inputs - self.threshold) * self.negative_slope)
        elif self.negative_slope:
            y = ops.leaky_relu(inputs, negative_slope=self.negative_slope)
        elif self.max_value == 6.0:
            return ops.relu6(inputs)
        else:
            y = ops.relu(inputs)
        return y if self.max_value is None else ops.minimum(y, self.max_value)


class LeakyReLU(Layer):
    """Leaky rectified linear unit: x where x > 0, negative_slope * x elsewhere.

    Args:
        negative_slope: Slope for negative inputs.

    Raises:
        ValueError: If the slope is negative.
    """

    def __init__(self, negative_slope: float = 0.3, **options: Unpack[LayerOptions]) -> None:
        super().__init__(**options)
        self.negative_slope = number("negative_slope", negative_slope, least=0)

    def call(self, inputs: Any) -> Any:
        return ops.leaky_relu(inputs, negative_slope=self.negative_slope)


class PReLU(Layer):
    """Parametric rectified linear unit: x where x > 0, alpha * x elsewhere, alpha being learned (arXiv:1502.01852).

    Args:
        alpha_initializer: First values of alpha.
        shared_axes: Axes of the input along which one alpha serves all, such as (1, 2) for one a channel.

    Raises:
        ValueError: If an axis is none of a sample's.
    """

    _limited = (("alpha", "alpha"),)

    def __init__(
        self,
        alpha_initializer: str | Initializer = "zeros",
        shared_axes: Sequence[int] | None = None,
        **options: Unpack[LimitedOptions],
    ) -> None:
        super().__init__(**options)
        self.alpha_initializer = known_initializer(alpha_initializer)
        self.shared_axes = None if shared_axes is None else tuple(shared_axes)

    def build(self, input_shape: Any) -> None:
        """Declare alpha, of a sample's shape with 1 along shared axes."""
        shared = [axis_of("PReLU", axis, len(input_shape)) for axis in self.shared_axes or ()]
        shape = [1 if axis in shared else n for axis, n in enumerate(input_shape) if axis]
        self.alpha = self.add_weight("alpha", shape, self.alpha_initializer)

    def call(self, inputs: Any) -> Any:
        return ops.relu(inputs) - self.alpha * ops.relu(-inputs)


class ELU(Layer):
    """Exponential linear unit: x where x > 0, alpha * (exp(x) - 1) elsewhere (arXiv:1511.07289).

    Args:
        alpha: Minus the limit for large negative inputs.
    """

    def __init__(self, alpha: float = 1.0, **options: Unpack[LayerOptions]) -> None:
        super().__init__(**options)
        self.alpha = number("alpha", alpha)

    def call(self, inputs: Any) -> Any:
        return ops.elu(inputs, alpha=self.alpha)


class Softmax(Layer):
    """exp(x) / sum(exp(x)) along one axis.

    Args:
        axis: The axis, not the batch. Several, which Keras takes as a list, are joined with Reshape first.

    Raises:
        ValueError: If the axis is not an integer, or none of a sample's.
    """

    def __init__(self, axis: int = -1, **options: Unpack[LayerOptions]) -> None:
        super().__init__(**options)
        if isinstance(axis, bool) or not isinstance(axis, int):
            raise ValueError(
                f"Softmax takes one axis, an integer. Received: axis={axis!r}. Join several axes with Reshape first."
            )
        self.axis = axis

    def call(self, inputs: Any) -> Any:
        return ops.softmax(inputs, axis=axis_of("Softmax", self.axis, inputs.ndim))
