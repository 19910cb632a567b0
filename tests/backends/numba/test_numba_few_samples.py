"""Gradients of dense layers on few samples: units in the lanes, and sums along them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minicnn import Sequential, ops
from minicnn.backends import backend_class
from minicnn.backends.numba import few_samples
from minicnn.layers import Dense, Input
from minicnn.losses import SparseCategoricalCrossentropy
from minicnn.optimizers import SGD, Adam
from minicnn.optimizers.base import Optimizer
from minicnn.program import Program
from minicnn.tolerance import tolerance

pytest.importorskip("numba")


def program(n: int, k: int, units: int, ending: str) -> Program:
    """Both gradients of a hidden dense layer (K, F) on N samples; dx goes through the gradient of what is before."""
    made = Program()
    w = made.input("w", (k, units), kind="parameter")
    x = ops.relu(made.input("x", (n, k)))  # not as it is in memory
    dy = ops.multiply(made.input("dy", (n, units)), made.constant(np.asarray(2.0, "float32")))
    made.outputs["dw"] = ops.matmul(x, dy, transpose_a=True)
    dx = ops.matmul(dy, w, transpose_b=True)
    if ending == "mask":
        dx = ops.relu_gradient(dx, x)
    elif ending == "relu":
        dx = ops.relu(dx)
    made.outputs["dx"] = dx
    return made


def check(n: int, k: int, units: int, ending: str, threads: int = 2) -> list[str]:
    """Compare with NumPy in float64; how each node was carried out."""
    rng = np.random.default_rng(n * 1000 + k)
    arrays = {
        "w": rng.normal(size=(k, units)), "x": rng.normal(size=(n, k)), "dy": rng.normal(size=(n, units)),
    }  # fmt: skip
    backend: Any = backend_class("numba")(strict=True, threads=threads, convolution_kernel="direct")  # type: ignore[call-arg]
    made = backend.compile(program(n, k, units, ending))({a: v.astype("float32") for a, v in arrays.items()})
    x, dy = np.maximum(arrays["x"], 0), 2 * arrays["dy"]
    dx = dy @ arrays["w"].T
    dx = dx * (x > 0) if ending == "mask" else np.maximum(dx, 0) if ending == "relu" else dx
    rtol, atol = tolerance("float32", max(n, units, 8))
    for name, expected in (("dw", x.T @ dy), ("dx", dx)):
        np.testing.assert_allclose(made[name], expected, rtol=rtol, atol=atol * max(1.0, float(np.abs(expected).max())))
    return [text for _, text in backend.explain(program(n, k, units, ending))]


def few(how: list[str]) -> int:
    """Gradients by kernels for few samples."""
    return sum("of few samples" in text or "of channels" in text for text in how)


SIZES = [(1, 5, 16, ""), (2, 1, 70, "mask"), (8, 4, 64, "mask"), (16, 9, 83, ""), (19, 6, 95, "mask"), (1, 3, 7, "")]


@pytest.mark.parametrize(
    ("n", "k", "units", "ending", "jit"),
    [*((*size, "interpreted") for size in SIZES), *((*size, "compiled") for size in SIZES[1::2])],
    indirect=["jit"],
)
@pytest.mark.usefixtures("jit")
def test_both_gradients(n: int, k: int, units: int, ending: str) -> None:
    how = check(n, k, units, ending)
    assert few(how) == (n <= max(8, units // 5)) + (units >= 16)


@pytest.mark.no_cover
@pytest.mark.usefixtures("either_at_night")
@settings(
    max_examples=15, deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
@given(
    n=st.integers(1, 40), k=st.integers(1, 40), units=st.integers(1, 150), ending=st.sampled_from(["", "mask", "relu"])
)
def test_gradients_of_any_size(n: int, k: int, units: int, ending: str) -> None:
    check(n, k, units, ending, threads=3)


def test_another_ending_is_not_lost() -> None:
    assert few(check(3, 20, 32, "relu")) == 1  # the weights' alone


def test_many_samples_have_kernels_with_samples_in_the_lanes() -> None:
    assert few_samples.weight_gradient_worth_it(32, 100, threads=2)
    assert not few_samples.weight_gradient_worth_it(33, 100, threads=2)
    assert few_samples.input_gradient_worth_it(33, 100, 100)
    assert not few_samples.input_gradient_worth_it(34, 100, 100)
    assert few_samples.input_gradient_worth_it(50, 1 << 24, 100)  # weights that no cache holds
    assert few_samples.input_gradient_worth_it(8, 100, 2)
    assert not few_samples.input_gradient_worth_it(129, 4096, 4096)
    assert not few(check(100, 20, 32, "mask"))


@pytest.mark.parametrize("optimizer", [SGD(0.05), Adam()])
def test_weights_are_updated_where_their_gradient_is_made(optimizer: Optimizer) -> None:
    x, y = np.random.default_rng(0).normal(size=(24, 6)).astype("float32"), np.arange(24) % 3
    weights = {}
    for name, options in (("numpy", {}), ("numba", {"threads": 2, "convolution_kernel": "direct"})):
        backend: Any = backend_class(name)(**options)
        model = Sequential([Input((6,)), Dense(20, activation="relu"), Dense(16), Dense(3)], backend=backend, seed=0)
        model.compile(optimizer, SparseCategoricalCrossentropy(from_logits=True))
        model.fit(x, y, batch_size=24, epochs=2, shuffle=False, verbose=0)
        weights[name] = model.get_weights()
    how = [text for _, text in backend.explain(model.program("train", batch_size=24))]
    assert sum("matmul of few samples + " in text for text in how) == 2  # the last layer has too few units
    for name, expected in weights["numpy"].items():
        np.testing.assert_allclose(weights["numba"][name], expected, rtol=1e-3, atol=1e-4, err_msg=name)
