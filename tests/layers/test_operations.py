"""Operators and primitives on symbolic tensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minicnn import Model, ops
from minicnn.layers import Conv2D, Dense, GlobalAveragePooling2D, Input, Rescaling
from minicnn.losses import SparseCategoricalCrossentropy
from minicnn.models import clone_model
from support.tolerances import ELEMENT, SUM

RNG = np.random.default_rng(0)
A, B = RNG.random((5, 4)).astype("float32"), 1 + RNG.random((5, 4)).astype("float32")
SHIFT = np.arange(4, dtype="float32")


def relu(x: Any) -> Any:
    return np.maximum(x, 0)


CASES: list[tuple[Any, Any]] = [
    (lambda a, b: a + b, lambda a, b: a + b),
    (lambda a, b: 2 * a - b / 3, lambda a, b: 2 * a - b / 3),
    (lambda a, b: 1 / b - a**2, lambda a, b: 1 / b - a**2),
    (lambda a, b: -a + SHIFT, lambda a, b: -a + SHIFT),
    (lambda a, b: SHIFT * b, lambda a, b: SHIFT * b),
    (lambda a, b: a[:, 1:3] * b[..., :2], lambda a, b: a[:, 1:3] * b[..., :2]),
    (lambda a, b: a[:, 0] + b[:, -1], lambda a, b: a[:, 0] + b[:, -1]),
    (lambda a, b: ops.relu(a - b), lambda a, b: relu(a - b)),
    (lambda a, b: ops.maximum(a, 0.5), lambda a, b: np.maximum(a, 0.5)),
    (lambda a, b: ops.maximum(0.5, ops.sqrt(b)), lambda a, b: np.maximum(0.5, np.sqrt(b))),
    (lambda a, b: ops.mean(a * b, axes=1), lambda a, b: (a * b).mean(axis=1)),
    (lambda a, b: ops.max(a, axis=-1, keepdims=True) + b, lambda a, b: a.max(axis=-1, keepdims=True) + b),  # Keras's
    (lambda a, b: ops.concat(a, b, axis=1), lambda a, b: np.concatenate([a, b], axis=1)),
    (lambda a, b: ops.where(ops.greater(a, b - 1), a, 0.0), lambda a, b: np.where(a > b - 1, a, 0)),
]


@pytest.mark.parametrize("number", range(len(CASES)))
def test_what_they_compute(number: int) -> None:
    make, expected = CASES[number]
    a, b = Input((4,)), Input((4,))
    model = Model([a, b], make(a, b), backend="numpy")
    np.testing.assert_allclose(model([A, B]), expected(A, B), rtol=SUM, atol=ELEMENT)
    config = json.loads(json.dumps(model.get_config()))
    for again in (Model.from_config(config), clone_model(model)):
        np.testing.assert_array_equal(again([A, B]), model([A, B]))


def test_a_network_with_them_trains_and_is_saved(tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    image = Input((6, 6, 1), dtype="uint8")
    x = Conv2D(4, 3, padding="same")(Rescaling(1 / 255)(image))
    x = ops.relu(x + Conv2D(4, 3, padding="same")(x)) * 0.5
    model = Model(image, Dense(3)(GlobalAveragePooling2D()(x)), backend="numpy")
    assert [layer.name for layer in model.layers][2:6] == ["conv2d_1", "add", "relu", "multiply"]
    model.compile("adam", SparseCategoricalCrossentropy(from_logits=True))
    images, labels = RNG.integers(0, 256, (8, 6, 6, 1), "uint8"), RNG.integers(0, 3, 8)
    model.fit(images, labels, verbose=0)
    model.save(tmp_path / "m")
    np.testing.assert_array_equal(Model.load(tmp_path / "m", backend="numpy").predict(images), model.predict(images))
    assert "multiply (Operation)" in model.summary(None)


def test_bytes_become_numbers() -> None:
    x = Input((2,), dtype="uint8")
    np.testing.assert_allclose(Model(x, x / 255.0, backend="numpy")(np.array([[0, 255]], "uint8")), [[0, 1]])


def test_what_they_refuse() -> None:
    x = Input((4,))
    with pytest.raises(TypeError, match=r"not known while a model is put together.*no truth value\. Use ops\.where"):
        bool(x)
    with pytest.raises(TypeError, match=r"stands for an array, and is no sequence\. Index it"):
        list(x)
    with pytest.raises(ValueError, match=r"whose first axis is the batch"):
        ops.sum(x, axes=0)
    with pytest.raises(ValueError, match=r"step 1"):
        x[:, ::2]
    with pytest.raises(TypeError, match=r"relu takes 1 arrays"):
        ops.relu(x, x)
