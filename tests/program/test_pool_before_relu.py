"""Swapping relu and max-pooling changes neither results nor gradients, not even a bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicnn import ops
from minicnn.backends import get_backend
from minicnn.program import Program, gradients
from minicnn.program.passes import pool_before_relu


def run(seed: int, pool: int, stride: int, padding: int, *, swap: bool) -> tuple[dict[str, np.ndarray], list[str]]:
    p = Program("test")
    x = p.input("x", (2, 9, 9, 3), "float32")
    up = p.input("up", (), "float32")
    y = ops.relu(ops.square(x) - 0.5)
    pad = ((padding, padding), (padding, padding))
    z = ops.max_pool2d(y, kernel=(pool, pool), strides=(stride, stride), padding=pad)
    if swap:
        assert pool_before_relu(p, [z]) == 1
    loss = ops.sum(ops.square(z)) * up
    p.outputs = {"z": z, "dx": gradients(p, loss, [x])[0]}
    rng = np.random.default_rng(seed)
    # Few distinct values, so that ties happen, below and above zero.
    arrays = {"x": rng.integers(-4, 5, (2, 9, 9, 3)).astype("float32") / 4, "up": np.float32(1.5)}
    return get_backend("numpy").compile(p)(arrays), [n.op.name for n in p.nodes]


@given(seed=st.integers(0, 10_000), pool=st.integers(1, 3), stride=st.integers(1, 3), data=st.data())
def test_same_bits(seed: int, pool: int, stride: int, data: st.DataObject) -> None:
    padding = data.draw(st.integers(0, pool - 1))
    plain, _ = run(seed, pool, stride, padding, swap=False)
    swapped, names = run(seed, pool, stride, padding, swap=True)
    assert names.index("max_pool2d") < names.index("relu")
    np.testing.assert_array_equal(swapped["z"], plain["z"])
    np.testing.assert_array_equal(swapped["dx"], plain["dx"])


@pytest.mark.parametrize("why", ["read twice", "a result"])
def test_relu_stays_where_it_is_needed(why: str) -> None:
    p = Program("test")
    x = p.input("x", (2, 4, 4, 1))
    y = ops.relu(x)
    z = ops.max_pool2d(y, kernel=(2, 2), strides=(2, 2))
    results = [z, y] if why == "a result" else [z, ops.sum(y)]
    assert pool_before_relu(p, results) == 0
    assert [n.op.name for n in p.nodes][:2] == ["relu", "max_pool2d"]
