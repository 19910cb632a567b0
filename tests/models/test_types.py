"""Types that a type checker tells of models: `mypy` reads this file, and what it asserts is so."""

from __future__ import annotations

from typing import Any, assert_type

import numpy as np
from numpy.typing import NDArray

from minicnn import Model, Sequential
from minicnn.layers import Dense, Input
from minicnn.layers.symbolic import SymbolicTensor

X: NDArray[np.float32] = np.ones((4, 3), np.float32)


def test_predictions_and_calls_give_what_their_types_say() -> None:
    x = Input((3,))
    y = assert_type(Dense(2)(x), SymbolicTensor)
    chain, model = Sequential([x, Dense(2)], backend="numpy"), Model(x, [y, y], backend="numpy")
    assert isinstance(y, SymbolicTensor)
    assert isinstance(assert_type(chain.predict(X), NDArray[Any]), np.ndarray)
    assert isinstance(assert_type(Dense(2)(X), NDArray[Any]), np.ndarray)
    assert isinstance(assert_type(model.predict(X), NDArray[Any] | Any), list)
    assert isinstance(assert_type(model(X), NDArray[Any] | Any), list)
    assert isinstance(assert_type(chain(x), SymbolicTensor | Any), SymbolicTensor)


def test_evaluations_give_numbers_or_a_dictionary() -> None:
    model = Sequential([Input((3,)), Dense(2)], backend="numpy")
    model.compile("sgd", "mse", ["mae"])
    assert isinstance(assert_type(model.evaluate(X, X[:, :2], return_dict=True), dict[str, Any]), dict)
    assert isinstance(assert_type(model.evaluate(X, X[:, :2]), float | Any), list)
