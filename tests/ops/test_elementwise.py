"""Elementwise arithmetic, comparison, choice and conversion."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from minicnn import ops
from minicnn.program import Program, Value, gradients
from support.gradcheck import check_gradients, run_primitive
from support.numerics import assert_close
from support.strategies import away_from_zero, broadcastable, distinct_values, normal, seeds, shapes
from support.tolerances import DOUBLE, ELEMENT

BINARY: dict[str, Any] = {
    "add": operator.add, "subtract": operator.sub, "multiply": operator.mul, "divide": operator.truediv,
    "maximum": max, "minimum": min, "greater": operator.gt, "greater_equal": operator.ge, "less": operator.lt,
    "less_equal": operator.le, "equal": operator.eq,
}  # fmt: skip
UNARY: dict[str, Any] = {
    "negative": operator.neg, "abs": abs, "square": lambda x: x * x, "exp": math.exp, "expm1": math.expm1,
    "sign": lambda x: math.copysign(1, x),
}  # fmt: skip
POSITIVE: dict[str, Any] = {"sqrt": math.sqrt, "log": math.log, "log1p": math.log1p}


@pytest.mark.parametrize("name", BINARY)
@given(pair=broadcastable(), seed=seeds)
def test_binary_matches_python(name: str, pair: list[tuple[int, ...]], seed: int) -> None:
    a, b = (np.round(away_from_zero(shape, seed + i, gap=0.5), 1) for i, shape in enumerate(pair))
    result = run_primitive(ops.REGISTRY[name], a, b)
    p, q = np.broadcast_arrays(a, b)
    function = BINARY[name]
    assert_close(result.ravel(), np.asarray([function(*pair) for pair in zip(p.flat, q.flat, strict=True)]))


@pytest.mark.parametrize("name", ["add", "subtract", "multiply", "divide", "maximum", "minimum"])
@given(pair=broadcastable(), seed=seeds)
def test_binary_gradients(name: str, pair: list[tuple[int, ...]], seed: int) -> None:
    a = distinct_values(pair[0], seed, 1.0, 2.0)
    b = distinct_values(pair[1], seed, 1.003, 2.003) * np.random.default_rng(seed).choice([-1.0, 1.0], pair[1])
    check_gradients(ops.REGISTRY[name], a, b, seed=seed)


@given(pair=broadcastable(), seed=seeds)
def test_power(pair: list[tuple[int, ...]], seed: int) -> None:
    a, b = np.exp(normal(pair[0], seed)), normal(pair[1], seed, 1)
    assert_close(run_primitive(ops.power, a, b), np.exp(np.log(a) * b))
    check_gradients(ops.power, a, b, seed=seed, rtol=ELEMENT, step=1e-6)


def test_power_with_a_constant_exponent_takes_any_base() -> None:
    (da,) = check_gradients(lambda x: x**2, np.asarray([-2.0, 0.0, 3.0]))
    assert da[1] == 0
    program = Program()
    x = program.input("x", (3,))
    gradients(program, ops.sum(x**3), [x])
    assert not any(n.op.name == "log" for n in program.nodes)


@pytest.mark.parametrize("name", UNARY | POSITIVE)
@given(shape=shapes(), seed=seeds)
def test_unary(name: str, shape: tuple[int, ...], seed: int) -> None:
    x = away_from_zero(shape, seed, gap=0.1)
    if name in POSITIVE:
        x = np.abs(x)
    function = (UNARY | POSITIVE)[name]
    assert_close(run_primitive(ops.REGISTRY[name], x).ravel(), np.asarray([function(float(v)) for v in x.ravel()]))
    check_gradients(ops.REGISTRY[name], x, seed=seed, step=1e-6, rtol=ELEMENT)


def test_gradients_at_kinks() -> None:
    zero = np.zeros(2)
    program = Program()
    a, b = program.input("a", (2,), "float64"), program.input("b", (2,), "float64")
    for op, expected in ((ops.maximum, [1.0, 0.0]), (ops.minimum, [1.0, 0.0])):
        da, db = gradients(program, ops.sum(op(a, b)), [a, b])
        program.outputs = {"da": da, "db": db}
        found = _run(program, a=zero, b=zero)
        # Where both are equal the gradient goes to the first.
        assert [found["da"][0], found["db"][0]] == expected
    (da,) = gradients(program, ops.sum(ops.abs(a)), [a])
    program.outputs = {"da": da}
    np.testing.assert_array_equal(_run(program, a=zero, b=zero)["da"], 0)


def test_sign_has_zero_derivative() -> None:
    (dx,) = check_gradients(lambda x: ops.sign(x) + x, np.asarray([-2.0, 3.0]))
    program = Program()
    x = program.input("x", (2,))
    (gradient,) = gradients(program, ops.sum(ops.sign(x)), [x])
    program.outputs = {"dx": gradient}
    np.testing.assert_array_equal(_run(program, x=np.ones(2, "float32"))["dx"], [0, 0])
    assert dx.shape == (2,)


def test_expm1_and_log1p_are_accurate_near_zero() -> None:
    x = np.asarray([1e-12, -1e-12])
    np.testing.assert_allclose(run_primitive(ops.expm1, x), x, rtol=DOUBLE)
    np.testing.assert_allclose(run_primitive(ops.log1p, x), x, rtol=DOUBLE)


@given(triple=broadcastable(3), seed=seeds)
def test_where(triple: list[tuple[int, ...]], seed: int) -> None:
    condition, a, b = normal(triple[0], seed) > 0, normal(triple[1], seed, 1), normal(triple[2], seed, 2)
    np.testing.assert_array_equal(run_primitive(ops.where, condition, a, b), np.where(condition, a, b))
    check_gradients(ops.where, condition, a, b, seed=seed)


def test_where_takes_a_bool_condition() -> None:
    program = Program()
    x = program.input("x", (2,))
    with pytest.raises(TypeError, match=r"where takes a bool condition\. Received: float32\[2\]\. Compare first"):
        ops.where(x, x, x)


@pytest.mark.parametrize(
    ("source", "target", "values", "expected"),
    [
        ("float32", "int32", [-1.7, 2.9], [-1, 2]),
        ("uint8", "float32", [0, 255], [0.0, 255.0]),
        ("float64", "float32", [0.1], [np.float32(0.1)]),
        ("bool", "float64", [True, False], [1.0, 0.0]),
        ("int32", "bool", [0, 3], [False, True]),
    ],
)
def test_cast(source: str, target: str, values: list[Any], expected: list[Any]) -> None:
    y = run_primitive(ops.cast, np.asarray(values, source), dtype=target)
    np.testing.assert_array_equal(y, np.asarray(expected, target))


def test_cast_gradient_returns_to_the_source_dtype() -> None:
    program = Program()
    x = program.input("x", (3,), "float32")
    y = ops.cast(x, dtype="float64")
    (dx,) = gradients(program, ops.sum(y * y), [x])
    assert dx.dtype == "float32"
    program.outputs = {"dx": dx}
    np.testing.assert_array_equal(_run(program, x=np.asarray([1, 2, 3], "float32"))["dx"], [2, 4, 6])


def test_no_gradient_through_integers() -> None:
    program = Program()
    x = program.input("x", (3,))
    y = ops.cast(ops.cast(x, dtype="int32"), dtype="float32")
    (dx,) = gradients(program, ops.sum(x + y), [x])
    program.outputs = {"dx": dx}
    np.testing.assert_array_equal(_run(program, x=np.asarray([0.5, 1.5, 2.5], "float32"))["dx"], [1, 1, 1])


def test_as_float_converts_only_if_needed() -> None:
    program = Program()
    x = program.input("x", (3,), "float32")
    assert ops.as_float(x, "float32") is x
    assert ops.as_float(x, "float64").dtype == "float64"


Y = away_from_zero((3,), 1)
OPERATORS: list[Any] = [
    lambda a, b: a + b, lambda a, b: a - b, lambda a, b: a * b, lambda a, b: a / b, lambda a, b: -a,
    lambda a, b: 2.5 + a, lambda a, b: 1 - a, lambda a, b: 3 * a, lambda a, b: 2.0 / a, lambda a, b: a**2,
    lambda a, b: a + Y, lambda a, b: Y - a, lambda a, b: Y * a, lambda a, b: Y / a, lambda a, b: a / 4,
]  # fmt: skip


@given(seed=seeds)
def test_operators_of_values(seed: int) -> None:
    """Python's operators on Values, Python scalars and NumPy arrays mean what they do in NumPy."""
    x, y = away_from_zero((2, 3), seed), away_from_zero((3,), seed + 1)
    program = Program()
    a, b = program.input("a", x.shape, "float64"), program.input("b", y.shape, "float64")
    program.outputs = {str(i): function(a, b) for i, function in enumerate(OPERATORS)}
    found = _run(program, a=x, b=y)
    for i, function in enumerate(OPERATORS):
        assert_close(found[str(i)], function(x, y))


