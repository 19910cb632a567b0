"""Normalization by statistics of the data, and class numbers as rows."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

from minicnn import Sequential
from minicnn.data import Loader
from minicnn.layers import CategoryEncoding, Dense, Input, Normalization
from minicnn.saving import load_model
from minicnn.utils import PyDataset
from support.layer_check import check_config, run_layer, run_layer_check
from support.strategies import normal
from support.tolerances import DOUBLE, ELEMENT, STEP, SUM

X = 3 * normal((20, 4, 5), 0) + 7


@pytest.mark.parametrize(("axis", "rest"), [(-1, (0, 1)), ((1, 2), (0,)), (None, (0, 1, 2))])
def test_adapt(axis: Any, rest: Any, tmp_path: Any) -> None:
    layer = Normalization(axis)
    layer.adapt(X)
    expected = (X - X.mean(axis=rest, keepdims=True)) / X.std(axis=rest, keepdims=True)
    model = Sequential([Input((4, 5)), layer], backend="numpy")
    np.testing.assert_allclose(model.predict(X), expected, rtol=STEP, atol=SUM)
    model.save(tmp_path / "m")
    np.testing.assert_array_equal(load_model(tmp_path / "m").predict(X), model.predict(X))
    layer.adapt(2 * X)  # a model takes it up at once
    np.testing.assert_allclose(model.predict(2 * X), expected, rtol=STEP, atol=SUM)
    assert model.count_params(trainable=True) == 0
    layer = Normalization(axis, X.mean(axis=rest), X.var(axis=rest), invert=True)
    np.testing.assert_allclose(run_layer(layer, expected), X, rtol=ELEMENT)
    check_config(layer, [(4, 5)])


@pytest.mark.parametrize("dtype", ["uint8", "float32", "float64", "int64"])
@pytest.mark.parametrize("value", [0, 7, 0.1])
def test_a_constant_feature_keeps_its_scale(value: float, dtype: str) -> None:
    x = np.full((70_000, 5), value, dtype)  # several blocks
    x[:, 1] = np.arange(len(x)) % 3
    layer = Normalization()
    layer.adapt(x)
    mean, variance = layer.get_weights()
    assert mean[0] == x[0, 0]
    assert variance[0] == 0.0
    assert variance[1] == pytest.approx(x[:, 1].astype("float64").var(), rel=ELEMENT)
    model = Sequential([Input((5,)), layer], backend="numpy")
    found = model.predict(np.asarray([[mean[0] + 1, 1, mean[0], mean[0] - 2, mean[0]]]))
    np.testing.assert_allclose(found[0], [1, (1 - mean[1]) / variance[1] ** 0.5, 0, -2, 0], rtol=ELEMENT, atol=ELEMENT)
    given = Normalization(mean=[3.0, 4.0], variance=[0.0, 4.0])
    np.testing.assert_array_equal(run_layer(given, np.asarray([[4.0, 8.0]])), [[1.0, 2.0]])


@pytest.mark.parametrize(("axis", "rest"), [(-1, (0, 1)), ((1, 2), (0,)), (None, (0, 1, 2))])
def test_blocks_lose_no_digits(axis: Any, rest: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minicnn.layers.features.BLOCK", 64)  # three samples
    x = normal((50, 4, 5), 1) + 1e8 * (1 + np.arange(5))
    layer = Normalization(axis)
    layer.adapt(x)
    for weight, exact in zip(layer._adapted, (x.mean(axis=rest), x.var(axis=rest)), strict=True):
        np.testing.assert_allclose(weight.cell.host("float64"), exact, rtol=DOUBLE)


@pytest.mark.parametrize("loader", [
    lambda x, y: Loader(x, y, batch_size=7, shuffle=True),
    lambda x, y: [(x[:11], y[:11]), (x[11:], y[11:])],
    lambda x, y: (part for part in np.array_split(x, 3)),
    lambda x, y: Halves(x),
], ids=["loader", "list", "generator", "pydataset"])  # fmt: skip
def test_adapt_to_loaders(loader: Any) -> None:
    x = X.astype("float32")
    whole, parts = Normalization(), Normalization()
    whole.adapt(x)
    parts.adapt(loader(x, np.zeros(len(x))))
    for one, other in zip(whole.get_weights(), parts.get_weights(), strict=True):
        np.testing.assert_allclose(other, one, rtol=ELEMENT)


class Halves(PyDataset):
    def __init__(self, x: Any) -> None:
        self.x = x

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:
        return self.x[index * 10 : index * 10 + 10], np.zeros(10)


def test_images_are_adapted_to_by_blocks() -> None:
    x = np.zeros((2_000, 64, 64, 1), "uint8")  # 8 MB, of which float64 would be 64
    x[::2] = 255
    layer = Normalization()
    tracemalloc.start()
    layer.adapt(x)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**24
    np.testing.assert_array_equal(layer.get_weights(), [[127.5], [127.5**2]])


@pytest.mark.parametrize(
    "data", [X[:0], [], iter(()), np.zeros((0, 3), "uint8")], ids=["rows", "list", "iterator", "images"]
)
def test_adapt_to_nothing(data: Any) -> None:
    with pytest.raises(ValueError, match=r"adapt takes at least one sample\. Received: none\. Look at what"):
        Normalization(axis=None).adapt(data)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_adapt_to_numbers_that_are_none(value: float) -> None:
    x = X.copy()
    x[7, 3, 2] = value
    with pytest.raises(
        ValueError, match=r"finite numbers\. Received: NaN or infinity in samples of shape \(20, 4, 5\)"
    ):
        Normalization().adapt(x)


def test_training_leaves_the_statistics() -> None:
    layer = Normalization()
    layer.adapt(X[:, 0])
    model = Sequential([Input((5,)), layer, Dense(1)], backend="numpy")
    model.compile("sgd", "mse")
    model.fit(X[:, 0], X[:, 0, 0], verbose=0)
    np.testing.assert_allclose(model.get_weights()["normalization/mean"], X[:, 0].mean(axis=0), rtol=SUM)


def test_shapes_and_gradients() -> None:
    run_layer_check(Normalization(), (3, 2), output=(3, 2), weights={"mean": (2,), "variance": (2,)},
                    statistics=["mean", "variance"])  # fmt: skip
    run_layer_check(Normalization(mean=1.0, variance=4.0), (3,), output=(3,))


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("multi_hot", [[1, 1, 0, 0], [0, 0, 1, 0]]),
        ("count", [[2, 1, 0, 0], [0, 0, 3, 0]]),
        ("one_hot", [np.eye(4)[[0, 1, 0]], np.eye(4)[[2, 2, 2]]]),
    ],
)
def test_category_encoding(mode: str, expected: Any) -> None:
    layer = CategoryEncoding(4, mode)
    np.testing.assert_array_equal(run_layer(layer, np.asarray([[0.0, 1.0, 0.0], [2.0, 2.0, 2.0]])), expected)
    np.testing.assert_array_equal(run_layer(layer, np.asarray([[1.0], [3.0]])), np.eye(4)[[1, 3]])


def test_wrong_arguments() -> None:
    with pytest.raises(ValueError, match="mean and variance are given both"):
        Normalization(mean=1.0)
    with pytest.raises(ValueError, match="that was given them"):
        Normalization(mean=1.0, variance=1.0).adapt(X)
    with pytest.raises(ValueError, match="output_mode is 'one_hot'"):
        CategoryEncoding(3, "tf_idf")
