"""Learn on Fashion-MNIST, then use what was learnt on a few digits of MNIST: features, a new head, fine-tuning.

Run `python examples/transfer_learning.py --backend numba`. The data are read from --data-dir or the folder that
MINICNN_DATA names, or downloaded.
"""

import argparse

from minicnn import Model, Sequential, data, layers, machine, models
from minicnn.losses import SparseCategoricalCrossentropy
from minicnn.optimizers import Adam


def network(backend: str) -> Sequential:
    """A small convolutional network; all but its last layer is what will be used again."""
    return Sequential(
        [
            layers.Input((28, 28, 1), dtype="uint8"),
            layers.Rescaling(1 / 255),
            layers.Conv2D(8, 3, activation="relu"),
            layers.BatchNormalization(),
            layers.MaxPooling2D(),
            layers.Conv2D(16, 3, activation="relu"),
            layers.BatchNormalization(),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(10, name="clothes"),
        ],
        backend=backend,
    )


def train(model: Model, images: data.Dataset, rate: float, epochs: int, samples: int) -> float:
    """Train on the first samples, and return the accuracy on the test set."""
    model.compile(Adam(rate), SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    model.fit(images.x_train[:samples], images.y_train[:samples], batch_size=32, epochs=epochs, verbose=2)
    _, accuracy = model.evaluate(images.x_test, images.y_test, batch_size=500)
    return float(accuracy)


def main() -> None:
    """Train on clothes, on digits, and on digits with what clothes have taught."""
    parser = argparse.ArgumentParser(description="Transfer learning from Fashion-MNIST to MNIST.")
    parser.add_argument("--backend", default="numpy", help='"numpy", "numba", "torch", "torch:cuda", "jax" ...')
    parser.add_argument("--data-dir", help="folder that has mnist and fashion_mnist, each with four IDX files")
    parser.add_argument("--clothes", type=int, default=6_000, help="labelled images of clothes")
    parser.add_argument("--digits", type=int, default=200, help="labelled digits")
    parser.add_argument("--epochs", type=int, default=15, help="epochs on the digits")
    args = parser.parse_args()

    machine.prepare()  # makes NumPy faster on some machines
    clothes, digits = (data.load(name, args.data_dir) for name in ("fashion_mnist", "mnist"))

    base = network(args.backend)
    scratch = models.clone_model(base)  # the same first weights
    scratch.pop()
    scratch.add(layers.Dense(10, name="digits"))

    print("Clothes")
    train(base, clothes, 1e-3, 3, args.clothes)

    print("Digits, from first weights")
    alone = train(scratch, digits, 1e-3, args.epochs, args.digits)

    print("Digits, a new head on frozen features")
    base.pop()
    base.trainable = False
    model = Sequential([base, layers.Dense(10, name="digits")], backend=args.backend)
    head = train(model, digits, 1e-3, args.epochs, args.digits)
    model.summary()

    print("Digits, all of it at a low rate")
    base.trainable = True
    tuned = train(model, digits, 1e-4, args.epochs, args.digits)

    print(f"{args.digits} digits, {model.backend}: test accuracy {alone:.2%} from first weights, {head:.2%} with a new ")
    print(f"head on features learnt from clothes, {tuned:.2%} after fine-tuning")


if __name__ == "__main__":
    main()
