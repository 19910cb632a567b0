"""Fashion-MNIST."""

from typing import Any

from minicnn.keras.datasets import mnist


def load_data() -> Any:
    """Images and labels: see `mnist.load_data`."""
    return mnist.load_data(name="fashion_mnist")
