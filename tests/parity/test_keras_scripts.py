"""Scripts with Keras's names run on minicnn; and, where Keras is installed, on Keras, so that they are such scripts."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minicnn import keras
from parity import keras_scripts

PAGE = (Path(__file__).parents[2] / "docs" / "keras.md").read_text(encoding="utf-8")


def numbers(found: Any) -> Iterator[Any]:
    for part in found if isinstance(found, list) else [found]:
        yield from numbers(part) if isinstance(part, list) else [np.asarray(part)]


def check(script: Any, library: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    found = list(numbers(script(library)))
    assert found
    assert all(np.isfinite(array).all() for array in found)


@pytest.mark.parametrize("script", keras_scripts.SCRIPTS, ids=lambda s: s.__name__)
def test_on_minicnn(script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MINICNN_BACKEND", raising=False)
    check(script, keras, tmp_path, monkeypatch)


@pytest.mark.sampled(3)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("script", keras_scripts.SCRIPTS, ids=lambda s: s.__name__)
def test_on_keras(script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.environ.setdefault("KERAS_BACKEND", "jax")
    check(script, pytest.importorskip("keras"), tmp_path, monkeypatch)


def test_the_page_names_the_scripts() -> None:
    table = PAGE.partition("| guide or example | script |\n")[2].partition("\n\n")[0]
    named = set(re.findall(r"`(\w+)` \|$", table, re.M))
    assert named == {script.__name__ for script in keras_scripts.SCRIPTS}


# What Keras's guides and examples for images use most, where Keras has it.
NAMES = [
    "Input", "Model", "Sequential", "models.load_model", "utils.PyDataset", "utils.image_dataset_from_directory",
    "utils.plot_model", "utils.to_categorical", "layers.Activation", "layers.Add", "layers.AveragePooling2D",
    "layers.BatchNormalization", "layers.Concatenate", "layers.Conv1D", "layers.Conv2D", "layers.Conv2DTranspose",
    "layers.Dense", "layers.DepthwiseConv2D", "layers.Dropout", "layers.Embedding", "layers.Flatten",
    "layers.GlobalAveragePooling1D", "layers.GlobalAveragePooling2D", "layers.GlobalMaxPooling2D", "layers.Lambda",
    "layers.Layer", "layers.LayerNormalization", "layers.LeakyReLU", "layers.MaxPooling2D",
    "layers.MultiHeadAttention", "layers.Multiply", "layers.Normalization", "layers.Permute",
    "layers.RandomBrightness", "layers.RandomContrast", "layers.RandomCrop", "layers.RandomFlip",
    "layers.RandomRotation", "layers.RandomTranslation", "layers.RandomZoom", "layers.ReLU", "layers.Rescaling",
    "layers.Reshape", "layers.Resizing", "layers.SeparableConv2D", "layers.Softmax", "layers.UpSampling2D",
    "layers.ZeroPadding2D", "layers.add", "layers.concatenate", "losses.BinaryCrossentropy",
    "losses.CategoricalCrossentropy", "losses.MeanSquaredError", "losses.SparseCategoricalCrossentropy",
    "metrics.BinaryAccuracy", "metrics.CategoricalAccuracy", "metrics.Mean", "metrics.SparseCategoricalAccuracy",
    "metrics.SparseTopKCategoricalAccuracy", "optimizers.Adam", "optimizers.AdamW", "optimizers.RMSprop",
    "optimizers.SGD", "optimizers.schedules.CosineDecay", "optimizers.schedules.ExponentialDecay",
    "callbacks.Callback", "callbacks.EarlyStopping", "callbacks.LearningRateScheduler", "callbacks.ModelCheckpoint",
    "callbacks.ReduceLROnPlateau", "callbacks.TensorBoard", "regularizers.L2",
]  # fmt: skip


def test_most_used_names() -> None:
    missing = []
    for name in NAMES:
        try:
            attrgetter(name)(keras)
        except AttributeError:
            missing.append(name)
    assert missing == ["layers.MultiHeadAttention"]
    for name in missing:
        assert name.rpartition(".")[2] in PAGE
