"""Layers that are called on a list."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicnn.layers import Add, Average, Concatenate, Input, Maximum, Minimum, Multiply, Subtract
from support.layer_check import run_layer, run_layer_check
from support.strategies import normal, seeds
from support.tolerances import DOUBLE

NUMPY = {
    Add: lambda *a: sum(a[1:], a[0]),
    Multiply: lambda *a: np.prod(np.broadcast_arrays(*a), axis=0),
    Average: lambda *a: np.mean(np.broadcast_arrays(*a), axis=0),
    Maximum: lambda *a: np.max(np.broadcast_arrays(*a), axis=0),
    Minimum: lambda *a: np.min(np.broadcast_arrays(*a), axis=0),
    Subtract: lambda a, b: a - b,
}


@pytest.mark.parametrize("kind", NUMPY)
def test_merging(kind: Any) -> None:
    run_layer_check(kind(), (2, 3), (2, 3), output=(2, 3))
    run_layer_check(kind(), (1, 3), (2, 1), output=(2, 3))
    run_layer_check(kind(), (2, 3, 4), (4,), output=(2, 3, 4))
    if kind is not Subtract:
        run_layer_check(kind(), (2, 3), (3,), (2, 1), output=(2, 3))
        run_layer_check(kind(), (2,), output=(2,))


def test_concatenate() -> None:
    run_layer_check(Concatenate(), (2, 3), (2, 1), (2, 2), output=(2, 6))
    run_layer_check(Concatenate(1), (2, 3), (4, 3), output=(6, 3))
    run_layer_check(Concatenate(-2), (2, 3), output=(2, 3))
    a, b = normal((2, 3, 4), 0), normal((2, 3, 2), 1)
    np.testing.assert_array_equal(run_layer(Concatenate(), [a, b]), np.concatenate([a, b], axis=-1))


@given(kind=st.sampled_from(list(NUMPY)), count=st.integers(1, 4), seed=seeds, data=st.data())
def test_values_with_broadcasting(kind: Any, count: int, seed: int, data: Any) -> None:
    count = 2 if kind is Subtract else count
    full = (2, 3, 4)
    shapes = []
    for _ in range(count):
        kept = full[data.draw(st.integers(0, 3)) :]
        shapes.append(tuple(1 if data.draw(st.booleans()) else n for n in kept))
    arrays = [normal((5, *s), seed, i) for i, s in enumerate(shapes)]
    # Keras inserts missing axes after the batch.
    ndim = max(a.ndim for a in arrays)
    expanded = [a.reshape(5, *(1,) * (ndim - a.ndim), *a.shape[1:]) for a in arrays]
    np.testing.assert_allclose(run_layer(kind(), arrays), NUMPY[kind](*expanded), rtol=DOUBLE)


@pytest.mark.parametrize("kind", [*NUMPY, Concatenate])
def test_one_input_is_not_a_list(kind: Any) -> None:
    with pytest.raises(
        ValueError, match=rf"{kind.__name__} is called on a list of inputs, as in {kind.__name__}\(\)\(\[a, b\]\)"
    ):
        kind()(Input((3,)))


@pytest.mark.parametrize("kind", NUMPY)
def test_shapes_must_fit(kind: Any) -> None:
    with pytest.raises(
        ValueError, match=rf"{kind.__name__} takes inputs of one shape, .*\(None, 2, 3\), \(None, 2, 4\)"
    ):
        kind()([Input((2, 3)), Input((2, 4))])


def test_wrong_lists() -> None:
    with pytest.raises(ValueError, match=r"Subtract takes exactly 2 inputs. Received: 3"):
        Subtract()([Input((3,))] * 3)
    with pytest.raises(ValueError, match=r"equal but for axis 2. Received: shapes \(None, 2, 3\), \(None, 4, 3\)"):
        Concatenate()([Input((2, 3)), Input((4, 3))])
    with pytest.raises(ValueError, match="equal but for axis 2"):
        Concatenate(2)([Input((4, 3)), Input((4,))])
    with pytest.raises(ValueError, match=r"Concatenate takes an axis from 1 to 1 .* axis 0 is the batch"):
        Concatenate(0)([Input((3,)), Input((3,))])
    with pytest.raises(TypeError, match="Received: an empty list"):
        Add()([])
