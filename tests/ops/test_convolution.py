"""conv2d and its two gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given

from minicnn import ops
from minicnn.program import Program, gradients
from support import oracles
from support.gradcheck import check_gradients, run_primitive
from support.numerics import assert_close
from support.strategies import DATA_FORMATS, WindowCase, conv_cases, from_format, normal, to_format


def test_by_hand() -> None:
    x = np.arange(9.0).reshape(1, 3, 3, 1)
    w = np.asarray([[1.0, 2.0], [3.0, 4.0]]).reshape(2, 2, 1, 1)
    # Cross-correlation, not flipped: 0 * 1 + 1 * 2 + 3 * 3 + 4 * 4 = 27.
    np.testing.assert_array_equal(run_primitive(ops.conv2d, x, w)[0, ..., 0], [[27, 37], [57, 67]])


def test_by_hand_strides_padding_and_dilation() -> None:
    x = np.arange(1.0, 10.0).reshape(1, 3, 3, 1)
    w = np.asarray([[1.0, 10.0], [100.0, 1000.0]]).reshape(2, 2, 1, 1)
    y = run_primitive(ops.conv2d, x, w, strides=(2, 2), padding=((1, 0), (0, 1)))
    # Rows -1 and 0, then 1 and 2; columns 0 and 1, then 2 and 3 (outside).
    np.testing.assert_array_equal(y[0, ..., 0], [[2100, 300], [8754, 906]])
    y = run_primitive(ops.conv2d, x, w, dilation=(2, 2))
    np.testing.assert_array_equal(y[0, ..., 0], [[1 + 30 + 700 + 9000]])


def test_by_hand_groups() -> None:
    x = np.asarray([1.0, 2.0, 3.0, 4.0]).reshape(1, 1, 1, 4)
    w = np.asarray([[10.0, 100.0], [1.0, 1000.0]]).reshape(1, 1, 2, 2)
    # Filter 0 sees channels 0 and 1, filter 1 sees channels 2 and 3.
    y = run_primitive(ops.conv2d, x, w, groups=2)
    np.testing.assert_array_equal(y.ravel(), [1 * 10 + 2 * 1, 3 * 100 + 4 * 1000])


@given(case=conv_cases())
def test_matches_naive_loops(case: WindowCase) -> None:
    geometry = (case.strides, case.padding, case.dilation, case.groups)
    expected = oracles.conv2d(case.x, case.w, *geometry)
    x = to_format(case.x, case.data_format)
    y = run_primitive(ops.conv2d, x, case.w, **case.convolution)
    assert_close(from_format(y, case.data_format), expected, case.terms)

    dy = normal(expected.shape, case.seed, 3)
    dx, dw = oracles.conv2d_gradients(dy, case.x, case.w, *geometry)
    dy = to_format(dy, case.data_format)
    found = run_primitive(ops.conv2d_input_gradient, dy, case.w, image=case.image, **case.convolution)
    assert_close(from_format(found, case.data_format), dx, case.terms)
    found = run_primitive(ops.conv2d_weight_gradient, dy, x, kernel=case.kernel, **case.convolution)
    assert_close(found, dw, case.terms)


@given(case=conv_cases())
def test_gradients(case: WindowCase) -> None:
    check_gradients(ops.conv2d, to_format(case.x, case.data_format), case.w, seed=case.seed, **case.convolution)


@given(case=conv_cases())
def test_gradients_of_gradients(case: WindowCase) -> None:
    x = to_format(case.x, case.data_format)
    dy = to_format(normal((case.n, *case.output, case.filters), case.seed, 4), case.data_format)
    attrs = case.convolution
    check_gradients(ops.conv2d_input_gradient, dy, case.w, seed=case.seed, image=case.image, **attrs)
    check_gradients(ops.conv2d_weight_gradient, dy, x, seed=case.seed, kernel=case.kernel, **attrs)


@pytest.mark.parametrize("data_format", DATA_FORMATS)
@pytest.mark.parametrize("shape", [(3, 5, 2, 9), (40, 2, 2, 2)])
def test_weight_gradient_for_few_and_many_positions(data_format: str, shape: tuple[int, int, int, int]) -> None:
    """Both ways to sum over the batch: more filters than positions, and fewer."""
    n, size, channels, filters = shape
    x, dy = normal((n, size, size, channels), 1), normal((n, size - 1, size - 1, filters), 2)
    w = np.zeros((2, 2, channels, filters))
    _, expected = oracles.conv2d_gradients(dy, x, w, (1, 1), ((0, 0), (0, 0)), (1, 1), 1)
    dw = run_primitive(
        ops.conv2d_weight_gradient,
        to_format(dy, data_format), to_format(x, data_format), kernel=(2, 2), data_format=data_format,
    )  # fmt: skip
    assert_close(dw, expected, n * size * size)


def test_strided_input_is_as_good_as_contiguous() -> None:
    x, w = normal((2, 8, 8, 6), 0), normal((3, 3, 3, 4), 1)
    part = x[:, ::2, ::-1, ::2]
    np.testing.assert_array_equal(
        ops.conv2d.reference(part, w, xp=np), ops.conv2d.reference(np.ascontiguousarray(part), w, xp=np)
    )


def test_empty_batch() -> None:
    for data_format in DATA_FORMATS:
        x = to_format(np.zeros((0, 4, 4, 3)), data_format)
        dy = to_format(np.zeros((0, 2, 2, 5)), data_format)
        dw = run_primitive(ops.conv2d_weight_gradient, dy, x, kernel=(3, 3), data_format=data_format)
        np.testing.assert_array_equal(dw, np.zeros((3, 3, 3, 5)))


def test_cost_counts_multiply_adds_twice() -> None:
    program = Program()
    x, w = program.input("x", (2, 5, 5, 4)), program.input("w", (3, 3, 2, 6))
    y = ops.conv2d(x, w, groups=2)
    gradients(program, ops.sum(y), [x, w])
    forward = y.node.cost
    assert forward.flops == 2 * (2 * 3 * 3 * 6) * (3 * 3 * 2)
    assert forward.bytes == 4 * (2 * 5 * 5 * 4 + 3 * 3 * 2 * 6 + 2 * 3 * 3 * 6)
    assert forward.workspace == 4 * (2 * 3 * 3) * (3 * 3 * 2)
    backward = [n.cost for n in program.nodes if n.op.name.startswith("conv2d_")]
    assert [c.flops for c in backward] == [forward.flops] * 2
    one = ops.conv2d(x, program.input("k", (1, 1, 4, 6)))
    assert one.node.cost.workspace == 0


X, W = (2, 5, 5, 4), (3, 3, 4, 6)


@pytest.mark.parametrize(
    ("x", "w", "attrs", "text"),
    [
        (X[1:], W, {}, r"conv2d takes an image with 4 axes .*Received: float32\[5,5,4\]"),
        (X, W[1:], {}, r"conv2d takes a kernel with 4 axes"),
        (X, (3, 3, 2, 6), {}, r"groups that divide the channels .*4 channels, 6 filters, groups=1"),
        (X, (3, 3, 2, 5), {"groups": 2}, r"4 channels, 5 filters, groups=2"),
        (X, W, {"groups": 0}, "groups=0"),
        (X, W, {"data_format": "CHWN"}, r"data_format is one of NHWC, NCHW, HWCN\. Received: 'CHWN'"),
        (X, W, {"strides": (0, 1)}, r"at least 1\. Received: kernel \(3, 3\), strides \(0, 1\)"),
        (X, W, {"dilation": (1, 0)}, r"dilation \(1, 0\)"),
        (X, W, {"padding": ((0, -1), (0, 0))}, r"padding of at least 0\. Received: \(\(0, -1\), \(0, 0\)\)"),
        (X, W, {"dilation": (3, 1)}, r"at least as large as its \(dilated\) kernel\. Received: image 5x5"),
    ],
)
def test_errors(x: tuple[int, ...], w: tuple[int, ...], attrs: dict[str, Any], text: str) -> None:
    program = Program()
    with pytest.raises(ValueError, match=text):
        ops.conv2d(program.input("x", x), program.input("w", w), **attrs)


def test_dtype_errors() -> None:
    program = Program()
    x = program.input("x", X)
    with pytest.raises(TypeError, match=r"conv2d takes arrays of one dtype.*ops\.cast"):
        ops.conv2d(x, program.input("w64", W, "float64"))
    with pytest.raises(TypeError, match=r"conv2d takes floating-point arrays\. Received: uint8"):
        ops.conv2d(program.input("x8", X, "uint8"), program.input("w", W))


def test_gradient_shape_errors() -> None:
    program = Program()
    dy, w, x = program.input("dy", (2, 3, 3, 6)), program.input("w", W), program.input("x", X)
    with pytest.raises(ValueError, match=r"dy as conv2d makes it from the image.*\(4, 4, 6\).*Check image"):
        ops.conv2d_input_gradient(dy, w, image=(6, 6))
    with pytest.raises(ValueError, match=r"dy as conv2d makes it from x.*\(2, 4, 4\).*Check kernel"):
        ops.conv2d_weight_gradient(dy, x, kernel=(2, 2))
    with pytest.raises(ValueError, match="a gradient with 4 axes"):
        ops.conv2d_weight_gradient(program.input("flat", (2, 54)), x, kernel=(3, 3))
