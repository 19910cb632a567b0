"""The networks that are timed beside peers and from commit to commit: one table, with the settings of a timed training.

A case of a network of the zoo names it; the others, variations of the studies' networks, have layers of their own, from
which minicnn's, PyTorch's and plain JAX's network are made alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from minicnn import zoo
from minicnn.backends.base import Backend
from minicnn.jobs.job import Samples
from minicnn.jobs.settings import DEFAULT, RECIPES, Settings
from minicnn.layers import Conv2D, Dense, Flatten, Input, Layer, MaxPooling2D, Rescaling
from minicnn.models import Model


@dataclass(frozen=True)
class ConvUnit:
    """A convolution without padding, with bias and ReLU, and a max-pooling after it if there is one.

    Attributes:
        filters: Number of filters.
        kernel: Height and width of the kernel.
        stride: Stride in both directions.
        pool: Height, width and stride of the pooling; 0 for none.
    """

    filters: int
    kernel: int = 3
    stride: int = 1
    pool: int = 0


@dataclass(frozen=True)
class TrainingCase:
    """A network and how it is trained.

    Attributes:
        convolutions: Of the studies' networks and their variations.
        hidden: Units of the hidden dense layers after these.
        image: (H, W, C).
        batch: Samples of a step.
        steps: Steps of an epoch.
        classes: Number of classes.
        rate: Learning rate.
        momentum: Momentum.
        options: Of the zoo's network.
    """

    convolutions: tuple[ConvUnit, ...] = ()
    hidden: tuple[int, ...] = ()
    image: tuple[int, int, int] = (28, 28, 1)
    batch: int = 512
    steps: int = 118
    classes: int = 10
    rate: float = DEFAULT.learning_rate
    momentum: float = DEFAULT.momentum
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def deep(self) -> bool:
        """True if it is one of the zoo's networks that has no layers here."""
        return not self.convolutions and not self.hidden

    def settings(self, name: str, **options: Any) -> Settings:
        """The settings of a training, on data that are given in another way."""
        defaults = {
            "data": "random", "data_dir": None, "epochs": 1, "batch_size": self.batch, "learning_rate": self.rate,
            "momentum": self.momentum, "precision": "float32", "seed": 0, "samples": None, "hold_out": 0,
        }  # fmt: skip
        return replace(Settings.resolve(name, **{**defaults, **options}), last_batch="drop")

    def samples(self, count: int) -> Samples:
        """Random images uint8 (N, H, W, C) and labels (N,), which take the same time as real ones; all for testing."""
        generator = np.random.default_rng(0)
        x = generator.integers(0, 256, (count, *self.image), np.uint8)
        return as_samples(x, generator.integers(0, self.classes, count).astype(np.int32), self.classes)


def as_samples(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any], classes: int) -> Samples:
    """Samples whose training images are those for testing, too."""
    return Samples(
        {f"{axis}_{part}": a for part in ("train", "val", "test") for axis, a in (("x", x), ("y", y))}, classes
    )


def _like(network: str, **options: Any) -> TrainingCase:
    recipe = RECIPES[network]
    return TrainingCase(**{"rate": recipe.learning_rate, "momentum": recipe.momentum, **options})


