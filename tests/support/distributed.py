"""Small trainings that are the same on any number of ranks, and what is left of them to compare."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np

from minicnn import Model, Sequential
from minicnn import layers as nn
from minicnn.backends.numpy import NumpyBackend
from minicnn.data import Loader, augment
from minicnn.distribution import DataParallel
from minicnn.losses import SparseCategoricalCrossentropy
from minicnn.optimizers import SGD, Adam
from support.ranks import ThreadRanks

SHAPE, CLASSES = (8, 8, 3), 5
SHARDS = 8
SAMPLES = 50  # in batches of 12 the last has 2, fewer than there are shards


class HalfBackend(NumpyBackend):
    """NumPy with products in float16, which it has no need of outside tests."""

    precisions = (*NumpyBackend.precisions, "mixed_float16")


def data() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    return rng.standard_normal((SAMPLES, *SHAPE)).astype("float32"), rng.integers(0, CLASSES, SAMPLES)


def chain(layers: list[Any], optimizer: Any, backend: str, distribution: Any, seed: int = 0, **extra: Any) -> Model:
    """A compiled model of layers one after the other."""
    model = Sequential([nn.Input(SHAPE), *layers], backend=backend, seed=seed)
    model.compile(optimizer, metrics=["accuracy"], distribution=distribution, **extra)
    return model


def plain(backend: str, distribution: Any, **extra: Any) -> Model:
    """A convolution, with momentum and each gradient clipped."""
    layers = [nn.Conv2D(4, 3), nn.ReLU(), nn.MaxPooling2D(), nn.Flatten(), nn.Dense(CLASSES, activation="softmax")]
    return chain(layers, SGD(0.05, momentum=0.9, clipnorm=0.5), backend, distribution, **extra)


def normalized(backend: str, distribution: Any, **extra: Any) -> Model:
    """Batch normalisation, dropouts, Adam, all gradients clipped together."""
    layers = [
        nn.Conv2D(4, 3, use_bias=False), nn.BatchNormalization(), nn.ReLU(), nn.SpatialDropout2D(0.2),
        nn.Conv2D(4, 3, padding="same", use_bias=False),
        nn.BatchNormalization(scale=False), nn.ReLU(), nn.Flatten(), nn.Dropout(0.3),
        nn.Dense(CLASSES, activation="softmax"),
    ]  # fmt: skip
    return chain(layers, Adam(0.01, global_clipnorm=0.5), backend, distribution, **extra)


def by_shard(backend: str, distribution: Any, **extra: Any) -> Model:
    """Each shard normalised by itself, beside a normalisation of the batch as one."""
    layers = [
        nn.Conv2D(4, 3), nn.BatchNormalization(synchronized=False), nn.ReLU(), nn.Conv2D(4, 3),
        nn.BatchNormalization(), nn.Flatten(), nn.Dense(CLASSES, activation="softmax"),
    ]  # fmt: skip
    return chain(layers, SGD(0.05, momentum=0.9), backend, distribution, **extra)


def branched(backend: str, distribution: Any, **extra: Any) -> Model:
    """Two outputs with losses of their own."""
    x = nn.Input(SHAPE)
    first = nn.Conv2D(4, 3, padding="same", activation="relu")(x)
    h = nn.Add()([first, nn.Conv2D(4, 1)(first)])
    outputs = [
        nn.Dense(CLASSES, activation="softmax")(nn.Flatten()(h)),
        nn.Dense(1)(nn.Flatten()(nn.MaxPooling2D()(h))),
    ]
    model = Model(x, outputs, backend=backend)
    model.compile(
        SGD(0.02, clipvalue=0.1), ["sparse_categorical_crossentropy", "mse"], [["accuracy"], []],
        loss_weights=[1.0, 0.1], distribution=distribution, **extra,
    )  # fmt: skip
    return model


def dense(backend: str, distribution: Any, **extra: Any) -> Model:
    """One layer, which is soon compiled."""
    layers = [nn.Flatten(), nn.Dropout(0.3), nn.Dense(CLASSES, activation="softmax")]
    return chain(layers, SGD(0.05, momentum=0.9), backend, distribution, **extra)


def single(backend: str, distribution: Any, **extra: Any) -> Model:
    """One convolution with batch normalisation, whose images are stored in 16 bits."""
    layers = [nn.Conv2D(8, 3, use_bias=False), nn.BatchNormalization(), nn.ReLU(), nn.Flatten(), nn.Dense(CLASSES)]
    return chain(
        layers, SGD(0.05, momentum=0.9), backend, distribution, loss=SparseCategoricalCrossentropy(from_logits=True),
        precision="mixed_bfloat16", **extra,
    )  # fmt: skip


def unsynchronized(backend: str, distribution: Any, **extra: Any) -> Model:
    """Each shard normalised by itself, and nothing else between its images."""
    layers = [
        nn.Conv2D(8, 3, use_bias=False), nn.BatchNormalization(synchronized=False), nn.ReLU(), nn.Flatten(),
        nn.Dense(CLASSES, activation="softmax"),
    ]  # fmt: skip
    return chain(layers, SGD(0.05, momentum=0.9), backend, distribution, **extra)


def layered(backend: str, distribution: Any, **extra: Any) -> Model:
    """Samples normalised by themselves."""
    layers = [nn.LayerNormalization(), nn.GroupNormalization(3), nn.Flatten(), nn.Dense(CLASSES, activation="softmax")]
    return chain(layers, SGD(0.05, momentum=0.9), backend, distribution, **extra)


STAGES = ["conv2d_1", "flatten", "dense"]


def split(backend: str, distribution: Any, **extra: Any) -> Model:
    """Two convolutions and a dense layer, with batch normalisation, dropout and all gradients clipped together."""
    layers = [
        nn.Conv2D(4, 3), nn.BatchNormalization(), nn.ReLU(), nn.Conv2D(4, 3), nn.Flatten(), nn.Dropout(0.3),
        nn.Dense(8, activation="softmax"),
    ]  # fmt: skip
    return chain(layers, Adam(0.01, global_clipnorm=0.5), backend, distribution, **extra)


def deep(
    first: dict[str, Any], distribution: Any, backend: str = "numpy", optimizer: Any = None, **extra: Any
) -> Model:
    """Two convolutions, of which the first has these arguments, batch normalisation, dropout, and dense layers."""
    layers = [
        nn.Conv2D(4, 3, **first), nn.BatchNormalization(), nn.ReLU(), nn.Conv2D(8, 3, use_bias=False),
        nn.Flatten(), nn.Dropout(0.3), nn.Dense(8, activation="relu"), nn.Dense(CLASSES, activation="softmax"),
    ]  # fmt: skip
    optimizer = Adam(0.01, global_clipnorm=0.5) if optimizer is None else optimizer
    return chain(layers, optimizer, backend, distribution, seed=1, **extra)


_MODELS = (dense, plain, normalized, branched, by_shard, layered)
MODELS: dict[str, Callable[..., Model]] = {f.__name__: f for f in _MODELS}


def trained_by(name: str) -> Callable[..., Model]:
    """The model of a name, among those for a certain distribution, too."""
    others = {
        "split": split, "hybrid": split, "staged": split, "fast": dense, "loaded": dense, "mixed": normalized,
        "single": single, "unsynchronized": unsynchronized,
    }  # fmt: skip
    return others.get(name) or MODELS[name]


def targets(name: str, y: np.ndarray[Any, Any]) -> Any:
    return [y, y.astype("float32")] if name == "branched" else y


def trained(name: str, backend: str, distribution: DataParallel | None, epochs: int = 1, **extra: Any) -> list[Any]:
    """The hash of all weights, the logs of the last epoch, and those of an evaluation."""
    x, y = (a[:48] if name == "single" else a for a in data())  # whose batches are all of one size, which compile once
    if name == "mixed":
        extra["precision"] = "mixed_float16" if backend == "numpy" else "mixed_bfloat16"
    model = trained_by(name)(HalfBackend() if (name, backend) == ("mixed", "numpy") else backend, distribution, **extra)
    weight = np.linspace(0.5, 1.5, SAMPLES).astype("float32") if name == "plain" else None
    size = 15 if name in ("split", "hybrid") else 12  # it needs as many samples as shards in each batch
    if name == "loaded":  # each rank its part, if it can
        shift = augment.random_shift(1)
        given = {"x": Loader(x, y, batch_size=16, transform=shift), "validation_data": Loader(x, y, batch_size=20)}
        logs = model.fit(**given, epochs=epochs, verbose=0).history
    else:
        logs = model.fit(x, targets(name, y), size, epochs, verbose=0, sample_weight=weight).history
    found = model.evaluate(x, targets(name, y), 20, return_dict=True)
    return [digest(model), {k: v[-1] for k, v in logs.items()}, found]


def left_by(size: int, model: Model, epochs: int = 1, **about: Any) -> list[Any]:
    """The hash of all weights after a training in batches, the logs, an evaluation and predictions."""
    x, y = data()
    logs = model.fit(x, y, size, epochs, verbose=0, **about).history
    found = model.evaluate(x, y, size, return_dict=True)
    return [digest(model), logs, found, model.predict(x[:3]).tobytes()]


def on_ranks(count: int, work: Callable[[DataParallel], Any]) -> list[Any]:
    """What `work` gives on each of several ranks, which are threads."""
    return ThreadRanks(count).run(lambda c: work(DataParallel(SHARDS, communicator=c)))


def digest(model: Model) -> str:
    return hashlib.sha256(b"".join(a.tobytes() for a in model.get_weights().values())).hexdigest()[:16]
