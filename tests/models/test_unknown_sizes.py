"""Images of unknown size: one model for all, with a Program for each size."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minicnn import Model, Sequential, layers
from minicnn.layers import BatchNormalization, Conv2D, Dense, Flatten, GlobalAveragePooling2D, Input, MaxPooling2D
from minicnn.losses import SparseCategoricalCrossentropy
from support.model_cases import UNCOMPILED

RNG = np.random.default_rng(0)


def classifier(size: int | None, backend: Any = "numpy") -> Sequential:
    more = [] if backend == "numba" else [BatchNormalization(), MaxPooling2D(), Conv2D(3, 3)]  # it compiles each
    body = [Conv2D(4, 3, padding="same"), *more, GlobalAveragePooling2D(), Dense(3)]
    model = Sequential([Input((size, size, 2)), *body], backend=backend)
    model.compile("sgd", SparseCategoricalCrossentropy(from_logits=True), ["accuracy"])
    return model


def images(n: int, h: int, w: int | None = None) -> Any:
    return RNG.random((n, h, w or h, 2)).astype("float32")


@pytest.mark.parametrize("backend", [*UNCOMPILED, "numba"])
def test_every_size_is_computed_as_by_a_model_of_that_size(backend: str) -> None:
    model = classifier(None, backend)
    assert model.input_shape == (None, None, None, 2)
    assert model.output_shape == (None, 3)
    for size in (8,) if backend in ("jax", "numba") else (8, 11):  # these compile for seconds; below is another size
        x, y = images(6, size), RNG.integers(0, 3, 6)
        fixed = classifier(size, backend)
        fixed.set_weights(model.get_weights())
        np.testing.assert_array_equal(model.predict(x), fixed.predict(x))
        assert model.fit(x, y, 3, 2, 0).history == fixed.fit(x, y, 3, 2, 0).history
        assert model.evaluate(x, y) == fixed.evaluate(x, y)
    assert model.predict(images(2, 7, 9)).shape == (2, 3)


def test_batches_of_several_sizes() -> None:
    model = classifier(None)
    batches = [(images(4, size), RNG.integers(0, 3, 4)) for size in (8, 8, 10, 8)]
    model.fit(batches, epochs=2, verbose=0)
    assert model.steps_taken == 8
    assert model.predict([x for x, _ in batches][2]).shape == (4, 3)


def test_outputs_as_large_as_the_images() -> None:
    x = Input((None, None, 1))
    down = layers.Conv2D(4, 3, strides=2, padding="same")(x)
    y = layers.Conv2DTranspose(1, 3, strides=2, padding="same")(down) + x
    model = Model(x, y, backend="numpy")
    assert [t.shape for t in (down, y)] == [(None, None, None, 4), (None, None, None, 1)]
    model.compile("sgd", "mse")
    picture = RNG.random((3, 12, 16, 1))
    model.fit(picture, picture, verbose=0)
    assert model.predict(picture).shape == (3, 12, 16, 1)
    assert "FLOP forward for a batch of 1 of 256 x 256 x 1" in model.summary(None)
    with pytest.raises(ValueError, match=r"takes inputs of shape \(N, None, None, 1\)\. Received: \(3, 12, 16, 2\)"):
        model.predict(np.ones((3, 12, 16, 2)))


def test_copies_and_files(tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    model = classifier(None)
    model.save(tmp_path / "m")
    x = images(2, 9)
    again = [
        Model.load(tmp_path / "m", backend="numpy"),
        copy.deepcopy(model),
        Sequential.from_config(model.get_config()),
    ]
    again[2].set_weights(model.get_weights())
    for other in again:
        np.testing.assert_array_equal(other.predict(x), model.predict(x))
        assert other.input_shape == (None, None, None, 2)


def test_weights_that_depend_on_the_size_are_refused() -> None:
    layer = Dense(3)
    with pytest.raises(ValueError, match=r"no weight depends on it\. Received: Dense\(3\).*Put GlobalAveragePooling2D"):
        layer(Flatten()(Input((None, 8, 1))))
    assert layer(Input((5,))).shape == (None, 3)  # it is as it was
    with pytest.raises(ValueError, match="no weight depends on it"):
        Conv2D(3, 1)(Input((8, 8, None)))
    assert Flatten()(Input((None, 8, 1))).shape == (None, None)


def test_images_with_channels_first() -> None:
    model = Sequential([Input((8, 6, 3)), Flatten()], backend="numpy")
    with pytest.raises(
        ValueError, match=r"\(N, 8, 6, 3\)\. Received: \(2, 3, 8, 6\)\. .*np\.transpose\(x, \(0, 2, 3, 1\)\)"
    ):
        model.predict(np.ones((2, 3, 8, 6)))
    with pytest.raises(ValueError, match=r"Reshape the data, e\.g\. x\[\.\.\., None\] adds"):
        model.predict(np.ones((2, 8, 6)))