# A small rate: with a large one a deep network magnifies rounding within two steps.
_DEEP = TrainingCase(image=(64, 64, 3), batch=128, steps=1, classes=200, rate=1e-4)
_UNDROPPED = replace(_DEEP, options={"dropout": 0.0})
_SMALL, _WIDE = (
    (ConvUnit(8, pool=2), ConvUnit(16, pool=2)),
    (ConvUnit(12, pool=2), ConvUnit(24, pool=2)),
)
_PAIR = (ConvUnit(16), ConvUnit(32, pool=2))
_UNPOOLED = (ConvUnit(32), ConvUnit(64), ConvUnit(64))
_WIDER = (ConvUnit(32, 5, pool=2), ConvUnit(64, 5, pool=2))
CASES = {
    "mlp": _like("mlp", hidden=(10,), batch=59_000, steps=1),
    "platforms": _like("platforms", convolutions=_SMALL, hidden=(128,)),
    "kernels": _like("kernels", convolutions=_PAIR, batch=64, steps=938),
    "channels12": _like("platforms", convolutions=_WIDE, hidden=(128,)),
    "kernel5": _like("platforms", convolutions=tuple(replace(c, kernel=5) for c in _SMALL), hidden=(128,)),
    "stride2": _like("platforms", convolutions=(ConvUnit(16, stride=2), ConvUnit(32, stride=2)), hidden=(128,)),
    "batch96": _like("platforms", convolutions=_SMALL, hidden=(128,), batch=96, steps=625),
    "batch1000": _like("platforms", convolutions=_SMALL, hidden=(128,), batch=1000, steps=60),
    "rgb32": _like("kernels", convolutions=_PAIR, image=(32, 32, 3), batch=64, steps=781),
    # Several convolutions without pooling, wide kernels, wide dense layers.
    "unpooled16": _like("kernels", convolutions=(ConvUnit(16),) * 3, batch=96, steps=40),
    "unpooled32": _like("kernels", convolutions=(ConvUnit(32),) * 3, batch=96, steps=40),
    "unpooled64": _like("kernels", convolutions=_UNPOOLED, image=(24, 24, 3), batch=96, steps=10),
    "kernel5_32": _like("kernels", convolutions=(ConvUnit(32, 5),) * 2, image=(24, 24, 3), batch=96, steps=20),
    "kernel5_64": _like("kernels", convolutions=_WIDER, image=(32, 32, 3), batch=96, steps=20),
    "dense300": _like("mlp", hidden=(300, 300), batch=96, steps=40),
    "dense1024": _like("mlp", hidden=(1024, 1024), batch=96, steps=40),
    # What the performance history calls kernel5, stride2 and single.
    "channels12_kernel5": _like(
        "platforms", convolutions=tuple(replace(c, kernel=5) for c in _WIDE), hidden=(128,)
    ),
    "channels12_stride2": _like(
        "platforms", convolutions=tuple(replace(c, stride=2, pool=0) for c in _WIDE), hidden=(128,), image=(32, 32, 3),
        batch=96, steps=625,
    ),
    "channels12_single": _like("platforms", convolutions=_WIDE, hidden=(128,), batch=1, steps=100),
    "resnet18": _DEEP,
    "resnet50": _DEEP,
    "mobilenet_v2": _UNDROPPED,
    "squeezenet1_1": replace(_UNDROPPED, batch=64),
    "vgg11": _UNDROPPED,
    "alexnet": replace(_UNDROPPED, image=(224, 224, 3), batch=16),
    "overfeat": replace(_UNDROPPED, image=(231, 231, 3), batch=16),
}  # fmt: skip


def get_model(
    name: str, *, num_classes: int, input_shape: Sequence[int], backend: str | Backend | None = None, seed: int = 0,
    preprocessing: Sequence[Layer] = (), input_dtype: str = "float32", **options: Any,
) -> Model:  # fmt: skip
    """The network of a case, or of the zoo, in minicnn: see `minicnn.zoo.get_model`."""
    if name not in CASES or CASES[name].deep or name in RECIPES:
        return zoo.get_model(
            name, num_classes=num_classes, input_shape=input_shape, backend=backend, seed=seed,
            preprocessing=preprocessing, input_dtype=input_dtype, **options,
        )  # fmt: skip
    case = CASES[name]
    inputs = x = Input(input_shape, dtype=input_dtype)
    for layer in preprocessing:
        x = layer(x)
    for one in case.convolutions:
        x = Conv2D(one.filters, one.kernel, strides=one.stride, activation="relu")(x)
        x = MaxPooling2D(one.pool)(x) if one.pool else x
    x = Flatten()(x)
    for units in case.hidden:
        x = Dense(units, "relu")(x)
    return Model(inputs, Dense(num_classes)(x), backend=backend, seed=seed, name=name)


def network(name: str, case: TrainingCase | None = None, backend: str | Backend | None = None) -> Model:
    """The network of a case for its uint8 images, not compiled.

    Args:
        name: Name of the network.
        case: Its case; that of its name if None.
        backend: See `Model`.
    """
    case = case or CASES[name]
    return get_model(
        name, num_classes=case.classes, input_shape=case.image, backend=backend, preprocessing=[Rescaling(1 / 255)],
        input_dtype="uint8", **case.options,
    )  # fmt: skip
