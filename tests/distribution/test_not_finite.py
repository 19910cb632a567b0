"""A loss that is NaN or infinite on one of several ranks, which are threads here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minicnn.backends.numpy import NumpyBackend
from minicnn.callbacks import BackupAndRestore, LambdaCallback, TerminateOnNaN
from minicnn.distribution import DataParallel, Pipeline, RankError
from minicnn.distribution.passes import ADDED, FINITE
from minicnn.files import read_tensors
from support.distributed import CLASSES, SHARDS, STAGES, data, digest, normalized, on_ranks, plain, trained_by
from support.ranks import ThreadRanks


@pytest.mark.filterwarnings("ignore:Inputs are finite numbers")
@pytest.mark.parametrize(("ranks", "sample", "whose"), [(2, 3, "samples of rank 0"), (3, 11, "samples of rank 2")])
def test_a_loss_that_is_not_finite_ends_all_ranks(ranks: int, sample: int, whose: str, tmp_path: Path) -> None:
    """With one error, and the back-up of before; BackupAndRestore goes on from it."""
    x, y = data()
    bad = x.copy()
    bad[24 + sample] = np.nan  # in the third batch
    told: list[str] = []

    def work(distribution: DataParallel, given: Any) -> str:
        model = plain("numpy", distribution)
        model.fit(given, y, 12, verbose=0, shuffle=False, callbacks=[BackupAndRestore(tmp_path / "b", save_freq=1)])
        return digest(model)

    def failing(distribution: DataParallel) -> None:
        try:
            work(distribution, bad)
        except RankError as error:
            told.append(str(error))

    on_ranks(ranks, failing)
    assert len(told) == ranks
    assert len(set(told)) == 1
    assert f"Received in step 3: nan, from {whose}. Look for NaN" in told[0]
    undisturbed = plain("numpy", DataParallel(SHARDS))
    undisturbed.fit(x, y, 12, verbose=0, shuffle=False)
    assert set(on_ranks(2, lambda d: work(d, x))) == {digest(undisturbed)}


def test_weights_that_are_not_finite_end_all_ranks_and_are_not_backed_up(tmp_path: Path) -> None:
    def work(distribution: DataParallel) -> None:
        def damage(batch: int, logs: Any) -> None:
            if model.steps_taken == 2:
                model.set_weights({"dense/bias": np.full(CLASSES, np.nan, "float32")})

        model = plain("numpy", distribution)
        backup = BackupAndRestore(tmp_path / "b", save_freq=1)
        model.fit(*data(), 12, verbose=0, callbacks=[LambdaCallback(on_train_batch_end=damage), backup])

    with pytest.raises(RankError, match=r"Received in step 3: nan, from all ranks, as where weights are not finite\."):
        on_ranks(2, work)
    tensors, about = read_tensors(tmp_path / "b" / "backup.safetensors")
    assert about["state"]["model"]["steps_taken"] == 1
    assert all(np.isfinite(array).all() for array in tensors.values())


@pytest.mark.filterwarnings("ignore:Inputs are finite numbers")
def test_a_loss_that_is_not_finite_ends_a_pipeline() -> None:
    x, y = data()
    with pytest.raises(RankError, match=r"Received in step 1: nan, from samples that go through all ranks\. Look"):
        ThreadRanks(2).run(
            lambda c: trained_by("staged")("numpy", Pipeline(STAGES, shards=4, communicator=c)).fit(x * np.nan, y, 15)
        )


@pytest.mark.filterwarnings("ignore:Inputs are finite numbers")
def test_terminate_on_nan_ends_without_an_error_on_several_ranks() -> None:
    x, y = data()
    x[30] = np.nan

    def work(distribution: DataParallel) -> int:
        model = normalized("numpy", distribution)
        model.fit(x, y, 12, verbose=0, shuffle=False, callbacks=[TerminateOnNaN()])
        return model.steps_taken

    assert on_ranks(2, work) == [3, 3]


def test_the_first_of_several_steps_that_is_not_finite_is_named() -> None:
    """Of steps that a backend takes at once: which one, and by whose samples."""
    nan = np.nan
    # Of each step the loss, and whether what this rank has added on two levels was finite.
    rows = [[[1, 0, 0], [2, 0, 0], [nan, 0, nan], [nan, nan, nan]], [[1, 0, 0], [2, 0, 0], [nan, nan, nan], [nan] * 3]]

    def work(distribution: DataParallel) -> str:
        told = np.array(rows[distribution.rank], "float32")
        results = {"loss": told[-1, 0], f"{ADDED}0.0.x": told[-1], FINITE: told, f"{ADDED}3.0.y": told[-1]}
        distribution.check_each({**results, FINITE: told[:2]}, 5, NumpyBackend())
        with pytest.raises(RankError) as error:
            distribution.check_each(results, 5, NumpyBackend())
        return str(error.value)

    for told in on_ranks(2, work):
        assert "Received in step 7: nan, from samples of rank 1. Look for NaN" in told
