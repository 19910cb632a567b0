"""The backend `mlx`, on a CPU: the numbers are NumPy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

mx: Any = pytest.importorskip("mlx.core")

from minicnn import Sequential, zoo  # noqa: E402
from minicnn.backends import get_backend, infer_backend  # noqa: E402
from minicnn.conformance.checks import DIFFERENTIABLE, NETWORKS, PRIMITIVES, check  # noqa: E402
from minicnn.layers import Dense, Input  # noqa: E402
from support.numerics import assert_close  # noqa: E402


@pytest.fixture(scope="module")
def backend() -> Any:
    return get_backend("mlx:cpu")


@pytest.mark.parametrize("name", PRIMITIVES)
def test_primitives(name: str, backend: Any) -> None:
    check(backend, "primitive", name)


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients(name: str, backend: Any) -> None:
    check(backend, "gradient", name)


@pytest.mark.parametrize("name", NETWORKS)
def test_training_steps(name: str, backend: Any) -> None:
    check(backend, "training", name)


def test_arrays_stay_mlx_s() -> None:
    x, y = np.random.default_rng(0).random((8, 28, 28, 1), "float32"), np.arange(8)
    model = zoo.get_model("mlp")
    predicted = model.predict(mx.array(x))
    assert model.backend.name == "mlx"
    assert isinstance(predicted, mx.array)
    assert_close(np.array(predicted), zoo.get_model("mlp", backend="numpy").predict(x), 784)
    model.compile("sgd", "mse")
    model.fit(mx.array(x), mx.array(np.eye(10, dtype="float32")[y]), verbose=0)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "uint8", "bool"])
def test_round_trip(dtype: str, backend: Any) -> None:
    array = np.asarray([[0, 1], [1, 0]], dtype)
    there = backend.asarray(array)
    assert backend.owns(there)
    assert backend.asarray(there) is there
    back = backend.to_numpy(there)
    assert back.dtype == array.dtype
    np.testing.assert_array_equal(back, array)


def test_bfloat16_becomes_float32_on_the_host(backend: Any) -> None:
    assert backend.to_numpy(mx.array([1.5], dtype=mx.bfloat16)).dtype == np.float32


def test_float64_on_the_cpu(backend: Any) -> None:
    model = Sequential([Input((3,)), Dense(2)], backend=backend)
    model.compile("sgd", "mse", precision="float64")
    model.fit(np.ones((4, 3)), np.ones((4, 2)), verbose=0)
    assert model.get_weights()["dense/kernel"].dtype == np.float64


def test_the_device(backend: Any) -> None:
    assert backend.device == "cpu"
    assert infer_backend([mx.array([1.0])]).name == "mlx"
    assert "mlx" in backend.describe()
    backend.synchronize()
    if not mx.metal.is_available():
        assert backend.memory() is None
        with pytest.raises(RuntimeError, match="MLX must see the device that is asked for"):
            get_backend("mlx:gpu")
