"""Files of Keras, written by hand: what is read of them, and what is refused, within bounds."""

from __future__ import annotations

import io
import json
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minicnn import Model, Sequential, load_keras
from minicnn.interop import KerasFileError
from minicnn.layers import Conv2D, Dense, Flatten, Input
from minicnn.machine import PeakMemory
from support import fuzzing
from support.keras_files import archive, called, chain, dense, functional, layer, small, weights

h5py = pytest.importorskip("h5py")

X = np.arange(8, dtype="float32").reshape(2, 4)
KERNEL, BIAS = np.arange(8, dtype="float32").reshape(4, 2), np.ones(2, "float32")


def test_a_sequential_is_read_without_keras(tmp_path: Path) -> None:
    path = archive(tmp_path / "m.keras", *small())
    model = load_keras(path, backend="numpy", seed=3)
    assert isinstance(model, Sequential)
    assert (model.name, model.seed, model.layers[0].name) == ("chain", 3, "d")
    np.testing.assert_allclose(model.predict(X), X @ KERNEL + BIAS)


def test_a_functional_is_read_in_any_order(tmp_path: Path) -> None:
    config = functional(
        called(layer("Add", "sum"), ("a", 0, 0), ("b", 0, 0)),
        called(dense("a", 2, trainable=False), ("in", 0, 0)),
        called(dense("b", 2), ("in", 0, 0), training=None),
        called(dense("unused", 7), ("b", 0, 0)),
        ends="sum",
    )
    content = weights({"layers/dense": [KERNEL, BIAS], "layers/dense_1": [2 * KERNEL, BIAS]})
    model = load_keras(archive(tmp_path / "m.keras", config, content), backend="numpy")
    np.testing.assert_allclose(model.predict(X), 3 * X @ KERNEL + 2)
    assert model.count_params(trainable=False) == 10


def test_models_in_models_have_weights_of_their_own(tmp_path: Path) -> None:
    inner = chain(dense("d", 2))
    inner["config"]["name"] = "inner"
    config = chain(inner, layer("ReLU", "r"), dense("e", 2))
    square = np.eye(2, dtype="float32")
    content = weights({"layers/sequential/layers/dense": [KERNEL, BIAS], "layers/dense": [square, BIAS]})
    model = load_keras(archive(tmp_path / "m.keras", config, content), backend="numpy")
    np.testing.assert_allclose(model.predict(X), X @ KERNEL + 2)
    (tmp_path / "m.weights.h5").write_bytes(content)
    other = Sequential([Input((4,)), Sequential([Input((4,)), Dense(2)]), Dense(2, "relu"), Dense(2)], backend="numpy")
    with pytest.raises(KerasFileError, match="dense_1 of /layers is missing"):
        load_keras(tmp_path / "m.weights.h5", other)
    other.pop()
    load_keras(tmp_path / "m.weights.h5", other)
    np.testing.assert_allclose(other.predict(X), X @ KERNEL + 2)


def test_arguments_are_translated(tmp_path: Path) -> None:
    config = chain(
        layer(
            "Conv2D", "c", filters=2, kernel_size=[3, 3], strides={"class_name": "__tuple__", "items": [1, 1]},
            padding="same", data_format="channels_last", dilation_rate=[1, 1], groups=1, use_bias=False,
            activation={"module": "builtins", "class_name": "function", "config": "relu"},
            kernel_initializer={"class_name": "GlorotUniform", "config": {"seed": None}}, activity_regularizer=None,
            kernel_regularizer={"class_name": "L2", "config": {"l2": 0.25}},
            kernel_constraint={"class_name": "MaxNorm", "config": {"max_value": 2, "axis": 0}},
        ),
        layer("Dropout", "drop", rate=0.5, seed=7, noise_shape=None),
        shape=(None, None, 1),
    )  # fmt: skip
    kernel = np.ones((3, 3, 1, 2), "float32")
    path = archive(tmp_path / "m.keras", config, weights({"layers/conv2d": [kernel]}))
    first, drop = load_keras(path, backend="numpy").layers
    assert isinstance(first, Conv2D)
    assert (first.activation, first.kernel_regularizer.l2, first.kernel_constraint.max_value) == ("relu", 0.25, 2)
    assert drop.rate == 0.5


