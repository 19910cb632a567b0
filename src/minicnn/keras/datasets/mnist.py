"""MNIST."""

from typing import Any

from minicnn import data


def load_data(path: Any = None, name: str = "mnist") -> Any:
    """Images (N, 28, 28) and labels (N,), uint8: ((x_train, y_train), (x_test, y_test)); see `data.load`.

    Args:
        path: The folder of the files, if it is one; Keras's name of the file, "mnist.npz", says nothing here.
        name: Name of the data set.
    """
    digits = data.load(name, None if path == f"{name}.npz" else path)
    train, test = (digits.x_train[..., 0], digits.y_train), (digits.x_test[..., 0], digits.y_test)
    return (train[0], train[1].astype("uint8")), (test[0], test[1].astype("uint8"))
