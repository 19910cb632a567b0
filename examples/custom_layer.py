"""A layer of your own: declare weights, compose layers and primitives; the backward pass follows from them.

Run `python examples/custom_layer.py`.
"""

from typing import Any

from minicnn import Layer, Sequential, data, ops
from minicnn.layers import Conv2D, Dense, Flatten, Input, MaxPooling2D, Rescaling
from minicnn.losses import SparseCategoricalCrossentropy


class Residual(Layer):
    """inputs + gain * convolution(relu(convolution(inputs))), where the gain of each channel is learned from 0.

    With a gain of 0 the block does nothing at first, which keeps deep networks easy to train (arXiv:2003.04887).

    Input shape:
        (N, H, W, C).

    Output shape:
        That of the input.
    """

    def __init__(self, kernel_size: int = 3, *, name: str | None = None) -> None:
        super().__init__(name=name)
        self.kernel_size = kernel_size  # kept under the argument's name, so that models can be saved

    def build(self, input_shape: Any) -> None:
        """Declare what the layer owns, once the channels are known."""
        channels = input_shape[-1]
        self.first = Conv2D(channels, self.kernel_size, padding="same", activation="relu")
        self.second = Conv2D(channels, self.kernel_size, padding="same")
        self.gain = self.add_weight("gain", (channels,), "zeros")

    def call(self, inputs: Any) -> Any:
        """Compose: here `self.gain` is a Value of the Program, and the inner layers can be called."""
        return ops.relu(inputs + self.gain * self.second(self.first(inputs)))


def main() -> None:
    """Train a network with two such blocks for two epochs."""
    digits = data.load("synthetic_digits", n_train=2_000, n_test=500)
    model = Sequential(
        [
            Input((28, 28, 1), dtype="uint8"),
            Rescaling(1 / 255),
            Conv2D(8, 5, strides=2, activation="relu"),
            Residual(),
            MaxPooling2D(),
            Residual(),
            Flatten(),
            Dense(10),
        ]
    )
    model.summary()
    model.compile("adam", SparseCategoricalCrossentropy(from_logits=True), ["accuracy"])
    model.fit(digits.x_train, digits.y_train, 50, epochs=2, validation_data=(digits.x_test, digits.y_test))
    gains = {path: float(abs(w).max()) for path, w in model.get_weights().items() if path.endswith("gain")}
    print(f"largest gains, from 0: {', '.join(f'{path} {g:.3f}' for path, g in gains.items())}")


if __name__ == "__main__":
    main()
