"""Matrix products with samples in plain rows: the first dense layer on images, which are read where they are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minicnn import ops
from minicnn.backends import backend_class
from minicnn.program import Program
from minicnn.tolerance import tolerance
from support.numba_check import Array
from support.strategies import normal, seeds
from support.tolerances import STEP

pytest.importorskip("numba")


def program(n: int, k: int, units: int, dtype: str, *, gathered: bool, bias: bool) -> Program:
    """y = s x[index] w + b and the weight gradient for dy, x being images (.., k / 4, 4)."""
    made = Program()
    shape = (k // 4, 4)
    x = made.input("x", (n + 5 if gathered else n, *shape), dtype)
    rows = ops.take(x, made.input("index", (n,), "int32")) if gathered else x
    scale = made.constant(np.asarray(0.25, "float32"))
    a = ops.multiply(ops.cast(rows, dtype="float32"), scale) if dtype == "uint8" else rows
    a = ops.reshape(a, shape=(n, k))
    w = made.input("w", (k, units), "float32", kind="parameter")
    y = ops.matmul(a, w)
    made.outputs["y"] = ops.add(y, made.input("b", (units,), "float32", kind="parameter")) if bias else y
    made.outputs["dw"] = ops.matmul(a, made.input("dy", (n, units), "float32"), transpose_a=True)
    return made


def check(
    n: int, k: int, units: int, dtype: str, *, gathered: bool, bias: bool, threads: int = 2, seed: int = 0
) -> None:
    args = (n, k, units, dtype)
    backend = backend_class("numba")(strict=True, threads=threads)  # type: ignore[call-arg]
    how = [text for _, text in backend.explain(program(*args, gathered=gathered, bias=bias))]
    assert any("rows" in text for text in how)
    rng = np.random.default_rng(seed)
    arrays: dict[str, Array] = {
        "w": normal((k, units), seed),
        "b": normal((units,), seed),
        "dy": normal((n, units), seed),
    }
    arrays = {name: a.astype("float32") for name, a in arrays.items()}
    stored = rng.integers(0, 256, (n + 5 if gathered else n, k // 4, 4)).astype(dtype)
    arrays |= {
        "x": stored / np.float32(64) if dtype == "float32" else stored,
        "index": rng.integers(0, n + 5, n, "int32"),
    }
    results = [
        b.compile(made)({v.name: arrays[v.name] for v in made.inputs})
        for b in (backend, backend_class("numba")(reference_only=True))
        for made in [program(*args, gathered=gathered, bias=bias)]
    ]
    rtol, atol = tolerance("float32", max(n, k))
    for name in ("y", "dw"):
        size = np.abs(results[1][name]).max()
        np.testing.assert_allclose(results[0][name], results[1][name], rtol=rtol, atol=atol * size)


@pytest.mark.parametrize("threads", [1, *(pytest.param(n, marks=pytest.mark.no_cover) for n in (2, 5))])
@pytest.mark.parametrize(
    ("n", "k", "units", "dtype", "gathered", "bias"),
    [
        (70, 784, 10, "uint8", True, True),
        (33, 140, 5, "uint8", False, False),
        (17, 132, 30, "float32", False, True),
        (1, 128, 1, "float32", True, False),
        (300, 160, 13, "uint8", True, True),
    ],
)
def test_rows_are_multiplied_where_they_are(
    n: int, k: int, units: int, dtype: str, gathered: bool, bias: bool, threads: int
) -> None:
    check(n, k, units, dtype, gathered=gathered, bias=bias, threads=threads)


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_rows_are_multiplied_by_python(dtype: str) -> None:
    check(19, 132, 5, dtype, gathered=True, bias=True, threads=1)


@pytest.mark.no_cover
@pytest.mark.usefixtures("either_at_night")
@settings(
    max_examples=15, deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
@given(st.integers(1, 90), st.integers(32, 60), st.integers(1, 3), seeds)
def test_rows_of_any_length(n: int, quarter: int, units: int, seed: int) -> None:
    check(n, 4 * quarter, units, "uint8", gathered=True, bias=True, seed=seed)


def test_rows_are_blocked_where_somebody_else_reads_them() -> None:
    made = Program()
    x = made.input("x", (20, 12, 12, 1), "float32")
    w = made.input("w", (144, 3), "float32", kind="parameter")
    made.outputs["y"] = ops.matmul(ops.reshape(x, shape=(20, 144)), w)
    made.outputs["z"] = ops.max_pool2d(x, kernel=(2, 2), strides=(2, 2), padding=((0, 0), (0, 0)))
    arrays = {"x": normal((20, 12, 12, 1), 0).astype("float32"), "w": normal((144, 3), 1).astype("float32")}
    results = backend_class("numba")(strict=True).compile(made)(arrays)
    np.testing.assert_allclose(results["y"], arrays["x"].reshape(20, 144) @ arrays["w"], rtol=STEP, atol=STEP)
    np.testing.assert_array_equal(results["z"], arrays["x"].reshape(20, 6, 2, 6, 2, 1).max((2, 4)))
