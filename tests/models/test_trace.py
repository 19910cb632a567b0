"""`Model.trace`: every value of a step, what made it, its statistics and pictures; and where two backends differ."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from minicnn import Sequential
from minicnn.backends.numpy import NumpyBackend
from minicnn.layers import Conv2D, Dense, Dropout, Flatten, Input, Lambda, MaxPooling2D
from minicnn.losses import SparseCategoricalCrossentropy
from minicnn.optimizers import SGD, Adam
from minicnn.trace import Statistics, StepTrace
from support.tolerances import ELEMENT

RNG = np.random.default_rng(0)
X = RNG.random((5, 6, 6, 1)).astype("float32")
Y = np.arange(5) % 3


def network(backend: Any = "numpy", optimizer: Any = None, seed: int = 0, **options: Any) -> Sequential:
    layers = [Input((6, 6, 1)), Conv2D(2, 3, activation="relu"), MaxPooling2D(), Dropout(0.3), Flatten(), Dense(3)]
    model = Sequential(layers, backend=backend, seed=seed)
    model.compile(optimizer or SGD(0.1), SparseCategoricalCrossentropy(from_logits=True), ["accuracy"], **options)
    return model


def test_all_values_of_a_step_and_the_nodes_that_made_them() -> None:
    model = network()
    trace = model.trace(X, Y)
    program = model.program("train", batch_size=5)
    made = [v for node in program.nodes for v in node.outputs]
    assert len(trace) == len(program.inputs) + len(made)
    for value in made:
        found = trace[value.name]
        assert repr(found.node) == repr(value.node)
        assert found.array.shape == value.shape
        assert found.path.startswith(value.node.scope)  # type: ignore[union-attr]
    assert {t.phase for t in trace.values()} == {"given", "forward", "backward", "update"}
    np.testing.assert_array_equal(trace["x"].array, X)
    relu = trace["conv2d/relu"]
    assert relu.node is not None
    np.testing.assert_array_equal(relu.array, np.maximum(trace[relu.node.inputs[0].name].array, 0))
    assert "conv2d/relu" in str(trace)
    assert str(trace).startswith("Step 'train' on numpy:cpu, node by node by the references")
    assert "&lt;" not in trace._repr_html_()
    assert "<td" in trace._repr_html_()


@pytest.mark.parametrize("optimizer", [SGD(0.1), Adam(0.01), SGD(0.1, 0.9, global_clipnorm=0.1), Adam(clipnorm=1e-3)])
def test_a_trace_is_the_next_step_and_changes_nothing(optimizer: Any) -> None:
    model = network(optimizer=optimizer)
    model.train_on_batch(X, Y)  # so that there is optimizer state, and the step is not the first
    before = model.get_state()["arrays"]
    trace = model.trace(X, Y)
    for name, array in model.get_state()["arrays"].items():
        np.testing.assert_array_equal(array, before[name])
    loss = model.train_on_batch(X, Y)[0]
    assert float(trace["loss/multiply"].array) == pytest.approx(loss)
    assert trace["loss/multiply"].becomes == ("loss",)
    for path, weight in model.get_weights().items():
        np.testing.assert_allclose(trace.updates[path].array, weight, rtol=ELEMENT)


@pytest.mark.parametrize("clip", [{}, {"clipnorm": 0.01}, {"global_clipnorm": 0.01}, {"clipvalue": 0.01}])
def test_gradients_by_the_paths_of_the_weights(clip: dict[str, float]) -> None:
    plain, clipped = network().trace(X, Y), network(optimizer=SGD(0.1, **clip)).trace(X, Y)
    assert list(plain.gradients) == ["conv2d/kernel", "conv2d/bias", "dense/kernel", "dense/bias"]
    for path, gradient in plain.gradients.items():
        np.testing.assert_allclose(gradient.array * -0.1, plain.updates[path].array - plain[path].array, atol=ELEMENT)
        np.testing.assert_array_equal(clipped.gradients[path].array, gradient.array)


@pytest.mark.parametrize("backend", ["torch", "jax", "numba", "array_api_strict"])
def test_the_same_on_every_backend(backend: str) -> None:
    found = network("numpy").trace(X, Y).diff(network(backend).trace(X, Y))
    assert not found, str(found)
    assert str(found).startswith(f"numpy:cpu and {backend}:cpu agree in")


def test_kernels_of_numba_with_every_result_kept() -> None:
    pytest.importorskip("numba")
    models = [Sequential([Input((4,)), Dense(3, "relu")], backend=b) for b in ("numpy", "numba")]
    for model in models:
        model.compile(SGD(0.1), "mse")
    x, y = RNG.random((6, 4)), RNG.random((6, 3))
    one, other = (model.trace(x, y, kernels=True) for model in models)
    assert "kernel" in other.how
    assert not one.diff(other), str(one.diff(other))


def test_a_batch_that_the_backend_stores_in_another_order() -> None:
    x, y = np.repeat(X, 8, axis=0), np.repeat(Y, 8)  # NumPy's batch comes last from 32 samples on
    one, other = network().trace(x, y), network("array_api_strict").trace(x, y)
    assert not one.diff(other)
    assert one["conv2d/conv2d"].array.shape == (40, 4, 4, 2)


class Wrong(NumpyBackend):
    """NumPy with a kernel of relu that is a little off."""

    name = "wrong"

    def kernel(self, node: Any) -> Any:
        if node.op.name != "relu":
            return "no kernel"
        return lambda x: np.maximum(x, 0) * np.float32(1.001)


def test_diff_names_the_first_node_that_differs() -> None:
    right, wrong = network(), network(Wrong())
    trace = wrong.trace(X, Y, kernels=True)
    found = right.trace(X, Y).diff(trace)
    assert found.first is not None
    assert found.first.value.path == "conv2d/relu"
    assert found.first.off[0] < 1 < found.first.off[1]
    assert len(found.differences) > 5
    assert [d.value.path for d in found.differences if d.is_culprit] == ["conv2d/relu"]  # all else follows from it
    assert str(found).startswith("First node that differs: conv2d/relu, v")
    assert "The result of wrong:cpu is off by" in str(found)
    assert "conv2d/relu" in found._repr_html_()
    assert not right.trace(X, Y).diff(wrong.trace(X, Y))  # which are the references
    back = trace.diff(right.trace(X, Y))
    assert back.first is not None
    assert back.first.value.path == "conv2d/relu"


def test_a_nan_differs() -> None:
    class Broken(Wrong):
        def kernel(self, node: Any) -> Any:
            return (lambda x: x * np.float32("nan")) if node.op.name == "relu" else "no kernel"

    found = network().trace(X, Y).diff(network(Broken()).trace(X, Y, kernels=True))
    assert found.first is not None
    assert found.first.value.path == "conv2d/relu"


def test_diff_of_other_weights_and_other_steps() -> None:
    one, other = network().trace(X, Y), network(seed=1).trace(X, Y)
    assert "were given different arrays: conv2d/kernel differs" in str(one.diff(other))
    with pytest.raises(ValueError, match=r"of one model, compiled alike, and as many samples\. Received:"):
        one.diff(network().trace(X[:4], Y[:4]))
    with pytest.raises(ValueError, match="Trace both anew"):
        one.diff(network().trace(X))


def test_float32_beside_float64() -> None:
    assert not network().trace(X, Y).diff(network(precision="float64").trace(X, Y))


def test_rounding_that_grows_is_nobodys_fault() -> None:
    """The sign of what is zero but for rounding."""

    def signs(x: Any) -> Any:
        y = (x * 3.0 - x - x - x) * 1e8
        return y / (1.0 + y * y)

    model = Sequential([Input((4,)), Lambda(signs)], backend="numpy")
    exact = Sequential([Input((4,)), Lambda(signs)], backend="numpy")
    exact.compile(precision="float64")
    found = model.trace(X[:, 0, :4, 0]).diff(exact.trace(X[:, 0, :4, 0]))
    assert found.first is None
    assert "rounding that" in str(found)


def test_a_prediction_needs_no_compile() -> None:
    model = Sequential([Input((6, 6, 1)), Flatten(), Dense(3)], backend="numpy")
    trace = model.trace(X)
    np.testing.assert_array_equal(trace["dense/add"].array, model.predict(X))
    assert not trace.updates
    with pytest.raises(RuntimeError, match="after compile"):
        model.trace(X, Y)


def test_a_batch_that_training_cuts_into_shards() -> None:
    model = network(accumulate=2)
    model.fit(X[:4], Y[:4], 4, verbose=0)
    assert model.trace(X[:4], Y[:4])["conv2d/relu"].array.shape[0] == 4


def test_unknown_names() -> None:
    with pytest.raises(KeyError, match=r"Received: 'conv2d'\. Paths: x, y, "):
        network().trace(X, Y)["conv2d"]
    assert isinstance(network().trace(X, Y), StepTrace)


def test_statistics() -> None:
    found = Statistics.of(np.asarray([1.0, 3.0, 0.0, np.nan, np.inf, 0.0, -np.inf, 4.0], "float32"))
    assert found == Statistics(0.0, 4.0, 1.6, pytest.approx(np.std([1, 3, 0, 0, 4])), 0.25, 0.125, 0.25)
    assert "12% NaN, 25% infinite" in str(found)
    assert np.isnan(Statistics.of(np.full(3, np.nan)).mean)


def read(picture: Any) -> Any:
    return np.asarray(Image.open(io.BytesIO(picture._repr_png_())))


def test_pictures_of_feature_maps(tmp_path: Path) -> None:
    trace = network().trace(X, Y)
    maps = trace["conv2d/conv2d"]
    picture = maps.picture(sample=3)
    pixels = read(picture)
    np.testing.assert_array_equal(pixels, picture.pixels)
    largest = np.abs(maps.array[3]).max()
    factor = pixels.shape[0] // (4 if pixels.shape[0] < pixels.shape[1] else 9)
    for (i, j), value in np.ndenumerate(maps.array[3, :, :, 0]):  # the first map is at the upper left
        red, _, blue = pixels[i * factor, j * factor].astype(int)
        assert (red > blue) == (value > 0) or abs(value) < 0.02 * largest
    assert "sample 3: 2 maps of 4 x 4" in repr(picture)
    picture.save(tmp_path / "maps.png")
    assert (tmp_path / "maps.png").read_bytes() == picture._repr_png_()
    assert "2 maps of 3 x 3" in repr(trace["conv2d/kernel"].picture())
    assert "2 maps of 3 x 3" in repr(trace.gradients["conv2d/kernel"].picture())
    assert "1 map of 5 x 3" in repr(trace["dense/add"].picture())
    assert "1 map of 1 x 3" in repr(trace["dense/bias"].picture())


def test_pictures_of_channels_first_and_of_what_is_no_number() -> None:
    model = Sequential([Input((2, 4, 5)), Lambda(lambda x: x / (x - x + 0.0))], backend="numpy")
    with np.errstate(all="ignore"):
        trace = model.trace(np.zeros((1, 2, 4, 5)))
    picture = trace["lambda/divide"].picture(data_format="channels_first")
    assert "2 maps of 4 x 5" in repr(picture)
    assert tuple(read(picture)[0, 0]) == (230, 0, 230)  # NaN
    assert tuple(read(trace["x"].picture())[0, 0]) == (255, 255, 255)  # zero


def test_pictures_that_cannot_be_made(tmp_path: Path) -> None:
    trace = network().trace(X, Y)
    with pytest.raises(ValueError, match=r"one to four axes\. Received: 'loss/sum'"):
        trace["loss/sum"].picture()
    with pytest.raises(ValueError, match=r"sample is a number from 0 to 4\. Received: sample=5"):
        trace["x"].picture(5)
    with pytest.raises(ValueError, match=r"written as PNG\. Received: .*maps\.gif"):
        trace["x"].picture().save(tmp_path / "maps.gif")