def test_matmul_operator() -> None:
    program = Program()
    a, b = program.input("a", (2, 3), "float64"), program.input("b", (3, 4), "float64")
    program.outputs["r"] = a @ b
    x, y = normal((2, 3), 0), normal((3, 4), 1)
    assert_close(_run(program, a=x, b=y)["r"], x @ y)


def test_scalars_take_the_dtype_beside_them() -> None:
    program = Program()
    x, n = program.input("x", (2,), "float32"), program.input("n", (2,), "int32")
    assert (x * 2).dtype == (x * 2.5).dtype == (True + x).dtype == "float32"
    assert (n + 1).dtype == "int32"
    assert ops.where(ops.greater(x, 0), 1, x).dtype == "float32"
    for build in (lambda: n * 0.5, lambda: ops.where(ops.greater(x, 0), 1.0, 0.0), lambda: ops.equal(x, 0) + 1):
        with pytest.raises(TypeError, match="A Python scalar takes the dtype of the Values beside it"):
            build()


def test_shapes_and_dtypes_must_fit() -> None:
    program = Program()
    x = program.input("x", (2, 3))
    with pytest.raises(ValueError, match=r"add takes shapes that broadcast.*float32\[2,3\], float32\[2\]"):
        ops.add(x, program.input("y", (2,)))
    with pytest.raises(TypeError, match=r"multiply takes arrays of one dtype.*float64\[3\]"):
        x * np.ones(3)
    with pytest.raises(TypeError, match=r"exp takes floating-point arrays.*int32"):
        ops.exp(program.input("n", (2,), "int32"))


def _run(program: Program, **arrays: Any) -> dict[str, Any]:
    from support.gradcheck import run_checked

    assert all(isinstance(v, Value) for v in program.results)
    return run_checked(program, arrays)
