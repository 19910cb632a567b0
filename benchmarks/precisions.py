"""Test accuracy of a network by precision, over seeds, on images of CIFAR-10's shape that are made here.

    python benchmarks/precisions.py [NETWORK] [--backend NAME] [--precisions LIST] [--seeds N] [--json FILE]

Each image is one class's pattern, moved by some pixels, mixed with another's that is somewhat weaker, under noise: it
can be learned, and some images cannot be told. For each seed all precisions begin with the same weights and take the
images in the same order.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

from minicnn.layers import Rescaling
from minicnn.losses import SparseCategoricalCrossentropy
from minicnn.optimizers import SGD
from minicnn.schedules import OneCycle
from minicnn.zoo import get_model

CLASSES, SIZE, MOST = 10, 32, 4  # MOST: pixels that a pattern is moved by


def images(count: int, seed: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Images uint8 (count, 32, 32, 3), and labels; the patterns are always the same."""
    rng = np.random.default_rng(0)
    coarse = rng.uniform(0, 1, (CLASSES, 8, 8, 3))
    patterns = np.repeat(np.repeat(coarse, SIZE // 8, axis=1), SIZE // 8, axis=2)
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, count)
    others = (labels + rng.integers(1, CLASSES, count)) % CLASSES
    share = rng.uniform(0.5, 0.6, count)
    made = np.empty((count, SIZE, SIZE, 3), np.uint8)
    moves = rng.integers(-MOST, MOST + 1, (count, 2, 2))
    for i in range(count):
        own, other = (np.roll(patterns[k], moves[i, j], (0, 1)) for j, k in enumerate((labels[i], others[i])))
        mixed = share[i] * own + (1 - share[i]) * other + rng.normal(0, 0.35, (SIZE, SIZE, 3))
        made[i] = np.clip(mixed * 160 + 48, 0, 255)
    return made, labels.astype(np.int32)


def main() -> None:
    """Print a line for each training, then means and differences."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", nargs="?", default="resnet18")
    parser.add_argument("--backend", default="cupy")
    parser.add_argument("--precisions", default="float32,mixed_bfloat16,mixed_float16")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--samples", type=int, default=20_480)
    parser.add_argument("--tests", type=int, default=40_960)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--rate", type=float, default=0.1, help="peak of the one-cycle rate")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    given = parser.parse_args()
    x, y = images(given.samples, 1)
    x_test, y_test = images(given.tests, 2)
    steps = given.epochs * (given.samples // given.batch_size)
    found: dict[str, list[float]] = {precision: [] for precision in given.precisions.split(",")}
    for seed in range(given.seeds):
        for precision, accuracies in found.items():
            model = get_model(
                given.network, num_classes=CLASSES, input_shape=(SIZE, SIZE, 3), backend=given.backend, seed=seed,
                preprocessing=[Rescaling(1 / 127.5, -1.0)], input_dtype="uint8",
            )  # fmt: skip
            rates = OneCycle(given.rate, steps)
            loss = SparseCategoricalCrossentropy(from_logits=True)
            model.compile(SGD(rates, momentum=0.9), loss, ["accuracy"], precision=precision)
            start = time.perf_counter()
            model.fit(x, y, batch_size=given.batch_size, epochs=given.epochs, last_batch="drop", verbose=0)
            taken = time.perf_counter() - start
            accuracies.append(100 * model.evaluate(x_test, y_test, batch_size=1024, verbose=0)[1])
            print(f"seed {seed}, {precision}: {accuracies[-1]:.2f} % after {taken:.1f} s", flush=True)
            if given.json:
                given.json.write_text(json.dumps(found, indent=1) + "\n")
    first = next(iter(found))
    for precision, accuracies in found.items():
        differences = [a - b for a, b in zip(accuracies, found[first], strict=True)]
        print(
            f"{precision}: mean {statistics.fmean(accuracies):.2f} %, from {min(accuracies):.2f} to "
            f"{max(accuracies):.2f}; {statistics.fmean(differences):+.2f} points beside {first}"
        )


if __name__ == "__main__":
    main()
