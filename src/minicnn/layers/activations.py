"""Activations by name, and what ends a layer: its bias and its activation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minicnn import ops
from minicnn.names import look_up
from minicnn.program.graph import Value

ActivationArgument = str | None | Callable[[Any], Any]


def _linear(x: Value) -> Value:
    return x


def _leaky_relu(x: Value) -> Value:
    y: Value = ops.leaky_relu(x, negative_slope=0.2)  # Keras: 0.2 by name, 0.3 as the layer LeakyReLU
    return y


ACTIVATIONS: dict[str, Callable[[Value], Value]] = {
    "linear": _linear,
    "relu": ops.relu,
    "relu6": ops.relu6,
    "leaky_relu": _leaky_relu,
    "elu": ops.elu,
    "gelu": ops.gelu,
    "silu": ops.silu,
    "swish": ops.silu,
    "sigmoid": ops.sigmoid,
    "tanh": ops.tanh,
    "softmax": ops.softmax,
    "log_softmax": ops.log_softmax,
}


def get_activation(given: ActivationArgument) -> Callable[[Any], Any]:
    """An activation by name (None is "linear"), or the function or layer given."""
    if given is None:
        return _linear
    if callable(given):
        return given
    return look_up("An activation", ACTIVATIONS, given, "a function of a Value")


def finish(y: Value, bias: Value | None, activation: ActivationArgument, *, axis: int) -> Value:
    """The activation of y plus one number for each index along the given axis."""
    if bias is not None:
        after = y.ndim - 1 - axis
        y = y + (ops.reshape(bias, shape=(bias.size, *(1,) * after)) if after else bias)
    result: Value = get_activation(activation)(y)
    return result
