"""Random networks, trained for five steps on a backend and by NumPy in float64, and what tells them apart.

All of a network, its data and its training follow from one seed. With `src` and `tests` on PYTHONPATH,
`python -m support.random_networks torch:cpu 0 300` trains those of seeds 0 to 299 and prints those that disagree, and
how many it has trained; a fourth argument is a number of seconds after which it begins no other.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from minicnn import Model, get_backend, layers, losses, ops, optimizers
from minicnn.distribution import DataParallel
from minicnn.layers import Input
from minicnn.tolerance import EPSILON, tolerance

Array = np.ndarray[Any, Any]
STEPS = 5
BETWEEN, RANKS = 28, 5  # seeds of the augmentation layers within networks, and of what several ranks do
ACTIVATIONS = [None, "relu", "relu6", "leaky_relu", "elu", "gelu", "silu", "sigmoid", "tanh"]
MERGING = [layers.Add, layers.Average, layers.Maximum, layers.Minimum, layers.Multiply, layers.Subtract]


class Draw:
    """Choices that follow from a seed."""

    def __init__(self, seed: int | list[int]) -> None:
        self.rng = np.random.default_rng(seed)

    def one(self, *choices: Any) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def number(self, low: int, high: int) -> int:
        """Both ends are among the results."""
        return int(self.rng.integers(low, high + 1))

    def pair(self, low: int, high: int) -> tuple[int, int]:
        return self.number(low, high), self.number(low, high)

    def share(self, low: float, high: float) -> float:
        return float(self.rng.uniform(low, high))


def _window(draw: Draw) -> dict[str, Any]:
    """Strides or dilation, which Keras does not combine, and padding."""
    windows = {"strides": draw.pair(1, 3)} if draw.one(True, False) else {"dilation_rate": draw.pair(1, 2)}
    return windows | {"padding": draw.one("valid", "same")}


def _convolution(draw: Draw, channels: int) -> layers.Layer:
    options = {"activation": draw.one(*ACTIVATIONS), "use_bias": draw.one(True, True, False), **_window(draw)}
    groups = draw.one(*(g for g in range(1, channels + 1) if channels % g == 0))
    filters = groups * draw.number(1, 4 if groups < 3 else 2)
    match draw.number(0, 5):
        case 0:
            return layers.DepthwiseConv2D(draw.pair(1, 3), depth_multiplier=draw.number(1, 2), **options)
        case 1:
            return layers.SeparableConv2D(filters, draw.pair(1, 3), depth_multiplier=draw.number(1, 2), **options)
        case 2:
            return layers.Conv2DTranspose(filters, draw.pair(1, 3), **options)
    return layers.Conv2D(filters, draw.pair(1, 4), groups=groups, **options)


def _pooling(draw: Draw) -> layers.Layer:
    kind = draw.one(layers.MaxPooling2D, layers.MaxPooling2D, layers.AveragePooling2D)
    return kind(draw.pair(1, 3), draw.one(None, draw.pair(1, 3)), draw.one("valid", "same"))


def _normalization(draw: Draw, channels: int) -> layers.Layer:
    groups = draw.one(*(g for g in range(1, channels + 1) if channels % g == 0))
    return draw.one(
        layers.BatchNormalization(momentum=0.9, center=draw.one(True, False)),
        layers.BatchNormalization(momentum=0.5),
        layers.LayerNormalization(draw.one(-1, (1, 2, 3)), scale=draw.one(True, False)),
        layers.GroupNormalization(groups),
        layers.LocalResponseNormalization(draw.number(1, 4), draw.share(0.01, 0.5)),
    )


def _other(draw: Draw) -> layers.Layer:
    return draw.one(
        layers.Activation(draw.one(*ACTIVATIONS[1:], "softmax", "log_softmax")),
        layers.ReLU(draw.one(None, 2.0), draw.share(0, 0.2), draw.share(0, 0.2)),
        layers.LeakyReLU(draw.share(0, 0.5)),
        layers.ELU(draw.share(0.5, 1.5)),
        layers.Softmax(draw.one(-1, 1)),
        layers.Dropout(draw.share(0, 0.6)),
        layers.SpatialDropout2D(draw.share(0, 0.6)),
        layers.ZeroPadding2D((draw.pair(0, 2), draw.pair(0, 2))),
        layers.Cropping2D((draw.pair(0, 1), draw.pair(0, 1))),
        layers.UpSampling2D(draw.pair(1, 2), interpolation="nearest"),
        layers.UpSampling2D(draw.number(1, 2), interpolation="bilinear"),
        layers.AdaptiveAveragePooling2D(draw.pair(1, 4)),
        layers.Permute(draw.one((1, 2, 3), (2, 1, 3), (3, 1, 2))),
        layers.Rescaling(draw.share(0.5, 2), draw.share(-1, 1)),
        layers.Normalization(mean=draw.share(-1, 1), variance=draw.share(0.5, 2)),
        layers.PReLU(shared_axes=draw.one(None, (1, 2))),
        layers.GaussianNoise(draw.share(0, 0.5)),
        layers.Identity(),
        layers.Lambda(ops.tanh),
    )


def _augmentation(draw: Draw, image: tuple[int, int]) -> layers.Layer:
    """Layers that move or change images, by random numbers or not; positions between pixels are interpolated."""
    smaller = tuple(draw.number(max(1, side - 2), side) for side in image)
    fill = draw.one("constant", "nearest", "reflect", "wrap")
    return draw.one(
        layers.RandomFlip(draw.one("horizontal", "vertical", "horizontal_and_vertical")),
        layers.RandomCrop(*smaller),
        layers.RandomTranslation(draw.share(0, 0.4), draw.share(0, 0.4), fill),
        layers.RandomRotation(draw.share(0, 0.5), fill),
        layers.RandomZoom(draw.share(0, 0.4), draw.share(0, 0.4), fill),
        layers.RandomBrightness(draw.share(0, 0.5), value_range=(-4, 4)),
        layers.RandomContrast(draw.share(0, 0.5), value_range=(-4, 4)),
        layers.Resizing(*draw.pair(2, 9)),
        layers.CenterCrop(*smaller),
    )


def _in_format(layer: layers.Layer, first: bool) -> layers.Layer:
    """The layer for the order of the axes that the network has."""
    if not first or isinstance(layer, layers.Lambda):
        return layer
    config = layer.get_config()
    if "data_format" in config:
        config["data_format"] = "channels_first"
    elif config.get("axis") == -1:
        config["axis"] = 1
    return type(layer).from_config(config)


def network(seed: int, backend: Any) -> tuple[Model, Draw]:
    """The network of a seed, not compiled, and what draws the rest."""
    draw = Draw(seed)
    first = draw.one(True, False, False)
    channels, image = draw.number(1, 4), draw.pair(4, 9)
    inputs = x = Input((channels, *image) if first else (*image, channels))
    if draw.number(0, 2) == 0:
        x = _in_format(_augmentation(draw, image), first)(x)
    between = Draw([seed, BETWEEN])  # of its own, so that the networks without such a layer stay what they were
    for _ in range(draw.number(2, 6)):
        channels = x.shape[1 if first else 3]
        if between.number(0, 9) == 0:
            x = _in_format(_augmentation(between, x.shape[2:] if first else x.shape[1:3]), first)(x)
        layer = draw.one(
            _convolution(draw, channels), _convolution(draw, channels), _pooling(draw),
            _normalization(draw, channels), _other(draw),
        )  # fmt: skip
        try:
            made = _in_format(layer, first)(x)
        except ValueError:  # the window does not fit into what is left of the image
            continue
        if np.prod(made.shape[1:]) > 1500:
            continue
        if made.shape == x.shape and draw.one(True, False):
            made = draw.one(*MERGING)()([made, x])
        elif made.shape[1:3] == x.shape[1:3] and not first and draw.one(True, False):
            made = layers.Concatenate()([made, x])
        x = made
    if draw.number(0, 3) == 0:  # what is left of the image as a sequence
        for layer in _sequence(draw, x.shape):
            x = layer(x)
        return Model(inputs, _head(draw)(x), backend=backend, seed=seed), draw
    pool = draw.one(layers.Flatten, layers.Flatten, layers.GlobalAveragePooling2D, layers.GlobalMaxPooling2D)
    x = pool("channels_first" if first else "channels_last")(x)
    if draw.one(True, False):
        x = layers.Dense(draw.number(1, 6), draw.one(*ACTIVATIONS))(x)
    return Model(inputs, _head(draw)(x), backend=backend, seed=seed), draw


def _sequence(draw: Draw, shape: tuple[int, ...]) -> list[layers.Layer]:
    """Layers of sequences for an image, the first of which makes it one."""
    length, channels = shape[1] * shape[2], shape[3]
    options: dict[str, Any] = draw.one({"strides": draw.number(1, 2)}, {"dilation_rate": draw.number(1, 2)})
    sequence: list[layers.Layer] = [layers.Reshape((length, channels))]
    sequence.append(
        layers.Conv1D(draw.number(1, 4), draw.number(1, 3), padding=draw.one("same", "causal"),
                      activation=draw.one(*ACTIVATIONS), **options)
    )  # fmt: skip
    pool = draw.one(layers.MaxPooling1D, layers.AveragePooling1D)
    sequence.append(pool(draw.number(1, 3), padding="same"))
    return [*sequence, draw.one(layers.GlobalAveragePooling1D, layers.GlobalMaxPooling1D)()]


def _head(draw: Draw) -> layers.Dense:
    """The last layer; its activation says which losses can follow."""
    return layers.Dense(draw.number(2, 4), draw.one(None, None, "softmax", "sigmoid"))


def _loss(draw: Draw, activation: Any) -> losses.Loss:
    kinds: list[Any] = [losses.MeanSquaredError(), losses.MeanAbsoluteError(), losses.Huber(draw.share(0.1, 1))]
    smoothing = draw.one(0.0, 0.1)
    if activation != "sigmoid":
        kinds += [losses.SparseCategoricalCrossentropy(activation is None, label_smoothing=smoothing)] * 2
        kinds += [losses.CategoricalCrossentropy(activation is None, smoothing)]
    if activation != "softmax":
        kinds += [losses.BinaryCrossentropy(activation is None, smoothing)]
    return draw.one(*kinds)


def _optimizer(draw: Draw) -> optimizers.Optimizer:
    # With the usual epsilon a first step of Adam is the sign of the gradient, even where that is rounding only.
    clip: dict[str, Any] = draw.one({}, {}, {"clipvalue": 0.05}, {"clipnorm": 0.1}, {"global_clipnorm": 0.3})
    decay = draw.one(None, 0.01)
    return draw.one(
        lambda: optimizers.SGD(0.05, weight_decay=decay, **clip),
        lambda: optimizers.SGD(0.05, 0.9, draw.one(True, False), **clip),
        lambda: optimizers.Adam(0.01, epsilon=1e-2, weight_decay=decay, **clip),
        lambda: optimizers.AdamW(0.01, epsilon=1e-2, **clip),
        lambda: optimizers.RMSprop(0.01, momentum=draw.one(0.0, 0.5), epsilon=1e-2, centered=draw.one(True, False)),
    )()


def train(seed: int, backend: Any, precision: str, nudge: float = 0.0, nudged: int = 0) -> tuple[dict[str, Array], int]:
    """The network of a seed after five steps: its state, the mean loss, predictions; and the terms of its longest sum.

    Args:
        seed: What all follows from.
        backend: Name of a backend.
        precision: Its precision.
        nudge: Relative standard deviation of a change of all weights and data beforehand.
        nudged: Seed of that change.
    """
    model, draw = network(seed, backend)
    head = model.layers[-1].get_config()
    loss = _loss(draw, None if head["activation"] in (None, "linear") else head["activation"])
    model.compile(_optimizer(draw), loss, precision=precision)
    batch = draw.one(1, 2, 3, 5, 7, 8, 11, 13)
    samples = (STEPS - 1) * batch + draw.one(batch, draw.number(1, batch))
    rng = draw.rng
    x = rng.standard_normal((samples, *model.input_shape[1:]))
    labels = rng.integers(0, head["units"], samples)
    y: Any = labels if isinstance(loss, losses.SparseCategoricalCrossentropy) else np.eye(head["units"])[labels]
    weight = rng.random(samples) + 0.1 if draw.one(True, False) else None
    other = np.random.default_rng([seed, nudged])
    if nudge:
        x = x * (1 + nudge * other.standard_normal(x.shape))
        model.set_weights({k: np.asarray(w) * (1 + nudge * other.standard_normal(np.shape(w)))
                           for k, w in model.get_weights().items()})  # fmt: skip
    history = model.fit(x, y, batch, 1, 0, sample_weight=weight, last_batch=draw.one("keep", "pad"))
    found = {"loss": np.asarray(history.history["loss"]), "predictions": np.asarray(model.predict(x, batch))}
    terms = max(n.cost.flops // (2 * max(n.outputs[0].size, 1)) for n in model.program(batch_size=batch).nodes)
    return found | {k: np.asarray(a) for k, a in model.get_state()["arrays"].items()}, max(terms, 1)


def on_ranks(
    seed: int, backend: Any, communicator: Any, deterministic: bool | None = None, shards: int = 0
) -> Callable[[], Model]:
    """What trains the network of a seed for some steps of as many samples each, on several ranks.

    Args:
        seed: What all follows from.
        backend: A backend.
        communicator: What connects the ranks.
        deterministic: Whether sums are those of the tree; by the seed if None.
        shards: Shards of each batch; one of each rank if 0.
    """
    (model, draw), also = network(seed, backend), Draw([seed, RANKS])
    apart = also.one((True,), (False,), (True, False))  # which batches are normalised together
    for layer in model._with_sublayers():
        if isinstance(layer, layers.BatchNormalization):
            layer.synchronized = also.one(*apart)
    head = model.layers[-1].get_config()
    loss = _loss(draw, None if head["activation"] in (None, "linear") else head["activation"])
    tree = also.one(True, False)
    about = {"communicator": communicator, "deterministic": tree if deterministic is None else deterministic}
    shards = shards or communicator.size
    distribution = DataParallel(shards, **about)
    precision, metrics = also.one("float32", "mixed_bfloat16"), also.one(None, ["accuracy"])
    model.compile(_optimizer(draw), loss, metrics, precision=precision, distribution=distribution)
    batch = shards * also.number(1, 3)
    x = draw.rng.standard_normal((STEPS * batch, *model.input_shape[1:])).astype("float32")
    labels = draw.rng.integers(0, head["units"], len(x))
    y: Any = labels if isinstance(loss, losses.SparseCategoricalCrossentropy) else np.eye(head["units"])[labels]

    def run() -> Model:
        model.fit(x, y, batch, 1, 0)
        return model

    return run


def worst(found: dict[str, Array], wanted: dict[str, Array], rtol: float) -> tuple[float, str]:
    """The largest error, in tolerances of each array's largest magnitude, and whose it is."""
    worst = 0.0, ""
    for name, b in wanted.items():
        scale = rtol * max(1.0, float(np.abs(b).max(initial=0)))
        error = float(np.abs(found[name].astype("float64") - b.astype("float64")).max(initial=0)) / scale
        worst = max(worst, (np.inf if np.isnan(error) else error, name))
    return worst


