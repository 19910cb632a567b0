"""Weights of PyTorch's networks in minicnn's models, and back: the same outputs, and every weight in its place."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minicnn import Model, Sequential, zoo
from minicnn.files import SavedModelError
from minicnn.interop import load_torch_weights, to_torch_weights
from minicnn.interop.torch_weights import _registered
from minicnn.layers import (
    BatchNormalization,
    Conv1D,
    Conv2D,
    Conv2DTranspose,
    Dense,
    DepthwiseConv2D,
    Dropout,
    Flatten,
    GlobalAveragePooling1D,
    Input,
    MaxPooling2D,
    SeparableConv2D,
)
from support import fuzzing
from support.campaign import NIGHT
from support.tolerances import ELEMENT, STEP, SUM

NARROW = {"hidden_units": (24, 16), "dropout": 0.0}
UNITS = {"units": (24, 16)}
NETWORKS: dict[str, tuple[tuple[int, int, int], dict[str, Any], dict[str, Any]]] = {
    "alexnet": ((67, 71, 3), NARROW, UNITS),
    "vgg11": ((32, 64, 3), NARROW, UNITS),
    "vgg16": ((32, 32, 3), NARROW, UNITS),
    "googlenet": ((40, 52, 3), {"dropout": 0.0}, {}),
    "resnet18": ((36, 52, 3), {}, {}),
    "resnet50": ((36, 36, 3), {}, {}),
    "mobilenet_v2": ((36, 52, 3), {"dropout": 0.0}, {}),
    "squeezenet1_1": ((44, 53, 3), {"dropout": 0.0}, {}),
}
CLASSES = 5


WEIGHT, BOTH, NORM = ("weight",), ("weight", "bias"), ("weight", "bias", "running_mean", "running_var")


def modules(network: str) -> Iterator[tuple[str, Sequence[str]]]:
    """Names of torchvision's modules that have weights, in the order of their registration, and what each has."""
    if network == "alexnet":
        yield from ((f"features.{n}", BOTH) for n in (0, 3, 6, 8, 10))
        yield from ((f"classifier.{n}", BOTH) for n in (1, 4, 6))
    elif network in ("vgg11", "vgg16"):
        deep = (0, 2, 5, 7, 10, 12, 14, 17, 19, 21, 24, 26, 28)
        yield from ((f"features.{n}", BOTH) for n in ((0, 3, 6, 8, 11, 13, 16, 18) if network == "vgg11" else deep))
        yield from ((f"classifier.{n}", BOTH) for n in (0, 3, 6))
    elif network in ("resnet18", "resnet50"):
        depths, convolutions = ((2, 2, 2, 2), 2) if network == "resnet18" else ((3, 4, 6, 3), 3)
        yield from (("conv1", WEIGHT), ("bn1", NORM))
        for stage, block in ((s, b) for s, depth in enumerate(depths, start=1) for b in range(depth)):
            name = f"layer{stage}.{block}"
            for n in range(1, convolutions + 1):
                yield from ((f"{name}.conv{n}", WEIGHT), (f"{name}.bn{n}", NORM))
            if block == 0 and (stage > 1 or convolutions == 3):
                yield from ((f"{name}.downsample.0", WEIGHT), (f"{name}.downsample.1", NORM))
        yield "fc", BOTH
    elif network == "googlenet":
        branches = ("branch1", "branch2.0", "branch2.1", "branch3.0", "branch3.1", "branch4.1")
        inceptions = (
            f"inception{n}.{b}" for n in ("3a", "3b", "4a", "4b", "4c", "4d", "4e", "5a", "5b") for b in branches
        )
        for name in ("conv1", "conv2", "conv3", *inceptions):
            yield from ((f"{name}.conv", WEIGHT), (f"{name}.bn", NORM))
        yield "fc", BOTH
    elif network == "mobilenet_v2":
        yield from (("features.0.0", WEIGHT), ("features.0.1", NORM))
        for n in range(1, 18):
            parts = ("0.0", "0.1", "1", "2") if n == 1 else ("0.0", "0.1", "1.0", "1.1", "2", "3")
            yield from ((f"features.{n}.conv.{p}", (WEIGHT, NORM)[i % 2]) for i, p in enumerate(parts))
        yield from (("features.18.0", WEIGHT), ("features.18.1", NORM), ("classifier.1", BOTH))
    else:
        fires = (
            f"features.{n}.{p}" for n in (3, 4, 6, 7, 9, 10, 11, 12) for p in ("squeeze", "expand1x1", "expand3x3")
        )
        yield from ((name, BOTH) for name in ("features.0", *fires, "classifier.1"))


def names(network: str) -> list[str]:
    """Names of torchvision's parameters and running statistics in the order of their registration."""
    return [f"{module}.{part}" for module, parts in modules(network) for part in parts]


