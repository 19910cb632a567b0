"""An epoch of network `platforms` with each augmentation inside the model, beside one without, interleaved.

    python benchmarks/augmentation.py [--backend NAME] [--network NAME] [--batch-size N] [--images N] [--rounds N]

Milliseconds of an epoch, medians and the least, which count where other programs run, and ratios to the one without.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from minicnn import layers
from minicnn.losses import SparseCategoricalCrossentropy
from minicnn.measure import interleaved, stopwatch
from minicnn.zoo import get_model

AUGMENTATIONS: dict[str, Callable[[], list[Any]]] = {
    "none": list,
    "RandomFlip": lambda: [layers.RandomFlip("horizontal")],
    "RandomTranslation": lambda: [layers.RandomTranslation(0.1, 0.1)],
    "RandomRotation": lambda: [layers.RandomRotation(0.05)],
    "RandomZoom": lambda: [layers.RandomZoom(0.1)],
    "RandomBrightness": lambda: [layers.RandomBrightness(0.1, value_range=(0, 1))],
    "RandomContrast": lambda: [layers.RandomContrast(0.1)],
    "flip and translation": lambda: [layers.RandomFlip("horizontal"), layers.RandomTranslation(0.1, 0.1)],
}


def main() -> None:
    """Print a line for each augmentation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="numba")
    parser.add_argument("--network", default="platforms")
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--images", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", help="names of augmentations, separated by commas")
    given = parser.parse_args()
    generator = np.random.default_rng(0)
    x = generator.integers(0, 256, (given.images, 28, 28, 1), np.uint8)
    y = generator.integers(0, 10, given.images).astype(np.int32)
    names = list(AUGMENTATIONS) if given.only is None else ["none", *given.only.split(",")]
    models = {}
    for name in names:
        preprocessing = [layers.Rescaling(1 / 255), *AUGMENTATIONS[name]()]
        models[name] = get_model(
            given.network, preprocessing=preprocessing, input_dtype="uint8", backend=given.backend, seed=0
        )
        models[name].compile("sgd", SparseCategoricalCrossentropy(from_logits=True))
        models[name].fit(x, y, batch_size=given.batch_size, verbose=0)

    def epoch(model: Any) -> float:
        call = partial(model.fit, x, y, batch_size=given.batch_size, verbose=0)
        return 1e3 * stopwatch(call, model.backend.synchronize)

    times = interleaved({name: partial(epoch, model) for name, model in models.items()}, rounds=given.rounds)
    bare, least = statistics.median(times["none"]), min(times["none"])
    for name in names:
        median, quickest = statistics.median(times[name]), min(times[name])
        ratios = f"{median / bare:.3f} of the epoch without, of the least times {quickest / least:.3f}"
        print(f"{name}: {median:.3f} ms, at least {quickest:.3f}; {ratios}", flush=True)


if __name__ == "__main__":
    main()
