"""More than 99 % on MNIST's test set after one epoch: two convolutions, smoothed labels, a one-cycle rate.

Run `python examples/mnist_99.py --backend numba --runs 20`. The data are read from --data-dir or the folder that
MINICNN_DATA names, or downloaded. A first training compiles; the times of the others are those of all steps of an
epoch, from images that the backend holds to the last weights, without evaluation.
"""

import argparse
import time
from statistics import fmean, median, pstdev

import minicnn
from minicnn import machine

# Chosen by the last 10,000 training images: docs/benchmarks.md.
BATCH_SIZE, PEAK_RATE, RISE, SMOOTHING = 128, 0.01, 0.2, 0.15


def network(backend: str | None, seed: int) -> minicnn.Sequential:
    """A network of 158,730 weights; behind a pooling, ReLU has a quarter of the work."""
    from minicnn.layers import Conv2D, Dense, Flatten, Input, MaxPooling2D, ReLU, Rescaling

    layers = [Rescaling(1 / 255), Conv2D(8, 5), MaxPooling2D(), ReLU(), Conv2D(48, 3), MaxPooling2D(), ReLU()]
    layers += [Flatten(), Dense(128, "relu"), Dense(10)]
    return minicnn.Sequential([Input((28, 28, 1), dtype="uint8"), *layers], backend=backend, seed=seed)


def main() -> None:
    """Train some networks, and print the time and the test accuracy of each."""
    parser = argparse.ArgumentParser(description="Train to 99 % on MNIST in one epoch.")
    parser.add_argument("--backend", default="numpy", help='"numba", "cupy", "torch:cuda", "jax" ...')
    parser.add_argument(
        "--precision", default="float32", help='"mixed_bfloat16" or "mixed_float16", where the backend has it'
    )
    parser.add_argument("--data-dir", help="folder of the four IDX files")
    parser.add_argument("--runs", type=int, default=1, help="trainings, of which each has another seed")
    args = parser.parse_args()

    machine.prepare()  # makes NumPy faster on some machines; it must not be loaded yet
    digits = minicnn.data.load("mnist", args.data_dir)
    model = network(args.backend, 0)
    model.summary()
    rates = minicnn.schedules.OneCycle(PEAK_RATE, len(digits.x_train) // BATCH_SIZE, RISE)
    model.compile(
        minicnn.optimizers.Adam(rates, beta_1=0.7, beta_2=0.9),
        minicnn.losses.SparseCategoricalCrossentropy(from_logits=True, label_smoothing=SMOOTHING),
        metrics=["accuracy"],
        precision=args.precision,
    )
    x, y = (model.backend.asarray(array) for array in (digits.x_train, digits.y_train))

    def train(seed: int) -> float:
        """Seconds of a training that begins anew."""
        model.set_state(network(args.backend, seed).get_state())
        start = time.perf_counter()
        model.fit(x, y, batch_size=BATCH_SIZE, verbose=0, last_batch="drop", seed=seed)
        return time.perf_counter() - start

    print(f"{model.backend} in {args.precision}: the first training, which compiles, took {train(0):.2f} s")
    seconds, accuracies = [], []
    for seed in range(args.runs):
        seconds.append(train(seed))
        accuracies.append(model.evaluate(digits.x_test, digits.y_test, batch_size=1000)[1])
        print(f"seed {seed}: test accuracy {accuracies[-1]:.2%} after {seconds[-1]:.4f} s", flush=True)
    found = f"{fmean(accuracies):.3%}, deviation {pstdev(accuracies):.3%}, least {min(accuracies):.2%}"
    print(f"mean of {args.runs}: {found}; median {median(seconds):.4f} s, {min(seconds):.4f} to {max(seconds):.4f}")


if __name__ == "__main__":
    main()
