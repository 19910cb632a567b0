"""CIFAR-10."""

from typing import Any

from minicnn import data


def load_data(path: Any = None) -> Any:
    """Images (N, 32, 32, 3) and labels (N, 1), uint8: ((x_train, y_train), (x_test, y_test)); see `data.load`."""
    found = data.load("cifar10", path)
    return (found.x_train, found.y_train[:, None].astype("uint8")), (
        found.x_test,
        found.y_test[:, None].astype("uint8"),
    )
