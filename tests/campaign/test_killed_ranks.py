"""Ranks of a training are killed at random moments, and others, more or fewer, go on: no bit is another."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from minicnn.distribution import DataParallel
from support.campaign import size
from support.distributed import data, digest, normalized
from support.launchers import MPIEXEC, mpiexec

pytestmark = pytest.mark.no_cover
pytest.importorskip("mpi4py", reason="mpi4py is not installed: the extra mpi")
if MPIEXEC is None:
    pytest.skip("mpi4py is installed, but there is no mpiexec", allow_module_level=True)


@pytest.fixture(scope="module")
def undisturbed() -> str:
    model = normalized("numpy", DataParallel(8))
    model.fit(*data(), 12, 3, verbose=0)
    return digest(model)


@pytest.mark.parametrize("seed", range(size(30, 1)))
def test_ranks_killed_at_random_moments(seed: int, undisturbed: str, tmp_path: Path) -> None:
    rng, folder, ranks = random.Random(seed), str(tmp_path / "backup"), 0
    for _ in range(rng.randint(1, 3)):
        ranks = rng.choice([n for n in range(1, 5) if n != ranks])
        moment, killed = rng.randint(0, 800), rng.randrange(ranks)  # milliseconds
        done = mpiexec(ranks, "time", str(moment), str(killed), folder)
        # It may have been ready before, and with it went the back-up.
        assert done.returncode != 0 or done.stdout.split() == [undisturbed]
    ranks = rng.choice([n for n in range(1, 5) if n != ranks])
    done = mpiexec(ranks, "end", "0", folder)
    assert done.stdout.split() == [undisturbed], done.stderr
