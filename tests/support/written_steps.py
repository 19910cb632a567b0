"""Models with a step of their own, for the tests of these."""

from __future__ import annotations

from typing import Any

import numpy as np

from minicnn import Input, Model, Sequential, gradients, ops
from minicnn.layers import BatchNormalization, Dense, Dropout
from minicnn.losses import SparseCategoricalCrossentropy
from minicnn.optimizers import Adam

SAMPLES = np.random.default_rng(0).normal(1, 0.3, (48, 6)).astype("float32")
LABELS = np.random.default_rng(1).integers(0, 3, 48)
WEIGHTS = np.random.default_rng(2).uniform(0.5, 1.5, 48).astype("float32")


class Adversaries(Model):
    """A WGAN-GP whose critic takes several steps in one: second derivatives, two optimizers, state of its own."""

    def __init__(self, critic_steps: int = 2, **options: Any) -> None:
        super().__init__(**options)
        self.critic_steps = critic_steps
        self.generator = Sequential([Input((4,)), Dense(8, "relu"), BatchNormalization(), Dense(6)])
        self.critic = Sequential([Input((6,)), Dense(8, "leaky_relu"), Dense(1)])
        self.g_optimizer, self.c_optimizer = Adam(1e-3, beta_1=0.5), Adam(2e-3)
        self.mean = self.add_weight("mean", (6,), "zeros", trainable=False)

    def train_step(self, data: Any) -> dict[str, Any]:
        samples, weights = data.shape[0], self.critic.trainable_weights
        for _ in range(self.critic_steps):
            fake = self.generator(ops.random_normal((samples, 4)))
            share = ops.random_uniform((samples, 1))
            mixed = fake * share + data * (1.0 - share)
            (slope,) = gradients(ops.sum(self.critic(mixed)), [mixed])
            length = ops.sqrt(ops.sum(ops.square(slope), axes=1) + 1e-12)
            penalty = ops.mean(ops.square(length - 1.0))
            c_loss = ops.mean(self.critic(fake)) - ops.mean(self.critic(data)) + 10.0 * penalty
            self.c_optimizer.apply(gradients(c_loss, weights), weights)
        self.assign("mean", self.mean * 0.9 + ops.mean(fake, axes=0) * 0.1)
        g_loss = -ops.mean(self.critic(self.generator(ops.random_normal((samples, 4)))))
        weights = self.generator.trainable_weights
        self.g_optimizer.apply(gradients(g_loss, weights), weights)
        return {"c_loss": c_loss, "g_loss": g_loss, "penalty": penalty}

    def test_step(self, data: Any) -> dict[str, Any]:
        return {"score": ops.mean(self.critic(data))}


class Spelled(Sequential):
    """The built-in step, written out."""

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y, weight = data
        y_pred = self(x, training=True)
        loss = self.compute_loss(x, y, y_pred, weight)
        weights = self.trainable_weights
        self.optimizer.apply(gradients(loss, weights), weights)  # type: ignore[union-attr,arg-type,call-arg]
        return self.compute_metrics(x, y, y_pred, weight)


def classifier(kind: type[Sequential], backend: Any = "numpy", **options: Any) -> Sequential:
    """A small classifier with all that a step may meet."""
    layers = [Input((6,)), Dense(8, "relu", kernel_regularizer="l2"), BatchNormalization(), Dropout(0.3), Dense(3)]
    model = kind(layers, backend=backend)
    model.compile("adam", SparseCategoricalCrossentropy(from_logits=True), ["accuracy"], **options)
    return model


def adversaries(backend: Any = "numpy", **options: Any) -> Adversaries:
    """A compiled WGAN-GP."""
    model = Adversaries(backend=backend)
    model.compile(**options)
    return model


def fitted(model: Model, *data: Any, epochs: int = 2, **options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Logs of a training, and weights after it."""
    logs = model.fit(*data, batch_size=16, epochs=epochs, verbose=0, **options).history
    return logs, model.get_weights()
