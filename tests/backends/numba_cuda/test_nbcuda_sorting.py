"""Sorting, searching, sets and indices by arrays of the numba_cuda namespace against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.numba_cuda.comparing import DTYPES, drawn, same, views
from backends.numba_cuda.running import EITHER, few
from minicnn.backends.numba_cuda import namespace as xp

pytestmark = EITHER


@pytest.mark.sampled(12)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [0, 1, 32, 33, 150])
def test_sorting_is_stable(n: int, dtype: str) -> None:
    """Of 150 elements runs are merged three times, the last one shorter than the others."""
    x = np.random.default_rng(n).integers(0, 2 if dtype == "bool" else 20, (2, n, 2)).astype(dtype)
    device = xp.asarray(x)
    same(xp.argsort(device, axis=1), np.argsort(x, axis=1, stable=True))
    same(xp.sort(xp.flip(device, axis=1), axis=1), np.sort(x, axis=1))
    down = n - 1 - np.flip(np.argsort(np.flip(x, axis=1), axis=1, stable=True), axis=1)
    same(xp.argsort(device, axis=1, descending=True), down)
    same(xp.sort(device, axis=1, descending=True), np.take_along_axis(x, down, axis=1))


def test_sorting_puts_nan_last_and_zeros_together() -> None:
    x = np.asarray([np.nan, 1, -0.0, np.inf, np.nan, 0.0, -np.inf, -0.0], "float32")
    same(xp.argsort(xp.asarray(x)), np.argsort(x, stable=True))
    same(xp.sort(xp.asarray(x), descending=True), np.flip(np.sort(x)))
    for side in ("left", "right"):
        same(xp.searchsorted(xp.sort(xp.asarray(x)), xp.asarray(x), side=side), np.searchsorted(np.sort(x), x, side))
    found = xp.unique_all(xp.asarray(x))
    same(found.values, np.unique_all(x).values)
    same(found.indices, np.asarray([6, 2, 1, 3, 0, 4]))
    same(found.counts, np.asarray([1, 3, 1, 1, 1, 1]))


def test_searching_in_sorted_vectors() -> None:
    x, values = np.asarray([7, 1, 3, 3], "int32"), np.asarray([[0, 1], [3, 9]], "int8")
    order = np.argsort(x)
    for side in ("left", "right"):
        expected = np.searchsorted(x, values, side, sorter=order)
        same(xp.searchsorted(xp.asarray(x), xp.asarray(values), side=side, sorter=xp.asarray(order)), expected)
        same(xp.searchsorted(xp.asarray(x[order]), 3, side=side), np.searchsorted(x[order], 3, side))
    same(xp.searchsorted(xp.asarray([], dtype="float32"), xp.asarray([1.0], dtype="float32")), np.asarray([0]))


@pytest.mark.parametrize("dtype", DTYPES)
def test_places_that_are_not_zero_and_unique_elements(dtype: str) -> None:
    x = np.random.default_rng(5).integers(0, 6, (3, 4, 5)).astype(dtype)
    device = xp.permute_dims(xp.asarray(np.transpose(x, (2, 0, 1))), (1, 2, 0))
    for found, expected in zip(xp.nonzero(device), np.nonzero(x), strict=True):
        same(found, expected)
    for name in ("unique_all", "unique_counts", "unique_inverse"):
        found, expected = getattr(xp, name)(device), getattr(np, name)(x)
        assert found._fields == expected._fields
        for a, b in zip(found, expected, strict=True):
            same(a, b)
    same(xp.unique_values(device), np.unique(x))
    same(xp.unique_values(device[:0]), x[:0].reshape(-1))
    if dtype not in ("bool", "float32", "float64"):
        other = np.asarray([[1, 4], [4, 9]], dtype)
        same(xp.isin(device, xp.asarray(other)), np.isin(x, other))
        same(xp.isin(device, 3, invert=True), np.isin(x, 3, invert=True))
        same(xp.isin(2, device), np.isin(2, x))
    assert not bool(xp.isin(xp.asarray([np.nan]), xp.asarray([np.nan])))


def test_each_element_as_often_as_an_array_says() -> None:
    x, times = np.arange(6, dtype="float32").reshape(2, 3), np.asarray([2, 0, 3], "uint8")
    same(xp.repeat(xp.asarray(x), xp.asarray(times), axis=1), np.repeat(x, times, axis=1))
    same(xp.repeat(xp.asarray(x), xp.asarray([2])), np.repeat(x, [2]))
    same(xp.repeat(xp.asarray(x)[:0], xp.asarray(times)[:0], axis=0), x[:0])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_next_number(dtype: str) -> None:
    tiny = np.finfo(dtype).smallest_subnormal
    x = np.asarray([1, -1, 0, -0.0, tiny, -tiny, np.finfo(dtype).max, np.inf, -np.inf, np.nan, 3.7], dtype)
    for towards in (np.inf, -np.inf, 0.0, -0.0, np.nan, 1.0):
        with np.errstate(all="ignore"):
            expected = np.nextafter(x, np.asarray(towards, dtype))
        found = xp.nextafter(xp.asarray(x[::-1])[::-1], towards)
        same(found, expected)
        bits, numbers = f"i{found.itemsize}", ~np.isnan(expected)
        np.testing.assert_array_equal(found.numpy().view(bits)[numbers], expected.view(bits)[numbers])
    same(xp.nextafter(1.0, xp.asarray(x)), np.nextafter(np.asarray(1, dtype), x))


def test_lists_of_arrays_become_one() -> None:
    x = xp.arange(6, dtype="int32")
    same(xp.asarray([[x[0], x[3]], [x[5], x[1]]]), np.asarray([[0, 3], [5, 1]], "int32"))
    same(xp.asarray([x, x + 1], dtype="float32"), np.asarray([range(6), range(1, 7)], "float32"))
    with pytest.raises(TypeError, match="do not move to the host unasked"):
        np.asarray([x, x])


# Masks and arrays as indices -----------------------------------------------------------------------------------


@few
@given(data=st.data(), shape=st.lists(st.integers(0, 4), max_size=3).map(tuple), dtype=st.sampled_from(DTYPES))
def test_masks(data: st.DataObject, shape: tuple[int, ...], dtype: str) -> None:
    device, host = (
        data.draw(views(dtype, shape, 4)) if shape else (xp.asarray(drawn((), dtype, 4)), drawn((), dtype, 4))
    )
    axes = data.draw(st.integers(0, len(shape)))
    mask = np.random.default_rng(data.draw(st.integers(0, 9))).random(shape[:axes]) > 0.4
    same(device[xp.asarray(mask)], host[mask])
    host, changed = host.copy(), xp.asarray(device, copy=True)
    values = drawn(shape[axes:], dtype, 6)
    for value, given_value in ((host.dtype.type(0), host.dtype.type(0).item()), (values, xp.asarray(values))):
        host[mask] = value
        changed[xp.asarray(mask)] = given_value
        same(changed, host)


@few
@given(data=st.data(), shape=st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple))
def test_integers_and_integer_arrays_as_indices(data: st.DataObject, shape: tuple[int, ...]) -> None:
    device, host = data.draw(views("float32", shape, 2))
    key: list[Any] = [data.draw(st.integers(-n, n - 1)) for n in shape[: data.draw(st.integers(1, len(shape)))]]
    for axis in data.draw(st.sets(st.integers(0, len(key) - 1), min_size=1)):
        n, of = shape[axis], data.draw(st.sampled_from([(), (1,), (3,), (2, 1), (2, 3)]))
        key[axis] = (
            np.random.default_rng(axis).integers(-n, n, of).astype(data.draw(st.sampled_from(["int8", "int64"])))
        )
    parts = tuple(xp.asarray(k) if isinstance(k, np.ndarray) else k for k in key)
    same(device[parts], host[tuple(key)])


def test_arrays_are_not_assigned_through_a_mask_element_by_element() -> None:
    x = xp.zeros((2, 3))
    with pytest.raises(ValueError, match="at most 0 axes, those behind the mask's"):
        x[x == 0.0] = xp.zeros(6)
    with pytest.raises(ValueError, match="broadcasts to what it is assigned to"):
        x[:, :1][xp.asarray([True, False])] = xp.zeros(3)
    with pytest.raises(TypeError, match="keep their type"):
        xp.zeros(2, dtype="float32")[xp.asarray([True, False])] = xp.asarray(1.0)
