"""NamespaceBackend: training in any namespace of the Array API."""

from __future__ import annotations

import copy
import pickle
import types
from typing import Any

import array_api_compat.numpy
import numpy as np
import pytest

from minicnn import Sequential
from minicnn.backends import NamespaceBackend, get_backend
from minicnn.layers import Conv2D, Dense, Dropout, Flatten, Input
from support import copying
from support.tolerances import SUM

X = np.random.default_rng(0).random((12, 6, 6, 1), "float32")
Y = np.arange(12) % 3


COPYING = types.ModuleType("copying_shim")  # there is no other way out of its arrays
vars(COPYING)["to_numpy"] = lambda array: np.array(array._data)


def trained(backend: Any) -> Any:
    model = Sequential(
        [Input((6, 6, 1)), Conv2D(2, 3, activation="relu"), Flatten(), Dropout(0.3), Dense(3, "softmax")],
        backend=backend,
    )
    model.compile("adam")
    model.fit(X, Y, batch_size=5, epochs=2, verbose=0)
    return model


def test_any_object_with_the_functions_is_a_namespace() -> None:
    expected = trained("numpy").predict(X)
    for backend in (NamespaceBackend("array_api_compat.numpy"), NamespaceBackend(copying.xp, COPYING)):
        np.testing.assert_allclose(trained(backend).predict(X), expected, rtol=SUM)


def test_predictions_are_arrays_of_the_namespace() -> None:
    strict = pytest.importorskip("array_api_strict")
    backend = NamespaceBackend(strict)
    predicted = trained(backend).predict(strict.asarray(X))
    assert backend.owns(predicted)
    assert not backend.owns(X)
    np.testing.assert_allclose(backend.to_numpy(predicted), trained("numpy").predict(X), rtol=SUM)


def lazy(calls: list[str]) -> types.ModuleType:
    """A shim that counts what is asked of it."""
    shim = types.ModuleType("lazy")

    def force(arrays: list[Any]) -> list[Any]:
        calls.append("force")
        return arrays

    def from_numpy(array: Any) -> Any:
        calls.append("from_numpy")
        return array

    def to_numpy(array: Any) -> Any:
        calls.append("to_numpy")
        return array

    def exp(x: Any) -> Any:
        calls.append("exp")
        return np.exp(x)

    vars(shim).update(force=force, from_numpy=from_numpy, to_numpy=to_numpy, exp=exp)
    return shim


def test_a_shim_s_names_stand_in_front() -> None:
    calls: list[str] = []
    model = trained(NamespaceBackend(array_api_compat.numpy, lazy(calls)))
    assert set(calls) >= {"force", "from_numpy", "to_numpy", "exp"}
    assert calls.count("force") == 6  # once a step
    assert model.backend.xp.sqrt is array_api_compat.numpy.sqrt


def test_what_is_missing_is_named_by_the_library() -> None:
    with pytest.raises(AttributeError, match="no attribute 'scatter'"):
        NamespaceBackend(array_api_compat.numpy).xp.scatter  # noqa: B018
    with pytest.raises(ImportError, match="no_such_module"):
        NamespaceBackend("no_such_module")


def test_copies_and_pickles_name_the_module() -> None:
    backend = NamespaceBackend(array_api_compat.numpy, "minicnn.tolerance", strict=False)
    for other in (pickle.loads(pickle.dumps(backend)), copy.copy(backend)):
        assert repr(other) == "<backend namespace:array_api_compat.numpy>"
        assert (other.namespace, other.shim) == ("array_api_compat.numpy", "minicnn.tolerance")
    model = trained(backend)
    np.testing.assert_array_equal(copy.deepcopy(model).predict(X), model.predict(X))
    assert get_backend(backend) is backend


def test_the_caller_s_memory_is_not_shared() -> None:
    given = np.ones(3, "float32")
    array = NamespaceBackend(array_api_compat.numpy).asarray(given)
    given[:] = 2
    np.testing.assert_array_equal(array, np.ones(3))
