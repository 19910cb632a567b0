"""Digits by adversaries: a DCGAN (arXiv:1511.06434), or a Wasserstein GAN with a gradient penalty (arXiv:1704.00028).

Run `python examples/gan.py --kind wgan-gp --picture digits.png`.
"""

from typing import Any

import numpy as np
from on_digits import digits, draw, grid, options

from minicnn import Input, Model, Sequential, gradients, ops
from minicnn.layers import BatchNormalization, Conv2D, Conv2DTranspose, Dense, Dropout, Flatten, LeakyReLU, Reshape
from minicnn.losses import BinaryCrossentropy
from minicnn.optimizers import Adam

NOISE = 64


def generator() -> Sequential:
    """Noise to digits with pixels from -1 to 1."""
    return Sequential(
        [
            Input((NOISE,)),
            Dense(7 * 7 * 64, use_bias=False),
            BatchNormalization(),
            LeakyReLU(0.2),
            Reshape((7, 7, 64)),
            Conv2DTranspose(32, 4, strides=2, padding="same", use_bias=False),
            BatchNormalization(),
            LeakyReLU(0.2),
            Conv2DTranspose(1, 4, strides=2, padding="same", activation="tanh"),
        ],
        name="generator",
    )


def critic(dropout: float) -> Sequential:
    """Digits to one number: how true they look."""
    return Sequential(
        [
            Input((28, 28, 1)),
            Conv2D(32, 4, strides=2, padding="same"),
            LeakyReLU(0.2),
            Dropout(dropout),
            Conv2D(64, 4, strides=2, padding="same"),
            LeakyReLU(0.2),
            Dropout(dropout),
            Flatten(),
            Dense(1),
        ],
        name="critic",
    )


class GAN(Model):
    """A generator against a critic that tells its images from true ones, by cross-entropies."""

    def __init__(self, dropout: float = 0.3, **options: Any) -> None:
        super().__init__(**options)
        self.generator, self.critic = generator(), critic(dropout)
        self.generator_optimizer, self.critic_optimizer = Adam(2e-4, beta_1=0.5), Adam(2e-4, beta_1=0.5)
        self.loss = BinaryCrossentropy(from_logits=True)

    def invented(self, count: int) -> Any:
        """So many images of the generator, of new noise."""
        return self.generator(ops.random_normal((count, NOISE)), training=True)

    def judged(self, images: Any, truth: float) -> Any:
        """Loss of the critic's verdicts if all images are true, or none."""
        verdicts = self.critic(images, training=True)
        return self.loss(np.full(verdicts.shape, truth), verdicts)

    def train_critic(self, real: Any) -> Any:
        """One step of the critic; returns its loss."""
        fake = self.invented(real.shape[0])
        loss = 0.5 * (self.judged(real, 0.9) + self.judged(fake, 0.0))
        weights = self.critic.trainable_weights
        self.critic_optimizer.apply(gradients(loss, weights), weights)
        return loss

    def train_generator(self, count: int) -> Any:
        """One step of the generator, on so many images; returns its loss."""
        loss = self.judged(self.invented(count), 1.0)
        weights = self.generator.trainable_weights
        self.generator_optimizer.apply(gradients(loss, weights), weights)
        return loss

    def train_step(self, data: Any) -> dict[str, Any]:
        """One step of each, in one Program."""
        real = data / 127.5 - 1.0
        return {"critic_loss": self.train_critic(real), "generator_loss": self.train_generator(real.shape[0])}


class WassersteinGAN(GAN):
    """The critic estimates a distance; its slope is kept near 1, by gradients of gradients."""

    def __init__(self, critic_steps: int = 3, **options: Any) -> None:
        super().__init__(dropout=0.0, **options)
        self.critic_steps = critic_steps

    def train_critic(self, real: Any) -> Any:
        """Several steps; returns the last loss."""
        weights = self.critic.trainable_weights
        for _ in range(self.critic_steps):
            fake = self.invented(real.shape[0])
            share = ops.random_uniform((real.shape[0], 1, 1, 1))
            between = real * share + fake * (1.0 - share)
            slopes = gradients(ops.sum(self.critic(between)), between)
            length = ops.sqrt(ops.sum(ops.square(slopes), axes=(1, 2, 3)) + 1e-12)
            loss = ops.mean(self.critic(fake)) - ops.mean(self.critic(real)) + 10.0 * ops.mean(ops.square(length - 1.0))
            self.critic_optimizer.apply(gradients(loss, weights), weights)
        return loss

    def train_generator(self, count: int) -> Any:
        """One step of the generator, on so many images; returns its loss."""
        loss = -ops.mean(self.critic(self.invented(count)))
        weights = self.generator.trainable_weights
        self.generator_optimizer.apply(gradients(loss, weights), weights)
        return loss


def main() -> None:
    """Train as the command line says."""
    args = options("Invent digits.", 20, kind=["dcgan", "wgan-gp"])
    model = (WassersteinGAN if args.kind == "wgan-gp" else GAN)(backend=args.backend)
    model.compile()
    model.fit(digits(args).x_train[: args.samples], batch_size=args.batch_size, epochs=args.epochs, last_batch="drop")
    noise = np.random.default_rng(0).standard_normal((64, NOISE)).astype("float32")
    images = model.generator.predict(noise) * 0.5 + 0.5
    print(f"64 digits of {args.kind}: {images.mean():.2f} of the ink there is room for")
    draw(args.picture, grid(images, 16))


if __name__ == "__main__":
    main()