# Others have more of the blocks that one of these has.
@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", NETWORKS if NIGHT else sorted(NETWORKS.keys() - {"vgg16", "resnet50"}))
def test_networks_of_the_zoo_compute_what_the_modules_do(name: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file

    from minicnn.measure import torch_networks

    image, options, widths = NETWORKS[name]
    module = getattr(torch_networks, name)(image[2], CLASSES, **widths)
    generator = torch.Generator().manual_seed(3)
    for key, tensor in module.state_dict().items():
        if key.endswith(("running_mean", "bias")):
            tensor.uniform_(-0.2, 0.2, generator=generator)
        elif key.endswith("running_var"):
            tensor.uniform_(0.5, 2.0, generator=generator)
    module.eval()
    x = np.random.default_rng(1).standard_normal((2, *image)).astype("float32")
    with torch.no_grad():
        expected = module(torch.tensor(x).permute(0, 3, 1, 2).contiguous()).numpy()

    model = zoo.get_model(name, num_classes=CLASSES, input_shape=image, backend="torch", **options)
    state = module.state_dict()
    load_torch_weights(model, state)
    np.testing.assert_allclose(model.predict(x), expected, rtol=0, atol=SUM * np.abs(expected).max())
    for key, array in to_torch_weights(model, state).items():
        np.testing.assert_array_equal(array, state[key].numpy(), err_msg=key)

    # A file has the tensors by the alphabet, under torchvision's names.
    tensors = [tensor for key, tensor in state.items() if not key.endswith("num_batches_tracked")]
    named = dict(zip(names(name), tensors, strict=True))
    save_file({"aux1.conv.weight": torch.zeros(3), **named}, tmp_path / "network.safetensors")
    again = zoo.get_model(
        name,
        num_classes=CLASSES,
        input_shape=image,
        backend="torch",
        weights=tmp_path / "network.safetensors",
        **options,
    )
    loaded = again.get_weights()
    for path, array in model.get_weights().items():
        np.testing.assert_array_equal(loaded[path], array, err_msg=path)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_order_of_modules_is_known_by_their_names(name: str) -> None:
    assert sorted(sorted(names(name)), key=_registered) == names(name)


def test_layers_of_every_kind_and_both_orders_of_axes() -> None:
    torch = pytest.importorskip("torch")
    nn = torch.nn
    module = nn.Sequential(
        nn.Conv2d(2, 6, (3, 2), groups=2), nn.ReLU(), nn.Conv2d(6, 12, 3, groups=6), nn.BatchNorm2d(12),
        nn.ConvTranspose2d(12, 4, 2), nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(), nn.Linear(4 * 3 * 4, 5), nn.ReLU(),
        nn.Linear(5, 3),
    ).eval()  # fmt: skip
    x = np.random.default_rng(0).standard_normal((3, 2, 9, 10)).astype("float32")
    with torch.no_grad():
        expected = module(torch.tensor(x)).numpy()
    for data_format in ("channels_last", "channels_first"):
        form: dict[str, Any] = {"data_format": data_format}
        last = data_format == "channels_last"
        model = Sequential([
            Input((9, 10, 2) if last else (2, 9, 10)),
            Conv2D(6, (3, 2), groups=2, activation="relu", **form), DepthwiseConv2D(3, depth_multiplier=2, **form),
            BatchNormalization(axis=-1 if last else 1, epsilon=1e-5), Conv2DTranspose(4, 2, **form),
            MaxPooling2D(**form), Flatten(), Dropout(0.5), Dense(5, "relu"), Dense(3),
        ])  # fmt: skip
        load_torch_weights(model, module.state_dict())
        given = x.transpose(0, 2, 3, 1) if last else x
        np.testing.assert_allclose(model.predict(given), expected, rtol=STEP, atol=SUM)


def small() -> Model:
    return Sequential([Input((6, 6, 2)), Conv2D(3, 3), Flatten(), Dense(4)])


def state(model: Model) -> dict[str, np.ndarray]:
    return to_torch_weights(model, [f"{m}.{p}" for m in ("conv", "fc") for p in ("weight", "bias")])


def test_arrays_need_no_pytorch_and_are_in_its_order_of_axes() -> None:
    model = small()
    kernel = model.get_weights()["conv2d/kernel"]
    arrays = state(model)
    assert {name: array.shape for name, array in arrays.items()} == {
        "conv.weight": (3, 2, 3, 3), "conv.bias": (3,), "fc.weight": (4, 48), "fc.bias": (4,)
    }  # fmt: skip
    assert arrays["conv.weight"][2, 1, 0, 1] == kernel[0, 1, 1, 2]
    dense = model.get_weights()["dense/kernel"].reshape(4, 4, 3, 4)
    assert arrays["fc.weight"].reshape(4, 3, 4, 4)[1, 2, 3, 0] == dense[3, 0, 2, 1]
    other = Sequential([Input((6, 6, 2)), Conv2D(3, 3), Flatten(), Dense(4)], seed=9)
    load_torch_weights(other, {**arrays, "bn.num_batches_tracked": np.array(7)})
    loaded = other.get_weights()
    for path, array in model.get_weights().items():
        np.testing.assert_array_equal(loaded[path], array)


def test_what_does_not_fit_is_named_and_changes_nothing() -> None:
    model, arrays = small(), state(small())
    before = model.get_weights()
    with pytest.raises(ValueError, match=r"has the weights of the model, in its order. Received: 3 for the model's 4"):
        load_torch_weights(model, dict(list(arrays.items())[:3]))
    wrong = arrays | {"fc.weight": np.zeros((7, 48), "float32"), "fc.bias": np.zeros(7, "float32")}
    with pytest.raises(
        ValueError, match=r"Received: fc.weight \(7, 48\) for dense/kernel \(48, 4\), which is \(4, 48\)"
    ):
        load_torch_weights(model, wrong)
    assert all(np.array_equal(before[path], array) for path, array in model.get_weights().items())
    with pytest.warns(UserWarning, match=r"stay as they are where shapes differ: dense/kernel"):
        load_torch_weights(model, wrong | {"conv.bias": np.ones(3, "float32")}, skip_mismatch=True)
    after = model.get_weights()
    assert np.array_equal(after["conv2d/bias"], np.ones(3))
    assert np.array_equal(after["dense/kernel"], before["dense/kernel"])


def test_files_of_other_names_and_kinds_are_refused_by_name(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    save_file(state(small()) | {"encoder.weight": np.zeros(3, "float32")}, tmp_path / "x.safetensors")
    with pytest.raises(ValueError, match=r"known for torchvision's names alone. Received: 'encoder.weight'"):
        load_torch_weights(small(), tmp_path / "x.safetensors")
    with pytest.raises(ValueError, match=r"a file .safetensors, .pth or .pt. Received: '.*x.ckpt'"):
        load_torch_weights(small(), tmp_path / "x.ckpt")


def test_what_torch_save_wrote_is_read_as_data_only(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    arrays = state(small())
    torch.save({name: torch.tensor(array, requires_grad=True) for name, array in arrays.items()}, tmp_path / "x.pth")
    model = Sequential([Input((6, 6, 2)), Conv2D(3, 3), Flatten(), Dense(4)], seed=9)
    load_torch_weights(model, tmp_path / "x.pth")
    assert np.array_equal(model.get_weights()["conv2d/bias"], arrays["conv.bias"])
    for what in (small, torch.zeros(3), {"state_dict": {}}, {1: torch.zeros(3)}):
        torch.save(what, tmp_path / "other.pth")
        with pytest.raises(SavedModelError, match=r"other.pth.*(more than tensors by name|no tensors by name)"):
            load_torch_weights(model, tmp_path / "other.pth")


@pytest.mark.parametrize("ending", ["safetensors", "pth"])
def test_damaged_files_are_read_or_refused(ending: str, tmp_path: Path) -> None:
    """Whatever is in a file, it is our error, or weights of the right shapes. MINICNN_FUZZ asks for more."""
    path, model = tmp_path / f"x.{ending}", small()
    if ending == "pth":
        torch = pytest.importorskip("torch")
        torch.save({name: torch.tensor(array) for name, array in state(model).items()}, path)
    else:
        pytest.importorskip("safetensors.numpy").save_file(state(model), path)
    good, refusals = path.read_bytes(), 0
    for seed in range(int(os.environ.get("MINICNN_FUZZ", "3000")) // 30):
        path.write_bytes(fuzzing.damage(random.Random(seed), good))
        begun = time.process_time()
        try:
            load_torch_weights(model, path)
        except ValueError:
            refusals += 1
        assert time.process_time() - begun < fuzzing.SECONDS, seed
    assert refusals > 10


def test_one_dimension_and_separable_kernels() -> None:
    torch = pytest.importorskip("torch")
    line = Sequential([Input((8, 3)), Conv1D(4, 3), GlobalAveragePooling1D(), Dense(2)])
    nn = torch.nn
    theirs = nn.Sequential(nn.Conv1d(3, 4, 3), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(4, 2))
    load_torch_weights(line, theirs.state_dict())
    x = np.random.default_rng(0).standard_normal((2, 8, 3)).astype("float32")
    with torch.no_grad():
        expected = theirs(torch.tensor(x).permute(0, 2, 1)).numpy()
    np.testing.assert_allclose(line.predict(x), expected, rtol=SUM, atol=ELEMENT)

    both = Sequential([Input((6, 5, 2)), SeparableConv2D(3, 3, depth_multiplier=2)])
    theirs = nn.Sequential(nn.Conv2d(2, 4, 3, groups=2, bias=False), nn.Conv2d(4, 3, 1))
    load_torch_weights(both, theirs.state_dict())
    x = np.random.default_rng(0).standard_normal((2, 6, 5, 2)).astype("float32")
    with torch.no_grad():
        expected = theirs(torch.tensor(x).permute(0, 3, 1, 2)).permute(0, 2, 3, 1).numpy()
    np.testing.assert_allclose(both.predict(x), expected, rtol=SUM, atol=ELEMENT)
