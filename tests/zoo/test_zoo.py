"""Networks by name: sizes, options, first values."""

from __future__ import annotations

import json
import math
import time
from typing import Any

import numpy as np
import pytest

from minicnn import zoo
from minicnn.layers import Dropout, Rescaling
from minicnn.layers.functional import Functional
from minicnn.losses import SparseCategoricalCrossentropy
from support.tolerances import STEP, SUM

# torchvision's counts at 1000 classes; for the others the sums in the studies and papers; for resnet9 the course's.
PARAMETERS = {
    "mlp": 7_960,
    "lenet_3x3": 53_866,
    "two_convs": 50_890,
    "lenet5": 61_706,
    "alexnet": 61_100_840,
    "overfeat": 145_920_872,
    "vgg11": 132_863_336,
    "vgg16": 138_357_544,
    "googlenet": 6_624_904,
    "resnet9": 431_946,
    "resnet18": 11_689_512,
    "resnet34": 21_797_672,
    "resnet50": 25_557_032,
    "mobilenet_v2": 3_504_872,
    "squeezenet1_1": 1_235_496,
}

# Multiply-adds of one image at the usual size, in millions, as published (torchvision's table of weights; for
# overfeat the "connections" of the paper's table 4).
MULTIPLY_ADDS = {
    "alexnet": 714,
    "overfeat": 2_810,
    "vgg11": 7_609,
    "vgg16": 15_470,
    "googlenet": 1_498,
    "resnet18": 1_814,
    "resnet34": 3_664,
    "resnet50": 4_089,
    "mobilenet_v2": 301,
    "squeezenet1_1": 349,
}

# The smallest square images that leave something after the last pooling.
SMALLEST = {
    "lenet_3x3": 10,
    "two_convs": 6,
    "lenet5": 12,
    "alexnet": 63,
    "overfeat": 71,
    "vgg11": 32,
    "squeezenet1_1": 17,
    "googlenet": 15,
}

WITH_DROPOUT = {
    "alexnet": [0.5, 0.5], "overfeat": [0.5, 0.5], "vgg11": [0.5, 0.5], "vgg16": [0.5, 0.5], "googlenet": [0.2],
    "mobilenet_v2": [0.2], "squeezenet1_1": [0.5],
}  # fmt: skip


def test_names_are_those_of_the_table() -> None:
    assert zoo.names() == list(PARAMETERS)


@pytest.mark.parametrize(("alias", "name"), zoo.ALIASES.items())
def test_networks_have_the_names_of_their_studies_as_well(alias: str, name: str) -> None:
    first, same = zoo.get_model(alias), zoo.get_model(name)
    assert (first.name, same.name) == (alias, name)
    assert all(np.array_equal(a, same.get_weights()[path]) for path, a in first.get_weights().items())
    assert alias not in zoo.names()
    assert alias in zoo.names(aliases=True)
    assert zoo.get_network(alias) is zoo.get_network(name)


@pytest.mark.cover
@pytest.mark.parametrize("name", zoo.names())
def test_parameter_count(name: str) -> None:
    model = zoo.get_model(name)
    assert model.count_params(trainable=True) == PARAMETERS[name]
    assert model.output_shape == (None, 10 if PARAMETERS[name] < 1_000_000 else 1000)
    assert model.name == name


@pytest.mark.parametrize("name", MULTIPLY_ADDS)
def test_multiply_adds_of_one_image(name: str) -> None:
    program = zoo.get_model(name).program(batch_size=1)
    products = [n for n in program.nodes if n.op.name in ("conv2d", "depthwise_conv2d", "matmul")]
    found = sum(n.cost.flops for n in products) / 2e6
    assert found == pytest.approx(MULTIPLY_ADDS[name], rel=0.01)


@pytest.mark.parametrize("name", zoo.names())
def test_every_layer_has_a_name_of_its_own(name: str) -> None:
    model = zoo.get_model(name)
    assert [layer for layer in model.layers if layer.name is None] == []


@pytest.mark.parametrize("name", zoo.names())
def test_every_network_can_be_saved(name: str) -> None:
    config = zoo.get_model(name).get_config()
    copy = Functional.from_config(json.loads(json.dumps(config)))
    assert copy.get_config() == config


@pytest.mark.parametrize(("name", "size"), SMALLEST.items())
def test_smallest_image(name: str, size: int) -> None:
    model = zoo.get_model(name, num_classes=3, input_shape=(size, size, 1))
    assert model.output_shape == (None, 3)
    with pytest.raises(ValueError, match="at least as large as its"):
        zoo.get_model(name, num_classes=3, input_shape=(size - 1, size - 1, 1))


