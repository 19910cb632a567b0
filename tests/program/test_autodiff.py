"""Reverse-mode differentiation of whole Programs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicnn import ops
from minicnn.ops import primitive
from minicnn.program import Program, Value, gradients
from support.gradcheck import check_gradients, run_checked
from support.strategies import normal, seeds
from support.tolerances import ELEMENT


def _gradient(build: Any, *arrays: Any) -> list[Any]:
    program = Program()
    values = [program.input(f"x{i}", a.shape, "float64") for i, a in enumerate(arrays)]
    for i, g in enumerate(gradients(program, build(*values), values)):
        program.outputs[f"g{i}"] = g
    return list(run_checked(program, {f"x{i}": a for i, a in enumerate(arrays)}).values())


def test_by_hand() -> None:
    x, y = np.asarray([1.0, 2.0]), np.asarray([3.0, 5.0])
    dx, dy = _gradient(lambda a, b: ops.sum(a * b + ops.square(a)), x, y)
    np.testing.assert_array_equal(dx, y + 2 * x)
    np.testing.assert_array_equal(dy, x)


def test_several_uses_add_up() -> None:
    x = np.asarray([1.5, -2.0])
    (dx,) = _gradient(lambda a: ops.sum(a * a * a + a + a), x)
    np.testing.assert_allclose(dx, 3 * x**2 + 2)


def test_branches_that_part_and_meet() -> None:
    rng = np.random.default_rng(0)

    def residual(x: Value, w: Value, v: Value) -> Any:
        h = ops.tanh(x @ w)
        left, right = ops.sigmoid(h @ v), ops.exp(h * 0.1)
        return ops.concat(left + h, right * left, h, axis=1) + 0.0

    check_gradients(residual, *(rng.standard_normal((3, 3)) for _ in range(3)))


def test_independent_values_have_zero_gradient() -> None:
    x, y = np.ones((2, 3)), np.ones(4)
    dx, dy = _gradient(lambda a, b: ops.sum(a), x, y)
    np.testing.assert_array_equal(dx, 1)
    np.testing.assert_array_equal(dy, np.zeros(4))


def test_the_loss_itself_and_values_in_the_middle() -> None:
    program = Program()
    x = program.input("x", (), "float64")
    y = x * 3.0
    loss = y * y
    for name, g in zip("lyx", gradients(program, loss, [loss, y, x]), strict=True):
        program.outputs[name] = g
    found = run_checked(program, {"x": np.asarray(2.0)})
    assert [float(found[name]) for name in "lyx"] == [1, 12, 36]


def test_nodes_off_the_path_get_no_backward() -> None:
    program = Program()
    x, w = program.input("x", (3,)), program.input("w", (3,))
    with program.scope("off"):
        ops.exp(x)
        side = ops.log(x)  # feeds the loss, but does not depend on w
    gradients(program, ops.sum(w * side), [w])
    assert not [n for n in program.nodes if n.phase == "backward" and n.scope == "off"]


def test_second_derivatives() -> None:
    """A gradient is part of the Program, so it can be differentiated again: d2/dx2 of sum(x^3) is 6 x."""
    program = Program()
    x = program.input("x", (3,), "float64")
    (dx,) = gradients(program, ops.sum(x * x * x), [x])
    (d2x,) = gradients(program, ops.sum(dx), [x])
    program.outputs["d2x"] = d2x
    at = np.asarray([1.0, -2.0, 0.5])
    np.testing.assert_allclose(run_checked(program, {"x": at})["d2x"], 6 * at)


def test_gradient_penalty_through_a_convolution() -> None:
    def penalty(x: Value, w: Value) -> Any:
        (dx,) = gradients(x.program, ops.sum(ops.tanh(ops.conv2d(x, w))), [x])
        return ops.sum(dx * dx)

    check_gradients(penalty, normal((1, 4, 4, 2), 0), normal((2, 2, 2, 3), 1) * 0.3, rtol=ELEMENT)


@given(seed=seeds, depth=st.integers(1, 6))
def test_random_compositions(seed: int, depth: int) -> None:
    """Values chosen at random from all those made so far, combined at random."""
    rng = np.random.default_rng(seed)
    unary: list[Any] = [ops.tanh, ops.sigmoid, ops.square, ops.gelu, lambda v: ops.softmax(v, axis=0), lambda v: v[::1]]
    binary: list[Any] = [ops.add, ops.subtract, ops.multiply, lambda a, b: ops.where(ops.greater(a, 100.0), a, b)]
    plan = [(rng.integers(len(unary)), rng.integers(len(binary)), rng.integers(0, 2 + i, 3)) for i in range(depth)]

    def function(*values: Value) -> Any:
        made: list[Any] = list(values)
        for u, b, (i, j, k) in plan:
            made.append(binary[b](unary[u](made[i]), made[j]) * 0.5 + made[k] * 0.1)
        return made[-1]

    check_gradients(function, normal((2, 3), seed), normal((2, 3), seed, 1), seed=seed, rtol=ELEMENT)


def test_no_gradient_rule() -> None:
    program = Program("net")
    x = program.input("x", (3, 2))
    with program.scope("slope"):
        rows = ops.sgd_update(x, x, program.input("rate", ()))
    with pytest.raises(TypeError, match=r"reaches sgd_update in 'slope', which has no gradient rule"):
        gradients(program, ops.sum(rows), [x])
    # Not differentiated by: no gradient reaches it.
    (d,) = gradients(program, ops.sum(rows * rows), [program.input("other", (2,))])
    assert d.shape == (2,)


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((3,), "float32"), ((1,), "float32"), ((), "int32")],
)
def test_the_loss_is_a_floating_point_scalar(shape: tuple[int, ...], dtype: str) -> None:
    program = Program()
    x = program.input("x", shape, dtype)
    with pytest.raises(ValueError, match=r"Only a floating-point scalar can be differentiated\. Received: <input x"):
        gradients(program, x, [x])


def test_values_of_another_program() -> None:
    program, other = Program("a"), Program("b")
    x, y = program.input("x", ()), other.input("y", ())
    with pytest.raises(ValueError, match=r"values of one Program\. Received: <input y.*of 'b' for 'a'"):
        gradients(program, x * 2.0, [y])


def test_a_rule_that_forgets_broadcasting_is_caught(registry: None) -> None:
    @primitive
    def plus(a: Any, b: Any, *, xp: Any) -> Any:
        return a + b

    plus.shape(lambda a, b: a)
    plus.gradient(lambda node, dy: [dy, dy])
    program = Program()
    a, b = program.input("a", (2, 3)), program.input("b", (3,))
    with pytest.raises(ValueError, match=r"gradient rule of plus: float32\[2,3\] for float32\[3\].*sum_to_shape"):
        gradients(program, ops.sum(plus(a, b)), [b])
    # The input that nobody asks for is not checked, and a rule with too few gradients is an error of its own.
    assert len(gradients(program, ops.sum(plus(a, b)), [a])) == 1
