"""Activations by name, and what ends a layer: its bias and its activation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from minicnn import ops
from minicnn.configured import FUNCTIONS
from minicnn.names import look_up, stood_for
from minicnn.program.graph import Value

ActivationName = Literal[
    "linear", "relu", "relu6", "leaky_relu", "elu", "gelu", "silu", "swish", "sigmoid", "tanh", "selu", "celu", "mish",
    "softplus", "softsign", "hard_sigmoid", "hard_silu", "hard_swish", "log_sigmoid", "exponential", "softmax",
    "log_softmax",
]  # fmt: skip
ActivationArgument = ActivationName | str | None | Callable[[Any], Any]  # str: a name that is computed


def _linear(x: Value) -> Value:
    return x


def _leaky_relu(x: Value) -> Value:
    return ops.leaky_relu(x, negative_slope=0.2)  # Keras: 0.2 by name, 0.3 as the layer LeakyReLU


def _selu(x: Value) -> Value:
    """Scaled elu that keeps mean 0 and variance 1 (arXiv:1706.02515, equation 14)."""
    return ops.elu(x, alpha=1.6732632423543772) * 1.0507009873554805


def _log_sigmoid(x: Value) -> Value:
    return -ops.softplus(-x)


def _softsign(x: Value) -> Value:
    x = ops.maximum(ops.minimum(x, 1e30), -1e30)  # an infinite quotient has no value
    return x / (ops.abs(x) + 1.0)


def _hard_sigmoid(x: Value) -> Value:
    """Piecewise linear sigmoid (arXiv:1905.02244)."""
    return ops.relu6(x + 3.0) * (1 / 6)


def _hard_silu(x: Value) -> Value:
    return ops.maximum(x, -3.0) * _hard_sigmoid(x)  # a factor that is finite where the other is 0


def _mish(x: Value) -> Value:
    """X tanh(softplus(x)) (arXiv:1908.08681)."""
    return ops.maximum(x, -1000.0) * ops.tanh(ops.softplus(x))  # as in `_hard_silu`


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
    "selu": _selu,
    "celu": ops.elu,  # which it is for alpha 1, Keras's default (arXiv:1704.07483)
    "mish": _mish,
    "softplus": ops.softplus,
    "softsign": _softsign,
    "hard_sigmoid": _hard_sigmoid,
    "hard_silu": _hard_silu,
    "hard_swish": _hard_silu,
    "log_sigmoid": _log_sigmoid,
    "exponential": ops.exp,
    "softmax": ops.softmax,
    "log_softmax": ops.log_softmax,
}
FUNCTIONS |= ACTIVATIONS


def get_activation(activation: ActivationArgument) -> Callable[[Any], Any]:
    """An activation by name (None is "linear"), or the function or layer given."""
    if activation is None:
        return _linear
    if isinstance(activation, type):
        raise TypeError(
            f"An activation is a name, a function of a Value, or a layer. Received: the class {activation.__name__}. "
            f"Make a layer of it: {activation.__name__}()."
        )
    if callable(activation):
        return activation
    return look_up("An activation", ACTIVATIONS, activation, "a function of a Value")


def known_activation(activation: ActivationArgument) -> ActivationArgument:
    """An activation, once it is known that there is one of that name."""
    get_activation(activation)
    known: ActivationArgument = stood_for(activation)
    return known


def finish(y: Value, bias: Value | None, activation: ActivationArgument, *, axis: int) -> Value:
    """The activation of y plus one number for each index along the given axis."""
    if bias is not None:
        after = y.ndim - 1 - axis
        y = y + (ops.reshape(bias, shape=(bias.size, *(1,) * after)) if after else bias)
    return get_activation(activation)(y)
