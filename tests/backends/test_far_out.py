"""Losses, activations and scalar functions far from 0 and at special values, on every engine, against float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from backends.engines import ENGINES, Array, computed
from minicnn import losses, ops
from minicnn.backends import get_backend
from minicnn.layers.activations import ACTIVATIONS
from minicnn.program import Program, gradients
from minicnn.tolerance import EPSILON, tolerance
from support.tolerances import ELEMENT

INF, NAN = math.inf, math.nan
RTOL, _ = tolerance("float32", 4)


# Losses ---------------------------------------------------------------------------------------------------------

PATTERNS = [[0.0, 0.0, 0.0], [0.0, 1.0, -2.0], [3.0, -40.0, 0.0], [0.0, 0.0, 2000.0]]
OFFSETS = [sign * size for size in (0.0, 1e4, 1e7, 1e10, 1e20, 1e30) for sign in (1, -1)]
LOSSES: dict[str, tuple[losses.Loss, str]] = {
    "sparse": (losses.SparseCategoricalCrossentropy(True), "labels"),
    "sparse, smoothed": (losses.SparseCategoricalCrossentropy(True, label_smoothing=0.1), "labels"),
    "sparse of probabilities": (losses.SparseCategoricalCrossentropy(), "labels"),
    "categorical": (losses.CategoricalCrossentropy(True), "shares"),
    "categorical of probabilities": (losses.CategoricalCrossentropy(), "shares"),
    "binary": (losses.BinaryCrossentropy(True), "shares"),
    "binary focal": (losses.BinaryFocalCrossentropy(from_logits=True), "shares"),
    "categorical focal": (losses.CategoricalFocalCrossentropy(from_logits=True), "shares"),
    "squares": (losses.MeanSquaredError(), "near"), "sizes": (losses.MeanAbsoluteError(), "near"),
    "huber": (losses.Huber(), "near"), "log cosh": (losses.LogCosh(), "near"),
    "squares far": (losses.MeanSquaredError(), "shares"), "sizes far": (losses.MeanAbsoluteError(), "shares"),
    "huber far": (losses.Huber(), "shares"), "log cosh far": (losses.LogCosh(), "shares"),
    "kl": (losses.KLDivergence(), "shares"), "poisson": (losses.Poisson(), "shares"),
    "cosine": (losses.CosineSimilarity(), "shares"), "dice": (losses.Dice(axis=1), "shares"),
    "tversky": (losses.Tversky(0.3, 0.7, axis=1), "shares"),
}  # fmt: skip


def losses_and_gradients(dtype: str) -> tuple[Program, dict[str, Array]]:
    """Every loss of rows of three numbers, patterns beside offsets that float32 holds, and its gradient."""
    rows = [np.float32(o) + np.float32(p) * max(1, np.spacing(np.float32(abs(o)))) for o in OFFSETS for p in PATTERNS]
    x = np.asarray(rows, "float32")
    n = len(x)
    given = {
        "x": x.astype(dtype), "labels": (np.arange(n) % 3).astype("int32"),
        "shares": np.asarray([[0.25, 0.5, 0.25], [1.0, 0.0, 0.0], [0.0, 0.5, 0.5]], dtype)[np.arange(n) // 3 % 3],
        "near": (x + np.float32([0, 2, -4]) * np.maximum(1, np.spacing(np.abs(x)))).astype(dtype),
    }  # fmt: skip
    program = Program()
    values = {k: program.input(k, a.shape, a.dtype.name) for k, a in given.items()}
    for name, (loss, targets) in LOSSES.items():
        each = loss.call(values[targets], values["x"])
        program.outputs[name] = each
        program.outputs[f"gradient of {name}"] = gradients(program, ops.sum(each), [values["x"]])[0]
    return program, given


@pytest.mark.parametrize("backend", ENGINES)
def test_losses_with_offsets(backend: str, engine: Any) -> None:
    found = computed(engine, *losses_and_gradients("float32"))
    expected = computed(get_backend("numpy"), *losses_and_gradients("float64"))
    np.testing.assert_allclose(expected["sparse"][: 2 * len(PATTERNS) : len(PATTERNS)], math.log(3))
    for name, array in expected.items():
        scale = np.max(np.abs(array), axis=-1, keepdims=True) if array.ndim > 1 else np.maximum(np.abs(array), 1)
        with np.errstate(over="ignore", invalid="ignore"):
            wanted = array.astype("float32")  # what float32 does not hold is infinite
            wrong = ~((np.abs(found[name] - wanted) <= RTOL * scale) | (found[name] == wanted))
        wrong &= ~(np.isnan(found[name]) & np.isnan(wanted))
        assert not wrong.any(), f"{name}: {found[name][wrong]} for {wanted[wrong]} at {np.argwhere(wrong).tolist()}"


def test_log_cosh_of_small_differences_keeps_its_digits() -> None:
    d = np.asarray([[1e-3], [3e-6], [1e-12], [0.5], [30.0]], "float32")
    program = Program()
    y, zero = program.input("y", d.shape), program.input("zero", d.shape)
    program.outputs["loss"] = losses.LogCosh().call(zero, y)
    found = computed(get_backend("numpy"), program, {"y": d, "zero": 0 * d})["loss"]
    expected = [v * v / 2 if v < 1e-4 else math.log1p(2 * math.sinh(v / 2) ** 2) for v in d[:, 0].astype(float)]
    np.testing.assert_allclose(found, expected, rtol=ELEMENT)


# Functions ------------------------------------------------------------------------------------------------------

SMALLEST, LARGEST = float(np.finfo("float32").smallest_normal), float(np.finfo("float32").max)
SIZES = [
    0.0, 1e-45, 1e-39, SMALLEST, 1e-20, 1e-8, 1e-4, 0.3, 0.5, 1.0, 2.0, 3.0, 3.5, 4.0, 5.0, 6.5, 8.0, 9.0, 10.0, 12.0,
    13.0, 20.0, 40.0, 80.0, 87.0, 88.5, 89.0, 100.0, 104.0, 1e3, 1e4, 1e10, 1e20, 1e30, LARGEST, INF,
]  # fmt: skip
X = np.asarray([*SIZES, *(-s for s in SIZES), NAN], "float32")


def exp(x: float) -> float:
    return math.exp(x) if x < 700 else INF


def sigmoid(x: float) -> float:
    return 1 / (1 + exp(-x))


def softplus(x: float) -> float:
    return max(x, 0.0) + math.log1p(exp(-abs(x)))


def times(x: float, factor: float) -> float:
    """A product whose limit is 0 where a factor is."""
    return 0.0 if factor == 0 else x * factor


def density(x: float) -> float:
    return exp(-x * x / 2) / math.sqrt(2 * math.pi)


def cdf(x: float) -> float:
    return math.erfc(-x / math.sqrt(2)) / 2


def of_tanh(x: float) -> float:
    return sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))


def of_tanh_slope(x: float) -> float:
    s = of_tanh(x)
    return s + times(x, s * of_tanh(-x)) * 2 * math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * min(x * x, 1e30))


SELU = 1.0507009873554805, 1.6732632423543772


def elu(alpha: float) -> tuple[Callable[[float], float], Callable[[float], float]]:
    return lambda x: x if x > 0 else alpha * math.expm1(x), lambda x: 1.0 if x > 0 else alpha * exp(x)


def hard_sigmoid(x: float) -> float:
    return min(max(x + 3, 0), 6) / 6


def mish_slope(x: float) -> float:
    t = math.tanh(softplus(x))
    return t + times(x, sigmoid(x) * (1 - t * t))


# By name: the function, and its derivative at finite x.
Formula = tuple[Callable[[float], float], Callable[[float], float]]
FORMULAS: dict[str, Formula] = {
    "linear": (lambda x: x, lambda x: 1.0),
    "relu": (lambda x: max(x, 0.0), lambda x: float(x > 0)),
    "relu6": (lambda x: min(max(x, 0.0), 6.0), lambda x: float(0 < x < 6)),
    "leaky_relu": (lambda x: x if x > 0 else 0.2 * x, lambda x: 1.0 if x > 0 else 0.2),
    "elu": elu(1.0), "celu": elu(1.0),
    "selu": (lambda x: SELU[0] * elu(SELU[1])[0](x), lambda x: SELU[0] * elu(SELU[1])[1](x)),
    "gelu": (lambda x: times(x, cdf(x)), lambda x: cdf(x) + times(x, density(x))),
    "gelu (tanh)": (lambda x: times(x, of_tanh(x)), of_tanh_slope),
    "silu": (lambda x: times(x, sigmoid(x)), lambda x: sigmoid(x) * (1 + times(x, sigmoid(-x)))),
    "sigmoid": (sigmoid, lambda x: sigmoid(x) * sigmoid(-x)),
    "tanh": (math.tanh, lambda x: 1 - math.tanh(x) ** 2),
    "softplus": (softplus, sigmoid), "log_sigmoid": (lambda x: -softplus(-x), lambda x: sigmoid(-x)),
    "mish": (lambda x: times(x, math.tanh(softplus(x))), mish_slope),
    "softsign": (
        lambda x: math.copysign(1, x) if math.isinf(x) else x / (1 + abs(x)), lambda x: 1 / (1 + abs(x)) ** 2
    ),
    "hard_sigmoid": (hard_sigmoid, lambda x: float(-3 < x < 3) / 6),
    "hard_silu": (
        lambda x: times(x, hard_sigmoid(x)), lambda x: hard_sigmoid(x) + x * float(-3 < x < 3) / 6
    ),
    "exponential": (exp, exp),
    "erfc": (math.erfc, lambda x: -2 / math.sqrt(math.pi) * exp(-x * x)),
    "expm1": (lambda x: math.expm1(x) if x < 700 else INF, exp),
    "log": (
        lambda x: NAN if x < 0 else -INF if x == 0 else math.log(x), lambda x: 1 / x if x else math.copysign(INF, x)
    ),
    "log1p": (
        lambda x: NAN if x < -1 else -INF if x == -1 else math.log1p(x), lambda x: 1 / (1 + x) if x != -1 else INF
    ),
    "sqrt": (lambda x: NAN if x < 0 else math.sqrt(x), lambda x: 0.5 / math.sqrt(x) if x > 0 else INF),
    "abs": (abs, lambda x: float(np.sign(x))), "sign": (lambda x: float(np.sign(x)), lambda x: 0.0),
}  # fmt: skip
SAME = {"swish": "silu", "hard_swish": "hard_silu"}


def function(name: str) -> Callable[..., Any]:
    if name == "gelu (tanh)":
        return lambda x: ops.gelu(x, approximate=True)
    return ACTIVATIONS[name] if name in ACTIVATIONS else ops.REGISTRY[name]


def test_every_activation_has_a_formula() -> None:
    assert set(ACTIVATIONS) - {"softmax", "log_softmax"} <= {*FORMULAS, *SAME}
    assert all(ACTIVATIONS[a] is ACTIVATIONS[b] for a, b in SAME.items())


@pytest.mark.parametrize("backend", ENGINES)
def test_functions_at_special_values_and_in_their_tails(backend: str, engine: Any) -> None:
    """Relative to the result itself, by as much as rounding x moves it; slopes where x is finite, relative to 1."""
    program = Program()
    x = program.input("x", X.shape)
    for name in FORMULAS:
        y = function(name)(x)
        program.outputs[name] = y + 0.0
        slope = None if name == "sign" else gradients(program, ops.sum(y), [x])[0]
        program.outputs[f"slope of {name}"] = x * 0.0 if slope is None else slope + 0.0
    found = computed(engine, program, {"x": X})
    flushed = (np.abs(X) < SMALLEST) & (backend == "jax")  # XLA takes subnormal numbers for 0
    for name, (formula, derivative) in FORMULAS.items():
        for k, v in enumerate(X.astype(float)):
            got, slope = float(found[name][k]), float(found[f"slope of {name}"][k])
            if math.isnan(v):
                assert math.isnan(got), name
                continue
            if flushed[k] and name in ("log", "sqrt", "sign"):
                continue
            wanted = formula(v)
            if not abs(wanted) <= LARGEST:
                wanted = math.copysign(INF, wanted) if abs(wanted) > LARGEST else wanted
                assert got == wanted or (math.isnan(got) and math.isnan(wanted)), (name, v, got, wanted)
                continue
            by = derivative(v) if math.isfinite(v) else NAN
            condition = max(1.0, abs(v * by / wanted)) if wanted and math.isfinite(by) else 1.0
            error = abs(got - wanted)
            # A factor of x that is subnormal may be 0 for XLA.
            least = SMALLEST * (max(1.0, min(abs(v), 100.0)) if backend == "jax" else 1.0)
            assert error <= 16 * EPSILON["float32"] * condition * abs(wanted) + least, (name, v, got, wanted)
            if flushed[k] or math.isinf(v) or (name in ("log", "sqrt", "sign") and not SMALLEST < v < 1e30):
                continue
            if abs(by) > LARGEST:
                assert math.isinf(slope), (name, v, slope, by)
                continue
            # Of mish it has x (1 - tanh^2), a difference of numbers near 1.
            slack = min(abs(v), 20.0) if name == "mish" else 1.0
            bound = 16 * EPSILON["float32"] * max(1.0, abs(by) * condition, slack)
            assert abs(slope - by) <= bound, (name, v, slope, by)
