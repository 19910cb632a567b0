"""The whole way in a few seconds: data, network, training, evaluation, prediction, file. Run it before a commit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from minicnn import Sequential
from minicnn.callbacks import EarlyStopping
from minicnn.data import synthetic_digits
from minicnn.layers import Conv2D, Dense, Dropout, Flatten, Input, MaxPooling2D, Rescaling
from support.tolerances import STEP, SUM


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_from_pixels_to_digits(backend: str, tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    x, y = synthetic_digits(2500, size=14, seed=1)
    layers = [
        Input((14, 14, 1), dtype="uint8"),
        Rescaling(1 / 255),
        Conv2D(8, 3, activation="relu"),
        MaxPooling2D(),
        Flatten(),
        Dropout(0.1),
        Dense(32, activation="relu"),
        Dense(10, activation="softmax"),
    ]
    model = Sequential(layers, backend=backend)
    model.compile("adam", metrics=["accuracy"])
    stop = EarlyStopping("val_loss", patience=3)
    history = model.fit(x[:2000], y[:2000], 32, 5, 0, [stop], validation_data=(x[2000:], y[2000:])).history
    assert history["loss"][-1] < 0.6 * history["loss"][0]
    found = model.evaluate(x[2000:], y[2000:], 128, return_dict=True)
    assert found["accuracy"] > 0.6  # a guess is right in one of ten
    predictions = model.predict(x[2000:], 128)
    assert np.mean(predictions.argmax(axis=1) == y[2000:]) == pytest.approx(found["accuracy"])
    np.testing.assert_allclose(predictions.sum(axis=1), 1.0, rtol=SUM)
    model.save(tmp_path / "digits.safetensors")
    again = Sequential.load(tmp_path / "digits.safetensors", backend="numpy")
    np.testing.assert_allclose(again.predict(x[2000:], 128), predictions, rtol=STEP, atol=SUM)