def test_bfloat16_is_read(tmp_path: Path) -> None:
    stream = io.BytesIO()
    with h5py.File(stream, "w") as file:
        group = file.create_group("layers/dense/vars")
        for i, array in enumerate((KERNEL, BIAS)):
            halves = (array.view(np.uint32) >> 16).astype(np.uint16).view("V2")
            group.create_dataset(str(i), data=halves).attrs["dtype"] = "bfloat16"
    model = load_keras(archive(tmp_path / "m.keras", small()[0], stream.getvalue()), backend="numpy")
    np.testing.assert_array_equal(model.get_weights()["d/kernel"], KERNEL)


def test_weights_by_names_where_all_are_there(tmp_path: Path) -> None:
    path = tmp_path / "m.weights.h5"
    groups = {"layers/dense": [KERNEL, BIAS], "layers/dense_1": [np.eye(2, dtype="float32"), 3 * BIAS]}
    model = Sequential([Input((4,)), Dense(2, name="one"), Dense(2, name="two")], backend="numpy")
    path.write_bytes(weights(groups))
    load_keras(path, model)
    np.testing.assert_array_equal(model.get_weights()["two/bias"], 3 * BIAS)
    other = Model(x := Input((2, 2)), Dense(2, name="two")(Dense(2, name="one")(Flatten()(x))), backend="numpy")
    path.write_bytes(
        weights(
            dict(zip(groups, reversed(groups.values()), strict=True)), {"layers/dense": "two", "layers/dense_1": "one"}
        )
    )
    load_keras(path, other)
    np.testing.assert_array_equal(other.get_weights()["two/bias"], 3 * BIAS)


def refused(path: Path, *arguments: Any) -> str:
    """The error, which comes within the limits of the fuzzer."""
    memory, start = PeakMemory(), time.process_time()
    with pytest.raises(KerasFileError) as caught:
        load_keras(path, *arguments)
    assert time.process_time() - start < fuzzing.SECONDS
    assert memory.growth() < fuzzing.BYTES
    return str(caught.value)


def test_one_error_names_all_that_is_unknown(tmp_path: Path) -> None:
    config = functional(
        called(
            layer("Lambda", "code", function={"class_name": "__lambda__", "config": {"code": "4wAA"}}), ("in", 0, 0)
        ),
        called(layer("GRU", "gru", units=3), ("code", 0, 0)),
        called(layer("Custom", "own", module=None), ("gru", 0, 0)),
        called(dense("noisy", 2, activity_regularizer={"class_name": "L2", "config": {}}), ("own", 0, 0), mask=3),
        called(dense("odd", 2, activation={"class_name": "function", "module": "os", "config": {}}), ("noisy", 0, 0)),
        ends="odd",
    )
    said = refused(archive(tmp_path / "m.keras", config, small()[1]))
    for name in ("Lambda 'code', whose code is not run", "GRU 'gru'", "Custom 'own'", "Dense 'noisy' with activity",
                 "Dense 'noisy' called with 1 arguments, mask", "Dense 'odd' with activation='function'"):  # fmt: skip
        assert name in said


HOSTILE: dict[str, Any] = {
    "no archive": lambda path: path.write_bytes(b"PK\3\4 and no more"),
    "an empty file": lambda path: path.write_bytes(b""),
    "no weights": lambda path: archive(path, small()[0], b""),
    "no description": lambda path: archive(path, b"", small()[1]),
    "a description that is a list": lambda path: archive(path, [], small()[1]),
    "brackets 100,000 deep": lambda path: archive(path, b"[" * 100_000, small()[1]),
    "a bomb": lambda path: archive(path, small()[0], bytes(10**7), zipfile.ZIP_DEFLATED),
    "a class of one's own": lambda path: archive(path, {**small()[0], "class_name": "Own"}, small()[1]),
    "a layer that calls itself": lambda path: archive(
        path, functional(called(dense("a", 4), ("a", 0, 0)), ends="a"), small()[1]
    ),
    "a tensor from nowhere": lambda path: archive(
        path, functional(called(dense("a", 4), ("b", 0, 0)), ends="a"), small()[1]
    ),
    "units of 1e12": lambda path: archive(path, chain(dense("d", 10**12)), small()[1]),
    "units that are a text": lambda path: archive(path, chain(dense("d", "2")), small()[1]),  # type: ignore[arg-type]
    "20,000 layers": lambda path: archive(path, chain(*[layer("ReLU", f"r{i}") for i in range(20_000)]), small()[1]),
    "weights of another shape": lambda path: archive(path, chain(dense("d", 3)), small()[1]),
    "fewer weights": lambda path: archive(path, chain(dense("d", 2), dense("e", 2)), small()[1]),
    "weights that are text": lambda path: archive(
        path, small()[0], weights({"layers/dense": [np.full((4, 2), b"x"), BIAS]})
    ),
    "weights of 10 GB that are not there": lambda path: archive(path, *_hollow()),
    "a link to another file": lambda path: archive(path, small()[0], _linked()),
    "an array in another file": lambda path: archive(path, small()[0], _external()),
}  # fmt: skip


