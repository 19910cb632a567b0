"""Train a network of the studies on MNIST.

Run `python examples/mnist.py --backend torch --network kernels`. The data are read from --data-dir or the folder that
MINICNN_DATA names, or downloaded.
"""

import argparse

import minicnn
from minicnn import machine

# As the studies train them: batch size (0 for the whole training set), learning rate, momentum, epochs.
STUDIES = {"platforms": (512, 0.01, 0.9, 10), "kernels": (64, 0.01, 0.0, 5), "mlp": (0, 0.1, 0.0, 500)}


def main(dataset: str = "mnist") -> None:
    """Train as the command line says and print the test accuracy."""
    parser = argparse.ArgumentParser(description=f"Train a network of the studies on {dataset}.")
    parser.add_argument("--network", choices=list(STUDIES), default="platforms")
    parser.add_argument("--backend", default="numpy", help='"numpy", "torch", "torch:cuda", "jax" ...')
    parser.add_argument("--data-dir", help="folder of the four IDX files")
    parser.add_argument("--epochs", type=int, help="default: as in the study")
    args = parser.parse_args()
    batch_size, learning_rate, momentum, epochs = STUDIES[args.network]

    machine.prepare()  # makes NumPy faster on some machines; it must not be loaded yet
    images = minicnn.data.load(dataset, args.data_dir)
    model = minicnn.zoo.get_model(
        args.network,
        preprocessing=[minicnn.layers.Rescaling(1 / 255)],
        input_dtype="uint8",  # pixels stay bytes until the network scales them
        backend=args.backend,
    )
    model.summary()
    model.compile(
        minicnn.optimizers.SGD(learning_rate, momentum=momentum),
        minicnn.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model.fit(
        images.x_train,
        images.y_train,
        batch_size=batch_size or len(images.x_train),
        epochs=args.epochs or epochs,
        validation_data=(images.x_test, images.y_test),
    )
    _, accuracy = model.evaluate(images.x_test, images.y_test, batch_size=500)
    print(f"{args.network} on {dataset}, {model.backend}: test accuracy {accuracy:.2%}")


if __name__ == "__main__":
    main()
