"""Kernels on other values against their references: elementwise groups, sums, normalisation, updates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from minicnn import ops
from minicnn.backends import backend_class, get_backend
from minicnn.program import Program, Value
from minicnn.tolerance import tolerance
from support.numba_check import assert_alike, both, run_both
from support.strategies import normal
from support.tolerances import ELEMENT, SUM

pytest.importorskip("numba")

SPECIAL = np.asarray([0.0, -0.0, 1.0, -1.0, 1e-30, -1e-30, 1e30, -1e30, 88.0, -88.0, -104.0, np.inf, -np.inf, np.nan])
UNARY = [
    ops.negative, ops.abs, ops.sign, ops.square, ops.sqrt, ops.exp, ops.expm1, ops.log, ops.log1p, ops.relu, ops.relu6,
    ops.leaky_relu, ops.elu, ops.sigmoid, ops.tanh, ops.silu, ops.softplus, ops.erf, ops.erfc,
    ops.gelu,
]  # fmt: skip
BINARY = [ops.add, ops.subtract, ops.multiply, ops.divide, ops.maximum, ops.minimum]
COMPARISONS = [ops.greater, ops.greater_equal, ops.less, ops.less_equal, ops.equal]


@pytest.mark.parametrize("shape", [(17, 2, 3), (37,), (1, 1)])
def test_functions(shape: tuple[int, ...]) -> None:
    program = Program()
    x = program.input("x", shape)
    h = x + 0.0  # all functions read it, so they are one kernel
    for op in UNARY:
        program.outputs[op.name] = op(h)
    program.outputs["approximate"] = ops.gelu(h, approximate=True)
    values = np.resize(np.concatenate([SPECIAL, normal((80,), 0) * 5]), shape).astype("float32")
    with np.errstate(all="ignore"):
        # gelu and silu of -inf are NaN by their references' formulas.
        assert_alike(*run_both(program, {"x": values}))


@pytest.mark.parametrize("n", [1, 16, 33])
def test_two_operands_in_every_form(n: int) -> None:
    program = Program()
    x, other = program.input("x", (n, 2, 3)), program.input("y", (n, 2, 3))
    operands: dict[str, Value] = {
        "same": other,
        "channel": program.input("channel", (3,), kind="parameter"),
        "plane": program.input("plane", (1, 2, 1), kind="parameter"),
        "sample": ops.max(other, axes=(1,), keepdims=True),
        "one": program.input("one", (), kind="parameter"),
        "number": program.constant(np.asarray(0.5, "float32")),
    }
    for name, operand in operands.items():
        h = x + operand
        for op in (*BINARY, *COMPARISONS):
            program.outputs[f"{name} {op.name}"] = op(h, operand)
        program.outputs[f"{name} where"] = ops.where(ops.greater(h, operand), h, operand * 2.0)
    arrays = {v.name: np.round(normal(v.shape, 1) * 2).astype("float32") for v in program.inputs}
    with np.errstate(all="ignore"):
        assert_alike(*run_both(program, arrays))


def test_integers_and_bools() -> None:
    program = Program()
    a, b = program.input("x", (21,), "int32"), program.input("b", (21,), "int32")
    step, flags = program.input("step", (), "int32", kind="counter"), program.input("flags", (21,), "bool")
    for op in (ops.add, ops.subtract, ops.multiply, *COMPARISONS):
        program.outputs[op.name] = op(a, b)
    program.outputs["float"] = ops.cast(a, dtype="float32")
    program.outputs["hits"] = ops.cast(ops.equal(a, b), dtype="float32")
    program.outputs["flags"] = ops.cast(flags, dtype="float32")
    program.updates["step"] = step + 1
    rng = np.random.default_rng(0)
    arrays = {"x": rng.integers(-9, 9, 21).astype("int32"), "b": rng.integers(-9, 9, 21).astype("int32")}
    big = np.asarray(2**24 + 1, "int32")  # which a float cannot hold
    made, expected = run_both(program, arrays | {"step": big, "flags": arrays["x"] > 0})
    for name, array in expected.items():
        np.testing.assert_array_equal(made[name], array, err_msg=name)


@pytest.mark.parametrize("n", [1, 16, 19])
def test_reductions(n: int) -> None:
    program = Program()
    x, p = program.input("x", (n, 3, 2, 5)), program.input("p", (7, 5), kind="parameter")
    for op in (ops.sum, ops.mean, ops.max):
        for axes in ((1, 2), (3,), (1, 2, 3), (1,)):
            for keepdims in (True, False):
                program.outputs[f"{op.name} {axes} {keepdims}"] = op(x, axes=axes, keepdims=keepdims)
        program.outputs[f"all {op.name}"] = op(p)
        program.outputs[f"vector {op.name}"] = op(ops.mean(x, axes=(1, 2, 3)))
    for op in (ops.sum, ops.mean):
        for axes in ((0,), (0, 1, 2), None):
            program.outputs[f"{op.name} {axes}"] = op(x, axes=axes)
    arrays = {v.name: normal(v.shape, 0).astype("float32") for v in program.inputs}
    assert_alike(*run_both(program, arrays), terms=30 * n)


@pytest.mark.parametrize("n", [1, 16, 35])
def test_batch_normalisation(n: int) -> None:
    x, dy = ((normal((n, 3, 2, 11), i) * 2 + 5).astype("float32") for i in (0, 1))
    scale, offset = (normal((11,), i).astype("float32") for i in (2, 3))
    attrs = {"axes": (0, 1, 2), "epsilon": 1e-3}
    made, expected = both(ops.normalize, (x, scale, offset), attrs, weights=(1, 2))
    assert_alike(dict(enumerate(made)), dict(enumerate(expected)), 6 * n)
    mean, variance = expected[1:]
    made, expected = both(ops.normalize_gradient, (dy, x, scale, mean, variance), attrs, weights=(2, 3, 4))
    rtol, atol = tolerance("float32", 6 * n)
    for one, other in zip(made, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=rtol, atol=atol * max(1, np.abs(other).max()))


@pytest.mark.parametrize("n", [1, 33])
def test_joining_and_cutting(n: int) -> None:
    x, y = normal((n, 3, 4, 2), 0).astype("float32"), normal((n, 3, 4, 5), 1).astype("float32")
    for made, expected in (
        both(ops.concat, (x, y), {"axis": -1}),
        both(ops.concat, (x, x + 1), {"axis": 1}),
        both(ops.slice_, (x,), {"bounds": ((0, n), (1, 3), (0, 3), (1, 2))}),
        both(ops.pad, (x,), {"widths": ((0, 0), (1, 0), (0, 2), (0, 0)), "value": 1.5}),
    ):
        np.testing.assert_array_equal(made[0], expected[0])


@pytest.mark.parametrize("n", [1, 16, 21])
def test_losses_and_predictions(n: int) -> None:
    logits = (normal((n, 7), 0) * 4).astype("float32")
    logits[0, 2:4] = logits[0].max() + 1  # the first of equal maxima counts
    labels = np.random.default_rng(0).integers(-1, 8, n).astype("int32")  # two of them outside
    dy = normal((n,), 1).astype("float32")
    for op in (ops.softmax, ops.log_softmax, ops.argmax):
        (made,), (expected,) = both(op, (logits,), {})
        np.testing.assert_allclose(made, expected, rtol=SUM, atol=ELEMENT)
    made, expected = both(ops.softmax_cross_entropy, (logits, labels), {})
    np.testing.assert_allclose(made[0], expected[0], rtol=SUM, atol=SUM)
    made, expected = both(ops.softmax_cross_entropy_gradient, (dy, logits, labels), {})
    np.testing.assert_allclose(made[0], expected[0], rtol=SUM, atol=ELEMENT)


@pytest.mark.parametrize("shape", [(20, 4), (20, 3), (20, 2, 2, 2), (20,), (7, 3)])
def test_random_numbers_are_the_references_bits(shape: tuple[int, ...]) -> None:
    program = Program()
    x, step = program.input("x", (20,)), program.input("step", (), "int32", kind="counter")
    program.outputs["x"] = x
    program.outputs["y"] = ops.random_uniform(step, shape=shape, seed=2**40 + 5, stream=2**31 + 3)
    made, expected = run_both(program, {"x": np.zeros(20, "float32"), "step": np.asarray(-7, "int32")})
    np.testing.assert_array_equal(made["y"], expected["y"])


UPDATES: list[tuple[Any, int, dict[str, Any]]] = [
    (ops.sgd_update, 2, {"weight_decay": 0.1}),
    (ops.momentum_update, 3, {"momentum": 0.9}),
    (ops.momentum_update, 3, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    (ops.adam_update, 4, {"beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-7, "weight_decay": 0.1}),
    (ops.adam_update, 4, {"beta_1": 0.0, "beta_2": 0.5, "epsilon": 1e-7}),
    (ops.rmsprop_update, 5, {"rho": 0.9, "momentum": 0.5, "epsilon": 1e-7, "centered": True}),
    (ops.rmsprop_update, 5, {"rho": 0.9, "momentum": 0.0, "epsilon": 1e-7, "centered": False}),
]


@pytest.mark.parametrize(("op", "count", "attrs"), UPDATES)
@pytest.mark.parametrize("size", [1, 16, 1100])
def test_updates(op: Any, count: int, attrs: dict[str, Any], size: int) -> None:
    arrays = [np.abs(normal((size,), i)).astype("float32") for i in range(count)] + [np.asarray(0.1, "float32")]
    if op is ops.adam_update:
        arrays.append(np.asarray(3, "int32"))
    made, expected = both(op, tuple(arrays), attrs, weights=tuple(range(len(arrays))))
    assert_alike(dict(enumerate(made)), dict(enumerate(expected)))


def test_gathers_check_the_index() -> None:
    program = Program()
    images, labels = program.input("x", (9, 2, 3), "uint8"), program.input("y", (9,), "int32")
    index = program.input("index", (5,), "int32")
    program.outputs["x"] = ops.cast(ops.take(images, index), dtype="float32") * 0.5
    program.outputs["y"] = ops.take(labels, index)
    rng = np.random.default_rng(0)
    arrays = {"x": rng.integers(0, 256, (9, 2, 3)).astype("uint8"), "y": np.arange(9, dtype="int32")}
    made, expected = run_both(program, arrays | {"index": np.asarray([8, 0, 0, 3, 2], "int32")})
    assert_alike(made, expected)
    with pytest.raises(IndexError, match="rows from 0 to 8"):
        get_backend("numba").compile(program)(arrays | {"index": np.asarray([0, 1, 2, 3, 9], "int32")})


@pytest.mark.usefixtures("either")
@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_rows_by_an_index_that_the_step_makes(dtype: str) -> None:
    """In a kernel, with its gradient; an index outside reads the nearest row rather than memory that is not there."""
    program = Program()
    x, at = program.input("x", (6, 3), dtype, kind="parameter"), program.input("at", (4, 1))
    index = ops.reshape(ops.cast(at, dtype="int32"), shape=(4,))
    program.outputs["y"] = y = ops.take(x, index)
    arrays = {"x": np.arange(18).reshape(6, 3).astype(dtype), "at": np.asarray([[5], [1], [-3], [99]], "float32")}
    if dtype == "float32":
        program.outputs["dx"] = ops.take_gradient(y, index, rows=6)
    made = backend_class("numba")(strict=True, threads=2).compile(program)(arrays)  # type: ignore[call-arg]
    np.testing.assert_array_equal(made["y"], arrays["x"][[5, 1, 0, 5]])
    if dtype == "float32":
        np.testing.assert_array_equal(made["dx"][[1, 5]], arrays["x"][[1, 5]])
        assert made["dx"].sum() == arrays["x"][[1, 5]].sum()


def test_a_result_with_two_names_is_made_once() -> None:
    program = Program("two names")
    weight = program.input("weight", (64,), kind="parameter")
    program.updates["weight"] = program.outputs["after"] = weight * 2
    program.outputs["before"] = weight
    given = np.ones(64, np.float32)
    made = get_backend("numba").compile(program)({"weight": given})
    assert np.shares_memory(made["after"], made["weight"]), "weights are large"
    assert not np.shares_memory(made["before"], given), "but the caller's own array is the caller's"
    assert (made["before"] == 1).all()
    assert (made["weight"] == 2).all()


def test_cross_entropy_of_logits_with_a_large_offset() -> None:
    """Compiled, where `test_far_out` runs the kernels as Python."""
    offsets = np.asarray([0, 1e4, 1e7, -1e10, 1e30], "float32")
    logits = offsets[:, None] + np.asarray([[0, 1, 2]], "float32") * np.maximum(1, np.spacing(np.abs(offsets)))[:, None]
    logits = np.concatenate([logits, np.repeat(offsets[:, None], 3, axis=1)]).astype("float32")
    labels = np.zeros(10, "int32")
    (made,), _ = both(ops.softmax_cross_entropy, (logits, labels), {})
    below = logits.astype("float64") - logits.max(1, keepdims=True).astype("float64")
    np.testing.assert_allclose(made, np.log(np.exp(below).sum(1)) - below[:, 0], rtol=ELEMENT)
