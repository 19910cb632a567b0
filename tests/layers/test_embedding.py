"""The table of an Embedding: what it gives, what it learns, in which types, and in parts of a batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from minicnn import Sequential
from minicnn.layers import Embedding, Flatten, Input
from minicnn.optimizers import SGD
from support.tolerances import SUM

X = np.asarray([[0, 301, 4099], [2, 2, 4801]])


def model(backend: str = "numpy", **options: Any) -> Sequential:
    made = Sequential([Input((3,), dtype="int32"), Embedding(5000, 2)], backend=backend)
    made.compile(SGD(1.0), "mse", **options)
    return made


@pytest.mark.parametrize(("backend", "precision"), [("numpy", "float32"), ("torch", "mixed_bfloat16")])
def test_rows_of_the_table(backend: str, precision: str) -> None:
    """Numbers of rows are exact where images are short: bfloat16 holds whole numbers up to 256."""
    embedding = model(backend, precision=precision)
    table = embedding.get_weights()["embedding/embeddings"]
    np.testing.assert_allclose(embedding.predict(X), table[X], rtol=0.01)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_step_changes_the_rows_that_are_read(accumulate: int) -> None:
    embedding = model(accumulate=accumulate)
    before = embedding.get_weights()["embedding/embeddings"]
    embedding.train_on_batch(X, np.zeros((2, 3, 2)))
    expected = before.copy()
    for row, count in zip(*np.unique(X, return_counts=True), strict=True):
        expected[row] -= count * 2 * before[row] / 12  # the loss is the mean of 12 squares
    np.testing.assert_allclose(embedding.get_weights()["embedding/embeddings"], expected, rtol=SUM)


def test_shapes_and_arguments() -> None:
    assert Sequential([Input((4, 5)), Embedding(7, 3), Flatten()]).output_shape == (None, 60)
    assert Embedding(7, 3, embeddings_regularizer="l2").get_config()["embeddings_initializer"] == "uniform"
    with pytest.raises(ValueError, match="input_dim is an integer of at least 1"):
        Embedding(0, 3)
