"""Layers for inputs of any shape: Dense, Rescaling, Identity and Lambda."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Unpack

from minicnn import ops
from minicnn.initializers import Initializer, known_initializer
from minicnn.layers.activations import ActivationArgument, finish, known_activation
from minicnn.layers.arguments import number
from minicnn.layers.layer import Layer
from minicnn.layers.options import LayerOptions, LimitedOptions
from minicnn.ops.checks import positive


class Dense(Layer):
    """Fully connected layer: activation(inputs @ kernel + bias) along the last axis.

    Args:
        units: Number of outputs.
        activation: Name or function, applied last.
        use_bias: Whether a number is added for each output.
        kernel_initializer: First values of the kernel (inputs, units).
        bias_initializer: First values of the bias (units,).

    Input shape:
        (N, ..., inputs).

    Output shape:
        (N, ..., units).

    Raises:
        ValueError: If units is not a positive integer.

    Example:
        >>> Dense(10, activation="softmax")
        Dense(10, activation='softmax')
    """

    _limited = (("kernel", "kernel"), ("bias", "bias"))

    def __init__(
        self,
        units: int,
        activation: ActivationArgument = None,
        use_bias: bool = True,
        kernel_initializer: str | Initializer = "glorot_uniform",
        bias_initializer: str | Initializer = "zeros",
        **options: Unpack[LimitedOptions],
    ) -> None:
        super().__init__(**options)
        self.units = positive("units", units)
        self.activation = known_activation(activation)
        self.use_bias = use_bias
        self.kernel_initializer = known_initializer(kernel_initializer)
        self.bias_initializer = known_initializer(bias_initializer)

    def build(self, input_shape: Any) -> None:
        """Declare kernel (inputs, units) and bias (units,)."""
        if len(input_shape) < 2:
            raise ValueError(
                f"Dense takes inputs with a batch axis and a last axis of features. Received: shape {input_shape}."
            )
        self.kernel = self.add_weight("kernel", (input_shape[-1], self.units), self.kernel_initializer)
        self.bias = self.add_weight("bias", (self.units,), self.bias_initializer) if self.use_bias else None

    def call(self, inputs: Any) -> Any:
        """Multiply, add the bias, activate."""
        x = inputs
        if inputs.ndim > 2:  # (N, ..., K) -> (N * ..., K)
            x = ops.reshape(inputs, shape=(math.prod(inputs.shape[:-1]), inputs.shape[-1]))
        y = ops.matmul(x, self.kernel)
        if inputs.ndim > 2:
            y = ops.reshape(y, shape=(*inputs.shape[:-1], self.units))
        return finish(y, self.bias, self.activation, axis=y.ndim - 1)


class Rescaling(Layer):
    """inputs * scale + offset, in floating point: pixels to numbers around 1.

    Args:
        scale: Factor.
        offset: Added after the factor.

    Input shape:
        Any; integers are converted.

    Example:
        >>> Rescaling(1 / 255)
        Rescaling(0.00392156862745098)
    """

    def __init__(self, scale: float, offset: float = 0.0, **options: Unpack[LayerOptions]) -> None:
        super().__init__(**options)
        self.scale = number("scale", scale)
        self.offset = number("offset", offset)

    def call(self, inputs: Any) -> Any:
        x = inputs if "float" in inputs.dtype else ops.as_float(inputs, self._tracing().dtype)
        y = x * self.scale
        return y + self.offset if self.offset else y


class Identity(Layer):
    """Its input, as it is."""

    def call(self, inputs: Any) -> Any:
        return inputs


class Lambda(Layer):
    """A function of a Value as a layer; a model with one cannot be saved, because files hold data only.

    Args:
        function: Composes primitives from `minicnn.ops`; takes the input, or a list of inputs.
        output_shape: Taken as scripts for Keras give it, and without effect: shapes follow from tracing.
        arguments: Further arguments of the function, by name.

    Output shape:
        That of the function's result, whose first axis is the batch.

    Raises:
        TypeError: If the function cannot be called; when a model with it is saved.

    Example:
        >>> Lambda(lambda x: x * x)
        Lambda(<lambda>)
    """

    def __init__(
        self,
        function: Callable[..., Any],
        output_shape: Any = None,
        *,
        arguments: Mapping[str, Any] | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__(**options)
        if not callable(function):
            raise TypeError(
                f"Lambda takes a function of a Value. Received: {function!r}. Write a Layer for anything else."
            )
        self.function, self.output_shape = function, output_shape
        self.arguments = None if arguments is None else dict(arguments)

    def call(self, inputs: Any) -> Any:
        return self.function(inputs, **(self.arguments or {}))
