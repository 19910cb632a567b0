"""Kernels on images against their references: sizes around the tile, strides, dilation, groups, one-sided padding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minicnn import ops
from minicnn.backends import backend_class
from minicnn.program import Program
from minicnn.tolerance import tolerance
from numba_check import Array, both
from strategies import distinct_values, normal, seeds

pytest.importorskip("numba")


@dataclass(frozen=True)
class Case:
    """Geometry; each compiles kernels of its own, so there are few."""

    n: int
    image: tuple[int, int]
    c: int
    f: int
    kernel: tuple[int, int]
    strides: tuple[int, int] = (1, 1)
    padding: tuple[tuple[int, int], tuple[int, int]] = ((0, 0), (0, 0))
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1

    @property
    def output(self) -> tuple[int, int]:
        oh, ow = (
            (n + sum(p) - d * (k - 1) - 1) // s + 1
            for n, p, d, k, s in zip(self.image, self.padding, self.dilation, self.kernel, self.strides, strict=True)
        )
        return oh, ow

    @property
    def attrs(self) -> dict[str, Any]:
        return {"strides": self.strides, "padding": self.padding, "dilation": self.dilation}

    @property
    def pooling(self) -> dict[str, Any]:
        return {"kernel": self.kernel, "strides": self.strides, "padding": self.padding}


CASES = [
    Case(17, (5, 7), 3, 5, (3, 3)),
    Case(33, (6, 6), 12, 24, (3, 3), padding=((1, 1), (2, 1))),
    Case(1, (1, 1), 20, 1, (1, 1)),
    Case(16, (7, 8), 6, 8, (2, 3), (2, 2), ((1, 0), (0, 1)), (1, 2), groups=2),
    Case(15, (8, 4), 1, 9, (5, 3), (3, 1), ((2, 2), (2, 2))),
]


def array(*shape: int, seed: int = 0) -> Array:
    return normal(shape, seed).astype("float32")


def check(made: list[Array], expected: list[Array], terms: int) -> None:
    rtol, atol = tolerance("float32", terms)
    for one, other in zip(made, expected, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(one, other, rtol=rtol, atol=4 * atol)


def check_conv2d(case: Case, seed: int = 0) -> None:
    w = array(*case.kernel, case.c // case.groups, case.f, seed=seed)
    x, dy = array(case.n, *case.image, case.c, seed=seed), array(case.n, *case.output, case.f, seed=seed)
    attrs = case.attrs | {"groups": case.groups}
    check(*both(ops.conv2d, (x, w), attrs, weights=(1,)), case.c * 15)
    check(*both(ops.conv2d_input_gradient, (dy, w), attrs | {"image": case.image}, weights=(1,)), case.f * 15)
    check(*both(ops.conv2d_weight_gradient, (dy, x), attrs | {"kernel": case.kernel}), case.n * 35)


@pytest.mark.parametrize("case", CASES)
def test_conv2d_and_its_gradients(case: Case) -> None:
    check_conv2d(case)


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 40), st.integers(3, 9), st.sampled_from([12, 20]), st.integers(0, 2), seeds)
def test_one_compiled_convolution_serves_many_shapes(n: int, h: int, c: int, top: int, seed: int) -> None:
    check_conv2d(Case(n, (h, 6), c, 8, (3, 3), padding=((top, 1), (1, 1))), seed)


@pytest.mark.parametrize("threads", [1, 3])
def test_weight_gradient_on_other_numbers_of_threads(threads: int) -> None:
    dy, x = array(50, 4, 6, 24), array(50, 6, 6, 12, seed=1)
    attrs = {"kernel": (3, 3), "padding": ((0, 0), (1, 1))}
    check(*both(ops.conv2d_weight_gradient, (dy, x), attrs, threads=threads), 50 * 24)


def test_weight_gradient_of_many_weights() -> None:
    # So many that the lanes are added up at each block.
    dy, x = array(17, 3, 3, 72), array(17, 3, 3, 64, seed=1)
    check(*both(ops.conv2d_weight_gradient, (dy, x), {"kernel": (1, 1)}), 17 * 9)


@pytest.mark.parametrize("case", [CASES[0], CASES[1], CASES[3]])
@pytest.mark.parametrize("multiplier", [1, 2])
def test_depthwise(case: Case, multiplier: int) -> None:
    x, w = array(case.n, *case.image, case.c), array(*case.kernel, case.c, multiplier, seed=1)
    dy = array(case.n, *case.output, case.c * multiplier, seed=2)
    check(*both(ops.depthwise_conv2d, (x, w), case.attrs, weights=(1,)), 9)
    attrs = case.attrs | {"image": case.image}
    check(*both(ops.depthwise_conv2d_input_gradient, (dy, w), attrs, weights=(1,)), 18)
    attrs = case.attrs | {"kernel": case.kernel}
    check(*both(ops.depthwise_conv2d_weight_gradient, (dy, x), attrs), case.n * 35)


POOLS = [
    Case(17, (5, 7), 3, 0, (2, 2), (2, 2)),
    Case(16, (6, 6), 5, 0, (3, 3), (2, 1), ((1, 1), (2, 0))),
    Case(1, (8, 4), 1, 0, (2, 1), (3, 2)),
]


@pytest.mark.parametrize("case", POOLS)
@pytest.mark.parametrize("count_padding", [True, False])
def test_pooling(case: Case, count_padding: bool) -> None:
    x = distinct_values((case.n, *case.image, case.c), 0).astype("float32")
    attrs = case.pooling
    made, expected = both(ops.max_pool2d, (x,), attrs)
    np.testing.assert_array_equal(made[0], expected[0])
    dy = array(*expected[0].shape)
    check(*both(ops.max_pool2d_gradient, (dy, x, expected[0]), attrs), 9)
    average = attrs | {"count_padding": count_padding}
    check(*both(ops.average_pool2d, (x,), average), 9)
    check(*both(ops.average_pool2d_gradient, (dy,), average | {"image": case.image}), 9)


def test_max_pooling_of_ties_and_nan() -> None:
    x = np.zeros((3, 4, 4, 2), "float32")
    x[0, :2, :2, 0] = np.nan
    attrs = {"kernel": (2, 2), "strides": (2, 2)}
    (y,), (expected,) = both(ops.max_pool2d, (x,), attrs)
    np.testing.assert_array_equal(y, expected)
    dy = normal(y.shape, 0).astype("float32")
    made, reference = both(ops.max_pool2d_gradient, (dy, x, y), attrs)
    np.testing.assert_array_equal(made[0], reference[0])


@pytest.mark.parametrize("n", [1, 15, 16, 17, 33])
@pytest.mark.parametrize(("k", "m"), [(37, 10), (10, 70)])
def test_matmul(n: int, k: int, m: int) -> None:
    a, w, dy = (normal(s, i).astype("float32") for i, s in enumerate([(n, k), (k, m), (n, m)]))
    check(*both(ops.matmul, (a, w), {}, weights=(1,)), k)
    check(*both(ops.matmul, (dy, w), {"transpose_b": True}, weights=(1,)), m)
    check(*both(ops.matmul, (a, dy), {"transpose_a": True}), n)


def test_arrays_with_gaps_are_read_right() -> None:
    x = normal((17, 12, 10, 6), 0).astype("float32")[:, ::2, ::-1, ::2]
    w = normal((3, 3, 3, 8), 1).astype("float32").transpose(1, 0, 2, 3)
    check(*both(ops.conv2d, (x, w), {}, weights=(1,)), 27)


@pytest.mark.parametrize("n", [1, 33])
def test_scale_and_bias_join_their_neighbours(n: int) -> None:
    program = Program()
    x = program.input("x", (n, 6, 7, 3), "uint8")
    w, b = program.input("w", (3, 3, 3, 8), kind="parameter"), program.input("b", (8,), kind="parameter")
    v, c = program.input("v", (160, 5), kind="parameter"), program.input("c", (5,), kind="parameter")
    scaled = ops.cast(x, dtype="float32") * (1 / 255)
    maps = ops.relu(ops.conv2d(scaled, w) + b)
    program.outputs["y"] = ops.reshape(maps, shape=(n, 160)) @ v + c
    backend = backend_class("numba")(strict=True)
    kernels = {how for _, how in backend.explain(program)}
    assert kernels == {"kernel: block", "kernel: conv2d+bias", "kernel: relu", "kernel: no work", "kernel: matmul+bias"}
    arrays = {u.name: array(*u.shape, seed=i) for i, u in enumerate(program.inputs)}
    arrays["x"] = np.random.default_rng(0).integers(0, 256, x.shape).astype("uint8")
    made, expected = (backend_class("numba")(reference_only=only).compile(program)(arrays) for only in (False, True))
    check([made["y"]], [expected["y"]], 27 * 160)
