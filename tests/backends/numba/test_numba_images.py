"""Kernels on images against their references: sizes around the tile, strides, dilation, groups, one-sided padding."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minicnn import ops
from minicnn.backends import backend_class
from minicnn.program import Program
from minicnn.tolerance import tolerance
from support.numba_check import Array, both, check, run_both
from support.strategies import Padding, Pair, WindowCase, distinct_values, normal, seeds
from support.tolerances import ELEMENT, SUM

pytest.importorskip("numba")

NOT_COUNTED = pytest.mark.no_cover  # other tests interpret these kernels, or compile them with other numbers


def case_of(
    n: int, image: Pair, channels: int, filters: int, kernel: Pair, strides: Pair = (1, 1),
    padding: Padding = ((0, 0), (0, 0)), dilation: Pair = (1, 1), groups: int = 1,
) -> WindowCase:  # fmt: skip
    """A geometry; each compiles kernels of its own, so there are few."""
    return WindowCase(n, image, channels, kernel, strides, padding, dilation, groups, filters, "NHWC", 0)


CASES = [
    case_of(17, (5, 7), 3, 5, (3, 3)),
    case_of(33, (6, 6), 12, 24, (3, 3), padding=((1, 1), (2, 1))),
    case_of(1, (1, 1), 20, 1, (1, 1)),
    case_of(16, (7, 8), 6, 8, (2, 3), (2, 2), ((1, 0), (0, 1)), (1, 2), groups=2),
    case_of(15, (8, 4), 1, 9, (5, 3), (3, 1), ((2, 2), (2, 2))),
]


def array(*shape: int, seed: int = 0) -> Array:
    return normal(shape, seed).astype("float32")


def check_conv2d(case: WindowCase, seed: int = 0) -> None:
    w = array(*case.kernel, case.channels // case.groups, case.filters, seed=seed)
    x, dy = array(case.n, *case.image, case.channels, seed=seed), array(case.n, *case.output, case.filters, seed=seed)
    attrs = case.convolution
    check(*both(ops.conv2d, (x, w), attrs, weights=(1,)), case.channels * 15)
    check(*both(ops.conv2d_input_gradient, (dy, w), attrs | {"image": case.image}, weights=(1,)), case.filters * 15)
    check(*both(ops.conv2d_weight_gradient, (dy, x), attrs | {"kernel": case.kernel}), case.n * 35)


@NOT_COUNTED
@pytest.mark.parametrize(
    ("case", "jit"), [(c, "interpreted" if c in CASES[2::2] else "compiled") for c in CASES], indirect=["jit"]
)
@pytest.mark.usefixtures("jit")
def test_conv2d_and_its_gradients(case: WindowCase) -> None:
    check_conv2d(case)


@NOT_COUNTED
@settings(max_examples=4, deadline=None)
@given(st.integers(1, 40), st.integers(3, 9), st.integers(0, 2), seeds)
def test_one_compiled_convolution_serves_many_shapes(n: int, h: int, top: int, seed: int) -> None:
    check_conv2d(case_of(n, (h, 6), 12, 8, (3, 3), padding=((top, 1), (1, 1))), seed)


@pytest.mark.parametrize("threads", [1, 3])
def test_weight_gradient_on_other_numbers_of_threads(threads: int) -> None:
    dy, x = array(50, 4, 6, 24), array(50, 6, 6, 12, seed=1)
    attrs = {"kernel": (3, 3), "padding": ((0, 0), (1, 1))}
    check(*both(ops.conv2d_weight_gradient, (dy, x), attrs, threads=threads), 50 * 24)


# Many weights or filters: filters in the lanes. Panels of 1 and 2 vectors, full and not, long rows and small images.
WIDE = [
    case_of(40, (6, 5), 16, 34, (3, 3), padding=((1, 1), (1, 1))),
    case_of(35, (9, 9), 16, 40, (3, 3), (2, 2), ((1, 1), (0, 1)), groups=2),
    case_of(18, (3, 40), 6, 32, (3, 3)),
    case_of(50, (1, 1), 90, 50, (1, 1)),
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("case", "threads"), [*((case, 3) for case in WIDE), (WIDE[0], 1)])
def test_weight_gradient_with_the_filters_in_the_lanes(case: WindowCase, threads: int) -> None:
    dy, x = array(case.n, *case.output, case.filters), array(case.n, *case.image, case.channels, seed=1)
    attrs = case.convolution | {"kernel": case.kernel}
    made, expected = both(ops.conv2d_weight_gradient, (dy, x), attrs, threads=threads)
    check(made, expected, case.n * case.output[0] * case.output[1])


def test_threads_share_filters_where_there_are_more_weights_than_pixels() -> None:
    # The first weight gradient is divided among threads, the second is added up from their parts.
    for case in (case_of(17, (2, 2), 64, 64, (1, 1)), case_of(64, (2, 2), 64, 32, (1, 1))):
        dy, x = array(case.n, 2, 2, case.filters), array(case.n, 2, 2, case.channels, seed=1)
        made, expected = both(ops.conv2d_weight_gradient, (dy, x), {"kernel": (1, 1)}, threads=2)
        check(made, expected, case.n * 4)


# Geometries with a Winograd transform: odd and even sides, no padding and some, tiles that fill up and do not.
TRANSFORMED = [
    case_of(5, (7, 8), 5, 16, (3, 3), padding=((1, 1), (1, 1))),
    case_of(33, (6, 5), 20, 24, (3, 3)),
    case_of(17, (9, 9), 18, 40, (3, 3), padding=((2, 0), (0, 1))),
    case_of(16, (2, 2), 16, 17, (3, 3), padding=((1, 1), (1, 1))),
]


def convolutions(case: WindowCase, *, ends: bool) -> Program:
    """y from x, k and b, dx from dy, k and z; with ends, y is rectified, and dx passes where z is positive."""
    program = Program()
    x, z = (program.input(name, (case.n, *case.image, case.channels)) for name in "xz")
    k = program.input("k", (3, 3, case.channels, case.filters), kind="parameter")
    b = program.input("b", (case.filters,), kind="parameter")
    dy = program.input("dy", (case.n, *case.output, case.filters))
    y = ops.conv2d(x, k, padding=case.padding) + b
    dx = ops.conv2d_input_gradient(dy, k, padding=case.padding, image=case.image)
    program.outputs["y"], program.outputs["dx"] = (ops.relu(y), ops.relu_gradient(dx, z)) if ends else (y, dx)
    return program


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("case", "kernel", "ends"),
    [
        *((case, "winograd", True) for case in TRANSFORMED), (TRANSFORMED[2], "winograd", False),
        *((case, "unrolled", True) for case in TRANSFORMED[1:3]), (TRANSFORMED[0], "direct", True),
    ],
)  # fmt: skip
def test_every_way_of_convolution_computes_the_same(case: WindowCase, ends: bool, kernel: str) -> None:
    backend = backend_class("numba")(strict=True, threads=3, convolution_kernel=kernel)  # type: ignore[call-arg]
    texts = [how for _, how in backend.explain(convolutions(case, ends=ends)) if "conv2d" in how]
    possible = {"direct": 0, "winograd": 2, "unrolled": 2}[kernel]
    assert sum(kernel in how for how in texts) == possible
    arrays = {v.name: array(*v.shape, seed=i) for i, v in enumerate(convolutions(case, ends=ends).inputs)}
    made, expected = (
        b.compile(convolutions(case, ends=ends))(arrays) for b in (backend, backend_class("numba")(reference_only=True))
    )
    for name in ("y", "dx"):
        rtol, atol = tolerance("float32", 9 * max(case.channels, case.filters))
        # Winograd's sums are of values up to 4 times as large as the direct ones.
        np.testing.assert_allclose(made[name], expected[name], rtol=4 * rtol, atol=16 * atol)


def test_an_unknown_way_of_convolution_is_refused() -> None:
    with pytest.raises(ValueError, match="direct, winograd, unrolled"):
        backend_class("numba")(convolution_kernel="fast")  # type: ignore[call-arg]


@NOT_COUNTED
@pytest.mark.parametrize(
    ("case", "multiplier", "jit"),
    [(CASES[0], 1, "interpreted"), (CASES[1], 2, "compiled"), (CASES[3], 1, "compiled"), (CASES[3], 2, "interpreted")],
    indirect=["jit"],
)
@pytest.mark.usefixtures("jit")
def test_depthwise(case: WindowCase, multiplier: int) -> None:
    x, w = array(case.n, *case.image, case.channels), array(*case.kernel, case.channels, multiplier, seed=1)
    dy = array(case.n, *case.output, case.channels * multiplier, seed=2)
    check(*both(ops.depthwise_conv2d, (x, w), case.sliding, weights=(1,)), 9)
    attrs = case.sliding | {"image": case.image}
    check(*both(ops.depthwise_conv2d_input_gradient, (dy, w), attrs, weights=(1,)), 18)
    attrs = case.sliding | {"kernel": case.kernel}
    check(*both(ops.depthwise_conv2d_weight_gradient, (dy, x), attrs), case.n * 35)


POOLS = [
    case_of(17, (5, 7), 3, 0, (2, 2), (2, 2)),
    case_of(16, (6, 6), 5, 0, (3, 3), (2, 1), ((1, 1), (2, 0))),
    case_of(1, (8, 4), 1, 0, (2, 1), (3, 2)),
]


@NOT_COUNTED
@pytest.mark.parametrize(("case", "count_padding"), [*((case, True) for case in POOLS), (POOLS[1], False)])
def test_pooling(case: WindowCase, count_padding: bool) -> None:
    x = distinct_values((case.n, *case.image, case.channels), 0).astype("float32")
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


@NOT_COUNTED
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


@pytest.mark.parametrize("n", [15, 33])
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
    assert kernels == {"kernel: block", "kernel: conv2d + bias + relu", "kernel: no work", "kernel: matmul + bias"}
    arrays = {u.name: array(*u.shape, seed=i) for i, u in enumerate(program.inputs)}
    arrays["x"] = np.random.default_rng(0).integers(0, 256, x.shape).astype("uint8")
    made, expected = run_both(program, arrays)
    check([made["y"]], [expected["y"]], 27 * 160)


@NOT_COUNTED
@pytest.mark.parametrize("size", [(6, 8), (7, 9)])
@pytest.mark.parametrize("kernel", [(2, 2), (3, 3)])
def test_pooling_and_its_relu_run_as_one(size: tuple[int, int], kernel: tuple[int, int]) -> None:
    def program() -> Program:
        made = Program()
        x = made.input("x", (18, *size, 5))
        attrs = {"kernel": kernel, "strides": (2, 2), "padding": ((0, 0), (0, 0))}
        pooled = ops.max_pool2d(x, **attrs)
        y = ops.relu(pooled)
        dy = made.input("dy", y.shape)
        made.outputs["y"] = y
        made.outputs["dx"] = ops.max_pool2d_gradient(ops.relu_gradient(dy, y), x, pooled, **attrs)
        return made

    backend = backend_class("numba")(strict=True)
    kernels = {how for _, how in backend.explain(program())}
    assert kernels == {"kernel: max_pool2d + relu", "kernel: relu_gradient + max_pool2d_gradient"}
    arrays = {v.name: array(*v.shape, seed=i) for i, v in enumerate(program().inputs)}
    arrays["x"] = np.where(np.arange(18)[:, None, None, None] % 3, arrays["x"], -abs(arrays["x"]))  # some all negative
    arrays["x"][0, 0, 0, 0] = np.nan
    made, expected = run_both(program(), arrays)
    for name in ("y", "dx"):
        np.testing.assert_allclose(made[name], expected[name], rtol=SUM, atol=ELEMENT)


@pytest.mark.parametrize("activation", ["relu", "relu6"])
def test_normalisation_and_activation_run_as_one(activation: str) -> None:
    def program() -> Program:
        made = Program()
        x = made.input("x", (16, 3, 4, 16))  # as many samples as channels
        scale, offset = (made.input(name, (16,), kind="parameter") for name in ("scale", "offset"))
        y, mean, variance = ops.normalize(x * 3.0, scale, offset, axes=(0, 1, 2), epsilon=1e-3)
        made.outputs["y"], made.outputs["mean"] = getattr(ops, activation)(y), mean
        made.outputs["variance"] = variance
        return made

    backend = backend_class("numba")(strict=True)
    kernels = {how for _, how in backend.explain(program())}
    assert {"kernel: subtract+square+mean", f"kernel: subtract+multiply+add+{activation}"} <= kernels
    arrays = {v.name: array(*v.shape, seed=i) for i, v in enumerate(program().inputs)}
    made, expected = run_both(program(), arrays)
    check([made[k] for k in sorted(made)], [expected[k] for k in sorted(expected)], 16 * 12)
