"""The peer trains the same networks with PyTorch's own modules and autograd."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from minicnn.bench import torch_peer as peer
from minicnn.cli.worker import after_one_step
from minicnn.jobs import job
from minicnn.jobs.settings import Settings
from support.command_line import settings_of

torch = pytest.importorskip("torch")

SHAPE = (13, 16, 3)  # neither square nor grey, so that no layout can be mistaken for another
CLASSES = 4


def samples(*, held_out: bool = False) -> job.Samples:
    rng = np.random.default_rng(0)
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    for part, n in (("train", 22), ("test", 9), ("val", 5)):
        arrays[f"x_{part}"] = rng.integers(0, 256, (n, *SHAPE), np.uint8)
        arrays[f"y_{part}"] = rng.integers(0, CLASSES, n).astype(np.int32)
    if not held_out:
        arrays |= {"x_val": arrays["x_test"], "y_val": arrays["y_test"]}
    return job.Samples(arrays, CLASSES)


def small(network: str, **given: Any) -> Settings:
    settings = {"epochs": 3, "batch_size": 8, "learning_rate": 0.05, "momentum": 0.9, "precision": "float64"}
    return settings_of(network, **{**settings, "seed": 1, "hold_out": 0, **given})


@pytest.mark.parametrize("network", peer.NETWORKS)
@pytest.mark.parametrize("held_out", [False, True])
def test_peer_and_minicnn_end_with_the_same_numbers(network: str, held_out: bool) -> None:
    settings, data = small(network), samples(held_out=held_out)
    backend = job.open_backend("numpy", "float64")
    model = job.make_model(settings, data, backend)
    first = model.get_weights()
    rows = job.fit(model, settings, data, verbose=0)
    told: list[dict[str, Any]] = []
    trained = peer.train(settings, data, first, told.append)

    assert told == trained.rows
    for ours, theirs in zip(rows, trained.rows, strict=True):
        for column in ("epoch", "loss", "accuracy", "val_loss", "val_accuracy"):
            assert theirs[column] == pytest.approx(ours[column], rel=1e-9)
        taken = 24 if network in ("platforms", "lenet_3x3") else 22  # whose last batch is filled up
        assert theirs["samples_per_s"] * theirs["time_s"] == pytest.approx(taken)
    assert trained.test == pytest.approx(job.judge(model, settings, data, rows), rel=1e-9)
    for expected, found in (
        (after_one_step(settings, data, backend), trained.first),
        (model.get_weights(), trained.final),
    ):
        assert found.keys() == expected.keys()
        for path, array in expected.items():
            np.testing.assert_allclose(found[path], array, rtol=1e-9, atol=1e-12, err_msg=path)


def test_in_float32_they_agree_as_floats_do() -> None:
    settings, data = small("kernels", precision="float32", epochs=1), samples()
    model = job.make_model(settings, data, job.open_backend("numpy", "float32"))
    trained = peer.train(settings, data, model.get_weights(), lambda row: None)
    job.fit(model, settings, data, verbose=0)
    for path, array in model.get_weights().items():
        assert trained.final[path].dtype == np.float32
        np.testing.assert_allclose(trained.final[path], array, rtol=1e-4, atol=1e-5)


def test_a_full_batch_is_taken_in_order() -> None:
    settings, data = small("mlp", batch_size=None, epochs=2), samples()
    model = job.make_model(settings, data, job.open_backend("numpy", "float64"))
    trained = peer.train(settings, data, model.get_weights(), lambda row: None)
    rows = job.fit(model, settings, data, verbose=0)
    assert [row["loss"] for row in trained.rows] == pytest.approx([row["loss"] for row in rows], rel=1e-12)


@pytest.mark.parametrize(
    ("network", "precision", "expected"),
    [("mlp", "float32", True), ("lenet5", "float32", False), ("mlp", "mixed_bfloat16", False)],
)
def test_where_it_takes_part(network: str, precision: str, expected: bool) -> None:
    assert peer.takes_part(small(network, precision=precision)) is expected
