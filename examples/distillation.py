"""Distillation (arXiv:1503.02531): a small network learns from what ResNet-18 thinks of each image.

Run `python examples/distillation.py`. The teacher has seen six times as many images as the student is shown. The same
small network, trained on the labels of these alone, is beside it; with `--students 5` there are five such pairs.
"""

from typing import Any

import numpy as np
from on_digits import digits, draw, grid, options

from minicnn import Input, Model, Sequential, gradients, ops, zoo
from minicnn.layers import Conv2D, Dense, Flatten, MaxPooling2D, Rescaling
from minicnn.losses import SparseCategoricalCrossentropy
from minicnn.metrics import Accuracy
from minicnn.optimizers import Adam
from minicnn.schedules import CosineDecay

LOSS = SparseCategoricalCrossentropy(from_logits=True)


def student(backend: str, seed: int) -> Sequential:
    """A network of 5,258 weights."""
    layers = [Rescaling(1 / 255), Conv2D(8, 3, activation="relu"), MaxPooling2D(), Conv2D(16, 3, activation="relu")]
    images = Input((28, 28, 1), dtype="uint8")
    return Sequential([images, *layers, MaxPooling2D(), Flatten(), Dense(10)], backend=backend, seed=seed)


class Distiller(Model):
    """A student that learns from labels and from a teacher, which stays as it is."""

    def __init__(self, student: Sequential, teacher: Model, temperature: float = 4.0, **options: Any) -> None:
        super().__init__(**options)
        self.student, self.teacher, self.temperature = student, teacher, temperature
        self.accuracy = Accuracy()

    def train_step(self, data: Any) -> dict[str, Any]:
        """A tenth of the loss is that of the labels, the rest how far both networks' softened answers are apart."""
        images, labels = data
        taught = ops.softmax(self.teacher(images, training=False) / self.temperature)
        answers = self.student(images, training=True)
        own = ops.log_softmax(answers / self.temperature)
        apart = -ops.mean(ops.sum(taught * own, axes=1)) * self.temperature**2
        loss = 0.1 * LOSS(labels, answers) + 0.9 * apart
        weights = self.student.trainable_weights
        self.optimizer.apply(gradients(loss, weights), weights)
        self.accuracy.update_state(labels, answers)
        return {"loss": loss, "accuracy": self.accuracy.result()}


def train(network: Model, x: Any, y: Any, rate: float, batch_size: int, epochs: int) -> None:
    """Train, ever more slowly."""
    told: dict[str, Any] = {} if isinstance(network, Distiller) else {"loss": LOSS, "metrics": ["accuracy"]}
    network.compile(Adam(CosineDecay(rate, -(-len(x) // batch_size) * epochs)), **told)
    network.fit(x, y, batch_size, epochs)


def main() -> None:
    """Train teacher, students and students alone as the command line says."""
    args = options("Teach a small network.", 4, teacher=["resnet18", "two_convs"], students=["1", "5"])
    images = digits(args)
    x, y = images.x_train[: args.samples], images.y_train[: args.samples]
    few = slice(max(1, args.samples // 6))

    def measure(name: str, network: Model) -> None:
        right = np.argmax(network.predict(images.x_test, 500), axis=1) == images.y_test
        print(f"{name}: {network.count_params():,} weights, test accuracy {right.mean():.2%}")

    form: Any = {"num_classes": 10, "input_shape": (28, 28, 1), "preprocessing": [Rescaling(1 / 255)]}
    teacher = zoo.get_model(args.teacher, input_dtype="uint8", backend=args.backend, **form)
    train(teacher, x, y, 1e-3, args.batch_size, args.epochs)
    measure(args.teacher, teacher)
    for seed in range(int(args.students)):
        alone, taught = student(args.backend, seed), student(args.backend, seed)
        for network in (alone, Distiller(taught, teacher, backend=args.backend, seed=seed)):
            train(network, x[few], y[few], 3e-3, max(1, args.batch_size // 4), 10 * args.epochs)
        measure("the student, taught", taught)
        measure("the student alone", alone)
    unsure = np.sort(taught.predict(images.x_test, 500), axis=1)
    draw(args.picture, grid(images.x_test[np.argsort(unsure[:, -1] - unsure[:, -2])[:64]] / 255, 16))


if __name__ == "__main__":
    main()