def _hollow() -> tuple[Any, bytes]:
    stream = io.BytesIO()
    with h5py.File(stream, "w") as file:
        group = file.create_group("layers/dense/vars")
        group.create_dataset("0", (50_000, 50_000), "float32", chunks=(1000, 1000), compression="gzip")
        group.create_dataset("1", (50_000,), "float32")
    return chain(dense("d", 50_000), shape=(50_000,)), stream.getvalue()


def _linked() -> bytes:
    stream = io.BytesIO()
    with h5py.File(stream, "w") as file:
        file.create_group("layers/dense")["vars"] = h5py.ExternalLink("/etc/passwd", "/")
    return stream.getvalue()


def _external() -> bytes:
    stream = io.BytesIO()
    with h5py.File(stream, "w") as file:
        group = file.create_group("layers/dense/vars")
        group.create_dataset("0", (4, 2), "float32", external=[("/etc/passwd", 0, 32)])
        group.create_dataset("1", data=BIAS)
    return stream.getvalue()


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_files_are_refused_within_bounds(what: str, tmp_path: Path) -> None:
    HOSTILE[what](tmp_path / "m.keras")
    said = refused(tmp_path / "m.keras")
    assert said.startswith("A file of Keras is one that Keras 3 wrote, whole. Received: ")


@pytest.mark.parametrize("seed", range(60))
def test_damaged_files_are_read_or_refused(seed: int, tmp_path: Path) -> None:
    """Whatever is damaged, it is our error, or a model of the right shape."""
    import random

    rng = random.Random(seed)
    config, content = small()
    if seed % 3 == 0:
        config = fuzzing.damage(rng, json.dumps(config).encode())
    if seed % 3 == 1:
        content = fuzzing.damage(rng, content)
    path = archive(tmp_path / "m.keras", config, content)
    if seed % 3 == 2:
        path.write_bytes(fuzzing.damage(rng, path.read_bytes()))
    try:
        model = load_keras(path, backend="numpy")
    except KerasFileError:
        return
    assert model.count_params() > 0


def test_the_wrong_call(tmp_path: Path) -> None:
    path = archive(tmp_path / "m.keras", *small())
    model = Sequential([Input((4,)), Dense(2)], backend="numpy")
    with pytest.raises(ValueError, match=r"a file \.weights\.h5 is for one that there is\. Received: .* and a model"):
        load_keras(path, model)
    with pytest.raises(ValueError, match="without a model"):
        load_keras(tmp_path / "m.weights.h5")
    with pytest.raises(ValueError, match=r"are in files \.keras, its weights in files \.weights\.h5"):
        load_keras(tmp_path / "m.onnx")
    with pytest.raises(OSError, match="No such file"):
        load_keras(tmp_path / "none.keras")
    (tmp_path / "m.weights.h5").write_bytes(small()[1])
    with pytest.raises(RuntimeError, match="knows its shapes once it is built"):
        load_keras(tmp_path / "m.weights.h5", Sequential([Dense(2)]))


def test_weights_that_do_not_fit_leave_the_model_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "m.weights.h5").write_bytes(small()[1])
    model = Sequential([Input((4,)), Dense(2), Dense(3)], backend="numpy")
    before = model.get_weights()
    assert "its weights are not those of the model" in refused(tmp_path / "m.weights.h5", model)
    for path, array in model.get_weights().items():
        np.testing.assert_array_equal(array, before[path])
