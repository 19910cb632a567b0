"""Small models and data for the tests of models, and ways to look at what they compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from minicnn import Sequential, ops
from minicnn.backends import get_backend
from minicnn.callbacks import Callback
from minicnn.layers import Dense, Input, Layer
from minicnn.losses import Loss, SparseCategoricalCrossentropy
from minicnn.metrics import Metric
from minicnn.optimizers import SGD
from minicnn.program import Program, Value
from support.campaign import EVERY_CASE

Array = np.ndarray[Any, Any]

# Backends that train at a useful speed.
FAST = ["numpy", "torch", "jax"]
# Those for what no compiler changes, where XLA would compile for seconds: with JAX at night.
UNCOMPILED = [name for name in FAST if EVERY_CASE or name != "jax"]


def run(function: Callable[..., Any], *arrays: Any, backend: str = "numpy", **attrs: Any) -> Any:
    """Result of a composition of primitives on arrays; a dict of results if it returns a dict."""
    program = Program()
    given = {f"x{i}": np.asarray(a) for i, a in enumerate(arrays)}
    made = function(*(program.input(n, a.shape, a.dtype.name) for n, a in given.items()), **attrs)
    program.outputs = made if isinstance(made, dict) else {"result": made}
    chosen = get_backend(backend)
    found = chosen.compile(program)({n: chosen.asarray(a) for n, a in given.items()})
    results = {name: chosen.to_numpy(found[name]) for name in program.outputs}
    return results if isinstance(made, dict) else results["result"]


def measure(metric: Metric, y_true: Any, y_pred: Any, weight: Any = None) -> Any:
    """Value of a metric for one batch."""
    weight = np.ones(len(y_pred)) if weight is None else np.asarray(weight, "float64")
    return metric.result(run(metric.totals, y_true, np.asarray(y_pred, "float64"), weight))


def identity(shape: Sequence[int], loss: Any = "mse", metrics: Any = (), *, backend: Any = "numpy") -> Sequential:
    """A model whose predictions are its inputs, in float64."""
    model = Sequential([Input(shape)], backend=backend)
    model.compile("sgd", loss, metrics, precision="float64")
    return model


def two_layers(
    backend: Any = "numpy", *, features: int = 4, hidden: int = 6, units: int = 3, last: str | None = None,
    between: Sequence[Callable[[], Layer]] = (), optimizer: Any = "sgd", loss: Any = None,
    metrics: Any = ("accuracy",), seed: int = 0, **options: Any,
) -> Sequential:  # fmt: skip
    """Two compiled dense layers, trained on class numbers unless a loss is named.

    Args:
        backend: See `Model`.
        features: Numbers of a sample.
        hidden: Units of the first layer, which has ReLU.
        units: Those of the second.
        last: Its activation.
        between: Makes the layers between the two.
        optimizer: Name of the optimizer, or what makes one.
        loss: See `Model.compile`; of logits if None.
        metrics: See `Model.compile`.
        seed: See `Model`.
        **options: Further arguments of `Model.compile`.
    """
    inner = [Dense(hidden, activation="relu"), *(make() for make in between)]
    model = Sequential([Input((features,)), *inner, Dense(units, activation=last)], backend=backend, seed=seed)
    loss = SparseCategoricalCrossentropy(from_logits=True) if loss is None else loss
    model.compile(optimizer if isinstance(optimizer, str) else optimizer(), loss, metrics, **options)
    return model


def linear(
    backend: Any = "numpy", *, features: int = 3, units: int = 2, optimizer: Any = None, loss: Any = "mse",
    metrics: Any = (), precision: str = "float32", seed: int = 0,
) -> Sequential:  # fmt: skip
    """One compiled dense layer."""
    model = Sequential([Input((features,)), Dense(units)], backend=backend, seed=seed)
    model.compile(optimizer or SGD(0.1), loss, metrics, precision=precision)
    return model


class MeanOutput(Loss):
    """The prediction itself, so that gradients do not depend on the weights."""

    def call(self, y_true: Value, y_pred: Value) -> Value:
        return ops.sum(y_pred, axes=-1)


class Seen(Metric):
    """Sum of the targets: with rows of the identity matrix as targets, how often each sample was seen."""

    def __init__(self) -> None:
        super().__init__("seen")

    def totals(self, y_true: Value, y_pred: Value, weight: Value) -> dict[str, Value]:
        return {"sum": ops.sum(y_true, axes=0)}

    def result(self, totals: Mapping[str, Array]) -> list[float]:
        return list(np.asarray(totals["sum"], "float64"))


class Batches(Callback):
    """Remembers which samples were in each batch: see `Seen`. A sample that comes twice is listed twice."""

    def __init__(self) -> None:
        self.batches: list[list[list[int]]] = []

    def on_epoch_begin(self, epoch: int, logs: Any) -> None:
        self.batches.append([])
        self._before: Any = 0.0

    def on_train_batch_end(self, batch: int, logs: Any) -> None:
        now = np.asarray(logs["seen"])
        counts = np.rint(now - self._before).astype(int)
        self.batches[-1].append(np.repeat(np.arange(len(counts)), counts).tolist())
        self._before = now


class Watch(Callback):
    """Calls a function (batch, logs) after each step."""

    def __init__(self, function: Callable[[int, Any], Any]) -> None:
        self.function = function

    def on_train_batch_end(self, batch: int, logs: Any) -> None:
        self.function(batch, logs)


class StepLosses(Callback):
    """The loss of each single step, from the averages over the epoch."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any) -> None:
        before = self._average * batch if batch else 0.0
        self._average = logs["loss"]
        self.losses.append(self._average * (batch + 1) - before)


class Times(Layer):
    """Inputs times one trainable number that starts at 1."""

    def build(self, input_shape: Any) -> None:
        self.factor = self.add_weight("factor", (1,), "ones")

    def call(self, inputs: Any) -> Any:
        return inputs * self.factor


def to_library(array: Array, library: str) -> Any:
    """A NumPy array as one of another library, on the CPU."""
    if library == "numpy":
        return array
    if library == "list":
        return array.tolist()
    if library == "torch":
        return pytest.importorskip("torch").tensor(array)
    if library == "jax":
        return pytest.importorskip("jax").numpy.asarray(array)
    return pytest.importorskip("array_api_strict").asarray(array)


def blobs(samples: int = 23, features: int = 5, classes: int = 3, seed: int = 0) -> tuple[Array, Array]:
    """Points (N, features) float32 around a centre for each class, and class numbers (N,) int32."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, samples).astype("int32")
    x = rng.standard_normal((classes, features))[y] * 2 + rng.standard_normal((samples, features))
    return x.astype("float32"), y


def assert_same_weights(actual: Mapping[str, Array], expected: Mapping[str, Array]) -> None:
    """Assert that two sets of weights have the same names and bits."""
    assert list(actual) == list(expected)
    for path, array in expected.items():
        assert actual[path].dtype == array.dtype, path
        np.testing.assert_array_equal(actual[path], array, err_msg=path)
