"""CIFAR-10."""

from typing import Any

from minicnn import data


def load_data(path: Any = None) -> Any:
    """Images (N, 32, 32, 3) and labels (N, 1), uint8: ((x_train, y_train), (x_test, y_test)); see `data.load`."""
    dataset = data.load("cifar10", path)
    train, test = dataset.y_train[:, None].astype("uint8"), dataset.y_test[:, None].astype("uint8")
    return (dataset.x_train, train), (dataset.x_test, test)
