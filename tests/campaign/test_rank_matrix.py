"""After 50 steps, 15 by day, weights and logs are the same bits on 1, 2, 3 and 4 ranks, of each backend and strategy.

In full it is for the MPI whose mpiexec is found: MPICH here, Open MPI in an environment that has its wheel.
"""

from __future__ import annotations

import pytest

from minicnn.distribution import DataParallel
from support.campaign import FULL
from support.distributed import MODELS, trained
from support.launchers import MPIEXEC, jax_processes, mpiexec, results, torchrun
from support.tolerances import STEP

pytestmark = pytest.mark.no_cover

EPOCHS = "13" if FULL else "4"  # of 4 or 5 batches, of which the last has fewer samples than there are shards, or does not divide
# Clipping, batch normalisation, dropout and several outputs are among the models; the others have these strategies.
STRATEGIES = ["split", "hybrid", "staged", "loaded", "mixed"]
EVERY, FEW = [*MODELS, *STRATEGIES], ["normalized", "split", "staged", "mixed"]
WITHOUT = {"jax": {"staged"}}  # ranks that only compute all together
STARTED = {"numpy": mpiexec, "numba": mpiexec, "torch": torchrun, "jax": jax_processes}


@pytest.mark.parametrize("backend", STARTED if FULL else ["numpy"])
def test_any_number_of_ranks_leaves_the_same_bits(backend: str) -> None:
    start = STARTED[backend]
    if start is mpiexec:
        pytest.importorskip("mpi4py", reason="mpi4py is not installed: the extra mpi")
        if MPIEXEC is None:
            pytest.skip("mpi4py is installed, but there is no mpiexec")
    names = (
        [name for name in EVERY if name not in WITHOUT.get(backend, ())]
        if FULL
        else ["normalized", "mixed"]  # the others are in tests/distribution/test_torchrun.py
    )
    alone = results(start(1, "train", backend, EPOCHS, *names), 1)
    for ranks in (2, 3, 4) if FULL else (3,):
        made = results(start(ranks, "train", backend, EPOCHS, *names, "fast"), ranks)
        # The engine's own sums are in no tree.
        expected = trained("fast", backend, DataParallel(ranks), int(EPOCHS))[1]
        assert made.pop("fast")[1] == pytest.approx(expected, rel=STEP)
        assert made == alone
