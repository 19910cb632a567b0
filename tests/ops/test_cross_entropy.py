"""softmax_cross_entropy and its gradient."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicnn import ops
from minicnn.program import Program
from support.gradcheck import check_gradients, run_primitive
from support.numerics import assert_close
from support.strategies import normal, seeds, shapes


def test_by_hand() -> None:
    logits = np.log(np.asarray([[1.0, 2.0, 5.0], [3.0, 3.0, 2.0]]))
    losses = run_primitive(ops.softmax_cross_entropy, logits, np.asarray([2, 0], "int32"))
    np.testing.assert_allclose(losses, [-math.log(5 / 8), -math.log(3 / 8)])
    dy = np.asarray([1.0, 2.0])
    gradient = run_primitive(ops.softmax_cross_entropy_gradient, dy, logits, np.asarray([2, 0], "int32"))
    np.testing.assert_allclose(gradient, [[1 / 8, 2 / 8, -3 / 8], [-10 / 8, 6 / 8, 4 / 8]])


@pytest.mark.parametrize("dtype", ["uint8", "int32", "int64"])
@given(shape=shapes(max_dims=2), classes=st.integers(1, 5), seed=seeds)
def test_is_log_softmax_at_the_label(dtype: str, shape: tuple[int, ...], classes: int, seed: int) -> None:
    logits = normal((*shape, classes), seed)
    labels = np.random.default_rng(seed).integers(0, classes, shape).astype(dtype)
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    expected = -np.take_along_axis(log_p, labels[..., None].astype(int), -1)[..., 0]
    assert_close(run_primitive(ops.softmax_cross_entropy, logits, labels), expected, classes)
    check_gradients(ops.softmax_cross_entropy, logits, labels, seed=seed)


def test_far_out() -> None:
    logits = np.asarray([[1e4, -1e4], [1e4, -1e4], [0.0, -np.inf]])
    labels = np.asarray([0, 1, 0], "int32")
    np.testing.assert_array_equal(run_primitive(ops.softmax_cross_entropy, logits, labels), [0, 2e4, 0])
    gradient = run_primitive(ops.softmax_cross_entropy_gradient, np.ones(3), logits, labels)
    np.testing.assert_array_equal(gradient, [[0, 0], [1, -1], [0, 0]])


def test_a_label_outside_counts_for_nothing() -> None:
    logits, labels = normal((3, 4), 0), np.asarray([-1, 1, 4], "int32")
    losses = run_primitive(ops.softmax_cross_entropy, logits, labels)
    assert losses[0] == losses[2] == 0 < losses[1]
    gradient = run_primitive(ops.softmax_cross_entropy_gradient, np.ones(3), logits, labels)
    np.testing.assert_array_equal(gradient[[0, 2]], np.zeros((2, 4)))


def test_errors() -> None:
    program = Program()
    logits, labels = program.input("logits", (5, 3)), program.input("labels", (5,), "int32")
    with pytest.raises(ValueError, match=r"takes logits \(\.\.\., K\) and integer labels.*dense categorical"):
        ops.softmax_cross_entropy(logits, logits)
    with pytest.raises(ValueError, match=r"Received: float32\[5,3\] and float32\[5\]"):
        ops.softmax_cross_entropy(logits, program.input("hot", (5,)))
    with pytest.raises(TypeError, match="softmax_cross_entropy takes floating-point arrays"):
        ops.softmax_cross_entropy(program.input("ints", (5, 3), "int32"), labels)
    with pytest.raises(ValueError, match=r"takes dy \(\.\.\.\), logits \(\.\.\., K\) and labels"):
        ops.softmax_cross_entropy_gradient(program.input("dy", (4,)), logits, labels)
