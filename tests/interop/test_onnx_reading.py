"""ONNX files as models."""

from __future__ import annotations

import os
import random
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minicnn
from minicnn import Model, losses, zoo
from minicnn.files import SavedModelError
from support import fuzzing, onnx_cases
from support.numerics import assert_close

onnx = pytest.importorskip("onnx")
helper = pytest.importorskip("onnx.helper")

LOSS = losses.SparseCategoricalCrossentropy(from_logits=True)
FLOAT = 1


# Operators ------------------------------------------------------------------------------------------


@pytest.mark.no_cover
def test_cases_of_onnx() -> None:
    """What the suite of ONNX has for single operators is computed rightly, or refused. It takes ten seconds."""
    outcomes = onnx_cases.outcomes()
    assert {name: what for name, (_, what) in outcomes.items() if what.startswith("wrong")} == {}
    assert sum(what == "passed" for _, what in outcomes.values()) >= 600


# Files ----------------------------------------------------------------------------------------------


def written(path: Path, *nodes: Any, shape: Any = ("N", 4), held: dict[str, Any] | None = None, **options: Any) -> Path:
    """A file with the operators given, from "x" to "y"."""
    made = {name: onnx.numpy_helper.from_array(np.asarray(a), name) for name, a in (held or {}).items()}
    graph = helper.make_graph(
        list(nodes), "graph", [helper.make_tensor_value_info("x", FLOAT, shape)],
        [helper.make_tensor_value_info("y", FLOAT, None)], list(made.values()),
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", options.get("opset", 21))], ir_version=10)
    path.write_bytes(model.SerializeToString())
    return path


def node(kind: str, *inputs: str, out: str = "y", **attributes: Any) -> Any:
    return helper.make_node(kind, ["x", *inputs], [out], name=f"the {kind}", **attributes)


@pytest.mark.parametrize("name", ["mlp", "platforms", "lenet5", "squeezenet1_1", "resnet9"])
def test_a_network_that_was_exported_is_read_and_trained(name: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    options: dict[str, Any] = {"input_shape": (17, 17, 3), "dropout": 0.0} if name == "squeezenet1_1" else {}
    model = zoo.get_model(name, num_classes=10, backend="numpy", **options)
    model.export(tmp_path / "model.onnx")
    read = minicnn.from_onnx(tmp_path / "model.onnx", backend="numpy")
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((4, *model.input_shape[1:])).astype("float32"), np.asarray([1, 0, 3, 2])
    assert_close(read.predict(x), model.predict(x), 1000)
    before = {}
    for one in (model, read):
        one.compile("sgd", LOSS)
        before[one] = np.asarray([one.train_on_batch(x, y) for _ in range(2)], "float32")
    if name != "resnet9":  # whose statistics are constants of the file
        assert_close(before[read], before[model], 1000)


def test_a_module_of_pytorch(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    nn = torch.nn
    module = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(3, 2, 1),
        nn.Conv2d(8, 8, 3, groups=8), nn.Hardswish(), nn.Conv2d(8, 12, 3, 2, 1, groups=4), nn.SiLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.3), nn.Linear(12, 5),
    ).eval()  # fmt: skip
    x = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    path = tmp_path / "module.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter is deprecated, and the other takes another library
        mode = torch.onnx.TrainingMode.PRESERVE  # normalisations stay what they are
        torch.onnx.export(module, (x[:1],), str(path), dynamo=False, training=mode)  # with a batch of 1 in its shapes
    model = minicnn.from_onnx(path, backend="numpy")
    with torch.no_grad():
        assert_close(model.predict(x.numpy()), module(x).numpy(), 72)
        model.compile("sgd", LOSS, precision="float64")  # all that float32 hid is its own rounding
        assert_close(model.predict(x.numpy()), module.double()(x.double()).numpy(), 72)
    model.compile("sgd", LOSS)
    history = model.fit(x.numpy(), np.arange(4), epochs=6, verbose=0).history["loss"]
    assert history[-1] < history[0]
    model.save(tmp_path / "model.safetensors")
    assert_close(Model.load(tmp_path / "model.safetensors").predict(x.numpy()), model.predict(x.numpy()), 72)


def test_normalisation_and_dropout_act_in_training(tmp_path: Path) -> None:
    held = {
        "scale": np.full(4, 2.0, "float32"), "b": np.ones(4, "float32"), "mean": np.zeros(4, "float32"),
        "var": np.ones(4, "float32"), "ratio": np.asarray(0.5, "float32"),
    }  # fmt: skip
    nodes = [node("BatchNormalization", "scale", "b", "mean", "var", out="z", momentum=0.75),
             helper.make_node("Dropout", ["z", "ratio"], ["y"])]  # fmt: skip
    model = minicnn.from_onnx(written(tmp_path / "a.onnx", *nodes, held=held), backend="numpy")
    x = np.random.default_rng(0).standard_normal((64, 4)).astype("float32") + 3
    assert_close(model.predict(x), x * 2 / np.sqrt(np.float32(1 + 1e-5)) + 1)
    model.compile("sgd", "mse")
    model.train_on_batch(x, np.zeros_like(x))
    weights = {path.rpartition("/")[2]: array for path, array in model.get_weights().items()}
    assert_close(weights["mean"], 0.25 * x.mean(0), 64)
    assert_close(weights["var"], 0.75 + 0.25 * x.var(0), 64)
    dropped = np.asarray(model(x, training=True)) == 0
    assert 0.3 < dropped.mean() < 0.7


def test_arrays_beside_the_file(tmp_path: Path) -> None:
    w = np.arange(8, dtype="float32").reshape(4, 2)
    folder = tmp_path / "folder"
    folder.mkdir()
    path = written(folder / "model.onnx", node("MatMul", "w"), held={"w": w})
    onnx.save(onnx.load(path), path, save_as_external_data=True, location="data.bin", size_threshold=0)
    x = np.ones((3, 4), "float32")
    assert_close(minicnn.from_onnx(path, backend="numpy").predict(x), x @ w, 4)
    (tmp_path / "other.bin").write_bytes(w.tobytes())
    os.symlink(tmp_path / "other.bin", folder / "link.bin")
    for place in ("../other.bin", str(tmp_path / "other.bin"), "link.bin", "", "none.bin"):
        model = onnx.load(path, load_external_data=False)
        (location,) = (e for e in model.graph.initializer[0].external_data if e.key == "location")
        location.value = place
        path.write_bytes(model.SerializeToString())
        with pytest.raises((SavedModelError, FileNotFoundError), match=r"in its own folder|No such file"):
            minicnn.from_onnx(path)


# What is refused ------------------------------------------------------------------------------------


def test_unknown_operators_are_all_named(tmp_path: Path) -> None:
    nodes = [
        node("Det", out="z"),
        helper.make_node("NonZero", ["z"], ["a"]),
        helper.make_node("Fast", ["a"], ["y"], domain="my"),
    ]
    with pytest.raises(ValueError, match=r"with Det; NonZero; my\.Fast\. Export it in simpler operators"):
        minicnn.from_onnx(written(tmp_path / "a.onnx", *nodes))


@pytest.mark.parametrize("shape", [None, (), ("N", None), ("N", "W")])
def test_inputs_have_known_lengths(shape: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="known lengths beside"):
        minicnn.from_onnx(written(tmp_path / "a.onnx", node("Relu"), shape=shape))


HUGE = np.asarray([1 << 40, 4], "int64")
HOSTILE: dict[str, Any] = {
    "an array beyond the memory": ([node("Expand", "s")], {"s": HUGE}),
    "one that is known": ([helper.make_node("ConstantOfShape", ["s"], ["z"]), node("Add", "z")], {"s": HUGE}),
    "tiles": ([node("Tile", "s")], {"s": HUGE}),
    "padding": ([node("Pad", "s")], {"s": np.asarray([0, 0, 1 << 40, 0])}),
    "a range": (
        [helper.make_node("Range", ["a", "b", "c"], ["z"]), node("Add", "z")],
        {"a": np.asarray(0.0), "b": np.asarray(1e30), "c": np.asarray(1e-9)},
    ),
    "a window": ([node("Unsqueeze", "s", out="i"), helper.make_node("MaxPool", ["i"], ["y"], kernel_shape=[1 << 30, 1],
                  pads=[1 << 30, 0, 1 << 30, 0])], {"s": np.asarray([0, 1])}),
    "a cycle": ([helper.make_node("Add", ["x", "b"], ["a"]), helper.make_node("Add", ["x", "a"], ["b"])], {}),
    "a name that nobody makes": ([helper.make_node("Relu", ["none"], ["y"])], {}),
    "an axis beyond": ([node("Softmax", axis=9)], {}),
    "too few inputs": ([helper.make_node("Add", ["x"], ["y"])], {}),
    "attributes of another type": ([node("Concat", "x", axis="one")], {}),
    "samples mixed up": ([node("Transpose")], {}),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_graphs(name: str, tmp_path: Path) -> None:
    nodes, held = HOSTILE[name]
    begun = time.process_time()
    with pytest.raises(ValueError, match=r"primitives cover its operators|first axis is the batch"):
        minicnn.from_onnx(written(tmp_path / "a.onnx", *nodes, held=held))
    assert time.process_time() - begun < 5


def test_tensors_hold_what_they_say(tmp_path: Path) -> None:
    path = written(tmp_path / "a.onnx", node("MatMul", "w"), held={"w": np.ones((4, 2), "float32")})
    for change in (
        lambda t: t.dims.__setitem__(0, 1 << 50), lambda t: t.dims.__setitem__(0, -4),
        lambda t: setattr(t, "data_type", 99), lambda t: setattr(t, "data_type", 8),
        lambda t: (t.ClearField("raw_data"), t.float_data.extend([1.0] * 3)),
    ):  # fmt: skip
        model = onnx.load(path)
        change(model.graph.initializer[0])
        (tmp_path / "b.onnx").write_bytes(model.SerializeToString())
        with pytest.raises(SavedModelError, match=r"b\.onnx.*the tensor 'w' has"):
            minicnn.from_onnx(tmp_path / "b.onnx")


def test_what_is_no_file_of_onnx(tmp_path: Path) -> None:
    for content in (b"", b"text", bytes(100), b"\xff" * 50):
        (tmp_path / "a.onnx").write_bytes(content)
        with pytest.raises(SavedModelError, match=r"ONNX file|no graph"):
            minicnn.from_onnx(tmp_path / "a.onnx")
    with pytest.raises(FileNotFoundError):
        minicnn.from_onnx(tmp_path / "none.onnx")


# Of the errors that a damaged file may end in.
PARTS = (
    "A file that is read is whole", "primitives cover its operators", "known lengths beside", "Weights of a model",
    "first axis is the batch",
)  # fmt: skip


@pytest.mark.no_cover
def test_damaged_files(tmp_path: Path) -> None:
    """Whatever is in a file, there is a model or one of our errors. MINICNN_FUZZ asks for more than some hundred."""
    held = {"w": np.ones((3, 2, 3, 3), "float32"), "s": np.asarray([0, -1]), "m": np.ones((3 * 4, 2), "float32")}
    nodes = [
        node("Conv", "w", out="a", strides=[1, 2]), helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("MaxPool", ["b"], ["c"], kernel_shape=[2, 2]), helper.make_node("Reshape", ["c", "s"], ["d"]),
        helper.make_node("MatMul", ["d", "m"], ["y"]),
    ]  # fmt: skip
    path = written(tmp_path / "a.onnx", *nodes, held=held, shape=("N", 2, 5, 7))
    good, found = path.read_bytes(), set()
    for seed in range(int(os.environ.get("MINICNN_FUZZ", "3000")) // 10):
        path.write_bytes(fuzzing.damage(random.Random(seed), good))
        begun = time.process_time()
        try:
            minicnn.from_onnx(path, backend="numpy")
            found.add("a model")
        except (ValueError, OSError) as error:
            found.add(next((part for part in PARTS if part in str(error)), f"{seed}: {error}"))
        assert time.process_time() - begun < fuzzing.SECONDS, seed
    assert found <= {"a model", *PARTS}
    assert len(found) > 2


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    monkeypatch.delitem(sys.modules, "minicnn.interop.onnx.reading", raising=False)
    monkeypatch.delitem(sys.modules, "minicnn.interop.onnx.files", raising=False)
    monkeypatch.delattr("minicnn.interop.onnx.reading", raising=False)
    with pytest.raises(ImportError, match=r"from_onnx needs onnx: pip install .*\[onnx\]"):
        minicnn.from_onnx(tmp_path / "a.onnx")
