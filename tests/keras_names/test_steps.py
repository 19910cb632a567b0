"""Keras's names for steps of one's own: train_step with a tape, compiled metrics, GANs, autoencoders with add_loss."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from minicnn import keras
from minicnn.keras import layers, ops
from support.numerics import assert_close
from support.tolerances import SUM
from support.written_steps import LABELS, SAMPLES


def classifier(kind: Any) -> Any:
    inputs = keras.Input((6,))
    model = kind(inputs, layers.Dense(3)(layers.Dense(5, activation="tanh")(inputs)), backend="numpy")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer="sgd", loss=loss, metrics=["accuracy"])
    return model


class ByTape(keras.Model):
    def train_step(self, data: Any) -> Any:
        x, y = data
        with keras.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=y_pred)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))  # type: ignore[union-attr]
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, y_pred)
        return {m.name: m.result() for m in self.metrics}


class AsCompiled(keras.Model):
    def train_step(self, data: Any) -> Any:
        x, y = data
        with keras.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compiled_loss(y, y_pred, regularization_losses=self.losses)
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)  # type: ignore[union-attr,arg-type,call-arg]
        self.compiled_metrics.update_state(y, y_pred)
        return self.get_metrics_result()


class WithLoss(keras.Model):
    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, **_: Any
    ) -> Any:  # type: ignore[override]
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True)(y, y_pred, sample_weight)


@pytest.mark.parametrize("kind", [ByTape, AsCompiled, WithLoss])
def test_a_train_step_of_the_guides_does_what_fit_does(kind: Any) -> None:
    models = [classifier(k) for k in (keras.Model, kind)]
    expected, found = (m.fit(SAMPLES, LABELS, 16, 2, 0, validation_data=(SAMPLES, LABELS)).history for m in models)
    assert set(found) == set(expected)
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=SUM, err_msg=name)
    for path, array in models[0].get_weights().items():
        assert_close(models[1].get_weights()[path], array)


class Sampling(layers.Layer):
    def call(self, inputs: Any) -> Any:
        mean, log_variance = inputs
        epsilon = keras.random.normal(shape=ops.shape(mean))
        return mean + ops.exp(0.5 * log_variance) * epsilon


class Autoencoder(keras.Model):
    def __init__(self, original_dim: int, latent_dim: int = 2, name: str = "autoencoder", **kwargs: Any) -> None:
        super().__init__(name=name, **kwargs)
        self.original_dim, self.latent_dim = original_dim, latent_dim
        self.mean, self.log_variance, self.sampling = layers.Dense(latent_dim), layers.Dense(latent_dim), Sampling()
        self.decoder = layers.Dense(original_dim)

    def call(self, inputs: Any) -> Any:
        mean, log_variance = self.mean(inputs), self.log_variance(inputs)
        z = self.sampling((mean, log_variance))
        self.add_loss(-0.5 * ops.mean(log_variance - ops.square(mean) - ops.exp(log_variance) + 1))
        self.add_metric(ops.abs(z), name="spread")
        return self.decoder(z)


def test_a_subclassed_autoencoder_trains_with_what_it_adds_to_the_loss() -> None:
    model = Autoencoder(6, backend="numpy")
    model.compile(keras.optimizers.Adam(0.01), loss=keras.losses.MeanSquaredError())
    logs = model.fit(SAMPLES, SAMPLES, epochs=5, batch_size=16, verbose=0).history
    assert logs["loss"][-1] < logs["loss"][0]
    assert "spread" in logs
    assert model.count_params() == 2 * (6 * 2 + 2) + 2 * 6 + 6
    assert len(model.trainable_variables) == 6
    assert model.predict(SAMPLES[:3]).shape == (3, 6)


class Adversaries(keras.Model):
    def __init__(self, discriminator: Any, generator: Any, latent_dim: int) -> None:
        super().__init__()
        self.discriminator, self.generator, self.latent_dim = discriminator, generator, latent_dim
        self.seed_generator = keras.random.SeedGenerator(1337)

    def compile(self, d_optimizer: Any, g_optimizer: Any, loss_fn: Any) -> None:  # type: ignore[override]
        super().compile()
        self.d_optimizer, self.g_optimizer, self.loss_fn = d_optimizer, g_optimizer, loss_fn
        self.d_loss_metric, self.g_loss_metric = keras.metrics.Mean(name="d_loss"), keras.metrics.Mean(name="g_loss")

    @property
    def metrics(self) -> Any:
        return [self.d_loss_metric, self.g_loss_metric]

    def train_step(self, real_images: Any) -> Any:
        batch_size = ops.shape(real_images)[0]
        vectors = keras.random.normal(shape=(batch_size, self.latent_dim), seed=self.seed_generator)
        combined = ops.concatenate([self.generator(vectors), real_images], axis=0)
        labels = ops.concatenate([ops.ones((batch_size, 1)), ops.zeros((batch_size, 1))], axis=0)
        labels += 0.05 * keras.random.uniform(ops.shape(labels))
        with keras.GradientTape() as tape:
            d_loss = self.loss_fn(labels, self.discriminator(combined))
        grads = tape.gradient(d_loss, self.discriminator.trainable_weights)
        self.d_optimizer.apply(grads, self.discriminator.trainable_weights)
        vectors = keras.random.normal(shape=(batch_size, self.latent_dim), seed=self.seed_generator)
        with keras.GradientTape() as tape:
            predictions = self.discriminator(self.generator(vectors))
            g_loss = self.loss_fn(ops.zeros((batch_size, 1)), predictions)
        grads = tape.gradient(g_loss, self.generator.trainable_weights)
        self.g_optimizer.apply_gradients(zip(grads, self.generator.trainable_weights, strict=True))
        self.d_loss_metric.update_state(d_loss)
        self.g_loss_metric.update_state(g_loss)
        return {"d_loss": self.d_loss_metric.result(), "g_loss": self.g_loss_metric.result()}


def test_adversaries_as_the_examples_write_them() -> None:
    discriminator = keras.Sequential([keras.Input((6,)), layers.Dense(8), layers.LeakyReLU(0.2), layers.Dense(1)])
    generator = keras.Sequential([keras.Input((4,)), layers.Dense(8), layers.LeakyReLU(0.2), layers.Dense(6)])
    gan = Adversaries(discriminator=discriminator, generator=generator, latent_dim=4)
    adam = keras.optimizers.Adam
    gan.compile(adam(learning_rate=0.001), adam(learning_rate=0.001), keras.losses.BinaryCrossentropy(from_logits=True))
    before = generator.get_weights()
    logs = gan.fit(SAMPLES, epochs=2, batch_size=16, verbose=0).history
    assert list(logs) == ["d_loss", "g_loss"]
    assert any(np.any(before[path] != array) for path, array in generator.get_weights().items())


def test_a_tape_around_arrays_is_refused_by_what_to_write() -> None:
    with keras.GradientTape() as tape:
        loss = np.float32(1)
    with pytest.raises(RuntimeError, match=r"gradients belongs inside train_step or test_step of a model"):
        tape.gradient(loss, [])


def test_a_loss_is_called_on_arrays_too() -> None:
    y_true, y_pred = np.array([[0.0], [1.0]]), np.array([[0.5], [0.5]])
    assert keras.losses.MeanSquaredError()(y_true, y_pred) == pytest.approx(0.25)
    labels = keras.losses.SparseCategoricalCrossentropy()(np.array([1, 0]), np.array([[0.5, 0.5], [0.25, 0.75]]))
    assert labels == pytest.approx(-np.mean(np.log([0.5, 0.25])), rel=SUM)
