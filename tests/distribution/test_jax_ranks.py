"""Ranks that jax.distributed connects, and steps whose collectives are inside the jit."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from minicnn.distribution import DataParallel, JaxCommunicator
from minicnn.distribution.schedule import RankSchedule
from minicnn.ops.groups import Group
from minicnn.program.graph import Program
from support.campaign import FULL
from support.distributed import MODELS, data, digest, normalized, trained
from support.launchers import jax_processes, patience, results

pytest.importorskip("jax")
pytestmark = pytest.mark.no_cover


@pytest.mark.parametrize("ranks", [2, 3, 4] if FULL else [2])
def test_weights_are_the_same_bits_on_any_number_of_ranks(ranks: int) -> None:
    """Two and four ranks have the sums of four shards inside the jit; three have them between its parts."""
    names = [*MODELS, "loaded"] if FULL else ["loaded"]  # one dense layer: each process compiles its own
    alone = results(jax_processes(1, "train", "jax", "2", *names, SHARDS="4"), 1)
    made = results(jax_processes(ranks, "train", "jax", "2", *names, *["fast"] * FULL, SHARDS="4"), ranks)
    if FULL:
        assert made.pop("fast")[1] == pytest.approx(trained("fast", "jax", DataParallel(ranks), 2)[1])
    assert made == alone


@pytest.mark.parametrize(
    ("shards", "ranks", "expected"), [(8, 2, True), (8, 8, True), (12, 3, True), (8, 3, False), (12, 2, False)]
)
def test_one_jit_is_for_ranks_that_compute_alike(shards: int, ranks: int, expected: bool) -> None:
    from minicnn.backends._jax_ranks import fits

    def schedule(batch: int) -> RankSchedule:
        return RankSchedule(Program("step"), Group(shards, 0, ranks), batch, range(batch), frozenset())

    assert fits(schedule(4 * shards)) == expected
    assert not fits(schedule(4 * shards + 1))


@pytest.mark.night("tests/distribution/test_mpi.py::test_a_rank_that_hangs_is_named_at_the_deadline")
def test_a_rank_that_hangs_is_named_at_the_deadline() -> None:
    start, timeout = time.monotonic(), patience(3)
    done = jax_processes(2, "hang", "4", TIMEOUT=str(timeout))
    assert done.returncode != 0
    assert f"within timeout={timeout} seconds. Received by rank 0: no answer from rank 1" in done.stderr
    assert time.monotonic() - start < 20 * timeout


@pytest.mark.skipif(not FULL, reason="part of the campaign: MINICNN_CAMPAIGN=full")
def test_a_killed_training_goes_on_with_another_number_of_ranks(tmp_path: Path) -> None:
    done = jax_processes(3, "kill", "4", str(tmp_path / "backup"))
    assert "the connection to a rank that has ended, 2" in done.stderr
    assert "OSError: the disk is gone" in jax_processes(2, "raise", "9", str(tmp_path / "backup")).stderr
    done = jax_processes(4, "end", "0", str(tmp_path / "backup"))
    undisturbed = normalized("numpy", DataParallel(8))
    undisturbed.fit(*data(), 12, 3, verbose=0)
    assert done.stdout.split()[-1] == digest(undisturbed), done.stderr


def test_what_stays_on_a_rank_may_be_read_only() -> None:
    """As arrays of JAX are: nothing is written to it."""
    kept, made = np.ones(4, np.float32), np.empty(2, np.float32)
    kept.flags.writeable = False
    ranks = object.__new__(JaxCommunicator)
    ranks._take(np.array([[0] * 8, [0, 0, 128, 63] * 2], np.uint8), [kept[:0], made])
    assert made.tolist() == [1.0, 1.0]
