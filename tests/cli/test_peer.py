"""The peer trains the same networks with PyTorch's own modules and autograd."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from minicnn.jobs import job
from minicnn.jobs.settings import Settings
from minicnn.measure import Probe, parity
from minicnn.measure import torch_peer as peer
from minicnn.measure.trainer import Work
from minicnn.measure.trainers import trainer
from support.command_line import settings_of
from support.tolerances import DOUBLE, STEP

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


def trained(name: str, settings: Settings, data: job.Samples) -> tuple[list[dict[str, Any]], dict[str, float], Probe]:
    """The rows of all epochs, the test, and loss and gradients of the first batch before."""
    one = trainer(name, settings, work=Work(load=lambda _: data))
    probe = one.probe()
    return one.train(settings.epochs), one.evaluate("test"), probe


@pytest.mark.parametrize("network", peer.NETWORKS)
@pytest.mark.parametrize("held_out", [False, True])
def test_peer_and_minicnn_end_with_the_same_numbers(network: str, held_out: bool) -> None:
    settings, data = small(network), samples(held_out=held_out)
    (rows, test, probe), (theirs, their_test, their_probe) = (
        trained(name, settings, data) for name in ("numpy", "torch.nn:cpu")
    )
    assert [row["epoch"] for row in theirs] == [1, 2, 3]
    for ours, other in zip(rows, theirs, strict=True):
        assert ours.keys() == other.keys() == set(job.COLUMNS)
        for column in ("epoch", "loss", "accuracy", "val_loss", "val_accuracy"):
            assert other[column] == pytest.approx(ours[column], rel=DOUBLE)
        assert other["samples_per_s"] * other["time_s"] == pytest.approx(
            24 if network in ("platforms", "lenet_3x3") else 22
        )
    for key in ("loss", "accuracy"):
        assert their_test[key] == pytest.approx(test[key], rel=DOUBLE)
    assert parity({"ours": probe, "theirs": their_probe}, "ours", DOUBLE) == {}


def test_in_float32_they_agree_as_floats_do() -> None:
    settings, data = small("kernels", precision="float32", epochs=1), samples()
    ours, theirs = (trained(name, settings, data) for name in ("numpy", "torch.nn:cpu"))
    assert theirs[0][0]["val_loss"] == pytest.approx(ours[0][0]["val_loss"], rel=STEP)
    assert all(gradient.dtype == np.float32 for gradient in theirs[2].gradients.values())


def test_a_full_batch_is_taken_in_order() -> None:
    settings, data = small("mlp", batch_size=None, epochs=2), samples()
    (ours, *_), (theirs, *_) = (trained(name, settings, data) for name in ("numpy", "torch.nn:cpu"))
    assert [row["loss"] for row in theirs] == pytest.approx([row["loss"] for row in ours], rel=DOUBLE)


@pytest.mark.parametrize("batch_size", [None, 8])
def test_other_looks_are_at_other_batches_for_both(batch_size: int | None) -> None:
    settings, data = small("mlp", batch_size=batch_size), samples()
    ours, theirs = (trainer(name, settings, work=Work(load=lambda _: data)) for name in ("numpy", "torch.nn:cpu"))
    losses = set()
    for look in (0, 1, 2):
        probes = {"ours": ours.probe(look), "theirs": theirs.probe(look)}
        assert parity(probes, "ours", DOUBLE) == {}
        losses.add(probes["ours"].loss)
    assert len(losses) == 3


@pytest.mark.parametrize(
    ("network", "precision", "expected"),
    [("mlp", "float32", True), ("lenet5", "float32", False), ("mlp", "mixed_bfloat16", False)],
)
def test_where_it_takes_part(network: str, precision: str, expected: bool) -> None:
    assert peer.takes_part(small(network, precision=precision)) is expected
