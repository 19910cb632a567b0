"""Learn on Fashion-MNIST, then use what was learnt on a few digits of MNIST: features, a new head, fine-tuning.

Run `python examples/transfer_learning.py --backend numba`. The data are read from --data-dir or the folder that
MINICNN_DATA names, or downloaded.
"""

import argparse

from minicnn import Model, Sequential, data, layers, machine, models
from minicnn.losses import SparseCategoricalCrossentropy
from minicnn.optimizers import Adam


def head(name: str) -> list[layers.Layer]:
    """What is of one task only: a hidden layer and ten classes."""
    return [layers.Dense(64, activation="relu", name=f"{name}_hidden"), layers.Dense(10, name=name)]


def network(backend: str) -> Sequential:
    """A small convolutional network; all but its head is what will be used again."""
    return Sequential(
        [
            layers.Input((28, 28, 1), dtype="uint8"),
            layers.Rescaling(1 / 255),
            layers.Conv2D(8, 3, activation="relu"),
            layers.BatchNormalization(momentum=0.9),
            layers.MaxPooling2D(),
            layers.Conv2D(16, 3, activation="relu"),
            layers.BatchNormalization(momentum=0.9),
            layers.MaxPooling2D(),
            layers.Conv2D(32, 3, activation="relu"),
            layers.BatchNormalization(momentum=0.9),
            layers.Flatten(),
            *head("clothes"),
        ],
        backend=backend,
    )


def train(model: Model, images: data.Dataset, rate: float, epochs: int, samples: int) -> float:
    """Train on the first samples, and return the accuracy on the test set."""
    model.compile(Adam(rate), SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    model.fit(images.x_train[:samples], images.y_train[:samples], batch_size=16, epochs=epochs, verbose=2)
    _, accuracy = model.evaluate(images.x_test, images.y_test, batch_size=500)
    return float(accuracy)


def main() -> None:
    """Train on clothes, on digits, and on digits with what clothes have taught."""
    parser = argparse.ArgumentParser(description="Transfer learning from Fashion-MNIST to MNIST.")
    parser.add_argument("--backend", default="numpy", help='"numpy", "numba", "torch", "torch:cuda", "jax" ...')
    parser.add_argument("--data-dir", help="folder that has mnist and fashion_mnist, each with four IDX files")
    parser.add_argument("--clothes", type=int, default=10_000, help="labelled images of clothes")
    parser.add_argument("--digits", type=int, default=50, help="labelled digits")
    parser.add_argument("--epochs", type=int, default=30, help="epochs on the digits")
    args = parser.parse_args()

    machine.prepare()  # memory that a step frees is kept for the next one
    clothes, digits = (data.load(name, args.data_dir) for name in ("fashion_mnist", "mnist"))

    base = network(args.backend)
    scratch = models.clone_model(base)  # the same first weights
    print("Clothes")
    train(base, clothes, 1e-3, 3, args.clothes)
    for model in (base, scratch):
        for _ in head("clothes"):
            model.pop()

    print("Digits, from first weights")
    for layer in head("digits"):
        scratch.add(layer)
    alone = train(scratch, digits, 1e-3, args.epochs, args.digits)

    print("Digits, a new head on frozen features")
    base.trainable = False
    model = Sequential([base, *head("digits")], backend=args.backend)
    before = train(model, digits, 3e-3, args.epochs * 2 // 3, args.digits)
    model.summary()

    print("Digits, all of it")
    base.trainable = True
    tuned = train(model, digits, 1e-3, args.epochs // 3, args.digits)  # which compiles again

    print(f"{args.digits} digits on {model.backend}: test accuracy {alone:.2%} from first weights,")
    print(f"{before:.2%} with a new head on what clothes have taught, {tuned:.2%} when all of it is tuned.")


if __name__ == "__main__":
    main()
