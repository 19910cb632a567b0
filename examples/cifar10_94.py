"""CIFAR-10 in seconds on a GPU: network and training of airbench94 (arXiv:2404.00498), flips and crops included.

The first layer whitens patches and is not trained. Run `python examples/cifar10_94.py --backend cupy --precision
mixed_bfloat16 --runs 5`. The data are read from --data-dir or the folder that MINICNN_DATA names; without them, made
images show how long the training takes, and nothing else. Of the original, the averaging of weights is left out.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import minicnn
from minicnn import Layer, layers, machine
from minicnn.data import DataError
from minicnn.regularizers import L2

WIDTHS, EDGE = (64, 256, 256), 2  # filters of each block; pixels that are added on each side, by which crops move
RATE, MOMENTUM, DECAY, SMOOTHING = 1.5, 0.85, 6.65e-4, 0.2
MEAN, DEVIATION = (125.3, 123.0, 113.9), (63.0, 62.1, 66.7)  # of CIFAR-10's red, green and blue


@dataclass(frozen=True)
class Triangle(minicnn.schedules.Schedule):
    """The rate rises from a fifth of its peak, reached after 23 % of the steps, and falls to 7 % of it."""

    peak: float
    steps: int

    def __call__(self, step: int) -> float:
        """Rate of a step."""
        return self.peak * float(np.interp(step / self.steps, [0, 0.23, 1], [0.2, 1, 0.07]))


class Shift(Layer):
    """inputs + 8 * bias: biases that move 64 times as fast as other weights."""

    def build(self, input_shape: Any) -> None:
        """Declare a bias for each channel."""
        self.bias = self.add_weight("bias", (input_shape[-1],), "zeros")

    def call(self, inputs: Any) -> Any:
        """Add it."""
        return inputs + 8.0 * self.bias


def block(filters: int) -> list[Layer]:
    """Two convolutions; the first has max-pooling behind it."""

    def convolution(*pooling: Layer) -> list[Layer]:
        made = layers.Conv2D(filters, 3, padding="same", use_bias=False, kernel_regularizer=L2(DECAY))
        normalised = layers.BatchNormalization(momentum=0.6, epsilon=1e-12, center=False, scale=False)
        return [made, *pooling, normalised, Shift(), layers.Activation("gelu")]

    return [*convolution(layers.MaxPooling2D(2)), *convolution()]


def whitening(images: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Filters (2, 2, 3, 24) that make the numbers of a patch uncorrelated, and the same with the other sign."""
    x = (images.astype("float32") - MEAN) / DEVIATION
    patches = np.lib.stride_tricks.sliding_window_view(x, (2, 2), axis=(1, 2))  # (N, H, W, C, 2, 2)
    rows = patches.transpose(0, 1, 2, 4, 5, 3).reshape(-1, 12)
    values, vectors = np.linalg.eigh(rows.T @ rows / len(rows))
    filters = (vectors / np.sqrt(values + 5e-4)).reshape(2, 2, 3, 12)
    return np.concatenate([filters, -filters], axis=-1).astype("float32")


def network(
    images: np.ndarray[Any, Any], backend: str | None, seed: int, widths: Sequence[int] = WIDTHS
) -> minicnn.Sequential:
    """The network for images (N, H, W, 3) whose edges were added, its filters as airbench94 begins with them."""
    size = images.shape[1] - 2 * EDGE
    augmented = [layers.RandomCrop(size, size), layers.RandomFlip("horizontal")]
    first = layers.Conv2D(24, 2, use_bias=False, trainable=False, name="whitening")
    body = [layer for filters in widths for layer in block(filters)]
    last = (size - 1) // 2 // 2 // 2
    model = minicnn.Sequential(
        [
            layers.Input(images.shape[1:], dtype="uint8"),
            *augmented,
            layers.Normalization(mean=MEAN, variance=np.square(DEVIATION)),
            first,
            Shift(),
            layers.Activation("gelu"),
            *body,
            layers.MaxPooling2D(last),
            layers.Flatten(),
            layers.Dense(10, use_bias=False, kernel_regularizer=L2(DECAY)),
            layers.Rescaling(1 / 9),
        ],
        backend=backend,
        seed=seed,
    )
    rng, weights = np.random.default_rng(seed), model.get_weights()
    for path, kernel in weights.items():
        if kernel.ndim == 4 and "whitening" not in path:  # the first filters pass a channel on as it is
            channels, filters = kernel.shape[2:]
            bound, own = (9 * channels) ** -0.5, min(channels, filters)
            kernel = rng.uniform(-bound, bound, kernel.shape).astype("float32")
            kernel[..., :own] = 0
            kernel[1, 1, range(own), range(own)] = 1
            weights[path] = kernel
    weights["whitening/kernel"] = whitening(images[:5000])
    model.set_weights(weights)
    return model


