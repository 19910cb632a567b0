"""Reshape, reorder, cut, join, look up; and matrix products."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicnn import ops
from minicnn.backends import get_backend
from minicnn.program import Program
from support.gradcheck import check_gradients, run_checked, run_primitive
from support.numerics import assert_close
from support.strategies import normal, seeds, shapes
from support.tolerances import SHORT_SUM


@given(shape=shapes(), seed=seeds, data=st.data())
def test_reshape(shape: tuple[int, ...], seed: int, data: st.DataObject) -> None:
    x = normal(shape, seed)
    target = data.draw(st.sampled_from([(x.size,), (1, x.size, 1), shape, (*shape, 1)]))
    np.testing.assert_array_equal(run_primitive(ops.reshape, x, shape=target), x.reshape(target))
    check_gradients(ops.reshape, x, seed=seed, shape=target)


@given(shape=shapes(max_dims=4), seed=seeds, data=st.data())
def test_permute(shape: tuple[int, ...], seed: int, data: st.DataObject) -> None:
    axes = tuple(data.draw(st.permutations(range(len(shape)))))
    x = normal(shape, seed)
    np.testing.assert_array_equal(run_primitive(ops.permute, x, axes=axes), np.transpose(x, axes))
    check_gradients(ops.permute, x, seed=seed, axes=axes)


@given(shape=shapes(min_dims=1), seed=seeds, data=st.data())
def test_concat(shape: tuple[int, ...], seed: int, data: st.DataObject) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    lengths = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    arrays = []
    for i, n in enumerate(lengths):
        part = list(shape)
        part[axis] = n
        arrays.append(normal(tuple(part), seed, i))
    np.testing.assert_array_equal(run_primitive(ops.concat, *arrays, axis=axis), np.concatenate(arrays, axis))
    check_gradients(ops.concat, *arrays, seed=seed, axis=axis)


@given(st.lists(st.floats(-9, 9), min_size=1, max_size=9), seeds)
def test_total(numbers: list[float], seed: int) -> None:
    scalars = [np.asarray(x) for x in numbers]
    np.testing.assert_allclose(run_primitive(lambda *x: ops.total(x), *scalars), math.fsum(numbers), atol=1e-12)
    check_gradients(lambda *x: ops.total(x), *scalars, seed=seed)


@given(shape=shapes(), seed=seeds, data=st.data())
def test_slice_and_pad_undo_each_other(shape: tuple[int, ...], seed: int, data: st.DataObject) -> None:
    x = normal(shape, seed)
    bounds = []
    for n in shape:
        start = data.draw(st.integers(0, n))
        bounds.append((start, data.draw(st.integers(start, n))))
    part = run_primitive(ops.slice_, x, bounds=tuple(bounds))
    np.testing.assert_array_equal(part, x[tuple(slice(a, b) for a, b in bounds)])
    widths = tuple((a, n - b) for (a, b), n in zip(bounds, shape, strict=True))
    whole = run_primitive(ops.pad, part, widths=widths, value=7.0)
    np.testing.assert_array_equal(whole, np.pad(part, widths, constant_values=7.0) if shape else part)
    check_gradients(ops.slice_, x, seed=seed, bounds=tuple(bounds))
    check_gradients(ops.pad, x, seed=seed, widths=tuple((1, 2) for _ in shape), value=7.0)


INDICES: list[Any] = [
    0, -1, slice(None), slice(1, None), slice(None, -1), slice(-2, 5), slice(2, 1), ..., (0, 1), (..., 1),
    (slice(1, 2), ..., 0), (0, ..., slice(0, 2)), (0, 0, 0), (..., 0, 0, 0), (slice(None), 1, slice(None)),
]  # fmt: skip


@pytest.mark.parametrize("key", INDICES, ids=str)
def test_indexing_is_numpys(key: Any) -> None:
    x = normal((3, 2, 3), 0)
    program = Program()
    program.outputs["r"] = program.input("x", x.shape, "float64")[key]
    np.testing.assert_array_equal(run_checked(program, {"x": x})["r"], x[key])
    check_gradients(lambda v: v[key], x)


@pytest.mark.parametrize(
    ("key", "error", "text"),
    [
        (3, IndexError, r"within its axis\. Received: 3 for an axis of length 3"),
        ((0, -3), IndexError, "Received: -3 for an axis of length 2"),
        ((0, 0, 0, 0), IndexError, "at most one entry an axis"),
        (slice(None, None, 2), IndexError, "Slices of a Value have step 1"),
        ((..., ...), TypeError, "at most one ellipsis"),
        (None, TypeError, "indexed with integers"),
        (np.asarray([0, 1]), TypeError, "indexed with integers"),
        ("a", TypeError, "indexed with integers"),
    ],
    ids=str,
)
def test_indexing_errors(key: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        Program().input("x", (3, 2, 3))[key]


@given(shape=shapes(min_dims=1), seed=seeds, repeats=st.integers(1, 3), data=st.data())
def test_repeat(shape: tuple[int, ...], seed: int, repeats: int, data: st.DataObject) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    x = normal(shape, seed)
    attrs: dict[str, Any] = {"repeats": repeats, "axis": axis}
    np.testing.assert_array_equal(run_primitive(ops.repeat, x, **attrs), np.repeat(x, repeats, axis))
    check_gradients(ops.repeat, x, seed=seed, **attrs)


@pytest.mark.parametrize("dtype", ["uint8", "float32", "int32"])
@given(n=st.integers(1, 5), batch=st.integers(0, 6), seed=seeds)
def test_take(dtype: str, n: int, batch: int, seed: int) -> None:
    x = np.random.default_rng(seed).integers(0, 255, (n, 2, 3)).astype(dtype)
    index = np.random.default_rng(seed).integers(0, n, batch).astype("int32")
    np.testing.assert_array_equal(run_primitive(ops.take, x, index), x[index])


@given(rows=st.integers(1, 5), batch=st.integers(0, 9), width=shapes(max_dims=2), seed=seeds)
def test_gradient_of_take(rows: int, batch: int, width: tuple[int, ...], seed: int) -> None:
    index = np.random.default_rng(seed).integers(0, rows, batch).astype("int32")
    dy = normal((batch, *width), seed)
    expected = np.zeros((rows, *width))
    np.add.at(expected, index, dy)
    assert_close(run_primitive(ops.take_gradient, dy, index, rows=rows), expected, max(batch, 1))
    check_gradients(lambda x: ops.take(x, x.program.constant(index)), normal((rows, *width), seed, 1), seed=seed)


def test_gradient_of_take_has_the_same_bits_every_time() -> None:
    index = np.random.default_rng(0).integers(0, 7, 1000).astype("int32")
    dy = normal((1000, 3), 0).astype("float32")
    first, again = (ops.take_gradient.reference(dy, index, rows=7, xp=np) for _ in range(2))
    assert first.tobytes() == again.tobytes()
    exact = np.zeros((7, 3))
    np.add.at(exact, index, dy.astype("float64"))
    np.testing.assert_allclose(first, exact, atol=SHORT_SUM * np.abs(exact).max())  # by a tree, not one after the other


def test_take_counts_only_the_rows_taken() -> None:
    program = Program()
    x = program.input("x", (1000, 28, 28), "uint8")
    y = ops.take(x, program.input("i", (64,), "int32"))
    assert y.node.cost.bytes == 64 * 4 + 2 * 64 * 28 * 28
    assert y.node.cost.flops == 0


@pytest.mark.parametrize("dtype", ["uint8", "int32", "int64"])
@given(shape=shapes(), classes=st.integers(1, 5), seed=seeds)
def test_one_hot(dtype: str, shape: tuple[int, ...], classes: int, seed: int) -> None:
    labels = np.random.default_rng(seed).integers(0, classes, shape).astype(dtype)
    hot = run_primitive(ops.one_hot, labels, classes=classes)
    assert hot.dtype == "float32"
    np.testing.assert_array_equal(hot, np.eye(classes)[labels])


@pytest.mark.parametrize("library", ["numpy", "array_api_strict", "torch", "jax"])
def test_one_hot_of_bytes_with_more_classes_than_a_byte_counts(library: str) -> None:
    backend = get_backend(library)
    labels = backend.asarray(np.asarray([5, 255], "uint8"))
    hot = backend.to_numpy(ops.one_hot.reference(labels, classes=300, xp=backend.xp))
    np.testing.assert_array_equal(hot, np.eye(300)[[5, 255]])


def test_one_hot_of_a_label_outside_is_zero() -> None:
    np.testing.assert_array_equal(run_primitive(ops.one_hot, np.asarray([-1, 3]), classes=3), np.zeros((2, 3)))


@given(m=st.integers(1, 4), k=st.integers(1, 4), n=st.integers(1, 4), seed=seeds, ta=st.booleans(), tb=st.booleans())
def test_matmul(m: int, k: int, n: int, seed: int, ta: bool, tb: bool) -> None:
    a = normal((k, m) if ta else (m, k), seed)
    b = normal((n, k) if tb else (k, n), seed, 1)
    attrs: dict[str, Any] = {"transpose_a": ta, "transpose_b": tb}
    expected = [[sum(float(p) * float(q) for p, q in zip(row, col, strict=True)) for col in (b if tb else b.T)]
                for row in (a.T if ta else a)]  # fmt: skip
    assert_close(run_primitive(ops.matmul, a, b, **attrs), np.asarray(expected), k)
    check_gradients(ops.matmul, a, b, seed=seed, **attrs)


def test_matmul_cost() -> None:
    program = Program()
    a, b = program.input("a", (5, 3)), program.input("b", (5, 7))
    assert ops.matmul(a, b, transpose_a=True).node.cost.flops == 2 * 3 * 5 * 7
    assert ops.matmul(b, a, transpose_a=True).node.cost.flops == 2 * 3 * 5 * 7


X = (2, 3)


@pytest.mark.parametrize(
    ("build", "error", "text"),
    [
        (lambda x: ops.reshape(x, shape=(4,)), ValueError, r"reshape keeps the number of elements.*with 4 elements"),
        (lambda x: ops.reshape(x, shape=(-2, -3)), ValueError, "reshape keeps the number of elements"),
        (lambda x: ops.permute(x, axes=(0, 0)), ValueError, r"permute takes each axis of x once.*\(0, 0\)"),
        (lambda x: ops.permute(x, axes=(0,)), ValueError, "permute takes each axis"),
        (lambda x: ops.concat(x, ops.reshape(x, shape=(3, 2)), axis=0), ValueError, "concat takes arrays whose shapes"),
        (lambda x: ops.concat(x, ops.reshape(x, shape=(6,)), axis=0), ValueError, "concat takes arrays"),
        (lambda x: ops.concat(x, x, axis=2), ValueError, r"concat takes one axis from -2 to 1\. Received: 2"),
        (lambda x: ops.concat(x, ops.cast(x, dtype="float64")), TypeError, "concat takes arrays of one dtype"),
        (lambda x: ops.slice_(x, bounds=((0, 2), (2, 1))), ValueError, r"slice_ takes \(start, stop\) for each axis"),
        (lambda x: ops.slice_(x, bounds=((0, 2), (0, 4))), ValueError, "within its length"),
        (lambda x: ops.slice_(x, bounds=((0, 2),)), ValueError, "slice_ takes"),
        (lambda x: ops.pad(x, widths=((0, -1), (0, 0))), ValueError, r"pad takes \(before, after\) >= 0"),
        (lambda x: ops.pad(x, widths=((0, 1),)), ValueError, "for each axis"),
        (lambda x: ops.repeat(x, repeats=0, axis=0), ValueError, "repeat takes a count of at least 1"),
        (lambda x: ops.repeat(x, repeats=2, axis=2), ValueError, "repeat takes one axis from -2 to 1"),
        (lambda x: ops.take(x, x), ValueError, "take gathers rows by an int32 index"),
        (lambda x: ops.one_hot(x, classes=3), TypeError, r"one_hot takes integer labels\. Received: float32\[2,3\]"),
        (lambda x: ops.matmul(x, x), ValueError, r"matmul takes matrices \(M, K\) and \(K, N\)"),
        (lambda x: ops.matmul(x, x, transpose_a=True, transpose_b=True), ValueError, "transposed and .* transposed"),
        (lambda x: ops.matmul(x, ops.reshape(x, shape=(6,))), ValueError, "matmul takes matrices"),
    ],
)  # fmt: skip
def test_errors(build: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        build(Program().input("x", X))
