"""depthwise_conv2d and its two gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given

from minicnn import ops
from minicnn.program import Program
from support import oracles
from support.gradcheck import check_gradients, run_primitive
from support.numerics import assert_close
from support.strategies import WindowCase, conv_cases, from_format, normal, to_format


def test_by_hand() -> None:
    x = np.asarray([[1.0, 10.0], [2.0, 20.0], [3.0, 30.0]]).reshape(1, 1, 3, 2)
    w = np.asarray([[[1.0, -1.0], [5.0, 0.0]], [[100.0, 2.0], [7.0, 1.0]]]).reshape(1, 2, 2, 2)
    # Channel 0 gives results 0 and 1, channel 1 gives 2 and 3.
    expected = [[1 + 200, -1 + 4, 50 + 140, 20], [2 + 300, -2 + 6, 100 + 210, 30]]
    np.testing.assert_array_equal(run_primitive(ops.depthwise_conv2d, x, w)[0, 0], expected)


@given(case=conv_cases())
def test_matches_naive_loops_with_a_group_for_each_channel(case: WindowCase) -> None:
    w = case.depthwise_w
    kh, kw, c, m = w.shape
    kernel = w.reshape(kh, kw, 1, c * m)
    expected = oracles.conv2d(case.x, kernel, case.strides, case.padding, case.dilation, groups=c)
    y = run_primitive(ops.depthwise_conv2d, to_format(case.x, case.data_format), w, **case.sliding)
    assert_close(from_format(y, case.data_format), expected, case.terms)


@given(case=conv_cases())
def test_gradients(case: WindowCase) -> None:
    x, w = to_format(case.x, case.data_format), case.depthwise_w
    check_gradients(ops.depthwise_conv2d, x, w, seed=case.seed, **case.sliding)


@given(case=conv_cases())
def test_gradients_of_gradients(case: WindowCase) -> None:
    x, w = to_format(case.x, case.data_format), case.depthwise_w
    shape = (case.n, *case.output, w.shape[2] * w.shape[3])
    dy = to_format(normal(shape, case.seed, 4), case.data_format)
    check_gradients(ops.depthwise_conv2d_input_gradient, dy, w, seed=case.seed, image=case.image, **case.sliding)
    check_gradients(ops.depthwise_conv2d_weight_gradient, dy, x, seed=case.seed, kernel=case.kernel, **case.sliding)


def test_cost() -> None:
    program = Program()
    y = ops.depthwise_conv2d(program.input("x", (2, 5, 5, 4)), program.input("w", (3, 2, 4, 2)))
    assert y.node.cost.flops == 2 * (2 * 3 * 4 * 8) * (3 * 2)


@pytest.mark.parametrize(
    ("x", "w", "attrs", "text"),
    [
        ((5, 5, 4), (3, 3, 4, 1), {}, "depthwise_conv2d takes an image with 4 axes"),
        ((2, 5, 5, 4), (3, 3, 4), {}, "depthwise_conv2d takes a kernel with 4 axes .*depth multiplier"),
        ((2, 5, 5, 4), (3, 3, 5, 1), {}, r"a kernel for the image's channels.*channels are axis 3"),
        ((2, 5, 5, 4), (6, 3, 4, 1), {}, "at least as large as"),
    ],
)
def test_errors(x: tuple[int, ...], w: tuple[int, ...], attrs: dict[str, Any], text: str) -> None:
    program = Program()
    with pytest.raises(ValueError, match=text):
        ops.depthwise_conv2d(program.input("x", x), program.input("w", w), **attrs)


def test_gradient_shape_errors() -> None:
    program = Program()
    dy, w = program.input("dy", (2, 3, 3, 8)), program.input("w", (3, 3, 4, 2))
    with pytest.raises(ValueError, match=r"dy as depthwise_conv2d makes it from the image.*image \(6, 5\)"):
        ops.depthwise_conv2d_input_gradient(dy, w, image=(6, 5))
    with pytest.raises(ValueError, match=r"dy as depthwise_conv2d makes it from x"):
        ops.depthwise_conv2d_weight_gradient(dy, program.input("x", (2, 5, 5, 3)), kernel=(3, 3))
    with pytest.raises(ValueError, match="with 4 axes"):
        ops.depthwise_conv2d_input_gradient(program.input("flat", (2, 72)), w, image=(5, 5))
    with pytest.raises(ValueError, match="with 4 axes"):
        ops.depthwise_conv2d_weight_gradient(program.input("flat2", (2, 72)), program.input("i", X), kernel=(3, 3))


X = (2, 5, 5, 4)
