"""Predictions and evaluation: kinds of arrays, loaders, partial batches, and no memory shared with the caller."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minicnn import Model, Sequential
from minicnn.callbacks import Callback
from minicnn.data import Loader
from minicnn.layers import BatchNormalization, Concatenate, Dense, Dropout, Input
from support.model_cases import FAST, blobs, identity, linear, to_library
from support.tolerances import DOUBLE, ELEMENT, SUM

Array = np.ndarray[Any, Any]
X, Y = blobs(13, 3, 2)
LIBRARIES = ["numpy", "torch", "jax", "array_api_strict"]


def library_of(array: Any) -> str:
    return {"jaxlib": "jax"}.get(type(array).__module__.partition(".")[0], type(array).__module__.partition(".")[0])


def host(array: Any) -> Array:
    return np.from_dlpack(array) if library_of(array) == "array_api_strict" else np.asarray(array)


@pytest.mark.parametrize("backend", [*FAST, "array_api_strict"])
@pytest.mark.parametrize("library", LIBRARIES)
def test_arrays_come_back_as_they_were_given(backend: str, library: str) -> None:
    model = linear(backend)
    found = model.predict(to_library(X, library), 5)
    assert library_of(found) == library
    weights = model.get_weights()
    np.testing.assert_allclose(host(found), X @ weights["dense/kernel"] + weights["dense/bias"], rtol=SUM, atol=ELEMENT)


def test_lists_give_numpy_arrays() -> None:
    model = linear()
    found = model.predict(X.tolist())
    assert isinstance(found, np.ndarray)
    np.testing.assert_array_equal(found, model.predict(X))


@given(n=st.integers(1, 13), batch=st.integers(1, 20))
@settings(max_examples=30)
def test_the_batch_size_makes_no_difference(n: int, batch: int) -> None:
    model = linear(precision="float64")
    whole = model.predict(X, 13)
    assert whole.dtype == "float64"
    np.testing.assert_allclose(model.predict(X[:n], batch), whole[:n], rtol=DOUBLE)


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_loaders(backend: str, library: str) -> None:
    model = linear(backend)
    x = to_library(X, library)
    expected = model.predict(x, 5)
    parts = [x[i : i + 5] for i in range(0, len(X), 5)]
    for loader in (
        iter(parts), [(part,) for part in parts], [(part, Y) for part in parts], [(part, Y, Y) for part in parts],
        ([part] for part in parts), ([part, Y] for part in parts),
    ):  # fmt: skip
        found = model.predict(loader)
        assert type(found) is type(expected)
        np.testing.assert_array_equal(host(found), host(expected))


def test_minicnn_s_own_loader() -> None:
    model = linear()
    for loader in (Loader(X, batch_size=4, shuffle=False), Loader(X, Y, batch_size=4, shuffle=False)):
        np.testing.assert_array_equal(model.predict(loader), model.predict(X, 4))


def test_several_inputs_from_arrays_and_loaders() -> None:
    a, b = Input((3,)), Input((2,))
    model = Model([a, b], Dense(2)(Concatenate()([a, b])), backend="numpy")
    x = [X, X[:, :2]]
    expected = model.predict(x, 5)
    np.testing.assert_array_equal(model.predict(tuple(x), 5), expected)
    np.testing.assert_array_equal(model.predict([v.tolist() for v in x], 5), expected)
    parts = [[v[i : i + 5] for v in x] for i in range(0, len(X), 5)]
    np.testing.assert_array_equal(model.predict(iter(parts)), expected)
    np.testing.assert_array_equal(model.predict([(part, Y) for part in parts]), expected)


@pytest.mark.parametrize("backend", FAST)
def test_many_outputs_keep_their_order(backend: str) -> None:
    x = Input((3,))
    model = Model(x, [Dense(i + 1)(x) for i in range(12)], backend=backend)
    assert [p.shape[1] for p in model.predict(X)] == list(range(1, 13))
    one = Model(x, [Dense(2)(x)], backend=backend)
    assert isinstance(one.predict(X), list)  # a list of outputs gives a list


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("batch", [5, 13])
def test_predictions_are_arrays_of_their_own(backend: str, batch: int) -> None:
    model = identity((3,), backend="numpy") if backend == "numpy" else Sequential([Input((3,))], backend=backend)
    x = X.astype("float64") if backend == "numpy" else X.copy()
    found = model.predict(x, batch)
    np.testing.assert_array_equal(found, x)
    assert not np.may_share_memory(found, x)
    found += 1.0  # so it can be written to
    np.testing.assert_array_equal(model.predict(x, batch), x)


def test_own_tensors_are_not_handed_back() -> None:
    torch = pytest.importorskip("torch")
    x = torch.tensor(X)
    found = Sequential([Input((3,))], backend="torch").predict(x)
    found += 1
    np.testing.assert_array_equal(x.numpy(), X)


def test_prediction_is_inference() -> None:
    model = Sequential([Input((3,)), Dropout(0.5), BatchNormalization()], backend="numpy")
    before = model.get_weights()
    first, second = model.predict(X), model.predict(X)
    np.testing.assert_array_equal(first, second)
    np.testing.assert_allclose(first, X / np.sqrt(1 + 1e-3), rtol=ELEMENT)
    for path, w in model.get_weights().items():
        np.testing.assert_array_equal(w, before[path])


# Evaluation -------------------------------------------------------------------------------------


@given(n=st.integers(1, 13), batch=st.integers(1, 20), weighted=st.booleans())
@settings(max_examples=30)
def test_evaluation_over_partial_batches_is_that_of_the_whole(n: int, batch: int, weighted: bool) -> None:
    model = linear(units=2, loss="mse", metrics=["mae", "accuracy"], precision="float64")
    target = np.eye(2)[Y[:n]]
    w = np.linspace(0.5, 1, n) if weighted else np.ones(n)
    p = model.predict(X[:n])
    found = model.evaluate(X[:n], target, batch, sample_weight=w if weighted else None, return_dict=True)
    assert found["loss"] == pytest.approx(np.mean(w * ((p - target) ** 2).mean(axis=1)))
    assert found["mae"] == pytest.approx(np.average(np.abs(p - target).mean(axis=1), weights=w))
    assert found["accuracy"] == pytest.approx(np.average(p.argmax(axis=1) == Y[:n], weights=w))


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("library", LIBRARIES)
def test_evaluation_of_every_library(backend: str, library: str) -> None:
    model = linear(backend)
    expected = linear(backend).evaluate(X, np.eye(2, dtype="float32")[Y], 5)
    found = model.evaluate(to_library(X, library), to_library(np.eye(2, dtype="float32")[Y], library), 5)
    assert found == expected


def test_evaluation_changes_nothing() -> None:
    model = linear(metrics=["mae"])
    state = model.get_state()
    model.evaluate(X, np.eye(2)[Y], 4)
    after = model.get_state()
    assert after["steps_taken"] == state["steps_taken"] == 0
    for name, array in state["arrays"].items():
        np.testing.assert_array_equal(after["arrays"][name], array)


def test_evaluation_prints_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    model = identity((2,), "mse", ["mae", "confusion_matrix"])
    model.evaluate(np.ones((3, 2)), np.zeros((3, 2)))
    assert capsys.readouterr().out == ""
    model.evaluate(np.ones((3, 2)), np.zeros((3, 2)), verbose=1)
    assert capsys.readouterr().out == "loss: 1.0000 - mae: 1.0000\n"


@pytest.mark.parametrize("backend", FAST)
def test_later_calls_see_new_weights_data_and_settings(backend: str) -> None:
    """An array like the last is not checked again: whatever else changes counts all the same."""
    x, model = X.astype(np.float32), linear(backend)
    weights = model.get_weights()
    model.set_weights(weights | {"dense/bias": 0 * weights["dense/bias"]})
    first = model.predict(x, 13)
    np.testing.assert_array_equal(model.predict(2 * x, 13), 2 * first)
    np.testing.assert_allclose(model.predict(x, 5), first, rtol=SUM)
    turned = x[::-1]
    np.testing.assert_allclose(model.predict(turned, 13), first[::-1], rtol=SUM)
    model.set_weights({name: 2 * array for name, array in weights.items()} | {"dense/bias": 0 * first[0]})
    np.testing.assert_array_equal(model.predict(x, 13), 2 * first)
    np.testing.assert_allclose(model.predict(x.astype(np.float64), 13), 2 * first, rtol=SUM)
    with pytest.raises(ValueError, match=r"inputs of shape"):
        model.predict(x[:, :2], 13)


def test_a_new_precision_counts_for_an_array_like_the_last() -> None:
    x, model = X.astype(np.float32), linear()
    assert {model.predict(x).dtype.name for _ in range(3)} == {"float32"}
    model.compile("sgd", "mse", precision="float64")
    assert {model.predict(x).dtype.name for _ in range(3)} == {"float64"}


def test_an_array_like_the_last_shares_no_memory_with_its_outputs() -> None:
    x, model = X.astype(np.float64), identity((3,))
    for _ in range(3):
        result = model.predict(x)
        np.testing.assert_array_equal(result, X)
        result[:] = 0


def test_callbacks_are_called_for_an_array_like_the_last() -> None:
    class Counter(Callback):
        count = 0

        def on_predict_batch_end(self, batch: int, logs: Any = None) -> None:
            """Count it."""
            self.count += 1

    model, counter = linear(), Counter()
    for _ in range(3):
        model.predict(X.astype(np.float32), callbacks=[counter])
        model.predict(X.astype(np.float32))
    assert counter.count == 3
