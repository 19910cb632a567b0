"""Kernels of windows as statements, run thread by thread, beside the primitives' references."""

from __future__ import annotations

from typing import Any

import array_api_compat.numpy as xp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minicnn import ops
from minicnn.conformance.cases import Case
from minicnn.kernels import windows
from minicnn.kernels.expressions import PLACE, Apply, Array, Element, Expr, Load, Name, changed
from minicnn.kernels.interpreter import Interpreter
from minicnn.kernels.statements import Function, If, Kernel, Let, Part, Store
from minicnn.program import Program
from minicnn.program.graph import Node
from support.interpreted import interpreted
from support.kernel_check import case_program, check_results, convolutions, shape_of
from support.plans import plan_of
from support.strategies import normal, seeds
from support.tolerances import SUM

few = settings(max_examples=max(8, settings().max_examples // 4))  # threads take their time
DTYPES = st.sampled_from(["float32", "float64"])


@st.composite
def poolings(draw: st.DrawFn, formats: tuple[str, ...] = ("NHWC", "NCHW", "HWCN"), channels: int = 3) -> dict[str, Any]:
    """The arguments of a pooling, its image x, and a gradient dy."""
    kernel = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    strides = draw(st.one_of(st.just(kernel), st.tuples(st.integers(1, 3), st.integers(1, 3))))
    padding = tuple((draw(st.integers(0, k - 1)), draw(st.integers(0, k - 1))) for k in kernel)
    image = [max(1, k - sum(p)) + draw(st.integers(0, 5)) for k, p in zip(kernel, padding, strict=True)]
    data_format, n, c = draw(st.sampled_from(formats)), draw(st.integers(1, 2)), channels * draw(st.integers(1, 2))
    out = [(m + sum(p) - k) // s + 1 for m, p, k, s in zip(image, padding, kernel, strides, strict=True)]
    attrs = {"kernel": kernel, "strides": strides, "padding": padding, "data_format": data_format}
    seed = draw(seeds)
    x = np.round(2 * normal(shape_of(data_format, n, *image, c), seed)) / 2  # with equal ones, and some NaN
    x.reshape(-1)[draw(st.lists(st.integers(0, x.size - 1), max_size=2))] = np.nan
    return {"attrs": attrs, "image": tuple(image), "x": x, "dy": normal(shape_of(data_format, n, *out, c), seed, 1)}


def check(case: Case, dtype: str) -> None:
    """Compare a primitive's kernels with its reference."""
    program, arrays = case_program(case, dtype)
    results = interpreted(program, arrays)
    check_results(case, arrays.values(), lambda k: results[f"y{k}"], dtype)


@pytest.mark.parametrize("depthwise", [False, True])
@pytest.mark.parametrize("which", ["forward", "input", "weight"])
@few
@given(data=st.data(), dtype=DTYPES)
def test_convolutions(depthwise: bool, which: str, data: st.DataObject, dtype: str) -> None:
    check(data.draw(convolutions(2, 2, 2, which, depthwise=depthwise)), dtype)


@few
@given(poolings(), DTYPES)
def test_max_pooling(drawn: dict[str, Any], dtype: str) -> None:
    check(Case(ops.max_pool2d, (drawn["x"],), drawn["attrs"]), dtype)


@few
@given(poolings(), DTYPES, st.booleans())
def test_average_pooling(drawn: dict[str, Any], dtype: str, count_padding: bool) -> None:
    attrs = drawn["attrs"] | {"count_padding": count_padding}
    check(Case(ops.average_pool2d, (np.nan_to_num(drawn["x"]),), attrs, terms=16), dtype)
    attrs |= {"image": drawn["image"]}
    check(Case(ops.average_pool2d_gradient, (drawn["dy"],), attrs, terms=16), dtype)


@few
@given(poolings(), DTYPES, st.booleans())
def test_gradients_of_max_pooling(drawn: dict[str, Any], dtype: str, fuse: bool) -> None:
    """By itself, and, fused, from the numbers of the taps that hold the maxima."""
    x = np.nan_to_num(drawn["x"]).astype(dtype)  # beside a NaN a gradient goes to one element of a window, whichever
    dy = drawn["dy"].astype(dtype)
    program = Program()
    image, gradient = program.input("x", x.shape, dtype), program.input("dy", dy.shape, dtype)
    y = ops.max_pool2d(image, **drawn["attrs"])
    program.outputs["y"], program.outputs["dx"] = y, ops.max_pool2d_gradient(gradient, image, y, **drawn["attrs"])
    results = interpreted(program, {"x": x, "dy": dy}, fuse=fuse)
    assert {"max_pool2d_scatter"} <= {n.op.name for n in program.nodes} or not fuse
    expected = ops.max_pool2d.reference(x, xp=xp, **drawn["attrs"])
    np.testing.assert_array_equal(results["y"], expected)
    found = ops.max_pool2d_gradient.reference(dy, x, expected, xp=xp, **drawn["attrs"])
    np.testing.assert_allclose(results["dx"], found, rtol=SUM, atol=SUM)


def neighbours(node: Node, arrays: list[np.ndarray[Any, Any]], width: int) -> np.ndarray[Any, Any]:
    """The result of a node whose windows slide over several channels at once."""
    result = np.zeros(node.outputs[0].shape, node.outputs[0].dtype)
    given = [Array(f"a{k}", a.dtype.name, a.size) for k, a in enumerate(arrays)]
    to = Array("y", result.dtype.name, result.size, written=True)

    def loaded(x: Expr) -> Expr | None:
        return Load(given[x.k], x.place) if isinstance(x, Element) else None

    i, threads = Name("i", PLACE), 8
    function = Function("f", (Name("i"),), changed(windows.element(node), loaded), to.dtype)
    place = Let(i, (Name("block") * threads + Name("thread")) * width)
    part = Part(
        "",
        -(-to.size // (threads * width)),
        width,
        [function],
        [place, If(i < to.size, (Store(to, i, Apply("f", (i,))),))],
    )
    memory = {f"a{k}": a for k, a in enumerate(arrays)} | {"y": result}
    Interpreter(Kernel("", threads, [*given, to], [part]), memory).run()
    return result


@few
@given(poolings(("NHWC",), 2))
def test_neighbouring_channels_at_once_are_those_one_by_one(drawn: dict[str, Any]) -> None:
    program = Program()
    x, dy = program.input("x", drawn["x"].shape), program.input("dy", drawn["dy"].shape)
    y = ops.max_pool2d(x, **drawn["attrs"])
    program.outputs |= {
        "dx": ops.max_pool2d_gradient(dy, x, y, **drawn["attrs"]),
        "mean": ops.average_pool2d(x, count_padding=False, **drawn["attrs"]),
        "spread": ops.average_pool2d_gradient(dy, count_padding=False, image=drawn["image"], **drawn["attrs"]),
    }
    plan_of(program, tiled=False)  # gradients of maxima become numbers of taps and what is scattered by these
    arrays = {"x": drawn["x"].astype("float32"), "dy": drawn["dy"].astype("float32")}
    names = [node.op.name for node in program.nodes]
    assert {"max_pool2d", "max_pool2d_index", "max_pool2d_scatter", "average_pool2d"} <= set(names)
    for node in program.nodes:
        operands = [arrays[v.name] for v in node.inputs]
        arrays[node.outputs[0].name] = one_by_one = neighbours(node, operands, 1)
        np.testing.assert_array_equal(neighbours(node, operands, 2), one_by_one, err_msg=node.op.name)
