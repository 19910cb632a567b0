"""Labels, weights and rates outside their domain are refused before a weight changes; loaders say what they are."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from minicnn import Sequential
from minicnn.data import Loader
from minicnn.layers import Dense, Input
from minicnn.losses import BinaryCrossentropy, CategoricalCrossentropy, SparseCategoricalCrossentropy
from minicnn.optimizers import SGD
from minicnn.schedules import ExponentialDecay, Schedule
from support.model_cases import FAST, assert_same_weights, blobs, linear, to_library
from support.tolerances import ELEMENT, SUM, TRAINING

X, Y = blobs(12, 4, 3)


LOSS = SparseCategoricalCrossentropy(from_logits=True)


def network(loss: Any = LOSS, units: int = 3, backend: Any = "numpy") -> Sequential:
    return linear(backend, features=4, units=units, loss=loss, metrics=["accuracy"])


def with_one(array: Any, value: Any) -> Any:
    array = np.array(array, "float32")
    array[-1] = value
    return array


ZEROS, ROWS = np.zeros((12, 1), "float32"), np.eye(3, dtype="float32")[Y]
BAD = {
    "above": (BinaryCrossentropy(True), 1, with_one(ZEROS, 9), r"BinaryCrossentropy are from 0 to 1\. .*0\.0 to 9\.0"),
    "below": (BinaryCrossentropy(True), 1, with_one(ZEROS, -1), r"numbers from -1\.0 to 0\.0\..*\(y \+ 1\) / 2"),
    "nan": (BinaryCrossentropy(True), 1, with_one(ZEROS, np.nan), r"BinaryCrossentropy .*nan"),
    "sum": (CategoricalCrossentropy(True), 3, with_one(ROWS, [1, 1, 0]), r"a distribution .*sums from 1\.0 to 2\.0"),
    "none": (CategoricalCrossentropy(True), 3, with_one(ROWS, [0, 0, 0]), r"a distribution .*sums from 0\.0 to 1\.0"),
    "negative": (CategoricalCrossentropy(True), 3, with_one(ROWS, [2, -1, 0]), r"a distribution .*numbers from -1\.0"),
    "missing": (CategoricalCrossentropy(True), 3, with_one(ROWS, [np.nan, 0, 1]), r"a distribution .*nan"),
}


@pytest.mark.parametrize(("backend", "what"), [*(("numpy", what) for what in BAD), ("torch", "above"), ("jax", "sum")])
def test_targets(backend: str, what: str) -> None:
    loss, units, y, message = BAD[what]
    model = network(loss, units, backend)
    before = model.get_weights()
    good = (X[:4], y[:4])
    calls = [
        lambda: model.fit(X, y, 4, 1, 0), lambda: model.evaluate(X, y), lambda: model.train_on_batch(X, y),
        lambda: model.fit(X, to_library(y, backend), 4, 1, 0),
        lambda: model.fit(*good, 4, 1, 0, validation_data=(X, y)),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(ValueError, match=message):
            call()
    assert_same_weights(model.get_weights(), before)
    model.fit(*good, 4, 1, 0)


def test_soft_targets_are_within() -> None:
    model, y = network(BinaryCrossentropy(from_logits=True), 1), np.linspace(0, 1, 12)
    z = model.predict(X)[:, 0]
    found = model.fit(X, y, batch_size=12, verbose=0).history["loss"]
    assert found == pytest.approx([np.mean(np.logaddexp(0, z) - y * z)], rel=SUM)
    model, thirds = network(CategoricalCrossentropy(from_logits=True), 3), np.full((12, 3), 1 / 3, "float16")
    z = model.predict(X)
    found = model.fit(X, thirds, batch_size=12, verbose=0).history["loss"]
    assert found == pytest.approx([np.mean(np.logaddexp.reduce(z, 1) - z.mean(1))], rel=TRAINING)  # float16 has 11 bits


@pytest.mark.parametrize("weight", [-1.0, np.nan, np.inf])
def test_sample_weights(weight: float) -> None:
    model, w = network(), with_one(np.ones(12), weight)
    before = model.get_weights()
    for call in (model.fit, model.evaluate, model.train_on_batch):
        with pytest.raises(ValueError, match=r"finite numbers of at least 0, not all of them 0\. Received: from"):
            call(X, Y, sample_weight=w)
    with pytest.raises(ValueError, match="finite numbers of at least 0"):
        model.fit([(X, Y, w)], verbose=0)
    assert_same_weights(model.get_weights(), before)


def test_weights_that_are_all_zero() -> None:
    model = network()
    for call in (model.fit, model.evaluate, model.train_on_batch):
        with pytest.raises(ValueError, match=r"not all of them 0\. Received: from 0\.0 to 0\.0"):
            call(X, Y, sample_weight=np.zeros(12))
    with pytest.raises(ValueError, match="not all of them 0"):
        model.fit(X, Y, verbose=0, class_weight={0: 0, 1: 0, 2: 0})
    # A batch of padding in a loader is nothing wrong.
    history = model.fit([(X, Y, np.ones(12)), (X, Y, np.zeros(12))], verbose=0).history
    assert np.isfinite(history["accuracy"]).all()


@pytest.mark.parametrize("backend", [*FAST, "numba"])
def test_a_bad_batch_of_a_loader_is_not_trained_on(backend: str) -> None:
    model, twin = network(backend=backend), network(backend=backend)
    twin.fit([(X, Y)], verbose=0)
    with pytest.raises(ValueError, match="Labels of a sparse loss") as caught:
        model.fit([(X, Y), (X, Y + 1), (X, Y)], verbose=0)
    assert_same_weights(model.get_weights(), twin.get_weights())
    assert model.evaluate(X, Y) == twin.evaluate(X, Y)
    assert caught.value.__notes__ == [
        "In batch 1 of the epoch, counted from 0. Nothing of it was trained on; those before it were, but for what was "
        "still being made ready."
    ]


# Learning rates ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rate", [10**400, 1e39, float("nan"), float("inf"), -1.0, "fast", None], ids=lambda r: f"{r!r:.9}"
)
def test_learning_rates(rate: Any) -> None:
    model = network()
    before = model.get_weights()
    assert model.optimizer is not None
    model.optimizer.learning_rate = rate
    with pytest.raises(ValueError, match=r"learning_rate is a finite number .*in step 0\. Received: learning_rate="):
        model.fit(X, Y, verbose=0)
    assert_same_weights(model.get_weights(), before)


def test_a_schedule_that_gives_no_rate() -> None:
    class Broken(Schedule):
        def __call__(self, step: int) -> float:
            return 0.1 if step < 1 else float("nan")

    with pytest.raises(ValueError, match="finite numbers of at least 0"):
        ExponentialDecay(10**400, 1, 0.5)
    model = network()
    model.compile(SGD(Broken()), SparseCategoricalCrossentropy(from_logits=True))
    with pytest.raises(ValueError, match="in step 1"):
        model.fit(X, Y, 6, 1, 0)


# Loaders ----------------------------------------------------------------------------------------


def test_a_loader_of_pytorch_brings_its_backend() -> None:
    torch = pytest.importorskip("torch")
    data = torch.utils.data.TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))

    class Own(torch.utils.data.DataLoader):  # type: ignore[misc]
        pass

    class Batches:
        def __len__(self) -> int:
            return 1

        def __iter__(self) -> Any:
            yield torch.from_numpy(X), torch.from_numpy(Y)

    loaders: list[Any] = [torch.utils.data.DataLoader(data, 4), Own(data, 4), Batches(), list(Batches())]
    for loader in loaders:
        model = Sequential([Input((4,)), Dense(3)])
        model.compile("sgd", SparseCategoricalCrossentropy(from_logits=True))
        model.fit(loader, verbose=0)
        assert model.backend.name == "torch"
        model = Sequential([Input((4,)), Dense(3)])
        assert isinstance(model.predict(loader), torch.Tensor)
    numpy = Sequential([Input((4,)), Dense(3)])
    numpy.predict([(X, Y)])
    assert numpy.backend.name == "numpy"


def test_predictions_are_in_the_order_of_the_data() -> None:
    model = network()
    with pytest.raises(ValueError, match=r"in the order of the data\. Received: a loader that shuffles\. Make it with"):
        model.predict(Loader(X, Y, batch_size=5))
    found = model.predict(Loader(X, Y, batch_size=5, shuffle=False))
    np.testing.assert_allclose(found, model.predict(X), rtol=ELEMENT)
    torch = pytest.importorskip("torch")
    data = torch.utils.data.TensorDataset(torch.from_numpy(X))
    with pytest.raises(ValueError, match="a loader that shuffles"):
        model.predict(torch.utils.data.DataLoader(data, 4, shuffle=True))
    np.testing.assert_allclose(model.predict(torch.utils.data.DataLoader(data, 4)), found, rtol=ELEMENT)


# What evaluate gives ----------------------------------------------------------------------------


def test_evaluate_gives_what_keras_gives() -> None:
    model = network()
    loss, accuracy = model.evaluate(X, Y)
    assert model.evaluate(X, Y, return_dict=True) == {"loss": loss, "accuracy": accuracy}
    assert 0 <= accuracy <= 1
    model.compile("sgd", SparseCategoricalCrossentropy(from_logits=True))
    assert model.evaluate(X, Y) == loss
    assert type(loss) is float


# Forks ------------------------------------------------------------------------------------------

FORKED = """
import os, sys, warnings
import numpy as np
from minicnn import Sequential
from minicnn.layers import Dense, Input
warnings.simplefilter("ignore")
model = Sequential([Input((512,)), Dense(512)], backend=sys.argv[1])
x = np.ones((512, 512), "float32")
if sys.argv[2] == "used":
    model.predict(x)
child = os.fork()
if child == 0:
    try:
        model.predict(x)
        os._exit(0)
    except RuntimeError as error:
        os._exit(3 if str(error).startswith("The threads and the device memory of torch do not survive a fork") else 4)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize(("backend", "when", "code"), [("torch", "used", 3), ("torch", "new", 0), ("numba", "used", 0)])
def test_a_forked_child(backend: str, when: str, code: int) -> None:
    done = subprocess.run([sys.executable, "-c", FORKED, backend, when], timeout=300, check=False)
    assert done.returncode == code
