"""A primitive of your own: reference, shape rule, gradient rule and cost, checked and then trained with.

Run `python examples/custom_primitive.py`.
"""

from typing import Any

import numpy as np

from minicnn import Layer, Sequential, data, get_backend, ops
from minicnn.layers import Conv2D, Dense, Flatten, Input, MaxPooling2D, Rescaling
from minicnn.losses import SparseCategoricalCrossentropy
from minicnn.ops import primitive
from minicnn.program import Program, gradients


@primitive
def unit_length(x: Any, *, epsilon: float, xp: Any) -> Any:
    """Rows of unit length: y = x / sqrt(sum(x^2) + epsilon), x of shape (N, K)."""
    return x / xp.sqrt(xp.sum(x * x, axis=-1, keepdims=True) + epsilon)


@unit_length.shape
def _(x: Any, *, epsilon: float) -> Any:
    if x.ndim != 2 or "float" not in x.dtype or epsilon <= 0:
        raise ValueError(
            f"unit_length takes rows (N, K) of floating point and epsilon > 0. Received: {x}, epsilon={epsilon}."
        )
    return x


@unit_length.gradient
def _(node: Any, dy: Any) -> Any:
    # With r = sqrt(sum(x^2) + epsilon): dx = (dy - y sum(y dy)) / r, made of primitives.
    (x,), (y,) = node.inputs, node.outputs
    r = ops.sqrt(ops.sum(ops.square(x), axes=-1, keepdims=True) + node.attrs["epsilon"])
    return (dy - y * ops.sum(y * dy, axes=-1, keepdims=True)) / r


@unit_length.cost
def _(node: Any) -> int:
    return 3 * int(node.inputs[0].size)  # FLOPs: a square, an addition and a division an element


class UnitLength(Layer):
    """Scales the features of each sample to length 1."""

    def call(self, inputs: Any) -> Any:
        """Emit the primitive."""
        return unit_length(inputs, epsilon=1e-6)


def largest_error() -> float:
    """How far the gradient rule is from central differences, in float64."""
    program = Program("check")
    x, w = program.input("x", (4, 3), "float64"), program.input("w", (4, 3), "float64")
    program.outputs["loss"] = ops.sum(unit_length(x, epsilon=1e-6) * w)
    (program.outputs["dx"],) = gradients(program, program.outputs["loss"], [x])
    run = get_backend("numpy").compile(program)

    rng, step = np.random.default_rng(0), 1e-5
    x0, w0, direction = (rng.normal(size=(4, 3)) for _ in range(3))
    low, high = (run({"x": x0 + s * step * direction, "w": w0})["loss"] for s in (-1, 1))
    return abs(float((high - low) / (2 * step) - np.sum(run({"x": x0, "w": w0})["dx"] * direction)))


def main() -> None:
    """Check the gradient, then train a network that classifies by the direction of its features."""
    print(f"gradient rule and central differences differ by {largest_error():.0e}")
    digits = data.load("synthetic_digits", n_train=2_000, n_test=500)
    layers = [Rescaling(1 / 255), Conv2D(8, 5, strides=2, activation="relu"), MaxPooling2D(), Flatten()]
    layers += [UnitLength(), Rescaling(16.0), Dense(10)]
    model = Sequential([Input((28, 28, 1), dtype="uint8"), *layers])
    model.compile("adam", SparseCategoricalCrossentropy(from_logits=True), ["accuracy"])
    model.fit(digits.x_train, digits.y_train, 50, epochs=2, validation_data=(digits.x_test, digits.y_test))
    print(*[node for node in model.program("predict").nodes if node.op is unit_length])


if __name__ == "__main__":
    main()
