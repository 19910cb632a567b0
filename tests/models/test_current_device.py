"""What a model does with arrays of a backend, it does while the backend's device is the current one of the thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from minicnn import Model
from minicnn.backends.base import Executable
from minicnn.backends.numpy import NumpyBackend
from minicnn.callbacks import LambdaCallback
from minicnn.data import Loader
from minicnn.distribution import DataParallel
from minicnn.losses import CategoricalCrossentropy
from minicnn.program import Program
from support.distributed import CLASSES, data, dense, normalized
from support.ranks import ThreadRanks

HOME = 1
current = threading.local()  # number of the device of each thread; 0 where nobody has said another


def check() -> None:
    assert getattr(current, "number", 0) == HOME, "arrays are computed with on another device"


class DeviceArray(np.ndarray[Any, Any]):
    """An array that no kernel may read while another device is the current one."""

    def __array_ufunc__(self, ufunc: Any, method: str, *given: Any, out: Any = (), **options: Any) -> Any:
        check()
        options |= {"out": tuple(host(a) for a in out)} if out else {}
        return back(getattr(ufunc, method)(*map(host, given), **options))

    def __array_function__(self, function: Any, types: Any, given: Any, options: Mapping[str, Any]) -> Any:
        check()
        return back(function(*map(host, given), **{name: host(a) for name, a in options.items()}))

    def __getitem__(self, key: Any) -> Any:
        check()
        return super().__getitem__(key)


def host(given: Any) -> Any:
    if isinstance(given, list | tuple):
        return type(given)(host(a) for a in given)
    return given.view(np.ndarray) if isinstance(given, DeviceArray) else given


def back(made: Any) -> Any:
    if isinstance(made, list | tuple):
        return type(made)(back(a) for a in made)
    return made.view(DeviceArray) if isinstance(made, np.ndarray) else np.asarray(made).view(DeviceArray)


class DeviceBackend(NumpyBackend):
    """As those of GPUs: what it does itself is on its device, and all else where whoever does it has it done."""

    @contextmanager
    def active(self) -> Iterator[None]:
        before, current.number = getattr(current, "number", 0), HOME
        try:
            yield
        finally:
            current.number = before

    def asarray(self, data: Any, dtype: str | None = None) -> Any:
        with self.active():
            return np.array(host(data), dtype, order="C").view(DeviceArray)

    def to_numpy(self, array: Any) -> Any:
        return np.array(host(array))

    def owns(self, array: Any) -> bool:
        return isinstance(array, DeviceArray)

    def compile(self, program: Program) -> Executable:
        run = super().compile(program)

        def call(arrays: Mapping[str, Any]) -> dict[str, Any]:
            with self.active():
                return run(arrays)

        return call


BACKEND = DeviceBackend()
X, LABELS = data()
Y = np.eye(CLASSES, dtype="float32")[LABELS]
WEIGHT = np.linspace(0.5, 1.5, len(X)).astype("float32")
CALLS: dict[str, Callable[[Model, Any, Any, Any], Any]] = {
    "fit": lambda m, x, y, w: m.fit(x, y, 12, 2, verbose=0, sample_weight=w, validation_split=0.2),
    "fit with classes weighted": lambda m, x, y, w: m.fit(x, y, 12, verbose=0, class_weight={0: 2.0, 3: 0.5}),
    "fit with callbacks": lambda m, x, y, w: m.fit(
        x, y, 12, verbose=0, callbacks=LambdaCallback(on_train_batch_end=lambda batch, logs: float(x[0, 0, 0, 0] * 2.0))
    ),
    "train_on_batch": lambda m, x, y, w: m.train_on_batch(x, y, w),
    "evaluate": lambda m, x, y, w: m.evaluate(x, y, 12, sample_weight=w),
    "test_on_batch": lambda m, x, y, w: m.test_on_batch(x, y, w),
    "trace": lambda m, x, y, w: m.trace(x, y, w),
    "predict": lambda m, x, y, w: m.predict(x, 12, steps=3),
    "predict_on_batch": lambda m, x, y, w: m.predict_on_batch(x),
    "call": lambda m, x, y, w: m(x, training=True),
}


def compiled(distribution: DataParallel | None = None, make: Callable[..., Model] = normalized) -> Model:
    """A model whose loss looks at its targets, as do some of its metrics."""
    model = make(BACKEND, distribution)
    metrics = ["accuracy", "auc", "top_k_categorical_accuracy", "f1_score"]
    model.compile("adam", CategoricalCrossentropy(), metrics, distribution=distribution)
    return model


@pytest.mark.parametrize("shards", [0, 4])
@pytest.mark.parametrize("own", [True, False], ids=["device's arrays", "host's arrays"])
@pytest.mark.parametrize("name", CALLS)
def test_whatever_a_model_computes_is_on_its_device(name: str, own: bool, shards: int) -> None:
    given = [BACKEND.asarray(a) if own else a for a in (X, Y, WEIGHT)]
    CALLS[name](compiled(DataParallel(shards) if shards else None), *given)
    assert getattr(current, "number", 0) == 0


def test_the_device_that_was_current_is_so_again_after_an_error() -> None:
    with pytest.raises(ValueError, match="Received: numbers from"):
        compiled().fit(X, 2 * Y, 12, verbose=0)
    assert getattr(current, "number", 0) == 0


def test_loaders_too() -> None:
    model = compiled()
    model.fit(Loader(X, Y, batch_size=12), verbose=0, validation_data=(X, Y, WEIGHT))
    model.predict(Loader(X, batch_size=12, shuffle=False))


def test_ranks_too() -> None:
    def work(communicator: Any) -> float:
        model = compiled(DataParallel(8, communicator=communicator), dense)
        model.fit(X, Y, 12, verbose=0, sample_weight=WEIGHT)
        return float(model.evaluate(X, Y, 12, return_dict=True)["loss"])

    one, two = ThreadRanks(2).run(work)
    assert one == two