def find(name: str) -> Any:
    """A backend by its name, by "torch.compile:DEVICE", "onnx", or "emulated": cupy, whose kernels run on the host."""
    if name == "onnx":
        from support.onnx_runtime import OnnxBackend

        return OnnxBackend()
    if name == "emulated":
        from backends.cupy.emulated import EmulatedBackend

        return EmulatedBackend()
    if not name.startswith("torch.compile"):
        return get_backend(name)
    from support.torch_compile import CompiledTorchBackend

    return CompiledTorchBackend(name.partition(":")[2] or None)


def disagreement(seed: int, backend: Any) -> str:
    """What is wrong with the five steps of a network; nothing if they are those of NumPy in float64.

    A result that is further off than the tolerance may still be right: a ReLU at its kink, or a division by almost
    nothing, makes much of the last place. So what tells is how far NumPy's own result moves, in float64, when weights
    and data move by roundings.
    """
    wide = "float64" in backend.precisions and backend.name not in ("numba", "onnx")
    precision = "float64" if wide and seed % 2 == 0 else "float32"
    wanted, terms = train(seed, "numpy", "float64")
    if not all(np.isfinite(a).all() for a in wanted.values()):
        return "NumPy's own result is not finite"
    found, _ = train(seed, backend, precision)
    rtol, _ = tolerance(precision, terms * STEPS)
    error, name = worst(found, wanted, rtol)
    if error <= 1:
        return ""
    moved = [train(seed, "numpy", "float64", 4 * EPSILON[precision], i)[0] for i in range(12)]
    allowed = max(worst(m, wanted, rtol)[0] for m in moved)
    if error <= 1 + 4 * allowed:
        return ""
    return f"{precision}: {name} is off by {error:.3g} tolerances of {rtol:.2g}; roundings explain {allowed:.3g}"


def main(name: str, first: str, count: str, seconds: str = "inf") -> int:
    """Train the networks of some seeds and print which disagree."""
    backend, end = find(name), time.monotonic() + float(seconds)
    bad = done = 0
    for seed in range(int(first), int(first) + int(count)):
        if time.monotonic() > end:
            break
        try:
            wrong = disagreement(seed, backend)
        except Exception as error:
            wrong = f"{type(error).__name__}: {error}"
        if wrong:
            print(f"{name} {seed}: {wrong}", flush=True)
            bad += 1
        done += 1
    print(done)
    return min(bad, 1)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