@pytest.mark.parametrize("name", ["resnet18", "resnet50", "mobilenet_v2"])
def test_networks_that_end_in_an_average_take_any_size(name: str) -> None:
    assert zoo.get_model(name, num_classes=3, input_shape=(1, 33, 2)).output_shape == (None, 3)


@pytest.mark.parametrize("name", zoo.names())
def test_dropout_is_where_the_original_has_it(name: str) -> None:
    def rates(**options: Any) -> list[float]:
        return [layer.rate for layer in zoo.get_model(name, **options).layers if isinstance(layer, Dropout)]

    assert rates() == WITH_DROPOUT.get(name, [])
    if name in WITH_DROPOUT:
        assert rates(dropout=0.25) == [0.25] * len(WITH_DROPOUT[name])


def test_hidden_units_set_the_widths_of_the_dense_layers() -> None:
    model = zoo.get_model("vgg11", num_classes=3, hidden_units=(8, 6))
    shapes = {path: w.shape for path, w in model.get_weights().items() if "conv" not in path}
    assert shapes["hidden1/kernel"] == (7 * 7 * 512, 8)
    assert shapes["hidden2/kernel"] == (8, 6)
    assert shapes["logits/kernel"] == (6, 3)


def test_preprocessing_comes_first_and_images_may_be_integers() -> None:
    model = zoo.get_model("kernels", preprocessing=[Rescaling(1 / 255)], input_dtype="uint8", seed=1)
    plain = zoo.get_model("kernels", seed=1)
    images = np.random.default_rng(0).integers(0, 256, (2, 28, 28, 1), dtype=np.uint8)
    program = model.program("predict", batch_size=2)
    assert program.value("x").dtype == "uint8"
    np.testing.assert_allclose(
        model.predict(images), plain.predict(images.astype("float32") / 255), rtol=STEP, atol=SUM
    )


def test_mlp_takes_flat_samples_too() -> None:
    assert zoo.get_model("mlp", input_shape=(784,)).count_params() == PARAMETERS["mlp"]


def test_logits_are_not_probabilities() -> None:
    model = zoo.get_model("platforms")
    y = model.predict(np.random.default_rng(0).standard_normal((4, 28, 28, 1)).astype("float32"))
    assert y.min() < 0


def test_same_seed_same_weights() -> None:
    first, again, other = (zoo.get_model("lenet5", seed=s).get_weights() for s in (5, 5, 6))
    for path, w in first.items():
        np.testing.assert_array_equal(w, again[path])
        if path.endswith("kernel"):
            assert not np.array_equal(w, other[path])


@pytest.mark.parametrize("name", ["vgg16", "resnet34", "mobilenet_v2", "googlenet"])
def test_first_values_keep_the_size_of_activations(name: str) -> None:
    """He's initialisation: in the first training step the loss is of the size of log(classes), at any depth."""
    options = {"hidden_units": (64, 64)} if name == "vgg16" else {}
    model = zoo.get_model(name, num_classes=10, input_shape=(32, 32, 3), **options)
    model.compile("sgd", SparseCategoricalCrossentropy(from_logits=True))
    rng = np.random.default_rng(0)
    x = rng.standard_normal((8, 32, 32, 3)).astype("float32")
    loss = model.train_on_batch(x, rng.integers(0, 10, 8), return_dict=True)["loss"]
    assert math.log(10) / 2 < loss < 4 * math.log(10)


def test_deep_networks_are_traced_quickly() -> None:
    start = time.process_time()
    model = zoo.get_model("resnet50")
    model.compile("sgd", "mse")
    assert len(model.program("train", batch_size=2).nodes) > 500
    assert time.process_time() - start < 2.0


@pytest.mark.parametrize(("name", "near"), [("resnet19", "resnet9"), ("VGG16", "vgg16"), (None, None)])
def test_unknown_name(name: Any, near: str | None) -> None:
    end = f" Did you mean {near!r}\\?" if near else ""
    with pytest.raises(ValueError, match=rf"A network is one of mlp, lenet_3x3.*Received: {name!r}\.{end}$"):
        zoo.get_model(name)


def test_unknown_option() -> None:
    with pytest.raises(TypeError, match=r"googlenet has the options: dropout\. Received: width, depth\. Leave"):
        zoo.get_model("googlenet", width=2, depth=3)
    with pytest.raises(TypeError, match=r"resnet18 has the options: none\. Received: dropout\."):
        zoo.get_model("resnet18", dropout=0.5)
