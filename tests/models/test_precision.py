"""Precision policies: what compile changes, which backends carry them out, and that counts stay exact."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from minicnn import Sequential
from minicnn.layers import Dense, Input
from minicnn.losses import SparseCategoricalCrossentropy
from minicnn.optimizers import Adam
from support.model_cases import FAST, blobs, linear, two_layers
from support.tolerances import DOUBLE, ELEMENT, SUM

X, Y = blobs(24, 5, 3)


network = partial(two_layers, features=5, hidden=16, optimizer=partial(Adam, 0.01))


def check_float64(backend: str) -> None:
    model = network(backend, precision="float64")
    history = model.fit(X, Y, 8, 2, 0).history
    assert {w.dtype.name for w in model.get_weights().values()} == {"float64"}
    assert model.predict(X).dtype == "float64"
    reference = network("numpy", precision="float64")
    expected = reference.fit(X, Y, 8, 2, 0).history
    np.testing.assert_allclose(history["loss"], expected["loss"], rtol=DOUBLE)
    for path, w in reference.get_weights().items():
        np.testing.assert_allclose(model.get_weights()[path], w, rtol=DOUBLE, atol=DOUBLE)


@pytest.mark.parametrize("backend", ["numpy", "torch", "array_api_strict"])
def test_float64(backend: str) -> None:
    check_float64(backend)


@pytest.mark.usefixtures("jax_in_64_bits")
def test_float64_on_jax() -> None:
    check_float64("jax")


def test_float64_on_jax_needs_its_64_bit_mode() -> None:
    pytest.importorskip("jax")
    model = network("jax", precision="float32")
    before = model.get_weights()
    with pytest.raises(ValueError, match="jax_enable_x64"):
        model.compile(precision="float64")
    assert model.precision == "float32"
    model.fit(X, Y, 8, 1, 0)
    assert np.any(model.get_weights()["dense/kernel"] != before["dense/kernel"])


@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_mixed_bfloat16(backend: str) -> None:
    model, plain = network(backend, precision="mixed_bfloat16"), network(backend, precision="float32")
    program = model.program("train", batch_size=8)
    products = [n for n in program.nodes if n.op.name == "matmul"]
    assert len(products) == 5  # two forward, three backward: the data need no gradient
    assert {v.dtype for n in products for v in (*n.inputs, *n.outputs)} == {"bfloat16"}
    assert {v.dtype for v in program.inputs if v.kind in ("parameter", "optimizer", "metric")} == {"float32"}
    assert "bfloat16" not in str(plain.program("train"))
    history, expected = model.fit(X, Y, 8, 5, 0).history, plain.fit(X, Y, 8, 5, 0).history
    assert {w.dtype.name for w in model.get_weights().values()} == {"float32"}
    assert history["loss"] != expected["loss"]
    np.testing.assert_allclose(history["loss"], expected["loss"], rtol=0.02)
    assert history["loss"][-1] < history["loss"][0]
    assert model.predict(X).dtype == "float32"


@pytest.mark.parametrize("backend", ["numpy", "array_api_strict"])
def test_backends_that_lack_bfloat16_say_so(backend: str) -> None:
    message = rf"The {backend} backend computes in float32, float64\. Received: precision='mixed_bfloat16'"
    with pytest.raises(ValueError, match=message):
        network(backend, precision="mixed_bfloat16")


def test_the_backend_of_the_data_decides_late() -> None:
    torch = pytest.importorskip("torch")
    late, model = network(None, precision="mixed_bfloat16"), network(None, precision="mixed_bfloat16")
    with pytest.raises(ValueError, match="The numpy backend computes in float32, float64"):
        late.fit(X, Y, verbose=0)
    late.compile("sgd", SparseCategoricalCrossentropy(from_logits=True))
    assert late.fit(X, Y, verbose=0).epoch == [0]
    assert late.backend.name == "numpy"
    assert model.fit(torch.tensor(X), torch.tensor(Y), verbose=0).epoch == [0]
    assert model.backend.name == "torch"


@pytest.mark.parametrize("backend", ["torch", "jax", "numba"])
def test_counts_are_exact_where_products_are_rounded(backend: str) -> None:
    """A count of 301 has no bfloat16 of its own."""
    model = Sequential([Input((2,))], backend=backend)
    model.compile("sgd", "mse", ["confusion_matrix", "accuracy"], precision="mixed_bfloat16")
    n = 301
    labels = np.tile([0.0, 1.0], (n, 1))
    found = model.evaluate(labels, labels, n, return_dict=True)
    np.testing.assert_array_equal(found["confusion_matrix"], [[0, 0], [0, n]])
    assert found["accuracy"] == 1.0


@pytest.mark.parametrize("backend", FAST)
def test_compile_keeps_the_weights_and_changes_their_type(backend: str) -> None:
    model = linear(backend)
    model.train_on_batch(X[:, :3], X[:, :2])
    before = model.get_weights()
    model.compile("adam", "mse")
    for path, w in model.get_weights().items():
        np.testing.assert_array_equal(w, before[path])
    if backend == "jax":
        return
    model.compile("adam", "mse", precision="float64")
    for path, w in model.get_weights().items():
        assert w.dtype == "float64"
        np.testing.assert_array_equal(w, before[path])
    model.compile("adam", "mse", precision="float32")
    for path, w in model.get_weights().items():
        assert w.dtype == "float32"
        np.testing.assert_array_equal(w, before[path])
    assert model.predict(X[:, :3]).dtype == "float32"


def test_compile_forgets_the_optimizer_s_state() -> None:
    def step(model: Sequential) -> Any:
        model.train_on_batch(X[:, :3], X[:, :2])
        return model.get_weights()["dense/kernel"]

    model = linear(optimizer=Adam(0.1))
    step(model)
    fresh = linear(optimizer=Adam(0.1))
    fresh.set_weights(model.get_weights())
    model.compile(Adam(0.1), "mse")
    np.testing.assert_array_equal(step(model), step(fresh))


def test_predictions_before_and_after_compile() -> None:
    model = Sequential([Input((5,)), Dense(2)], backend="numpy")
    before = model.predict(X)
    model.compile("sgd", "mse", precision="float64")
    assert before.dtype == "float32"
    after = model.predict(X)
    assert after.dtype == "float64"
    np.testing.assert_allclose(after, before, rtol=SUM, atol=ELEMENT)
