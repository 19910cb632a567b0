"""Which backend a model gets: named, from the arrays, from the environment; and several side by side."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from minicnn import Model, Sequential, get_backend
from minicnn.data import Loader
from minicnn.layers import Dense, Input
from minicnn.losses import SparseCategoricalCrossentropy
from support.model_cases import FAST, assert_same_weights, blobs, linear, to_library
from support.tolerances import STEP, SUM

X, Y = blobs(12, 3, 2)
LIBRARIES = ["numpy", "torch", "jax", "array_api_strict"]


def classifier(backend: Any = None, seed: int = 0) -> Sequential:
    return linear(backend, units=2, loss=SparseCategoricalCrossentropy(from_logits=True), seed=seed)


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MINICNN_BACKEND", raising=False)


@pytest.mark.parametrize("library", LIBRARIES)
def test_from_the_arrays(library: str) -> None:
    x, y = to_library(X, library), to_library(Y, library)
    for use in (
        lambda m: m.fit(x, y, verbose=0), lambda m: m.evaluate(x, y), lambda m: m.predict(x),
        lambda m: m.train_on_batch(x, y), lambda m: m.fit([x], [y], verbose=0),
    ):  # fmt: skip
        model = classifier()
        use(model)
        assert model.backend.name == library


def test_labels_decide_where_inputs_do_not() -> None:
    torch = pytest.importorskip("torch")
    model = classifier()
    model.fit(X, torch.tensor(Y), verbose=0)
    assert model.backend.name == "torch"


def test_from_arrays_of_a_model_that_waits_for_its_input() -> None:
    torch = pytest.importorskip("torch")
    model = Sequential([Dense(2)])
    model.compile("sgd", SparseCategoricalCrossentropy(from_logits=True))
    model.fit(torch.tensor(X), torch.tensor(Y), verbose=0)
    assert model.backend.name == "torch"
    assert model.input_shape == (None, 3)


@pytest.mark.parametrize("data", [X, X.tolist()])
def test_numpy_where_nothing_says_otherwise(data: Any) -> None:
    model = classifier()
    model.predict(data)
    assert model.backend.name == "numpy"
    unused = classifier()
    assert unused.backend.name == "numpy"
    loaded = classifier()
    loaded.fit(Loader(X, Y), verbose=0)
    assert loaded.backend.name == "numpy"


def test_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setenv("MINICNN_BACKEND", "torch:cpu")
    model = classifier()
    model.predict(X)
    assert (model.backend.name, model.backend.device) == ("torch", "cpu")
    named = classifier("numpy")
    assert isinstance(named.predict(torch.tensor(X)), torch.Tensor)
    assert named.backend.name == "numpy"
    pytest.importorskip("jax")
    from_arrays = classifier()
    from_arrays.predict(to_library(X, "jax"))
    assert from_arrays.backend.name == "jax"


def test_once_decided_it_stays() -> None:
    torch = pytest.importorskip("torch")
    model = classifier()
    model.predict(X)
    model.fit(torch.tensor(X), torch.tensor(Y), verbose=0)
    assert model.backend.name == "numpy"


def test_a_backend_object_is_used_as_it_is() -> None:
    backend = get_backend("numpy", reference_only=True)
    assert classifier(backend).backend is backend


def test_two_backends_side_by_side() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("jax")
    models = {name: classifier(name) for name in FAST}
    alone = {}
    for name in FAST:
        twin = classifier(name)
        for _ in range(4):
            twin.train_on_batch(X, Y)
        alone[name] = twin.get_weights()
    for _ in range(4):
        for model in models.values():  # interleaved
            model.train_on_batch(X, Y)
    for name, model in models.items():
        assert model.backend.name == name
        assert_same_weights(model.get_weights(), alone[name])
        np.testing.assert_allclose(model.predict(X), models["numpy"].predict(X), rtol=STEP, atol=SUM)


def test_one_graph_two_models() -> None:
    """Weights are those of the layers, whatever the backends; the backend is the model's."""
    pytest.importorskip("torch")
    x = Input((3,))
    y = Dense(2)(x)
    one, two = Model(x, y, backend="numpy"), Model(x, y, backend="torch")
    one.compile("sgd", SparseCategoricalCrossentropy(from_logits=True))
    before = two.get_weights()
    one.fit(X, Y, verbose=0)
    assert_same_weights(two.get_weights(), one.get_weights())
    assert np.any(one.get_weights()["dense/kernel"] != before["dense/kernel"])
    assert [m.backend.name for m in (one, two)] == ["numpy", "torch"]
