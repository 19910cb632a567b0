"""Supervised contrastive learning (arXiv:2004.11362): digits of one class are neighbours on a sphere.

Run `python examples/contrastive.py`. An encoder learns from pairs of a batch; a linear classifier is then trained on
its features, while the encoder stays as it is.
"""

from typing import Any

import numpy as np
from on_digits import digits, draw, grid, options

from minicnn import Input, Model, Sequential, gradients, ops
from minicnn.layers import Conv2D, Dense, GlobalAveragePooling2D, MaxPooling2D, Rescaling
from minicnn.losses import SparseCategoricalCrossentropy
from minicnn.optimizers import Adam


def encoder() -> Sequential:
    """Images to 64 features."""
    return Sequential(
        [
            Input((28, 28, 1), dtype="uint8"),
            Rescaling(1 / 255),
            Conv2D(32, 3, activation="relu"),
            MaxPooling2D(),
            Conv2D(64, 3, activation="relu"),
            MaxPooling2D(),
            Conv2D(64, 3, activation="relu"),
            GlobalAveragePooling2D(),
        ]
    )


class Contrastive(Model):
    """An encoder, and a projection to the sphere on which pairs are compared."""

    def __init__(self, network: Sequential, temperature: float = 0.1, **options: Any) -> None:
        super().__init__(**options)
        self.network, self.projection, self.temperature = network, Dense(32), temperature

    def train_step(self, data: Any) -> dict[str, Any]:
        """Raise the similarity of each image to those of its class, among all others of the batch."""
        images, labels = data
        points = self.projection(self.network(images, training=True))
        points = points / ops.sqrt(ops.sum(ops.square(points), axes=1, keepdims=True) + 1e-12)
        # Of all ranks, where the batch is shared out.
        every, classes = self.gather(points), self.gather(labels)
        similarity = ops.matmul(points, every, transpose_b=True) / self.temperature
        number, label = (ops.reshape(v, shape=(images.shape[0], 1)) for v in (self.sample_numbers(), labels))
        other = 1.0 - ops.cast(ops.equal(number, np.arange(every.shape[0], dtype="int32")), dtype="float32")
        same = ops.cast(ops.equal(label, classes), dtype="float32") * other
        log_share = similarity - ops.log(ops.sum(ops.exp(similarity) * other, axes=1, keepdims=True))
        each = -ops.sum(log_share * same, axes=1) / ops.maximum(ops.sum(same, axes=1), 1.0)
        loss = ops.mean(each)
        weights = self.trainable_weights
        self.optimizer.apply(gradients(loss, weights), weights)
        return {"loss": loss}


def main() -> None:
    """Train as the command line says, and draw neighbours of some digits."""
    args = options("Learn from pairs of digits.", 5)
    images = digits(args)
    x, y = images.x_train[: args.samples], images.y_train[: args.samples]
    network = encoder()
    model = Contrastive(network, backend=args.backend)
    model.compile(Adam(1e-3))
    model.fit(x, y, batch_size=args.batch_size, epochs=args.epochs, last_batch="drop")
    network.trainable = False
    classifier = Sequential([*network.layers, Dense(10)], backend=args.backend)
    classifier.compile(Adam(1e-2), SparseCategoricalCrossentropy(from_logits=True), ["accuracy"])
    classifier.fit(x, y, batch_size=args.batch_size, epochs=args.epochs)
    _, accuracy = classifier.evaluate(images.x_test, images.y_test, batch_size=500)
    print(f"a linear classifier of its features: test accuracy {accuracy:.2%}")
    features = network.predict(images.x_test)
    features /= np.linalg.norm(features, axis=1, keepdims=True) + 1e-12
    order = np.argsort(-(features[:8] @ features.T), axis=1)[:, :16]
    draw(args.picture, grid(images.x_test[order.ravel()] / 255, 16))


if __name__ == "__main__":
    main()
