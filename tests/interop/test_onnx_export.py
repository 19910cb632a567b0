"""Models as ONNX files, run by ONNX Runtime, against NumPy."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minicnn import Model, Sequential, layers, losses, ops, optimizers, zoo
from minicnn.interop.onnx.primitives import RULES
from minicnn.layers import Input
from minicnn.ops import primitive
from minicnn.ops.primitive import REGISTRY
from support.numerics import assert_close
from support.onnx_runtime import session_of, state_of, step

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

LOSS = losses.SparseCategoricalCrossentropy(from_logits=True)


def small(*more: layers.Layer, optimizer: Any = None, shape: tuple[int, ...] = (8, 9, 2), **options: Any) -> Model:
    """A network with a layer of each kind, and some more in front."""
    model = Sequential(
        [
            Input(shape), *more, layers.Conv2D(6, 3, padding="same", use_bias=False), layers.BatchNormalization(),
            layers.Activation("relu"), layers.MaxPooling2D(3, 2), layers.Dropout(0.2), layers.Flatten(),
            layers.Dense(3),
        ],
        backend="numpy", **options,
    )  # fmt: skip
    model.compile(optimizer or optimizers.SGD(0.05), LOSS, metrics=["accuracy"])
    return model


def data(model: Model, samples: int, seed: int = 0) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    rng = np.random.default_rng(seed)
    shape, classes = model.input_shape, model.output_shape
    x, y = rng.standard_normal((samples, *shape[1:])), rng.integers(0, classes[-1], samples)
    return x.astype("float32"), y.astype("int32")


def compare_steps(model: Model, folder: Path, steps: int = 5, rate: float = 0.05, terms: int = 500) -> None:
    """Training steps of an exported model on batches of several sizes, and of the model itself."""
    for kind in ("train", "state"):
        model.export(folder / f"{kind}.onnx", kind)
    session, state = session_of(folder / "train.onnx"), state_of(folder / "state.onnx")
    assert set(state) == {o.removeprefix("next/") for o in (o.name for o in session.get_outputs()) if o[:5] == "next/"}
    for k in range(steps):
        x, y = data(model, 5 + 3 * (k % 2), k)
        results = step(session, {"x": x, "y": y, "learning_rate": np.asarray(rate, "float32")}, state)
        logs = model.train_on_batch(x, y, return_dict=True)
        assert_close(results["loss"], np.float32(logs["loss"]), terms)
        if "accuracy" in logs:
            accuracy = results["metric/accuracy/total"] / results["metric/accuracy/count"]
            assert accuracy == pytest.approx(logs["accuracy"])
    for path, array in model.get_weights().items():
        assert_close(state[path], array, terms * steps)
    assert state["step"] == steps


def test_predictions_for_any_batch(tmp_path: Path) -> None:
    model = small()
    model.fit(*data(model, 8), verbose=0)
    model.export(tmp_path / "model.onnx")
    session = session_of(tmp_path / "model.onnx")
    for samples in (1, 4, 33):
        x, _ = data(model, samples)
        (y,) = session.run(None, {"x": x})
        assert_close(y, model.predict(x), 108)


def test_weights_may_be_inputs(tmp_path: Path) -> None:
    model = small()
    x, y = data(model, 6)
    for kind in ("predict", "evaluate"):
        model.export(tmp_path / "model.onnx", kind, hold_weights=False)
        session = session_of(tmp_path / "model.onnx")
        given = {"x": x} if kind == "predict" else {"x": x, "y": y}
        found = session.run(None, given | model.get_weights())[0]
        assert_close(found, model.predict(x) if kind == "predict" else np.float32(model.evaluate(x, y)[0]), 108)


OPTIMIZERS = [
    optimizers.SGD(0.05), optimizers.SGD(0.05, 0.9, nesterov=True, weight_decay=0.01),
    optimizers.Adam(0.05, epsilon=0.01), optimizers.Muon(0.05), optimizers.SGD(0.05, global_clipnorm=0.5),
    optimizers.RMSprop(0.05, momentum=0.5, epsilon=0.01, centered=True),
]  # fmt: skip


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: type(o).__name__)
def test_five_steps(optimizer: optimizers.Optimizer, tmp_path: Path) -> None:
    compare_steps(small(optimizer=optimizer), tmp_path)


@pytest.mark.parametrize("name", ["mlp", "platforms", "kernels", "lenet5", "squeezenet1_1"])
def test_networks_of_the_zoo(name: str, tmp_path: Path) -> None:
    """The others are in tests/campaign."""
    shape = {"input_shape": (17, 17, 3)} if name == "squeezenet1_1" else {}
    model = zoo.get_model(name, num_classes=10, backend="numpy", **shape)
    model.compile(optimizers.SGD(0.01, 0.9), LOSS)
    compare_steps(model, tmp_path, rate=0.01, terms=10_000)


AUGMENTATIONS = [
    layers.RandomFlip(), layers.RandomCrop(7, 6), layers.RandomTranslation(0.2, 0.2, "reflect"),
    layers.RandomRotation(0.2, "constant"), layers.RandomZoom(0.2, fill_mode="wrap"), layers.RandomBrightness(0.3),
    layers.RandomContrast(0.3), layers.GaussianNoise(0.1), layers.SpatialDropout2D(0.3),
]  # fmt: skip


@pytest.mark.sampled(3)
@pytest.mark.parametrize("layer", AUGMENTATIONS, ids=lambda layer: type(layer).__name__)
def test_augmentation(layer: layers.Layer, tmp_path: Path) -> None:
    copy = type(layer).from_config(layer.get_config())
    compare_steps(small(layers.Conv2D(2, 1), copy), tmp_path, steps=2)  # behind weights, so that it has a gradient


def test_other_losses_inputs_and_outputs(tmp_path: Path) -> None:
    x, z = Input((6,), name="left"), Input((4, 4, 2), name="right")
    both = layers.Concatenate()([x, layers.GlobalAveragePooling2D()(layers.Conv2D(3, 2, activation="gelu")(z))])
    model = Model([x, z], [layers.Dense(2)(both), layers.Dense(1, "sigmoid")(both)], backend="numpy")
    model.compile(optimizers.Adam(0.01, epsilon=0.01), ["mse", "binary_crossentropy"], loss_weights=[1.0, 0.5])
    model.export(tmp_path / "train.onnx", "train")
    model.export(tmp_path / "state.onnx", "state")
    rng = np.random.default_rng(0)
    arrays = [rng.random((5, *shape)).astype("float32") for shape in ((6,), (4, 4, 2), (2,), (1,))]
    given = dict(zip(("x0", "x1", "y0", "y1"), arrays, strict=True)) | {"learning_rate": np.asarray(0.01, "float32")}
    state = state_of(tmp_path / "state.onnx")
    results = step(session_of(tmp_path / "train.onnx"), given, state)
    logs = model.train_on_batch(arrays[:2], arrays[2:], return_dict=True)
    assert_close(results["loss"], np.float32(logs["loss"]), 16)
    for path, array in model.get_weights().items():
        assert_close(state[path], array, 16)


def test_a_file_has_standard_operators_with_the_names_of_layers(tmp_path: Path) -> None:
    model = small(layers.RandomRotation(0.1))
    model.export(tmp_path / "train.onnx", "train")
    made = onnx.load(tmp_path / "train.onnx")
    onnx.checker.check_model(made, full_check=True)
    assert [(o.domain, o.version >= 24) for o in made.opset_import] == [("", True)]
    assert {n.domain for n in made.graph.node} == {""}
    assert any(n.name.startswith("conv2d/Conv") for n in made.graph.node)
    (x,) = (v for v in made.graph.input if v.name == "x")
    assert x.type.tensor_type.shape.dim[0].dim_param == "N"
    for node in made.graph.node:  # what WebGPU computes wrongly
        assert node.op_type != "Concat" or len(node.input) <= 7
        assert node.op_type != "MaxPool" or len(node.output) == 1


@pytest.fixture
def unknown() -> Any:
    """Two primitives that take what no graph has."""

    @primitive(elementwise=True)
    def running_sums(x: Any, *, xp: Any) -> Any:
        """Sums of each row up to an element."""
        return xp.cumulative_sum(x, axis=1)

    @primitive(elementwise=True)
    def clever(x: Any, *, xp: Any) -> Any:
        """Looks at the elements."""
        return x if x[0, 0] > 0 else -x

    for op in (running_sums, clever):
        op.shape(lambda x: x)
        op.gradient(lambda node, dy: dy)
    yield running_sums, clever
    del REGISTRY["running_sums"], REGISTRY["clever"]


def test_primitives_without_a_form_are_all_named(unknown: Any, tmp_path: Path) -> None:
    one, other = unknown
    model = small(layers.Flatten(), layers.Lambda(one), layers.Lambda(other), layers.Reshape((8, 9, 2)))
    for kind in ("predict", "train"):
        with pytest.raises(ValueError, match=r"operators of ONNX.*clever in .*running_sums in .*primitives\.RULES"):
            model.export(tmp_path / "model.onnx", kind)
    assert list(tmp_path.iterdir()) == []


def test_a_primitive_of_the_callers_own_is_written_by_its_reference(tmp_path: Path) -> None:
    @primitive(elementwise=True, flops=2)
    def hard_tanh(x: Any, *, limit: float = 1.0, xp: Any) -> Any:
        """Linear between -limit and limit."""
        return xp.minimum(xp.maximum(x, xp.zeros_like(x) - limit), xp.zeros_like(x) + limit)

    hard_tanh.shape(lambda x, limit: x)
    hard_tanh.gradient(lambda node, dy: ops.where(ops.less(ops.abs(node.inputs[0]), node.attrs["limit"]), dy, 0.0))
    compare_steps(small(layers.Lambda(hard_tanh)), tmp_path, steps=2)
    del REGISTRY["hard_tanh"]


def test_what_depends_on_the_batch_otherwise_is_refused(tmp_path: Path) -> None:
    def added(x: Any) -> Any:
        return x + np.arange(x.shape[0], dtype="float32").reshape(-1, 1) ** 2

    model = Sequential([Input((3,)), layers.Lambda(added)], backend="numpy")
    with pytest.raises(ValueError, match=r"shares of the batch size\. Received: lambda/Add.*13 samples.*17"):
        model.export(tmp_path / "model.onnx")


def test_a_file_that_disagrees_is_not_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"old")
    monkeypatch.setitem(RULES, "relu", lambda node, x: x * 1.001)
    for kind in ("predict", "train"):
        with pytest.raises(RuntimeError, match=r"in NumPy\. Received: .* differs by .*Nothing was written"):
            small().export(path, kind)
    assert path.read_bytes() == b"old"


def test_wrong_arguments(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    with pytest.raises(ValueError, match=r"kind is one of.*'training'.*'train'"):
        small().export(path, "training")  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="exported once it is built"):
        Sequential([layers.Dense(2)]).export(path)
    with pytest.raises(RuntimeError, match=r"after compile\(\)"):
        Sequential([Input((3,)), layers.Dense(2)]).export(path, "train")
    model = small()
    model.compile("sgd", LOSS, precision="float64")
    with pytest.raises(ValueError, match=r"compute in float32.*precision='float64'"):
        model.export(path)
    with pytest.raises(ValueError, match=r"known lengths, but for the batch\. Received: a model of \(None, None, 3\)"):
        Sequential([Input((None, 3)), layers.GlobalAveragePooling1D()]).export(path)
    with pytest.raises(FileNotFoundError, match="Make the folder first"):
        small().export(tmp_path / "missing" / "model.onnx")
    with pytest.raises(IsADirectoryError, match="Name a file"):
        small().export(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ImportError, match=r"onnx and onnxruntime: pip install .*\[onnx\]"):
        small().export(tmp_path / "model.onnx")
