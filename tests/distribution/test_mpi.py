"""Ranks that are processes: started by mpiexec, where mpi4py and an MPI library are installed.

That their weights are the same bits after 50 steps is in tests/campaign/test_rank_matrix.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from minicnn.distribution import DataParallel, MPICommunicator, RankError
from minicnn.distribution.communicators import Ranks
from support.campaign import FULL
from support.distributed import MODELS, data, digest, normalized, trained
from support.launchers import MPIEXEC, mpiexec, patience, results

pytest.importorskip("mpi4py", reason="mpi4py is not installed: the extra mpi")
if MPIEXEC is None:
    pytest.skip("mpi4py is installed, but there is no mpiexec", allow_module_level=True)


@pytest.mark.night("tests/campaign/test_rank_matrix.py::test_any_number_of_ranks_leaves_the_same_bits")
def test_other_models_on_four_ranks() -> None:
    names = [*(name for name in MODELS if name != "normalized"), "loaded"]
    alone = {name: trained(name, "numpy", DataParallel(8)) for name in names}
    assert results(mpiexec(4, "train", "numpy", "1", *names), 4) == alone


@pytest.mark.night("tests/distribution/test_data_parallel.py::test_other_backends_on_ranks")
def test_another_backend_on_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX's ranks are in test_jax_ranks.py, PyTorch's in test_torchrun.py."""
    pytest.importorskip("numba")
    monkeypatch.setenv("MINICNN_THREADS", "1")
    alone = {"dense": trained("dense", "numba", DataParallel(8), 2)}
    assert results(mpiexec(2, "train", "numba", "2", "dense"), 2) == alone


def test_a_rank_that_fails_ends_the_others() -> None:
    done = mpiexec(3, "raise", "4")
    assert done.returncode != 0
    assert "OSError: the disk is gone" in done.stderr


def test_a_rank_that_meets_nan_ends_all(tmp_path: Path) -> None:
    done = mpiexec(3, "nan", "2", str(tmp_path / "backup"))
    assert done.returncode != 0
    errors = [line for line in done.stderr.splitlines() if "RankError: " in line]
    assert errors
    for line in errors:
        assert "finite number. Received in step 3: nan, from samples of rank 2. Look for NaN" in line
    assert (tmp_path / "backup" / "backup.safetensors").exists()


def test_a_rank_that_hangs_is_named_at_the_deadline() -> None:
    start, timeout = time.monotonic(), patience(3)  # within which all begin as well
    done = mpiexec(3, "hang", "4", TIMEOUT=str(timeout))
    assert done.returncode != 0
    assert f"within timeout={timeout} seconds. Received by rank" in done.stderr
    assert "no answer from rank 2" in done.stderr
    assert time.monotonic() - start < 10 * timeout


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("how", "who"), [("alone", "rank 0"), ("absent", "process ")])
def test_a_communicator_has_a_deadline(how: str, who: str) -> None:
    """Whether another rank never begins, or makes no second one."""
    start, timeout = time.monotonic(), patience(2)
    done = mpiexec(2, how, TIMEOUT=str(timeout))
    assert done.returncode != 0
    assert f"within timeout={timeout} seconds. Received by {who}" in done.stderr
    assert "no answer from another, which has ended or makes none. Look at" in done.stderr
    assert time.monotonic() - start < 10 * timeout


def test_communicators_that_are_gone_are_freed() -> None:
    done = mpiexec(2, "many")
    assert "".join(done.stdout.split()) == "2200" * 2, done.stderr  # what ranks print may stand in one line


def test_ranks_that_part_are_named_as_such() -> None:
    done = mpiexec(2, "part", TIMEOUT=str(patience(5)))
    assert done.returncode != 0
    assert "Received by rank 0: all ranks answer, but do not compute the same. Let every rank call" in done.stderr


@pytest.mark.parametrize("length", [-5, 1 << 60])
def test_no_message_has_such_a_length(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = object.__new__(MPICommunicator)
    Ranks.__init__(ranks, 0, 1, 5.0)
    monkeypatch.setattr(ranks, "gather", lambda given, taken: taken[0].fill(length))
    with pytest.raises(RankError, match="but do not compute the same"):
        ranks.share(b"")


def test_a_killed_training_goes_on_with_another_number_of_ranks(tmp_path: Path) -> None:
    for ranks, step in ((3, 4), (2, 9)) if FULL else ((3, 4),):
        assert mpiexec(ranks, "kill", str(step), str(tmp_path / "backup")).returncode != 0
    done = mpiexec(4 if FULL else 2, "end", "0", str(tmp_path / "backup"))
    undisturbed = normalized("numpy", DataParallel(8))
    undisturbed.fit(*data(), 12, 3, verbose=0)
    assert done.stdout.split() == [digest(undisturbed)], done.stderr


@pytest.mark.sampled(1)
@pytest.mark.parametrize("strategy", ["hybrid", "data"])  # of hybrid the optimizer's state is split as well
def test_the_command_trains_the_same_model_on_any_number_of_processes(tmp_path: Path, strategy: str) -> None:
    pytest.importorskip("click")
    pytest.importorskip("matplotlib")
    small = ("--samples", "100", "--epochs", "1", "--batch-size", "50", "--data", "synthetic_digits")
    shared = ("--distribute", strategy, "--shards", "2", "--timeout", "30")
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    made = set()
    for extra in ((), ("--processes", "2")):
        out = tmp_path / str(len(extra))
        done = subprocess.run(
            [sys.executable, "-m", "minicnn", "train", "lenet5", *small, *shared, *extra, "--out", str(out)],
            capture_output=True, text=True, check=False, timeout=100,
            env={**os.environ, "MINICNN_THREADS": "1", "OMP_NUM_THREADS": "1", **root},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("test accuracy") == 1
        made.add((out / "model.safetensors").read_bytes())
    assert len(made) == 1


@pytest.mark.night("tests/distribution/test_mpi.py::test_a_rank_that_fails_ends_the_others")
def test_fifty_jobs_end_with_status_0() -> None:
    for _ in range(50):
        assert mpiexec(2, "train", "numpy", "1", "dense").returncode == 0
