"""A primitive that follows CONTRIBUTING.md trains on every engine, with a kernel that is written once."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import array_api_compat.numpy as xp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.cupy.emulator import Emulated, needs_gxx
from minicnn import Sequential
from minicnn.backends import backend_class
from minicnn.kernels.elements import ELEMENTS
from minicnn.layers import Conv2D, Dense, Flatten, Input, Lambda
from minicnn.ops import REGISTRY
from minicnn.program import Program
from support.gradcheck import check_gradients
from support.interpreted import interpreted
from support.numerics import assert_close
from support.strategies import normal, seeds
from support.tolerances import SUM

Array = np.ndarray[Any, Any]


@pytest.fixture(scope="module")
def pooling() -> Iterator[Any]:
    """The module of the primitive, which is known while its tests run."""
    module = importlib.import_module("contributing.lp_pooling")
    REGISTRY["lp_pool2d"] = module.lp_pool2d
    ELEMENTS["lp_pool2d"] = module.element
    yield module
    del REGISTRY["lp_pool2d"], ELEMENTS["lp_pool2d"]


def by_hand(x: Array, p: float, kernel: tuple[int, int], strides: tuple[int, int], padding: Any) -> Array:
    """The norm of each window, one after the other."""
    padded = np.pad(np.abs(x), ((0, 0), *padding, (0, 0)))
    rows, columns = (
        (size - k) // s + 1 for size, k, s in zip(padded.shape[1:3], kernel, strides, strict=True)
    )  # fmt: skip
    y = np.zeros((x.shape[0], rows, columns, x.shape[3]))
    for i in range(rows):
        for j in range(columns):
            top, left = i * strides[0], j * strides[1]
            y[:, i, j] = np.linalg.norm(
                padded[:, top : top + kernel[0], left : left + kernel[1]].reshape(x.shape[0], -1, x.shape[3]), p, axis=1
            )
    return y


pairs = st.tuples(st.integers(1, 3), st.integers(1, 3))
windows = st.fixed_dictionaries({
    "p": st.sampled_from([1.0, 1.5, 2.0, 3.0]), "kernel": st.sampled_from([(2, 2), (3, 2)]), "strides": pairs,
    "padding": st.sampled_from([((0, 0), (0, 0)), ((1, 0), (0, 1))]),
})  # fmt: skip


@given(windows, seeds)
def test_the_reference_is_the_norm_of_each_window(pooling: Any, attrs: dict[str, Any], seed: int) -> None:
    x = normal((2, 4, 5, 3), seed)
    assert_close(pooling.lp_pool2d.reference(x, xp=xp, **attrs), by_hand(x, **attrs), 9)


@given(windows, seeds)
def test_the_gradient_is_that_of_differences(pooling: Any, attrs: dict[str, Any], seed: int) -> None:
    x = normal((2, 4, 5, 3), seed)
    x += np.sign(x) * 0.1  # no difference crosses 0, where |x| has a corner
    check_gradients(pooling.lp_pool2d, x, rtol=SUM, **attrs)


def test_bad_input_is_refused(pooling: Any) -> None:
    image = Program().input("x", (1, 4, 4, 1))
    with pytest.raises(ValueError, match=r"takes p of at least 1, .* Received: p=0\.5\."):
        pooling.lp_pool2d(image, p=0.5, kernel=(2, 2), strides=(2, 2))


CALLS = [
    {"p": 2.0, "kernel": (2, 2), "strides": (2, 2)},
    {"p": 3.0, "kernel": (3, 2), "strides": (1, 2), "padding": ((1, 1), (0, 1)), "data_format": "NCHW"},
]


@pytest.mark.parametrize("attrs", CALLS, ids=["apart", "overlapping"])
@pytest.mark.parametrize(
    "engine", ["interpreter", pytest.param("cupy", marks=needs_gxx), "numba", "numba_cuda"]
)  # fmt: skip
def test_one_entry_is_the_kernel_of_every_engine(pooling: Any, engine: str, attrs: dict[str, Any]) -> None:
    program, x = Program(), normal((3, 5, 6, 2), 1).astype("float32")
    program.outputs["y"] = pooling.lp_pool2d(program.input("x", x.shape), **attrs)
    if engine == "interpreter":
        y = interpreted(program, {"x": x})["y"]
    elif engine == "cupy":
        y = Emulated(program)({"x": x})["y"]
    else:
        pytest.importorskip(engine)
        if engine == "numba_cuda":
            pytest.importorskip("backends.numba_cuda.running")  # the simulator
        backend = backend_class(engine)(strict=True)
        y = backend.to_numpy(backend.compile(program)({"x": backend.asarray(x)})["y"])
    assert_close(y, pooling.lp_pool2d.reference(x.astype("float64"), xp=xp, **attrs), 6, dtype="float32")


def test_a_network_with_it_learns(pooling: Any) -> None:
    pool = Lambda(lambda x: pooling.lp_pool2d(x, p=2.0, kernel=(2, 2), strides=(2, 2)))
    layers = [Input((6, 6, 1)), Conv2D(4, 3, activation="relu"), pool, Flatten(), Dense(2)]
    model = Sequential(layers, seed=1)
    model.compile("sgd", "mse")
    x = normal((32, 6, 6, 1), 2).astype("float32")
    losses = model.fit(x, x[:, 2:4, 3, 0], batch_size=8, epochs=4, verbose=0).history["loss"]
    assert losses[-1] < 0.9 * losses[0]
