"""Dead-node removal and constant folding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given

from minicnn import ops
from minicnn.ops import primitive
from minicnn.program import Program, Spec, fold_constants, gradients, optimize, remove_dead_nodes
from minicnn.program.passes import FOLD_LIMIT_BYTES, lower_precision, shorten_images
from minicnn.program.readers import Readers
from support.gradcheck import run_checked
from support.strategies import normal, seeds


def test_dead_nodes_go_and_live_ones_stay_in_order() -> None:
    program = Program()
    x = program.input("x", (3,))
    y = ops.exp(x)
    ops.log(y)
    ops.square(ops.sqrt(x))
    program.outputs["y"] = y
    program.updates["x"] = y + x
    assert remove_dead_nodes(program) == 3
    assert [n.op.name for n in program.nodes] == ["exp", "add"]
    assert remove_dead_nodes(program) == 0


def test_a_node_lives_by_any_of_its_results() -> None:
    program = Program()
    x, s = program.input("x", (4, 3)), program.input("s", (3,))
    _, mean, _ = ops.normalize(x, s, s, axes=(0,), epsilon=0.1)
    program.outputs["mean"] = mean
    assert remove_dead_nodes(program) == 0
    program.outputs.clear()
    assert remove_dead_nodes(program) == 1


def test_constants_fold_through_chains_into_outputs_and_updates() -> None:
    program = Program()
    x = program.input("x", (2,), "float64")
    c = program.constant(np.asarray([1.0, 2.0]))
    doubled = c * 2.0
    program.outputs = {"y": x + ops.sqrt(doubled + doubled), "c": doubled}
    program.updates["x"] = ops.negative(c)
    assert fold_constants(program) == 4
    assert [n.op.name for n in program.nodes] == ["add"]
    found = run_checked(program, {"x": np.asarray([10.0, 20.0])})
    np.testing.assert_allclose(found["y"], [12, 20 + 8**0.5])
    np.testing.assert_array_equal(found["c"], [2, 4])
    np.testing.assert_array_equal(found["x"], [-1, -2])


def test_several_results_fold_each_to_its_own() -> None:
    program = Program()
    c, one = program.constant(np.asarray([[1.0], [3.0]])), program.constant(np.ones(1))
    for name, value in zip("ymv", ops.normalize(c, one, one, axes=(0,), epsilon=3.0), strict=True):
        program.outputs[name] = value
    assert fold_constants(program) == 1
    found = run_checked(program, {})
    np.testing.assert_array_equal(found["m"], [[2]])
    np.testing.assert_array_equal(found["v"], [[1]])
    np.testing.assert_array_equal(found["y"], [[0.5], [1.5]])


def test_large_results_are_computed_again_each_time() -> None:
    program = Program()
    zero = program.constant(0.0, "float32")
    n = FOLD_LIMIT_BYTES // 4
    program.outputs = {"a": ops.broadcast_to(zero, shape=(n,)), "b": ops.broadcast_to(zero, shape=(n + 1,))}
    assert fold_constants(program) == 1
    assert program.outputs["a"].kind == "constant"
    assert program.outputs["b"].kind == "activation"


def test_bfloat16_is_left_to_the_backend() -> None:
    program = Program()
    c = program.constant(1.0, "bfloat16")
    program.outputs = {
        "a": c + c,
        "b": ops.cast(c, dtype="float32"),
        "c": ops.cast(program.constant(1.0), dtype="bfloat16"),
    }
    assert fold_constants(program) == 0


@given(seed=seeds)
def test_optimize_keeps_the_numbers(seed: int) -> None:
    def build() -> Program:
        program = Program()
        x = program.input("x", (2, 3), "float64")
        c = program.constant(normal((3,), seed))
        y = ops.tanh(x * ops.exp(c * 0.5) + ops.sum(c))
        ops.log(x)
        loss = ops.sum(y * y)
        (dx,) = gradients(program, loss, [x])
        program.outputs = {"loss": loss, "dx": dx}
        return program

    plain, fast = build(), optimize(build())
    assert len(fast.nodes) < len(plain.nodes)
    x = np.abs(normal((2, 3), seed, 1)) + 0.1
    expected, found = run_checked(plain, {"x": x}), run_checked(fast, {"x": x})
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)


def test_folding_uses_the_reference_with_its_attributes(registry: None) -> None:
    @primitive
    def scaled(x: Any, *, by: float, xp: Any) -> Any:
        return x * by

    scaled.shape(lambda x, **_: x)
    program = Program()
    program.outputs["y"] = scaled(program.constant(np.asarray([2.0])), by=1.5)
    optimize(program)
    assert program.nodes == []
    assert run_checked(program, {})["y"] == pytest.approx(3)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_lower_precision_of_products_only(dtype: str) -> None:
    program = Program()
    x, w = program.input("x", (4, 3)), program.input("w", (3, 2), kind="parameter")
    with program.scope("dense"):
        y = x @ w
    loss = ops.sum(ops.tanh(y))
    (dw,) = gradients(program, loss, [w])
    program.outputs = {"loss": loss, "dw": dw, "y": y}
    remove_dead_nodes(program)  # the gradient of x
    assert lower_precision(program, dtype) == 2
    products = [n for n in program.nodes if n.op.name == "matmul"]
    assert {v.dtype for n in products for v in (*n.inputs, *n.outputs)} == {dtype}
    assert all(v.dtype == "float32" for n in program.nodes if n.op.name not in ("matmul", "cast") for v in n.outputs)
    assert [v.dtype for v in program.results] == ["float32"] * 3
    # x is rounded once, for both products that read it; the nodes stay in their scope and phase.
    assert sum(n.op.name == "cast" and n.inputs[0] is x for n in program.nodes) == 1
    assert {(n.scope, n.phase) for n in products} == {("dense", "forward"), ("dense", "backward")}
    assert lower_precision(program, dtype) == 0


def test_lower_precision_rounds_what_it_should() -> None:
    program = Program()
    x, w = program.input("x", (1, 2)), program.input("w", (2, 1))
    program.outputs["y"] = x @ w + 0.0
    lower_precision(program, "float16")
    small = 2.0**-11  # lost beside 1 in float16, not in float32
    found = run_checked(program, {"x": np.asarray([[1 + small, 1]], "float32"), "w": np.ones((2, 1), "float32")})
    assert found["y"].dtype == "float32"
    assert found["y"][0, 0] == 2


def test_lower_precision_leaves_float64_alone() -> None:
    program = Program()
    x = program.input("x", (2, 2), "float64")
    program.outputs["y"] = x @ x
    assert lower_precision(program, "bfloat16") == 0
    assert len(program.nodes) == 1


def test_nodes_are_replaced_where_they_stood() -> None:
    program = Program()
    x = program.input("x", (3,))
    with program.scope("layer"):
        y = ops.square(x)
    program.outputs = {"y": y, "z": ops.exp(y)}
    program.updates["x"] = y
    assert program.replace(lambda n: [n.inputs[0] * n.inputs[0] + 0.0] if n.op is ops.square else None) == 1
    assert [n.op.name for n in program.nodes] == ["multiply", "add", "exp"]
    assert [n.scope for n in program.nodes] == ["layer", "layer", ""]
    assert program.updates["x"] is program.outputs["y"] is program.nodes[1].outputs[0] is program.nodes[2].inputs[0]
    assert program.replace(lambda _: None) == 0
    # A node may give way to what it reads.
    assert program.replace(lambda n: [n.inputs[0]] if n.op is ops.add else None) == 1
    assert program.outputs["y"] is program.nodes[0].outputs[0]
    np.testing.assert_allclose(run_checked(program, {"x": np.asarray([1, 2, 3], "float32")})["z"], np.exp([1, 4, 9]))


def test_a_node_without_a_shape_rule_is_appended_with_its_specs() -> None:
    @primitive
    def halves(x: Any, *, xp: Any) -> Any:
        """The first and the second half."""
        return x[: x.shape[0] // 2], x[x.shape[0] // 2 :]

    program = Program()
    x = program.input("x", (4,))
    with program.scope("here", "update"):
        node = program.append(halves, [x], [Spec((2,)), Spec((2,))], {})
    assert program.nodes == [node]
    assert (node.scope, node.phase, [v.kind for v in node.outputs]) == ("here", "update", ["update"] * 2)
    assert all(v.node is node for v in node.outputs)


def test_readers() -> None:
    program = Program()
    x = program.input("x", (3,))
    y = x + x
    z = ops.exp(y) * x
    program.outputs = {"z": z}
    readers = Readers(program)
    add, exp, multiply = program.nodes
    assert readers.of(x) == [add, multiply]  # each once
    assert readers.only(y) is exp
    assert readers.only(x) is readers.only(z) is None
    assert readers.is_result(z)
    assert not readers.outside(x, {id(add), id(multiply)})
    assert readers.outside(x, {id(add)})
    assert readers.outside(z, {id(n) for n in program.nodes})


def test_images_are_shortened_where_they_are_stored() -> None:
    program = Program()
    x, b = program.input("x", (2, 4, 4, 3)), program.input("b", (3,), kind="parameter")
    w = program.input("w", (1, 1, 3, 3), kind="parameter")
    y = ops.conv2d(ops.relu(x), w)  # relu is read by a convolution: stored
    active = ops.relu(y + b)  # y + b is read by one elementwise operation alone: not stored
    total = ops.sum(active, axes=(0, 1, 2))
    program.outputs["loss"] = loss = ops.sum(total) + ops.sum(ops.square(w))
    for name, value in zip(("w", "b"), gradients(program, loss, [w, b]), strict=True):
        program.outputs[f"d{name}"] = value
    remove_dead_nodes(program)
    made = shorten_images(program, "bfloat16")
    rounded = [n.inputs[0].node for n in program.nodes if n.op.name == "cast" and n.attrs["dtype"] == "bfloat16"]
    names = [(n.op.name, n.phase) for n in rounded if n is not None]
    assert len(names) == made
    assert names[:2] == [("relu", "forward"), ("relu", "forward")]
    assert ("relu_gradient", "backward") in names
    assert not {n for n, _ in names} & {"sum", "add", "conv2d", "conv2d_weight_gradient", "square"}
    assert all(v.dtype == "float32" for v in program.results)
