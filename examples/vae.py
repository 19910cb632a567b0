"""A variational autoencoder (arXiv:1312.6114): digits from two numbers each.

Run `python examples/vae.py --picture digits.png`.
"""

from typing import Any

import numpy as np
from on_digits import digits, draw, grid, options

from minicnn import Input, Layer, Model, Sequential, gradients, ops
from minicnn.layers import Conv2D, Conv2DTranspose, Dense, Flatten, Reshape
from minicnn.losses import BinaryCrossentropy
from minicnn.optimizers import Adam


class Encoder(Layer):
    """Images to mean and logarithm of the variance of each number, and numbers drawn by them.

    Input shape:
        (N, H, W, C).

    Output shape:
        Three times (N, units).
    """

    def __init__(self, units: int = 2, **options: Any) -> None:
        super().__init__(**options)
        self.units = units
        self.first = Conv2D(32, 3, strides=2, padding="same", activation="relu")
        self.second = Conv2D(64, 3, strides=2, padding="same", activation="relu")
        self.flat, self.mean, self.log_variance = Flatten(), Dense(units), Dense(units)

    def call(self, inputs: Any) -> Any:
        """Draw with the noise outside, so that gradients go through mean and variance."""
        features = self.flat(self.second(self.first(inputs)))
        mean, log_variance = self.mean(features), self.log_variance(features)
        noise = ops.random_normal(mean.shape)
        return mean, log_variance, mean + ops.exp(log_variance * 0.5) * noise


class VAE(Model):
    """Encoder and decoder; images are bytes."""

    def __init__(self, units: int = 2, **options: Any) -> None:
        super().__init__(**options)
        self.units = units
        self.encoder = Encoder(units)
        self.decoder = Sequential(
            [
                Input((units,)),
                Dense(7 * 7 * 64, activation="relu"),
                Reshape((7, 7, 64)),
                Conv2DTranspose(64, 3, strides=2, padding="same", activation="relu"),
                Conv2DTranspose(32, 3, strides=2, padding="same", activation="relu"),
                Conv2DTranspose(1, 3, padding="same"),
            ]
        )

    def call(self, inputs: Any) -> Any:
        """Images as the decoder draws them from the means."""
        mean, _, _ = self.encoder(inputs / 255.0)
        return ops.sigmoid(self.decoder(mean))

    def losses_of(self, images: Any) -> dict[str, Any]:
        """What is lost of the images, the divergence from normal numbers, and both."""
        mean, log_variance, numbers = self.encoder(images)
        pixels = float(images.size // images.shape[0])
        reconstruction = pixels * BinaryCrossentropy(from_logits=True)(images, self.decoder(numbers))
        divergence = ops.sum(ops.exp(log_variance) + ops.square(mean) - 1.0 - log_variance, axes=1) * 0.5
        divergence = ops.mean(divergence)
        return {"loss": reconstruction + divergence, "reconstruction": reconstruction, "divergence": divergence}

    def train_step(self, data: Any) -> dict[str, Any]:
        """One step on both parts."""
        logs = self.losses_of(data / 255.0)
        weights = self.trainable_weights
        self.optimizer.apply(gradients(logs["loss"], weights), weights)
        return logs

    def test_step(self, data: Any) -> dict[str, Any]:
        """The same losses."""
        return self.losses_of(data / 255.0)


def main() -> None:
    """Train as the command line says, and draw what the decoder makes of numbers from -2 to 2."""
    args = options("Draw digits from two numbers.", 20)
    images = digits(args)
    model = VAE(backend=args.backend)
    model.compile(Adam(1e-3))
    model.fit(images.x_train[: args.samples], batch_size=args.batch_size, epochs=args.epochs)
    logs = model.evaluate(images.x_test, return_dict=True)
    print(", ".join(f"{name} {value:.1f}" for name, value in logs.items()))
    across = np.linspace(-2, 2, 16, dtype="float32")
    numbers = np.stack([[x, y] for y in across[::2] for x in across])
    draw(args.picture, grid(1 / (1 + np.exp(-model.decoder.predict(numbers))), 16))


if __name__ == "__main__":
    main()
