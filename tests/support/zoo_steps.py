"""Training steps of the networks of the zoo, at small sizes, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

from minicnn import Model, zoo
from minicnn.layers import Rescaling
from minicnn.losses import SparseCategoricalCrossentropy
from minicnn.optimizers import SGD

SIZES = {
    "mlp": 28, "lenet_3x3": 12, "two_convs": 8, "lenet5": 12, "alexnet": 63, "overfeat": 71, "vgg11": 32, "vgg16": 32,
}  # fmt: skip
BATCH, CLASSES = 8, 5
RATE = 1e-3


def model_of(name: str, backend: Any, precision: str = "float32") -> Model:
    """A network of the zoo for small images, ready to be trained."""
    size, channels = SIZES.get(name, 64), 1 if name in ("mlp", "lenet_3x3", "two_convs", "lenet5") else 3
    options = {"hidden_units": (48, 40)} if name in ("alexnet", "overfeat", "vgg11", "vgg16") else {}
    model = zoo.get_model(
        name,
        num_classes=CLASSES,
        input_shape=(size, size, channels),
        backend=backend,
        preprocessing=[Rescaling(1 / 255)],
        input_dtype="uint8",
        **options,
    )
    loss = SparseCategoricalCrossentropy(from_logits=True)
    model.compile(SGD(RATE, momentum=0.9), loss, ["accuracy"], precision=precision)
    return model


def worst_difference(model: Model, oracle: Model, steps: int) -> tuple[float, str]:
    """Train both along the oracle's path: the worst difference of a loss or of a weight's way, 1 being allowed.

    Each step starts from the oracle's state, as deep networks magnify rounding from step to step. Of the ways in
    five steps, one may differ more: where two elements of a pooling are nearly equal, rounding decides.
    """
    shape, rng, worst = oracle.input_shape[1:], np.random.default_rng(0), (0.0, "")
    oracle.train_on_batch(np.zeros((1, *shape), "uint8"), [0])  # so that there is a state
    errors: dict[str, list[float]] = {}
    for step in range(steps):
        y = rng.integers(0, CLASSES, BATCH).astype("int32")
        x = (rng.integers(0, 100, (BATCH, *shape)) + 30 * y[:, None, None, None]).astype("uint8")
        before, state = oracle.get_weights(), oracle.get_state()
        model.set_state(state)
        found, expected = (m.train_on_batch(x, y, return_dict=True)["loss"] for m in (model, oracle))
        worst = max(worst, (abs(found - expected) / (1e-3 * abs(expected) + 1e-6), f"loss of step {step}"))
        if step % max(1, steps // 20):  # a way takes longer than a step
            continue
        ways = {key: w - before[key] for key, w in oracle.get_weights().items()}
        after = model.get_weights()
        longest = max(float(np.abs(way).max()) for way in ways.values())
        for key, way in ways.items():
            # Some gradients are zero but for rounding, such as that of a bias before a batch normalisation.
            allowed = 0.05 * np.linalg.norm(way) + (1e-4 * longest + 1e-7 * np.abs(before[key]).max()) * way.size**0.5
            errors.setdefault(key, []).append(float(np.linalg.norm(after[key] - before[key] - way) / allowed))
    return max(worst, *((float(np.quantile(found, 0.8)), key) for key, found in errors.items()))
