"""Networks on the numba backend: all of the zoo and all layers, images in both orders, without a reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from minicnn import Model, Sequential, layers, losses, optimizers, zoo
from minicnn.backends import backend_class, get_backend
from minicnn.layers import Input, Layer, Rescaling
from minicnn.loop.tracing import StepKind
from minicnn.losses import Loss, SparseCategoricalCrossentropy
from minicnn.optimizers import Optimizer
from minicnn.program import Program
from support.campaign import NIGHT
from support.channels_first import channels_first, program_of
from support.numba_check import assert_alike

pytest.importorskip("numba")

KINDS: tuple[StepKind, ...] = ("train", "evaluate", "predict")
IMAGES = ("mlp", "lenet_3x3", "two_convs", "lenet5")  # small networks with a size of images of their own
SMALL: dict[str, dict[str, Any]] = {"alexnet": {"hidden_units": (64, 64)}, "overfeat": {"hidden_units": (64, 64)}}
SIDES = {"alexnet": 63, "overfeat": 71}
FORMATS = (pytest.param("channels_last", marks=pytest.mark.no_cover), "channels_first")
Arrays = dict[str, np.ndarray[Any, Any]]


def strict(threads: int = 2) -> Any:
    return backend_class("numba")(strict=True, threads=threads)  # type: ignore[call-arg]


def of_zoo(name: str, **options: Any) -> Model:
    side = SIDES.get(name, 32)
    shape = None if name in IMAGES else (side, side, 3)
    model = zoo.get_model(
        name, num_classes=10, input_shape=shape, backend="numpy", **SMALL.get(name, {}), **options
    )  # fmt: skip
    model.compile("adam", SparseCategoricalCrossentropy(from_logits=True), ["accuracy"])
    return model


# Machine code for the larger networks takes a minute: at night. A training step has the other steps' kernels, too.
# By day networks with convolutions are compiled and trained in tests/models/test_agreement.py.
@pytest.mark.no_cover
@pytest.mark.parametrize("name", zoo.names() if NIGHT else ["mlp"])
def test_networks_compile_without_a_reference(name: str) -> None:
    model = of_zoo(name, preprocessing=[Rescaling(1 / 255)], input_dtype="uint8")
    strict().compile(model.program("train", batch_size=20))
    for kind in KINDS:
        rows = strict().explain(model.program(kind, batch_size=20))
        assert rows
        assert all(how.startswith("kernel: ") for _, how in rows)


@pytest.mark.sampled(5)
@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize(  # lines are counted in small ones, and one of many kinds of weights
    "name", [n if n in (*IMAGES, "mobilenet_v2") else pytest.param(n, marks=pytest.mark.no_cover) for n in zoo.names()]
)
def test_no_network_runs_a_reference(name: str) -> None:
    # A training step has the loss and the metrics of an evaluation.
    model = of_zoo(name)
    for kind in ("train", "predict"):
        strict().compile(model.program(kind, batch_size=20))
    channels_first(model)
    for kind in ("train", "predict") if name in IMAGES else ("train",):
        program = program_of(model, kind, 20)
        formats = {n.attrs["data_format"] for n in program.nodes if "data_format" in n.attrs}
        assert formats == (set() if name == "mlp" else {"NCHW"})
        strict().compile(program)


def values(program: Program, weights: Arrays, seed: int = 0) -> Arrays:
    """Inputs of a Program: weights as given, optimizer state positive, the rest drawn."""
    rng = np.random.default_rng(seed)
    made = {}
    for v in program.inputs:
        if v.name in weights:
            made[v.name] = weights[v.name]
        elif v.dtype == "int32":
            made[v.name] = rng.integers(0, 3, v.shape).astype("int32")
        elif v.kind == "input":
            made[v.name] = (rng.random(v.shape) if v.name == "y" else rng.standard_normal(v.shape)).astype(v.dtype)
        else:
            made[v.name] = np.abs(rng.standard_normal(v.shape) * 0.3).astype(v.dtype)
    return made


@pytest.mark.no_cover
def test_both_orders_of_the_axes_give_the_same_predictions() -> None:
    model = of_zoo("platforms")
    last = model.program("predict", batch_size=3)
    weights = model.get_weights()
    arrays = values(last, weights)
    y = strict().compile(last)(arrays)["output"]
    first = program_of(channels_first(model), "predict", 3)
    moved = arrays | {"x": arrays["x"].transpose(0, 3, 1, 2)}
    assert_alike({"y": strict().compile(first)(moved)["output"]}, {"y": y}, terms=10_000)


def check(model: Model, loss: str | Loss = "mse", optimizer: str | Optimizer = "sgd", metrics: Any = (),
          batch: int = 17, kinds: tuple[StepKind, ...] = ("train", "predict"), threads: int = 2) -> None:  # fmt: skip
    """A training step and a prediction are what NumPy makes of them."""
    model.compile(optimizer, loss, list(metrics))
    weights = {k: np.asarray(v) for k, v in model.get_weights().items()}
    for kind in kinds:
        program = model.program(kind, batch_size=batch)
        arrays = values(program, weights)
        expected = get_backend("numpy").compile(program)(arrays)
        assert_alike(strict(threads).compile(model.program(kind, batch_size=batch))(arrays), expected, terms=10_000)


LAYERS: dict[str, Callable[[dict[str, Any], int], Layer]] = {
    "conv": lambda d, c: layers.Conv2D(5, 3, activation="gelu", **d),
    "conv strides": lambda d, c: layers.Conv2D(6, 3, strides=2, groups=2, padding="same", **d),
    "conv dilation": lambda d, c: layers.Conv2D(3, (2, 3), dilation_rate=2, **d),
    "depthwise": lambda d, c: layers.DepthwiseConv2D(3, depth_multiplier=2, padding="same", **d),
    "separable": lambda d, c: layers.SeparableConv2D(5, 3, **d),
    "transpose": lambda d, c: layers.Conv2DTranspose(5, 3, strides=2, padding="same", **d),
    "max": lambda d, c: layers.MaxPooling2D(**d),
    "average": lambda d, c: layers.AveragePooling2D(3, 2, padding="same", **d),
    "global max": lambda d, c: layers.GlobalMaxPooling2D(keepdims=True, **d),
    "global average": lambda d, c: layers.GlobalAveragePooling2D(**d),
    "adaptive": lambda d, c: layers.AdaptiveAveragePooling2D(3, **d),
    "batch norm": lambda d, c: layers.BatchNormalization(axis=c),
    "layer norm": lambda d, c: layers.LayerNormalization(axis=c),
    "layer norm of all": lambda d, c: layers.LayerNormalization(axis=(1, 2, 3)),
    "group norm": lambda d, c: layers.GroupNormalization(2, axis=c),
    "local response": lambda d, c: layers.LocalResponseNormalization(3, 0.5, **d),
    "dropout": lambda d, c: layers.SpatialDropout2D(0.5, **d),
    "padding": lambda d, c: layers.ZeroPadding2D(((1, 2), (0, 1)), **d),
    "cropping": lambda d, c: layers.Cropping2D(1, **d),
    "nearest": lambda d, c: layers.UpSampling2D((2, 3), **d),
    "bilinear": lambda d, c: layers.UpSampling2D(2, interpolation="bilinear", **d),
    "permute": lambda d, c: layers.Permute((2, 3, 1)),
    "reshape": lambda d, c: layers.Reshape((-1, 5)),
    "dense": lambda d, c: layers.Dense(3),
    "softmax": lambda d, c: layers.Softmax(c),
    "clipped relu": lambda d, c: layers.ReLU(4.0, 0.1, 0.2),
}


COMPILED = LAYERS if NIGHT else ("conv", "transpose", "layer norm", "local response", "dropout", "bilinear", "dense")


@pytest.mark.sampled(10)
@pytest.mark.parametrize("data_format", FORMATS)
@pytest.mark.parametrize("name", LAYERS)
def test_every_layer(name: str, data_format: str, request: pytest.FixtureRequest) -> None:
    # A training step with all kernels of the layer, some of them compiled: as primitives all are so elsewhere. The same
    # behind a permutation, and a prediction.
    first, of = data_format == "channels_first", {"data_format": data_format}
    if first or name not in COMPILED:
        request.getfixturevalue("interpreted")
    shape = (4, 5, 6) if first else (5, 6, 4)
    layer = LAYERS[name](of, 1 if first else 3)
    model = Sequential([Input(shape), layers.Conv2D(4, 1, **of), layer, layers.Flatten()], seed=1)
    if first:
        check(model, batch=3)
    else:
        check(model, kinds=("train",))


def all_sorts(image: tuple[int, ...]) -> Model:
    """Every kind of kernel whose work is cut within a block of samples."""
    return Sequential(
        [
            Input(image), layers.Conv2D(20, 3, padding="same"), layers.BatchNormalization(), layers.ReLU(),
            layers.MaxPooling2D(3, 2, padding="same"), layers.Conv2D(34, 3, padding="same", activation="relu"),
            layers.DepthwiseConv2D(3), layers.AveragePooling2D(2, 1, padding="same"),
            layers.Conv2D(6, 3, 2, padding="same", activation="gelu"), layers.Flatten(),
            layers.Dense(40, activation="relu"), layers.Dense(3),
        ],
        seed=1,
    )  # fmt: skip


@pytest.mark.no_cover
@pytest.mark.usefixtures("interpreted")
def test_more_threads_than_a_block_has_rows_or_channels() -> None:
    check(all_sorts((7, 6, 3)), batch=3, kinds=("train",), threads=9)


@pytest.mark.parametrize(("batch", "threads", "pieces"), [(16, 3, 3), (512, 64, 56)])
def test_a_small_batch_keeps_all_threads_busy(batch: int, threads: int, pieces: int) -> None:
    from minicnn.backends.numba.rules import lower

    model = all_sorts((18, 16, 3))
    model.compile("sgd", "mse")
    tasks = lower(model.program("train", batch_size=batch), threads=threads).tasks
    kernels = ("conv2d", "depthwise", "max_pool", "average_pool", "subtract", "variance", "block")
    sources = [(t.source, t.items) for t in tasks if t.source is not None and t.source.name.startswith(kernels)]
    # Sums over the batch of single positions have nothing but blocks to share.
    found = [(s.name, items) for s, items in sources if not (s.resumes and s.pieces == 1)]
    assert len(found) >= 15
    assert all(items >= pieces for _, items in found), found


@pytest.mark.no_cover
@pytest.mark.usefixtures("interpreted")
def test_layers_that_join() -> None:
    x = Input((3, 4, 2))
    a, b = layers.Conv2D(2, 1)(x), layers.Conv2D(2, 1, activation="silu")(x)
    kinds = (layers.Add, layers.Average, layers.Maximum, layers.Minimum, layers.Multiply, layers.Subtract)
    joined = layers.Concatenate()([kind()([a, b]) for kind in kinds])
    check(Model(x, layers.Dense(2)(layers.Flatten()(joined))))


@pytest.mark.sampled(4)
@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("shape", [(5,), (6, 5)])  # one prediction a sample, or one for each of six places
@pytest.mark.parametrize("from_logits", [True, False])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_losses_of_classes(shape: tuple[int, ...], from_logits: bool, smoothing: float) -> None:
    for kind in (losses.SparseCategoricalCrossentropy, losses.CategoricalCrossentropy, losses.BinaryCrossentropy):
        last = "sigmoid" if kind is losses.BinaryCrossentropy else "softmax"
        model = Sequential([Input(shape), layers.Dense(3, None if from_logits else last)], seed=2)
        metrics = ["accuracy", "top_k_categorical_accuracy", "confusion_matrix"]
        check(model, kind(from_logits, label_smoothing=smoothing), metrics=metrics, batch=17 if len(shape) == 1 else 3)


@pytest.mark.parametrize("loss", ["mse", "mae", "huber"])
def test_losses_of_numbers(loss: str) -> None:
    check(Sequential([Input((5,)), layers.Dense(3)], seed=2), loss, metrics=["mae"])


OPTIMIZERS = [
    optimizers.SGD(0.1, clipvalue=0.01),
    optimizers.SGD(0.1, momentum=0.9, nesterov=True, clipnorm=0.1),
    optimizers.Adam(0.1, global_clipnorm=0.1),
    optimizers.AdamW(0.1, weight_decay=0.1),
    optimizers.RMSprop(0.1, momentum=0.5, centered=True),
]


@pytest.mark.no_cover
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: o.name)
def test_optimizers_with_clipping(optimizer: Optimizer) -> None:
    model = Sequential([Input((4, 2)), layers.Dense(3), layers.Flatten(), layers.Dense(3)], seed=2)
    check(model, "mse", optimizer, kinds=("train",))


def test_weights_of_samples_and_classes() -> None:
    rng = np.random.default_rng(0)
    x, y, w = rng.standard_normal((23, 4)), rng.integers(0, 3, 23), rng.random(23)
    found = []
    for backend in (strict(), "numpy"):
        model = Sequential([Input((4,)), layers.Dense(3)], backend=backend, seed=3)
        model.compile("sgd", SparseCategoricalCrossentropy(from_logits=True), ["accuracy"])
        model.fit(x, y, 8, 2, sample_weight=w, class_weight={0: 2.0, 1: 0.5, 2: 1.0}, verbose=0)
        found.append(model.get_weights())
    assert_alike(*found, terms=200)