def padded(images: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Images with mirrored pixels around them."""
    return np.pad(images, ((0, 0), (EDGE, EDGE), (EDGE, EDGE), (0, 0)), mode="reflect")


def accuracy(model: minicnn.Sequential, images: np.ndarray[Any, Any], labels: np.ndarray[Any, Any]) -> float:
    """Share of images that are classified rightly, by all of an image, its mirror image and both a pixel moved."""
    logits = 0.0
    for move, weight in ((0, 2.0), (-1, 1.0), (1, 1.0)):
        moved = np.roll(images, (move, move), axis=(1, 2))  # what comes around is cut off
        for view in (moved, moved[:, :, ::-1]):
            logits = logits + weight * np.asarray(model.predict(np.ascontiguousarray(view), batch_size=1000))
    return float(np.mean(np.argmax(logits, axis=1) == labels))


def made_images(count: int, size: int = 32) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Noise over one of ten patterns, and which."""
    rng = np.random.default_rng(0)
    patterns = np.repeat(np.repeat(rng.integers(0, 200, (10, size // 8, size // 8, 3)), 8, axis=1), 8, axis=2)
    labels = rng.integers(0, 10, count).astype("int32")
    return (patterns[labels] + rng.integers(0, 56, (count, size, size, 3))).astype("uint8"), labels


def main() -> None:
    """Train some networks, and print the time and the test accuracy of each."""
    parser = argparse.ArgumentParser(description="CIFAR-10 by the training of airbench94.")
    parser.add_argument("--backend", default="numpy", help='"cupy", "torch:cuda", "jax", "numba" ...')
    parser.add_argument("--precision", default="float32", help='"mixed_bfloat16" or "mixed_float16" on a GPU')
    parser.add_argument("--data-dir", help="folder of CIFAR-10")
    parser.add_argument("--runs", type=int, default=1, help="networks, of which each has another seed")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--widths", type=int, nargs=3, default=WIDTHS, help="filters of the three blocks")
    parser.add_argument("--made", type=int, metavar="N", help="train on so many made images, not on CIFAR-10")
    args = parser.parse_args()

    machine.prepare()  # memory that a step frees is kept for the next one
    read = None
    try:
        read = None if args.made else minicnn.data.load("cifar10", args.data_dir, download=False)
    except DataError as missing:
        print(missing)
    if read is None:
        print("These are made images: the time is that of CIFAR-10, the accuracy says nothing.")
        count = args.made or 50_000
        images, labels = made_images(count + count // 5)
        train, test = (images[:count], labels[:count]), (images[count:], labels[count:])
    else:
        train, test = (read.x_train, read.y_train), (read.x_test, read.y_test)
    what = f"{'test ' if read else ''}accuracy{'' if read else ' on made images'}"
    x, y = padded(train[0]), np.asarray(train[1])
    steps, found, seconds = args.epochs * (len(y) // args.batch_size), [], []
    for seed in range(args.runs):
        model = network(x, args.backend, seed, args.widths)
        model.compile(
            minicnn.optimizers.SGD(Triangle(RATE, steps), momentum=MOMENTUM, nesterov=True),
            minicnn.losses.SparseCategoricalCrossentropy(from_logits=True, label_smoothing=SMOOTHING),
            precision=args.precision,
        )
        start = time.perf_counter()
        model.fit(x, y, batch_size=args.batch_size, epochs=args.epochs, last_batch="drop", verbose=0)
        seconds.append(time.perf_counter() - start)
        found.append(accuracy(model, padded(test[0]), np.asarray(test[1])))
        print(f"{model.backend}, seed {seed}: {what} {found[-1]:.2%}, {args.epochs} epochs in {seconds[-1]:.2f} s")
    print(f"mean of {args.runs}: {what} {np.mean(found):.2%}, median {np.median(seconds):.2f} s (the first compiles)")


if __name__ == "__main__":
    main()
