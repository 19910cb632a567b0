"""Data in standard form: what is copied and what is not, and what counts as a loader."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from minicnn.backends import get_backend
from minicnn.data import Loader
from minicnn.data.forms import Batches, as_data, as_list, host, numeric
from minicnn.loop.adapters import on_backend
from minicnn.loop.batches import ArraySource
from minicnn.loop.standardizer import Standardizer
from minicnn.losses import MeanSquaredError, SparseCategoricalCrossentropy
from support.model_cases import FAST, to_library
from support.steps import arrays_of

IMAGES = np.arange(24, dtype="uint8").reshape(4, 6)
LABELS = np.asarray([0, 1, 2, 1], "int32")


def standardizer(backend: str, loss: Any = None, dtype: str = "float32") -> Standardizer:
    return Standardizer(get_backend(backend), dtype, [(6,)], [(3,)], [loss or SparseCategoricalCrossentropy()])


@pytest.mark.parametrize("backend", FAST)
def test_images_stay_small_until_the_program_scales_them(backend: str) -> None:
    run = standardizer(backend).batch(IMAGES, LABELS.astype("int64"))
    feed, arrays = run.feed, run.arrays
    assert (feed.batch, str(feed.x[0]), str(feed.y[0])) == (4, "uint8[4,6]", "int32[4]")
    assert (feed.weight, feed.gathered) == (None, False)
    assert get_backend(backend).owns(arrays["x"])
    assert str(arrays["x"].dtype).endswith("uint8")
    run = standardizer(backend).batch(IMAGES.astype("int16"), LABELS, np.ones(4))
    feed, arrays = run.feed, run.arrays
    assert (str(feed.x[0]), feed.weight) == ("float32[4,6]", ())
    assert str(arrays["sample_weight"].dtype).endswith("float32")


@pytest.mark.parametrize("backend", FAST)
def test_arrays_in_their_form_are_not_copied(backend: str) -> None:
    x, y = (to_library(a, backend) for a in (IMAGES.astype("float32"), LABELS))
    arrays = standardizer(backend).batch(x, y).arrays
    assert arrays["x"] is x
    assert arrays["y"] is y


def test_cpu_tensors_reach_numpy_without_a_copy() -> None:
    torch = pytest.importorskip("torch")
    x = torch.tensor(IMAGES)
    arrays = standardizer("numpy").batch(x, LABELS).arrays
    assert np.may_share_memory(arrays["x"], x.numpy())


def test_whole_arrays_go_to_the_device_once() -> None:
    source = ArraySource(standardizer("numpy"), [IMAGES], LABELS, None, batch_size=3, last_batch="keep")
    assert len(source) == 2
    batches = [arrays_of(run) for run in source.runs(shuffle=False, seed=0, epoch=0)]
    assert all(b["x"] is batches[0]["x"] for b in batches)
    assert [b["index"].tolist() for b in batches] == [[0, 1, 2], [3]]
    assert [arrays_of(run)["index"].tolist() for run in source.runs(shuffle=False, seed=0, epoch=0, skip=1)] == [[3]]


def test_targets_take_the_model_s_type() -> None:
    run = standardizer("numpy", MeanSquaredError(), "float64").batch(IMAGES, np.ones((4, 3), "uint8"))
    feed, arrays = run.feed, run.arrays
    assert str(feed.y[0]) == "float64[4,3]"
    assert arrays["y"].dtype == "float64"


@pytest.mark.parametrize(
    ("data", "count", "found"),
    [
        (IMAGES, 1, 1), ([IMAGES], 1, 1), ([IMAGES, IMAGES], 1, 2), ((IMAGES, IMAGES), 2, 2), ([[1, 2], [3, 4]], 1, 1),
        ([[1, 2], [3, 4]], 2, 2), ([np.int64(1), np.int64(2)], 1, 1), ([], 1, 1), ((1, 2, 3), 1, 1),
    ],
)  # fmt: skip
def test_several_arrays_or_one(data: Any, count: int, found: int) -> None:
    assert len(as_list(data, count)) == found


@pytest.mark.parametrize(
    ("x", "loader"),
    [
        (IMAGES, False), ([IMAGES, IMAGES], False), ((IMAGES, LABELS), False), ([[1, 2], [3, 4]], False), ([], False),
        ({"x": IMAGES}, False), ("text", False), (b"bytes", False), (3, False), (None, False),
        ([(1, 2), (3, 4)], False),
        ([(IMAGES, LABELS)], True), ([(IMAGES,)], True), ([([IMAGES, IMAGES], [LABELS])], True),
        (iter([IMAGES]), True), (range(3), True), (Loader(IMAGES, LABELS), True), ([IMAGES, (IMAGES, LABELS)], False),
    ],
)  # fmt: skip
def test_what_is_a_loader(x: Any, loader: bool) -> None:
    assert isinstance(as_data(x), Batches) is loader


def test_numbers() -> None:
    assert numeric(IMAGES, "x") is IMAGES
    assert numeric([[1, 2]], "x").shape == (1, 2)
    assert numeric(np.float32(3), "x").shape == ()
    assert host([1.0]).dtype == "float64"
    assert host(IMAGES) is IMAGES
    assert on_backend(np.ones(2, ">f4"), get_backend("numpy")).dtype == "=f4"
