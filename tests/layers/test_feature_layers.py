"""Normalization by statistics of the data, and class numbers as rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from minicnn import Sequential
from minicnn.layers import CategoryEncoding, Dense, Input, Normalization
from minicnn.saving import load_model
from support.layer_check import check_config, run_layer, run_layer_check
from support.strategies import normal

X = 3 * normal((20, 4, 5), 0) + 7


@pytest.mark.parametrize(("axis", "rest"), [(-1, (0, 1)), ((1, 2), (0,)), (None, (0, 1, 2))])
def test_adapt(axis: Any, rest: Any, tmp_path: Any) -> None:
    layer = Normalization(axis)
    layer.adapt(X)
    expected = (X - X.mean(axis=rest, keepdims=True)) / X.std(axis=rest, keepdims=True)
    model = Sequential([Input((4, 5)), layer], backend="numpy")
    np.testing.assert_allclose(model.predict(X), expected, rtol=1e-4, atol=1e-5)
    model.save(tmp_path / "m")
    np.testing.assert_array_equal(load_model(tmp_path / "m").predict(X), model.predict(X))
    layer.adapt(2 * X)  # a model takes it up at once
    np.testing.assert_allclose(model.predict(2 * X), expected, rtol=1e-4, atol=1e-5)
    assert model.count_params(trainable=True) == 0
    layer = Normalization(axis, X.mean(axis=rest), X.var(axis=rest), invert=True)
    np.testing.assert_allclose(run_layer(layer, expected), X, rtol=1e-6)
    check_config(layer, [(4, 5)])


def test_training_leaves_the_statistics() -> None:
    layer = Normalization()
    layer.adapt(X[:, 0])
    model = Sequential([Input((5,)), layer, Dense(1)], backend="numpy")
    model.compile("sgd", "mse")
    model.fit(X[:, 0], X[:, 0, 0], verbose=0)
    np.testing.assert_allclose(model.get_weights()["normalization/mean"], X[:, 0].mean(axis=0), rtol=1e-5)


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
