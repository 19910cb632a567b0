"""Functions of `minicnn.keras.ops` against NumPy: on arrays, on Values within a layer, and on symbolic tensors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minicnn import keras
from minicnn.keras import layers, ops
from minicnn.keras.dispatch import Function
from minicnn.tolerance import tolerance

RTOL, ATOL = tolerance("float32", 64)
X = np.random.default_rng(0).random((4, 6, 6, 3), "float32") + 0.1
WHOLE = np.random.default_rng(1).integers(0, 3, (4, 6)).astype("int32")


FRAME = ((0, 0), (1, 2), (0, 0), (0, 0))


def patches(x: Any) -> Any:
    return np.stack([x[:, i : i + 2, j : j + 2].reshape(4, -1) for i in (0, 2, 4) for j in (0, 2, 4)], 1).reshape(
        4, 3, 3, 12
    )


# A function of one array, what NumPy makes of it, and of which array.
CASES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any], Any]] = {
    "sum": (lambda x: ops.sum(x, axis=(1, 2)), lambda x: x.sum((1, 2)), X),
    "mean": (lambda x: ops.mean(x, axis=-1, keepdims=True), lambda x: x.mean(-1, keepdims=True), X),
    "max": (lambda x: ops.max(x, axis=1), lambda x: x.max(1), X),
    "min": (lambda x: ops.min(x, 1), lambda x: x.min(1), X),
    "var": (lambda x: ops.var(x, axis=(1, 2)), lambda x: x.var((1, 2)), X),
    "std": (lambda x: ops.std(x, axis=1), lambda x: x.std(1), X),
    "norm": (lambda x: ops.norm(x, axis=-1), lambda x: np.linalg.norm(x, axis=-1), X),
    "logsumexp": (lambda x: ops.logsumexp(x, axis=-1), lambda x: np.log(np.exp(x).sum(-1)), X),
    "moments": (lambda x: ops.moments(x, axes=(1, 2))[1], lambda x: x.var((1, 2)), X),
    "argmax": (lambda x: ops.argmax(x, axis=2), lambda x: x.argmax(2), X),
    "argmin": (lambda x: ops.argmin(x, axis=-1), lambda x: x.argmin(-1), X),
    "any": (lambda x: ops.any(ops.greater(x, 1), axis=1), lambda x: (x > 1).any(1), WHOLE),
    "all": (lambda x: ops.all(x, axis=1), lambda x: x.all(1), WHOLE),
    "sum of integers": (lambda x: ops.sum(x, axis=1), lambda x: x.sum(1), WHOLE),
    "abs": (lambda x: ops.abs(ops.subtract(x, 0.5)), lambda x: abs(x - 0.5), X),
    "elements": (lambda x: ops.exp(ops.log(ops.sqrt(ops.square(x)))), lambda x: x, X),
    "floor": (lambda x: ops.floor((x - 0.5) * 7), lambda x: np.floor((x - 0.5) * 7), X),
    "round": (lambda x: ops.round(x * 7), lambda x: np.floor(x * 7 + 0.5), X),
    "rsqrt": (lambda x: ops.multiply(ops.rsqrt(x), ops.reciprocal(x)), lambda x: x**-1.5, X),
    "log2": (lambda x: ops.log2(x), np.log2, X),
    "divide": (lambda x: ops.divide(x, 2), lambda x: x / 2, WHOLE),
    "mixed": (lambda x: ops.add(x, 0.5), lambda x: x + 0.5, WHOLE),
    "array": (lambda x: ops.maximum(x, np.asarray([0.2, 0.5, 0.9])), lambda x: np.maximum(x, [0.2, 0.5, 0.9]), X),
    "power": (lambda x: ops.power(x, 2.0), lambda x: x**2, X),
    "not_equal": (lambda x: ops.cast(ops.not_equal(x, 1), "float32"), lambda x: x != 1, WHOLE),
    "logical": (
        lambda x: ops.where(ops.logical_or(ops.logical_and(x > 0.3, x < 0.6), ops.logical_not(x)), x, 0.0),
        lambda x: np.where((x > 0.3) & (x < 0.6), x, 0), X),
    "clip": (lambda x: ops.clip(x, 0.3, 0.6), lambda x: x.clip(0.3, 0.6), X),
    "like": (lambda x: ops.zeros_like(x) + ops.ones_like(x), np.ones_like, X),
    "softmax": (lambda x: ops.softmax(x), lambda x: np.exp(x) / np.exp(x).sum(-1, keepdims=True), X),
    "log_softmax": (lambda x: ops.log_softmax(x), lambda x: x - np.log(np.exp(x).sum(-1, keepdims=True)), X),
    "activations": (
        lambda x: ops.leaky_relu(x - 0.5, 0.1) + ops.elu(x) + ops.relu(x - 0.5),
        lambda x: np.where(x > 0.5, 2 * x - 1, (x - 0.5) * 0.1) + x, X),
    "gelu": (lambda x: ops.gelu(x, approximate=False) / ops.gelu(x, False), np.ones_like, X),
    "reshape": (lambda x: ops.reshape(x, (ops.shape(x)[0], -1, 3)), lambda x: x.reshape(4, 36, 3), X),
    "reshape to one axis": (lambda x: ops.reshape(ops.ravel(x), (-1, 6)), lambda x: x, WHOLE),
    "expand_dims": (lambda x: ops.squeeze(ops.expand_dims(ops.expand_dims(x, -1), 1), 1), lambda x: x[..., None], X),
    "transpose": (lambda x: ops.transpose(x, (0, 3, 1, 2)), lambda x: x.transpose(0, 3, 1, 2), X),
    "swapaxes": (lambda x: ops.swapaxes(x, 1, -1), lambda x: x.swapaxes(1, -1), X),
    "concatenate": (lambda x: ops.concatenate([x, x * 2], axis=1), lambda x: np.concatenate([x, x * 2], 1), X),
    "stack": (lambda x: ops.stack([x, x * 2], axis=1), lambda x: np.stack([x, x * 2], 1), X),
    "split": (lambda x: ops.split(x, 3, axis=1)[1], lambda x: x[:, 2:4], X),
    "split at places": (lambda x: ops.split(x, [1, 4], axis=2)[2], lambda x: x[:, :, 4:], X),
    "unstack": (lambda x: ops.unstack(x, axis=1)[2], lambda x: x[:, 2], X),
    "repeat": (lambda x: ops.repeat(x, 2, axis=1), lambda x: x.repeat(2, 1), X),
    "tile": (lambda x: ops.tile(x, (1, 2, 1, 1)), lambda x: np.tile(x, (1, 2, 1, 1)), X),
    "pad": (lambda x: ops.pad(x, FRAME), lambda x: np.pad(x, FRAME), X),
    "take": (lambda x: ops.take(x, [[2, -1], [0, 0]], axis=2), lambda x: x.take([[2, -1], [0, 0]], 2), X),
    "flip": (lambda x: ops.flip(x, 1), lambda x: x[:, ::-1], X),
    "roll": (lambda x: ops.roll(x, 2, axis=1), lambda x: np.roll(x, 2, 1), X),
    "one_hot": (lambda x: ops.one_hot(x, 3), lambda x: np.eye(3)[x], WHOLE),
    "one_hot in front": (lambda x: ops.one_hot(x, 3, axis=1), lambda x: np.moveaxis(np.eye(3)[x], -1, 1), WHOLE),
    "matmul": (lambda x: ops.matmul(x, np.ones((3, 2), "float32")), lambda x: x @ np.ones((3, 2)), X),
    "matmul of several": (lambda x: ops.matmul(x, ops.transpose(x, (0, 1, 3, 2))), lambda x: x @ x.swapaxes(-1, -2), X),
    "max_pool": (lambda x: ops.max_pool(x, 2), lambda x: x.reshape(4, 3, 2, 3, 2, 3).max((2, 4)), X),
    "average_pool": (lambda x: ops.average_pool(x, 2), lambda x: x.reshape(4, 3, 2, 3, 2, 3).mean((2, 4)), X),
    "conv": (lambda x: ops.conv(x, np.ones((1, 1, 3, 1), "float32")), lambda x: x.sum(-1, keepdims=True), X),
    "resize": (lambda x: ops.image.resize(x, (3, 3), "nearest"), lambda x: x[:, 1::2, 1::2], X),
    "extract_patches": (lambda x: ops.image.extract_patches(x, 2), patches, X),
    "binary_crossentropy": (
        lambda x: ops.binary_crossentropy(ops.ones_like(x), x / 2), lambda x: -np.log(x / 2), X),
    "categorical_crossentropy": (
        lambda x: ops.categorical_crossentropy(ops.one_hot(ops.cast(x[..., 0] * 0, "int32"), 3), ops.softmax(x)),
        lambda x: -np.log(np.exp(x[..., 0]) / np.exp(x).sum(-1)), X),
    "sparse_categorical_crossentropy": (
        lambda x: ops.sparse_categorical_crossentropy(ops.cast(x[..., 0] * 0, "int32"), x, from_logits=True),
        lambda x: -np.log(np.exp(x[..., 0]) / np.exp(x).sum(-1)), X),
}  # fmt: skip


class Applied(layers.Layer):
    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.function = function

    def call(self, inputs: Any) -> Any:
        return self.function(inputs)


@pytest.mark.parametrize("name", CASES)
def test_functions(name: str) -> None:
    function, expected, x = CASES[name]
    dtype = "int32" if x is WHOLE else "float32"
    np.testing.assert_allclose(function(x), expected(x), RTOL, ATOL)
    given = x if x is X else x.astype("float32")  # what a model makes of integers

    def of_value(v: Any) -> Any:
        return function(v if x is X else ops.cast(v, dtype))

    found = Applied(lambda v: ops.cast(of_value(v), "float32"))(given)
    np.testing.assert_allclose(found, expected(x), RTOL, ATOL)
    if x is X:
        start = keras.Input(x.shape[1:])
        found = keras.Model(start, ops.cast(function(start), "float32")).predict(x)
        np.testing.assert_allclose(found, expected(x), RTOL, ATOL)


def test_numbers_and_lists_are_arrays() -> None:
    assert ops.sqrt(4.0) == 2.0
    assert ops.add(1, 2.5) == 3.5
    assert ops.norm([3.0, 4.0]) == 5.0
    assert ops.argmax([[1.0, 3.0], [4.0, 0.0]]) == 2
    np.testing.assert_array_equal(ops.concatenate([[1.0], [2.0]]), [1.0, 2.0])
    np.testing.assert_array_equal(ops.arange(3), [0, 1, 2])
    assert ops.convert_to_tensor([1.0, 2.0]).dtype == "float32"
    assert (ops.zeros((2,)) + ops.ones((2,))).sum() == 2.0
    assert (ops.ndim(X), ops.size(X), ops.shape(X)) == (4, X.size, X.shape)
    assert ops.image.resize(X[0], (2, 2)).shape == (2, 2, 3)


def test_a_model_of_functions_is_saved(tmp_path: Path) -> None:
    x = keras.Input((6, 6, 3))
    y = ops.concatenate([ops.mean(ops.reshape(x, (-1, 36, 3)), axis=1), ops.max(x, axis=(1, 2))], axis=-1)
    model = keras.Model(x, ops.multiply(y, np.arange(6.0)))
    model.save(tmp_path / "model.safetensors")
    again = keras.models.load_model(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    with pytest.raises(ValueError, match=r"A Function is one of minicnn.keras, such as 'ops.reshape'. Received: 'a.b'"):
        Function("a.b")


def test_errors() -> None:
    with pytest.raises(ValueError, match=r"split makes equal parts. Received: 4 of an axis of length 6"):
        ops.split(X, 4, axis=1)
    with pytest.raises(ValueError, match=r"pad frames by a constant. Received: mode='reflect'"):
        ops.pad(X, 1, mode="reflect")
    with pytest.raises(AttributeError, match=r"minicnn.keras.ops has no 'fft2'"):
        ops.fft2  # noqa: B018


@pytest.mark.parametrize("name", ["relu", "softmax", "gelu", "hard_sigmoid", "swish"])
def test_activations_on_arrays_are_those_by_name(name: str) -> None:
    function = getattr(keras.activations, name)
    np.testing.assert_allclose(function(X - 0.5), layers.Activation(name)(X - 0.5), RTOL, ATOL)
    assert layers.Dense(1, activation=function).get_config()["activation"] == name
    assert keras.activations.relu(X, max_value=0.5).max() == 0.5


def test_losses_as_functions() -> None:
    y, p = np.eye(3, dtype="float32")[[0, 2]], np.asarray([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]], "float32")
    np.testing.assert_allclose(keras.losses.categorical_crossentropy(y, p), -np.log([0.5, 0.8]), RTOL)
    np.testing.assert_allclose(keras.losses.sparse_categorical_crossentropy([0, 2], p), -np.log([0.5, 0.8]), RTOL)
    np.testing.assert_allclose(keras.losses.mse(y, p), ((y - p) ** 2).mean(-1), RTOL)
    np.testing.assert_allclose(keras.losses.binary_crossentropy(y, p, from_logits=True).shape, (2,))
    start = keras.Input((3,))
    assert keras.losses.mean_squared_error(start, start * 2.0).shape == (None,)
