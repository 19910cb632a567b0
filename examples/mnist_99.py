"""More than 99 % on MNIST's test set within three epochs: three convolutions, batch normalisation, a one-cycle rate.

Run `python examples/mnist_99.py --backend torch`. The data are read from --data-dir or the folder that MINICNN_DATA
names, or downloaded.
"""

import argparse

import minicnn
from minicnn import machine

EPOCHS, BATCH_SIZE, PEAK_RATE = 3, 128, 0.01


def network(backend: str, seed: int) -> minicnn.Sequential:
    """A network of 47,770 weights."""
    from minicnn.layers import BatchNormalization, Conv2D, Dense, Flatten, Input, MaxPooling2D, ReLU, Rescaling

    def block(filters: int) -> list[minicnn.Layer]:
        return [Conv2D(filters, 3, use_bias=False), BatchNormalization(), ReLU()]

    layers = [Rescaling(1 / 255), *block(16), MaxPooling2D(), *block(32), *block(32), MaxPooling2D(), Flatten()]
    layers += [Dense(64, "relu"), Dense(10)]
    return minicnn.Sequential([Input((28, 28, 1), dtype="uint8"), *layers], backend=backend, seed=seed)


def main() -> None:
    """Train and print the test accuracy."""
    parser = argparse.ArgumentParser(description="Train to 99 % on MNIST in three epochs.")
    parser.add_argument("--backend", default="numpy", help='"numpy", "torch", "torch:cuda", "jax" ...')
    parser.add_argument("--data-dir", help="folder of the four IDX files")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    machine.prepare()  # makes NumPy faster on some machines; it must not be loaded yet
    digits = minicnn.data.load("mnist", args.data_dir)
    model = network(args.backend, args.seed)
    model.summary()
    steps = EPOCHS * (len(digits.x_train) // BATCH_SIZE)
    model.compile(
        minicnn.optimizers.Adam(minicnn.schedules.OneCycle(PEAK_RATE, steps)),
        minicnn.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model.fit(
        digits.x_train,
        digits.y_train,
        batch_size=BATCH_SIZE,
        epochs=EPOCHS,
        validation_data=(digits.x_test, digits.y_test),
        last_batch="drop",
    )
    _, accuracy = model.evaluate(digits.x_test, digits.y_test, batch_size=500)
    print(f"{model.backend}: test accuracy {accuracy:.2%} after {EPOCHS} epochs")


if __name__ == "__main__":
    main()
