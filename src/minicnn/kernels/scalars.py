"""Functions of numbers that are made of simpler ones: each once, as an expression tree, for every language.

`exp`, `expm1`, `floor`, `log`, `log1p`, `sqrt`, `tanh`, `erf`, `erfc`, `power`, `abs`, `sign`, `maximum`, `minimum`
(NaN wins) and `random_uniform` are each language's own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from minicnn.kernels.expressions import ONE, ZERO, Call, Expr, Name, Number, Select
from minicnn.ops.activations import FAR

T = "T"  # the type in which a function computes


@dataclass(frozen=True)
class ScalarFunction:
    """A function: its parameters, what it computes first, by name, and its result."""

    parameters: tuple[str, ...]
    first: Mapping[str, Expr]
    result: Expr


def _call(name: str, *arguments: Expr) -> Expr:
    return Call(name, arguments, T)


def _function(make: Callable[..., Expr], *parameters: str, **first: Expr) -> ScalarFunction:
    return ScalarFunction(parameters, first, make(*map(Name, (*parameters, *first))))


_X, _N, _HALF, _LEAST = Name("x"), Name("n"), Number(0.5), Number(-FAR)

FUNCTIONS: dict[str, ScalarFunction] = {
    "square": _function(lambda x: x * x, "x"),
    # Where two products are added, compilers round one of them before, by what else a kernel has: this one.
    "rounded_product": _function(lambda x, y: x * y, "x", "y"),
    "relu": _function(lambda x: _call("maximum", x, ZERO), "x"),
    "relu_gradient": _function(lambda dy, y: Select(y > ZERO, dy, ZERO), "dy", "y"),
    "relu6": _function(lambda x: _call("minimum", _call("maximum", x, ZERO), Number(6)), "x"),
    "leaky_relu": _function(lambda x, slope: Select(x > ZERO, x, x * slope), "x", "slope"),
    "elu": _function(
        lambda x, alpha: Select(x > ZERO, x, _call("expm1", _call("minimum", x, ZERO)) * alpha), "x", "alpha"
    ),
    "sigmoid": _function(
        lambda x, small: Select(x >= ZERO, ONE, small) / (small + ONE), "x", small=_call("exp", -_call("abs", _X))
    ),
    "silu": _function(lambda x: _call("maximum", x, _LEAST) * _call("sigmoid", x), "x"),
    "softplus": _function(
        lambda x: _call("maximum", x, ZERO) + _call("log1p", _call("exp", -_call("abs", x))), "x"
    ),
    "gelu": _function(
        lambda x, size: _call("maximum", x, ZERO) - size * (_HALF * _call("erfc", size * Number(math.sqrt(0.5)))), "x",
        size=_call("minimum", _call("abs", _X), -_LEAST),
    ),
    "gelu_tanh": _function(
        lambda x, inner: _call("maximum", x, _LEAST) * _call("sigmoid", inner), "x",
        inner=(_X + Number(0.044715) * (_X * _X * _X)) * Number(2 * math.sqrt(2 / math.pi)),
    ),
    "decayed": _function(lambda p, rate, decay: p - p * (rate * decay), "p", "rate", "decay"),
    "sgd": _function(lambda p, g, rate: p - rate * g, "p", "g", "rate"),
    "velocity": _function(
        lambda v, g, rate, momentum: momentum * v - _call("rounded_product", rate, g), "v", "g", "rate", "momentum"
    ),
    "moving": _function(
        lambda beta, old, now: beta * old + _call("rounded_product", ONE - beta, now), "beta", "old", "now"
    ),
    # 1 - beta^(step + 1)
    "correction": _function(lambda step, log_beta: -_call("expm1", (step + ONE) * log_beta), "step", "log_beta"),
    "adam": _function(
        lambda p, m, v, rate, c1, c2, epsilon: (
            p - (rate * _call("sqrt", c2) / c1) * m / (_call("sqrt", v) + epsilon)
        ),
        "p", "m", "v", "rate", "c1", "c2", "epsilon",
    ),
    "rmsprop_step": _function(
        lambda spread, u, g, rate, momentum, epsilon: momentum * u + rate * g / _call("sqrt", spread + epsilon),
        "spread", "u", "g", "rate", "momentum", "epsilon",
    ),
    # Places between pixels that stand for others, and whole numbers within an image: see `affine_transform`.
    "wrapped": _function(lambda x, n: x - _call("floor", x * (ONE / n)) * n, "x", "n"),
    "reflected": _function(
        lambda x, n, rest: Select(rest < n, rest, n + n - rest) - _HALF, "x", "n",
        rest=_X + _HALF - _call("floor", (_X + _HALF) * (ONE / (_N + _N))) * (_N + _N),
    ),
    "wrapped_once": _function(lambda x, n: Select(x < n, x, x - n), "x", "n"),
    "clipped": _function(lambda x, last: Select(x > ZERO, Select(x < last, x, last), ZERO), "x", "last"),
    "spread": _function(lambda v, a: _call("maximum", v - a * a, ZERO), "v", "a"),  # a variance
}  # fmt: skip
