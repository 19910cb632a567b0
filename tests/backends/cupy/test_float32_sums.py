"""Sums of many terms in float32 on tensor cores, as the emulator rounds them, beside those of multiply-adds."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from backends.cupy.emulator import Emulated, needs_gxx
from minicnn import ops
from minicnn.backends._gpu import tensor_tiling
from minicnn.backends._gpu.device import H200
from minicnn.backends._gpu.tensor_tiling import TensorTiles
from minicnn.program import Program

pytestmark = needs_gxx

Array = np.ndarray[Any, Any]
ALONE = TensorTiles(replace(H200, multiprocessors=1))  # so that no sum is cut into parts for many blocks
PADDED = {"strides": (1, 1), "padding": ((1, 1), (1, 1)), "dilation": (1, 1), "groups": 1, "data_format": "NHWC"}


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensor cores also where others would be faster."""
    monkeypatch.setattr(tensor_tiling, "_chosen", {})
    monkeypatch.setattr(tensor_tiling, "without_tensor_cores", lambda *_: math.inf)


def numbers(signs: str, *shape: int) -> Array:
    """Normal numbers, or their magnitudes, of which sums lose most."""
    x = np.random.default_rng(math.prod(shape)).standard_normal(shape).astype("float32")
    return np.abs(x) if signs == "positive" else x


def patches(x: Array) -> Array:
    """What each result of a 3x3 convolution with zeros around the image sees: (n * h * w, 9 * channels)."""
    n, h, w, c = x.shape
    around = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    taps = [around[:, a : a + h, b : b + w] for a in range(3) for b in range(3)]
    return np.stack(taps, axis=3).reshape(n * h * w, 9 * c)


def multiply_adds(a: Array, b: Array) -> Array:
    """The product of matrices by multiply-adds in float32, term after term."""
    sums = np.zeros((len(a), b.shape[1]), "float32")
    for column, row in zip(a.T.astype("float64"), b.astype("float64"), strict=True):
        sums = (sums + column[:, None] * row).astype("float32")
    return sums


def case(which: str, signs: str) -> tuple[Any, list[Array], dict[str, Any], Array, Array]:
    """A primitive, its arrays and attributes, and the matrices whose product its result is."""
    if which == "product":
        a, b = numbers(signs, 16, 4096), numbers(signs, 4096, 8)
        return ops.matmul, [a, b], {"transpose_a": False, "transpose_b": False}, a, b
    if which == "weight gradient":
        dy, x = numbers(signs, 16, 16, 16, 8), numbers(signs, 16, 16, 16, 4)
        return ops.conv2d_weight_gradient, [dy, x], PADDED | {"kernel": (3, 3)}, patches(x).T, dy.reshape(-1, 8)
    x, w = numbers(signs, 1, 6, 6, 256), numbers(signs, 3, 3, 256, 8)
    if which == "forward":
        return ops.conv2d, [x, w], PADDED, patches(x), w.reshape(-1, 8)
    turned = w[::-1, ::-1].transpose(0, 1, 3, 2)  # of 8 channels and 256 filters
    return ops.conv2d_input_gradient, [x, turned], PADDED | {"image": (6, 6)}, patches(x), w.reshape(-1, 8)


def errors(found: Array, exact: Array) -> tuple[float, float]:
    """Errors relative to the whole result, and of the worst element relative to the largest."""
    off = found.ravel().astype("float64") - exact.ravel()
    return float(np.linalg.norm(off) / np.linalg.norm(exact)), float(np.abs(off).max() / np.abs(exact).max())


@pytest.mark.sampled(4)
@pytest.mark.parametrize("signs", ["normal", "positive"])
@pytest.mark.parametrize("which", ["product", "forward", "input gradient", "weight gradient"])
def test_sums_of_many_terms_are_no_worse_than_those_of_multiply_adds(which: str, signs: str) -> None:
    op, arrays, attrs, a, b = case(which, signs)
    program = Program(which)
    inputs = [program.input(f"a{k}", array.shape) for k, array in enumerate(arrays)]
    program.outputs["y"] = op(*inputs, **attrs)
    emulated = Emulated(program, tiles=ALONE)
    assert any("tensor_" in source.text and "Float32" in source.text for source in emulated.sources)
    found = emulated({f"a{k}": array for k, array in enumerate(arrays)})["y"]
    exact = a.astype("float64") @ b.astype("float64")
    error, worst = errors(found, exact)
    assert error < errors(multiply_adds(a, b), exact)[0]
    assert worst < 1e-6


@pytest.mark.parametrize("signs", ["normal", "positive"])
@pytest.mark.parametrize("columns", [10, 16])
def test_products_with_rows_in_memory(columns: int, signs: str) -> None:
    x, w = numbers(signs, 128, 784), numbers(signs, 784, columns)
    program = Program("rows")
    rows, weights = program.input("x", x.shape), program.input("w", w.shape, kind="parameter")
    y = ops.matmul(rows, weights, transpose_a=False, transpose_b=False) + program.input("b", (columns,))
    program.outputs["y"], program.outputs["sums"] = y, ops.sum(y, axes=(0,), keepdims=False)
    emulated = Emulated(program, tiles=ALONE)
    assert any("FloatRowTile<" in source.text for source in emulated.sources)
    found = emulated({"x": x, "w": w, "b": np.zeros(columns, "float32")})["y"]
    assert errors(found, x.astype("float64") @ w.astype("float64"))[1] < 1.5e-6
