"""Training on webgpu: steps against NumPy, many at once, the same bits, resuming, what is refused."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import backends.webgpu.running  # noqa: F401 - skips all of this where there is no adapter
from backends.cupy.networks import NETWORKS, data
from minicnn import Sequential, layers, zoo
from minicnn.backends import get_backend
from minicnn.backends.webgpu.arrays import Array
from minicnn.backends.webgpu.backend import WebGpuBackend
from minicnn.backends.webgpu.runtime import WebGpuRuntime
from minicnn.data import load
from minicnn.losses import SparseCategoricalCrossentropy
from minicnn.optimizers import Adam
from support.kernel_check import step_of, train_network
from support.tolerances import SHORT_SUM, STEP, SUM
from support.zoo_steps import model_of, worst_difference


@pytest.mark.parametrize("network", NETWORKS)
def test_a_step_is_that_of_numpy(network: str) -> None:
    program, given = step_of(network)
    expected = get_backend("numpy").compile(program())(given)
    backend = WebGpuBackend(strict=True)
    found = backend.compile(program())({k: backend.asarray(a) for k, a in given.items()})
    for name, array in expected.items():
        np.testing.assert_allclose(backend.to_numpy(found[name]), array, rtol=STEP, atol=SHORT_SUM, err_msg=name)


BY_DAY = "tests/backends/webgpu/test_webgpu_training.py::test_training_follows_numpy_and_is_the_same_twice"
TRAINED = ["lenet", *(pytest.param(name, marks=pytest.mark.night(BY_DAY)) for name in ("mlp", "normalized"))]


@pytest.mark.parametrize("network", TRAINED)
def test_training_follows_numpy_and_is_the_same_twice(network: str) -> None:
    (losses, weights), (again, same) = (train_network("webgpu", network, epochs=2) for _ in range(2))
    expected, _ = train_network("numpy", network, epochs=2)
    np.testing.assert_allclose(losses["loss"], expected["loss"], rtol=STEP)
    assert losses == again
    for key, array in weights.items():
        np.testing.assert_array_equal(array, same[key])


def check_zoo(name: str) -> None:
    """Five steps of a network of the zoo are those of NumPy."""
    worst, where = worst_difference(model_of(name, WebGpuBackend(strict=True)), model_of(name, "numpy"), 5)
    assert worst <= 1, where


def test_five_steps_of_a_network_of_the_zoo_are_those_of_numpy() -> None:
    check_zoo("two_convs")


@pytest.mark.night(
    "tests/backends/webgpu/test_webgpu_training.py::test_five_steps_of_a_network_of_the_zoo_are_those_of_numpy"
)
@pytest.mark.parametrize("name", ["mlp", "lenet_3x3", "lenet5", "resnet9", "squeezenet1_1", "alexnet", "resnet18"])
def test_five_steps_of_the_small_networks_of_the_zoo_are_those_of_numpy(name: str) -> None:
    check_zoo(name)


def test_predictions_and_evaluation() -> None:
    x, y = data()
    models = [NETWORKS["mlp"](backend) for backend in ("webgpu", "numpy")]
    found, expected = (m.predict(x[:11], batch_size=4) for m in models)
    assert isinstance(found, np.ndarray)
    np.testing.assert_allclose(found, expected, rtol=STEP, atol=SUM)
    scores = [m.evaluate(x, y, batch_size=16, return_dict=True) for m in models]
    assert scores[0]["accuracy"] == scores[1]["accuracy"]
    np.testing.assert_allclose(scores[0]["loss"], scores[1]["loss"], rtol=SUM)


def augmented(backend: Any) -> Sequential:
    """Augmentation and dropout before a dense layer."""
    model = Sequential(
        [
            layers.Input((12, 12, 1), dtype="uint8"), layers.Rescaling(1 / 255), layers.RandomFlip(seed=1),
            layers.RandomTranslation(0.1, 0.1, seed=2), layers.Flatten(), layers.Dropout(0.3, seed=3), layers.Dense(5),
        ],
        backend=backend, seed=4,
    )  # fmt: skip
    model.compile("adam", SparseCategoricalCrossentropy(from_logits=True))
    return model


def test_augmentation_and_dropout_draw_what_numpy_draws() -> None:
    x, y = data()
    losses = [
        augmented(name).fit(x, y, batch_size=16, epochs=2, verbose=0).history["loss"] for name in ("webgpu", "numpy")
    ]
    np.testing.assert_allclose(*losses, rtol=STEP)


def test_a_fit_resumes_to_the_same_bits(tmp_path: Path) -> None:
    x, y = data()

    def losses(model: Any, **epochs: int) -> list[float]:
        result: list[float] = model.fit(x, y, batch_size=16, verbose=0, **epochs).history["loss"]
        return result

    whole, first = augmented("webgpu"), augmented("webgpu")
    expected = losses(whole, epochs=3)
    begun = losses(first, epochs=1)
    first.save(tmp_path / "model")
    resumed = Sequential.load(tmp_path / "model", backend="webgpu")
    assert begun + losses(resumed, epochs=3, initial_epoch=1) == expected


def test_every_node_has_a_kernel_and_launches_are_timed() -> None:
    model = NETWORKS["lenet"](WebGpuBackend(strict=True))
    rows = model.backend.explain(model.program("train", batch_size=8))
    assert any("tiles of conv2d" in text for _, text in rows)
    assert not [text for _, text in rows if text.startswith("reference")]


def test_training_with_references_alone_follows_numpy() -> None:
    x, y = (a[:4] for a in data())
    models = [NETWORKS["mlp"](backend) for backend in (WebGpuBackend(reference_only=True), "numpy")]
    losses = [[m.train_on_batch(x, y, return_dict=True)["loss"] for _ in range(2)] for m in models]
    np.testing.assert_allclose(*losses, rtol=STEP)


@pytest.mark.no_cover
def test_platforms_learns_digits_without_a_gpu() -> None:
    """The software adapter takes seconds for what shows that a user without a GPU gets a trained network."""
    digits = load("synthetic_digits", n_train=2500, n_test=500)
    model = zoo.get_model("platforms", num_classes=10, preprocessing=[layers.Rescaling(1 / 255)], input_dtype="uint8",
                          backend="webgpu")  # fmt: skip
    model.compile(Adam(0.005), SparseCategoricalCrossentropy(from_logits=True), ["accuracy"])
    model.fit(digits.x_train, digits.y_train, batch_size=25, epochs=2, verbose=0)
    assert model.evaluate(digits.x_test, digits.y_test, batch_size=250, verbose=0, return_dict=True)["accuracy"] >= 0.97


def test_arrays() -> None:
    backend = get_backend("webgpu")
    host = np.arange(30, dtype="uint8").reshape(6, 5)
    array = backend.asarray(host)
    assert isinstance(array, Array)
    assert (array.shape, array.dtype, array.device, len(array)) == ((6, 5), "uint8", "adapter:0", 6)
    np.testing.assert_array_equal(array[1:4], host[1:4])  # which begins within a word
    np.testing.assert_array_equal(array[-1], host[-1])
    np.testing.assert_array_equal(array[:, 1], host[:, 1])
    np.testing.assert_array_equal(array + 1, host + 1)
    array[2:4] = host[:2]
    np.testing.assert_array_equal(array[2:4], host[:2])
    array[1:4] = array[5:]  # again and again
    array[5] = array[0]
    host[1:4], host[5] = host[5], host[0]
    np.testing.assert_array_equal(array, host)
    with pytest.raises(IndexError, match="Rows of an array of webgpu are written from one on"):
        array[:, 1] = 0
    assert float(backend.asarray(np.float32(2.5))) == 2.5


def test_data_on_the_adapter_stay_there_and_steps_are_recorded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = WebGpuBackend()
    model, (x, y) = NETWORKS["mlp"](backend), map(backend.asarray, data())
    moved, recorded = [], []
    read, send, capture = (getattr(WebGpuRuntime, name) for name in ("read", "send", "capture"))

    def counted(function: Any, sizes: list[int]) -> Any:
        def call(self: Any, what: Any, *rest: Any) -> Any:
            sizes.append(getattr(what, "nbytes", 0))
            return function(self, what, *rest)

        return call

    for name, function, sizes in (("read", read, moved), ("send", send, moved), ("capture", capture, recorded)):
        monkeypatch.setattr(WebGpuRuntime, name, counted(function, sizes))
    model.fit(x, y, batch_size=16, epochs=1, verbose=0)
    assert recorded
    recorded.clear()
    model.fit(x, y, batch_size=16, epochs=2, initial_epoch=1, verbose=0)
    assert max(moved) < x.nbytes
    assert not recorded


def test_data_of_the_host_that_come_again_meet_the_steps_that_were_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    model, (x, y) = NETWORKS["mlp"]("webgpu"), data()
    model.fit(x, y, batch_size=16, epochs=1, verbose=0)
    gc.collect()

    def capture(*_: Any) -> Any:
        raise AssertionError("It was recorded anew.")

    monkeypatch.setattr(WebGpuRuntime, "capture", capture)
    model.fit(x, y, batch_size=16, epochs=2, initial_epoch=1, verbose=0)


@pytest.mark.parametrize("weights", [False, True])
def test_targets_and_weights_on_the_adapter(weights: bool) -> None:
    """Targets without an axis of their own; weights of samples and of classes."""
    x, y = np.linspace(0, 1, 64, dtype="float32").reshape(32, 2), np.linspace(0, 1, 32, dtype="float32")
    losses = []
    for name in ("webgpu", "numpy"):
        model = Sequential([layers.Input((2,)), layers.Dense(1)], backend=name, seed=1)
        model.compile("sgd", "mse")
        given = [model.backend.asarray(a) for a in (x, y)]
        options = {"sample_weight": y + 1, "class_weight": {0: 1, 1: 2}} if weights else {}
        losses.append(model.fit(*given, batch_size=8, epochs=2, verbose=0, **options).history["loss"])
    np.testing.assert_allclose(*losses, rtol=SUM)
