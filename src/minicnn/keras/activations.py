"""Activations as functions of Values, symbolic tensors and arrays."""

from __future__ import annotations

from typing import Any

from minicnn import ops as _p
from minicnn.configured import decode as deserialize  # noqa: F401
from minicnn.configured import encode as serialize  # noqa: F401
from minicnn.keras import ops as _ops
from minicnn.keras.dispatch import function as _function
from minicnn.layers.activations import ACTIVATIONS as _ACTIVATIONS
from minicnn.layers.activations import get_activation as get  # noqa: F401


def _named(name: str) -> Any:
    def applied(x: Any) -> Any:
        return _ACTIVATIONS[name](x)

    applied.__name__ = applied.__qualname__ = name
    applied.__doc__ = f"The activation {name!r}."
    return _function(applied)


def _standing_for(name: str, function: Any) -> Any:
    function.stands_for = name
    return function


globals().update({n: _standing_for(n, _named(n)) for n in _ACTIVATIONS if n not in ("relu", "softmax")})
softmax = _standing_for("softmax", _ops.softmax)


@_function
def relu(x: Any, negative_slope: float = 0.0, max_value: float | None = None) -> Any:
    """Max(x, 0), or negative_slope times x below 0, and at most max_value."""
    y = _p.leaky_relu(x, negative_slope=negative_slope) if negative_slope else _p.relu(x)
    return y if max_value is None else _p.minimum(y, max_value)


_standing_for("relu", relu)
